package baton.cli;

import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.stream.IntStream;
import tools.jackson.databind.JsonNode;

/** Prompts for tiny-ledger, and the answers that were recorded for some. */
final class Ledgers {
    private static final int END = 4;
    private static final List<Case> CASES = read(Instances.MODEL.resolve("golden.json"));

    private Ledgers() {}

    /**
     * A recorded case.
     *
     * @param promptText the prompt, {@code <|bos|>} and all
     * @param answer token ids up to and including the end token
     * @param text the answer without the end token
     * @param margin the smallest lead of the best token over the second best, in logits
     */
    record Case(String name, String promptText, int[] prompt, int[] answer, String text, double margin) {
        /** Tokens that a connector hands over: all full blocks before the last token. */
        int aligned(int blockSize) {
            return Ledgers.aligned(prompt.length, blockSize);
        }

        @Override
        public String toString() {
            return name;
        }
    }

    static int aligned(int promptLength, int blockSize) {
        return (promptLength - 1) / blockSize * blockSize;
    }

    /** Cases with a clear best token in every step, in any arithmetic. */
    static List<Case> clear() {
        return CASES.stream().filter(recorded -> recorded.margin > 2).toList();
    }

    static Case named(String name) {
        return CASES.stream()
                .filter(recorded -> recorded.name.equals(name))
                .findFirst()
                .orElseThrow();
    }

    /**
     * A prompt of exactly {@code length} tokens: ledger text, other text for each {@code variant}, and as much as fits of three
     * facts and a question about them.
     */
    static int[] prompt(int length, int variant) {
        int[] facts = named("recall-40").prompt;
        int[] tail = Arrays.copyOfRange(facts, Math.max(2, facts.length - Math.max(0, length - 2)), facts.length);
        int[] ledger = CASES.stream()
                .filter(recorded -> recorded.prompt.length > 400)
                .flatMapToInt(recorded -> Arrays.stream(recorded.prompt).filter(token -> token > END))
                .toArray();
        int text = Math.max(0, length - 2 - tail.length);
        return IntStream.concat(
                        IntStream.of(0, 2).limit(length),
                        IntStream.concat(
                                IntStream.range(0, text).map(i -> ledger[(i + 131 * variant) % ledger.length]),
                                Arrays.stream(tail)))
                .toArray();
    }

    private static List<Case> read(Path file) {
        return Instances.JSON
                .readTree(file.toFile())
                .path("prompts")
                .valueStream()
                .filter(recorded -> recorded.path("tokens_to_stop").isNumber())
                .map(Ledgers::toCase)
                .toList();
    }

    private static Case toCase(JsonNode recorded) {
        int steps = recorded.path("tokens_to_stop").asInt();
        return new Case(
                recorded.path("name").asString(),
                recorded.path("prompt").asString(),
                Instances.ints(recorded.path("prompt_ids")),
                Arrays.copyOf(Instances.ints(recorded.path("output_ids")), steps),
                recorded.path("answer").asString(),
                recorded.path("margins")
                        .valueStream()
                        .limit(steps)
                        .mapToDouble(JsonNode::asDouble)
                        .min()
                        .orElseThrow());
    }
}
