package baton.bench.serve;

import java.io.IOException;
import java.util.Arrays;
import java.util.Random;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.JsonNodeFactory;

/** Texts of given numbers of tokens: random tokens' text may be other tokens when it is read, and is mended until it is as many. */
final class RandomTexts {
    private static final int TRIES = 10;

    private final BenchTokenizer tokens;
    private final Random random;
    private final int[] ids;

    RandomTexts(BenchTokenizer tokens, long seed) {
        this.tokens = tokens;
        random = new Random(seed);
        ids = tokens.ids();
    }

    Random random() {
        return random;
    }

    /** Ids that follow each other in the vocabulary, from one drawn. */
    int[] run(int start, int length) {
        int[] run = new int[length];
        for (int i = 0; i < length; i++) {
            run[i] = ids[Math.floorMod(start + i, ids.length)];
        }
        return run;
    }

    int[] draw(int length) {
        return random.ints(length, 0, ids.length).map(at -> ids[at]).toArray();
    }

    int vocabulary() {
        return ids.length;
    }

    /** As many ids as {@code wanted} has that survive decoding and encoding; after ten tries one or a few more or fewer. */
    int[] readable(int[] wanted) throws IOException {
        int[] now = wanted;
        for (int i = 0; i < TRIES; i++) {
            int[] read = tokens.encode(tokens.decode(now), false);
            if (read.length == wanted.length) {
                return read;
            }
            now = Arrays.copyOf(read, wanted.length);
            if (read.length < wanted.length) {
                int[] more = draw(wanted.length - read.length);
                System.arraycopy(more, 0, now, read.length, more.length);
            }
        }
        return tokens.encode(tokens.decode(now), false);
    }

    JsonNode text(int[] ids) throws IOException {
        return JsonNodeFactory.instance.stringNode(tokens.decode(ids));
    }

    static int[] joined(int[] first, int[] second) {
        int[] all = Arrays.copyOf(first, first.length + second.length);
        System.arraycopy(second, 0, all, first.length, second.length);
        return all;
    }
}
