package baton.bench.serve;

import java.util.Optional;

/**
 * A request and its answer. Times are {@link System#nanoTime}'s, distances in ns.
 *
 * <p>The figures with vLLM's names are measured as vLLM does, from {@code sent}. A client that sends late, because it waits for a
 * connection, a permit or the processor, hides time by that; figures from {@code due} do not.
 *
 * @param due when it was to be sent
 * @param arrived when the client came to it
 * @param sent when it was sent, which is later than {@code arrived} only if the number of requests at once is bounded
 * @param first from {@code sent} to the first event with a choice
 * @param between from each such event to the next
 * @param promptTokens as the server counts them, else as the client does
 * @param outputTokens as the server counts them; 0 if it reports none
 * @param text of the answer
 * @param error why it failed; empty if it did not
 */
public record Exchange(
        long due,
        long arrived,
        long sent,
        long first,
        long[] between,
        int promptTokens,
        int outputTokens,
        String text,
        Optional<String> error) {
    private static final double SECOND = 1e-9;

    public boolean succeeded() {
        return error.isEmpty();
    }

    /** The time from {@code sent} to the last event with a choice; ns. */
    public long latency() {
        long sum = first;
        for (long each : between) {
            sum += each;
        }
        return sum;
    }

    /** Tokens of the answer: as many as events if the server reports no count. */
    public int tokens() {
        return outputTokens > 0 ? outputTokens : succeeded() ? between.length + 1 : 0;
    }

    double ttftSeconds() {
        return first * SECOND;
    }

    double latencySeconds() {
        return latency() * SECOND;
    }

    /** Time a token after the first; 0 if there is no more than one. */
    double tpotSeconds() {
        return tokens() > 1 ? (latency() - first) * SECOND / (tokens() - 1) : 0;
    }

    double queuedSeconds() {
        return (sent - arrived) * SECOND;
    }

    /** How much later it was sent than it was due. */
    public long late() {
        return Math.max(0, sent - due);
    }
}
