package baton.grammar.automaton;

import java.util.ArrayList;
import java.util.List;

/**
 * Tokens by the repetition of one expression, as of the characters of a string: known once for all bounds of the repetition.
 *
 * @param within all tokens that are of the repetition, or begin such a text
 * @param byCount the same by how many times the expression comes in them, whole or begun
 * @param exits nodes of the vocabulary's tree at which a byte leaves the repetition, after whole ones
 * @param cameBefore how many times the expression came before each of {@code exits}
 */
record LoopTokens(long[] within, int[][] byCount, int[] exits, int[] cameBefore) {
    /** How much memory it takes, about. */
    long bytes() {
        long bytes = 64 + 8L * within.length + 8L * exits.length;
        for (int[] tokens : byCount) {
            bytes += 16 + 4L * tokens.length;
        }
        return bytes;
    }

    /** Adds the tokens in which the expression comes at most so many times. */
    void addTo(long[] mask, int most) {
        for (int i = 0; i < within.length; i++) {
            mask[i] |= within[i];
        }
        for (int count = most + 1; count > 0 && count < byCount.length; count++) {
            for (int token : byCount[count]) {
                mask[token >> 6] &= ~(1L << token);
            }
        }
    }

    /** Collects the tokens while the tree is walked over. */
    static final class Builder {
        private final long[] within;
        private final List<List<Integer>> byCount = new ArrayList<>();
        private final List<Integer> exits = new ArrayList<>();
        private final List<Integer> cameBefore = new ArrayList<>();

        Builder(int words) {
            within = new long[words];
        }

        void add(TokenVocabulary vocabulary, int node, int count) {
            while (byCount.size() <= count) {
                byCount.add(new ArrayList<>());
            }
            List<Integer> tokens = byCount.get(count);
            int before = tokens.size();
            vocabulary.addTokens(node, tokens);
            for (int token : tokens.subList(before, tokens.size())) {
                within[token >> 6] |= 1L << token;
            }
        }

        void exit(int node, int count) {
            exits.add(node);
            cameBefore.add(count);
        }

        LoopTokens build() {
            return new LoopTokens(
                    within,
                    byCount.stream().map(Builder::array).toArray(int[][]::new),
                    array(exits),
                    array(cameBefore));
        }

        private static int[] array(List<Integer> numbers) {
            return numbers.stream().mapToInt(Integer::intValue).toArray();
        }
    }
}
