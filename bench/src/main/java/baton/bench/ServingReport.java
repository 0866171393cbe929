package baton.bench;

import baton.engine.StepPhase;
import baton.engine.StepProfile;
import baton.engine.StepProfile.Percentile;
import java.io.PrintWriter;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.stream.DoubleStream;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/**
 * Results of {@link ServingBench}: a model's requests through a whole engine.
 *
 * @param leftOut cases without time, a line each
 */
public record ServingReport(String name, List<Decode> decodes, Optional<FirstToken> firstToken, List<String> leftOut) {
    /**
     * Steps that decode one token of each sequence.
     *
     * @param sampled whether tokens are drawn at random and not the most probable
     * @param timing of steps, from the end of the one before
     * @param profile their phases
     */
    public record Decode(int sequences, boolean sampled, Timing timing, StepProfile.Summary profile) {
        public double tokensPerSecond() {
            return sequences / timing.best();
        }

        /** Median nanoseconds of a step in which the model does not compute. */
        public double overheadNanos() {
            return profile.percentiles().getFirst().overhead();
        }

        private String what() {
            return "decode " + sequences + (sampled ? ", top_p 0.95" : "");
        }
    }

    /**
     * From a prompt's submission to its first token.
     *
     * @param cachedTokens of the prompt when it came again; the rest was computed again
     * @param hit when it came again
     */
    public record FirstToken(int promptTokens, int cachedTokens, Timing cold, Timing hit) {
        /** The share of recompute's time that a hit takes, by medians. */
        public double share() {
            return hit.median() / cold.median();
        }
    }

    /** @param forward tokens/s of forward passes alone, the batches in the same order; missing batches are not compared */
    void print(PrintWriter out, List<EngineReport.Decode> forward) {
        if (!decodes.isEmpty()) {
            out.printf(
                    Locale.ROOT,
                    "  %-24s %10s %10s %8s %10s %10s %10s %10s%n",
                    "through the engine",
                    "tokens/s",
                    "median",
                    "steps",
                    "ms/step",
                    "of forward",
                    "overhead",
                    "p99 us");
        }
        for (Decode decode : decodes) {
            List<Percentile> percentiles = decode.profile().percentiles();
            out.printf(
                    Locale.ROOT,
                    "  %-24s %10.1f %10.1f %8d %10.2f %10s %7.0f us %10.0f%n",
                    decode.what(),
                    decode.tokensPerSecond(),
                    decode.sequences() / decode.timing().median(),
                    decode.timing().repetitions(),
                    decode.timing().best() * 1e3,
                    ofForward(decode, forward)
                            .mapToObj(share -> "%.1f%%".formatted(share * 100))
                            .findFirst()
                            .orElse(""),
                    percentiles.getFirst().overhead() / 1e3,
                    percentiles.getLast().overhead() / 1e3);
        }
        firstToken.ifPresent(first -> out.printf(
                Locale.ROOT,
                "  first token of %d tokens: %.2f ms; %.2f ms with %d of them cached, %.1f%% of it (medians of %d)%n",
                first.promptTokens(),
                first.cold().median() * 1e3,
                first.hit().median() * 1e3,
                first.cachedTokens(),
                first.share() * 100,
                first.cold().repetitions()));
    }

    /** Prints the phases of steps in microseconds. */
    void printProfile(PrintWriter out) {
        out.println(StepProfile.table(decodes.stream().map(Decode::profile).toList()));
    }

    void writeTo(ObjectNode node, List<EngineReport.Decode> forward) {
        ArrayNode decodeNodes = node.putArray("decode");
        for (Decode decode : decodes) {
            ObjectNode decodeNode = EngineReport.timing(
                            decodeNodes
                                    .addObject()
                                    .put("sequences", decode.sequences())
                                    .put("sampled", decode.sampled()),
                            decode.timing())
                    .put("tokens_per_second", decode.tokensPerSecond());
            ofForward(decode, forward).forEach(share -> decodeNode.put("share_of_forward", share));
            ArrayNode percentiles = decodeNode.putArray("step_microseconds");
            for (Percentile percentile : decode.profile().percentiles()) {
                ObjectNode times = percentiles
                        .addObject()
                        .put("percentile", percentile.share() * 100)
                        .put("total", percentile.total() / 1e3)
                        .put("overhead", percentile.overhead() / 1e3);
                for (StepPhase phase : StepPhase.values()) {
                    times.put(phase.name().toLowerCase(Locale.ROOT), percentile.phase(phase) / 1e3);
                }
            }
        }
        firstToken.ifPresent(first -> {
            ObjectNode firstNode = node.putObject("first_token")
                    .put("prompt_tokens", first.promptTokens())
                    .put("cached_tokens", first.cachedTokens())
                    .put("share_of_cold", first.share());
            EngineReport.timing(firstNode.putObject("cold"), first.cold());
            EngineReport.timing(firstNode.putObject("hit"), first.hit());
        });
    }

    private static DoubleStream ofForward(Decode decode, List<EngineReport.Decode> forward) {
        return forward.stream()
                .filter(each -> each.batch() == decode.sequences())
                .mapToDouble(each -> decode.tokensPerSecond() / each.tokensPerSecond());
    }
}
