package baton.router;

import baton.router.ShadowComparison.Verdict;
import baton.router.body.JsonObjectText;
import baton.router.body.PromptField;
import baton.router.metrics.RouterMetric;
import baton.router.metrics.RouterMetrics;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.nio.charset.StandardCharsets;
import java.util.Locale;
import java.util.Optional;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicInteger;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Chooses live completions that are computed a second time without a hand-over ({@link ShadowRequest}), and counts the results. Only greedy
 * answers can be compared. Any thread.
 */
final class ShadowRequests {
    private static final Logger log = LoggerFactory.getLogger(ShadowRequests.class);

    private static final int AT_ONCE = 4;
    /** The longest body of a request, in bytes. */
    private static final int LONGEST_BODY = 1 << 20;
    /** Comparisons between two lines of the log about times. */
    private static final int REPORTED_EACH = 100;

    private final double share;
    private final RouterMetrics metrics;
    private final AtomicInteger running = new AtomicInteger();

    @GuardedBy("this")
    private int compared;

    @GuardedBy("this")
    private double handedOverSeconds;

    @GuardedBy("this")
    private double aloneSeconds;

    /** @param share of the greedy completions, 0 to 1 */
    ShadowRequests(double share, RouterMetrics metrics) {
        this.share = share;
        this.metrics = metrics;
    }

    /** The request's second computation, if it is to have one. */
    Optional<ShadowRequest> choose(String path, JsonObjectText body, long now) {
        boolean chosen = share > 0
                && ThreadLocalRandom.current().nextDouble() < share
                && body.length() <= LONGEST_BODY
                && (path.equals("/v1/completions") || path.equals("/v1/chat/completions"))
                && number(body, "temperature").filter(value -> value == 0).isPresent()
                && number(body, "n").filter(value -> value != 1).isEmpty()
                && PromptField.count(body) == 1;
        return chosen ? Optional.of(new ShadowRequest(this, body, path.contains("chat"), now)) : Optional.empty();
    }

    private static Optional<Double> number(JsonObjectText body, String field) {
        try {
            return body.value(field).map(value -> Double.parseDouble(new String(value, StandardCharsets.US_ASCII)));
        } catch (NumberFormatException _) {
            return Optional.empty();
        }
    }

    /** False if as many run as may at once. */
    boolean begin() {
        if (running.incrementAndGet() <= AT_ONCE) {
            return true;
        }
        running.decrementAndGet();
        count(Verdict.SKIPPED);
        return false;
    }

    void ended() {
        running.decrementAndGet();
    }

    void count(Verdict verdict) {
        metrics.count(RouterMetric.SHADOW_REQUESTS, verdict);
    }

    /** Counts the times of both computations, in nanoseconds. */
    void times(long handedOver, long alone) {
        metrics.time(RouterMetric.SHADOW_TIME, handedOver, "handed_over");
        metrics.time(RouterMetric.SHADOW_TIME, alone, "alone");
        int count;
        double first;
        double second;
        synchronized (this) {
            handedOverSeconds += handedOver / 1e9;
            aloneSeconds += alone / 1e9;
            count = ++compared;
            first = handedOverSeconds / count;
            second = aloneSeconds / count;
        }
        if (count % REPORTED_EACH == 0) {
            log.info(
                    "{} requests were computed twice: whole answers took {} s with a hand-over and {} s by one instance, on average: {}",
                    count,
                    String.format(Locale.ROOT, "%.3f", first),
                    String.format(Locale.ROOT, "%.3f", second),
                    first <= second
                            ? "handing over pays at this load"
                            : "one instance would be faster at this load; see --local-prefill-threshold");
        }
    }
}
