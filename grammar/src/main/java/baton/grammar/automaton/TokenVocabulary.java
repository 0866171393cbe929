package baton.grammar.automaton;

import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.IntFunction;
import java.util.function.Supplier;

/** The tokens of an engine: a tree of their bytes. */
public final class TokenVocabulary {
    private static final int NONE = -1;
    private static final int MOST_LOOPS = 16;

    private final int size;
    private final byte[][] bytes;
    private final Map<String, Integer> specialTokens;
    private final Set<Integer> endTokens;

    /** The nodes in the order of their bytes, each before those below it; node 0 is the root. */
    final byte[] label;

    final int[] depth;

    /** The first node that is not below each. */
    final int[] end;

    /** The first token that ends at each node, or {@link #NONE}. */
    private final int[] token;

    /** Another token with the same bytes, by token, or {@link #NONE}. */
    private final int[] same;

    final int deepest;

    /** The tokens of the last used loops, by the description of the repeated expression. */
    @GuardedBy("itself")
    private final Map<String, Optional<LoopTokens>> loops = new LinkedHashMap<>(16, 0.75f, true) {
        @Override
        protected boolean removeEldestEntry(Map.Entry<String, Optional<LoopTokens>> eldest) {
            return size() > MOST_LOOPS;
        }
    };

    private volatile long bytesOfLoops;

    private TokenVocabulary(
            byte[][] bytes, Map<String, Integer> specialTokens, Set<Integer> endTokens, List<Integer> sorted) {
        this.size = bytes.length;
        this.bytes = bytes;
        this.specialTokens = specialTokens;
        this.endTokens = endTokens;
        same = new int[size];
        Arrays.fill(same, NONE);
        int nodes = 1;
        byte[] before = {};
        for (int id : sorted) {
            nodes += bytes[id].length - common(before, bytes[id]);
            before = bytes[id];
        }
        label = new byte[nodes];
        depth = new int[nodes];
        end = new int[nodes];
        token = new int[nodes];
        Arrays.fill(token, NONE);
        int longest = sorted.stream().mapToInt(id -> bytes[id].length).max().orElse(0);
        int[] path = new int[longest + 1];
        int next = 1;
        int open = 0;
        before = new byte[0];
        for (int id : sorted) {
            byte[] own = bytes[id];
            for (int keep = common(before, own); open > keep; open--) {
                end[path[open]] = next;
            }
            while (open < own.length) {
                label[next] = own[open];
                path[++open] = next;
                depth[next++] = open;
            }
            int node = path[open];
            same[id] = token[node];
            token[node] = id;
            before = own;
        }
        for (; open >= 0; open--) {
            end[path[open]] = next;
        }
        deepest = longest;
    }

    /**
     * @param size how many token ids there are
     * @param bytes the bytes that a token stands for; a token without bytes never comes
     * @param specialTokens ids by content; such tokens are no characters
     * @param endTokens tokens that end a text; they are no characters
     */
    public static TokenVocabulary of(
            int size, IntFunction<byte[]> bytes, Map<String, Integer> specialTokens, Set<Integer> endTokens) {
        Set<Integer> withoutBytes = new HashSet<>(specialTokens.values());
        withoutBytes.addAll(endTokens);
        byte[][] all = new byte[size][];
        List<Integer> sorted = new ArrayList<>();
        for (int id = 0; id < size; id++) {
            all[id] = withoutBytes.contains(id) ? new byte[0] : bytes.apply(id);
            if (all[id].length > 0) {
                sorted.add(id);
            }
        }
        sorted.sort((one, other) -> Arrays.compareUnsigned(all[one], all[other]));
        return new TokenVocabulary(all, Map.copyOf(specialTokens), Set.copyOf(endTokens), sorted);
    }

    private static int common(byte[] one, byte[] other) {
        int mismatch = Arrays.mismatch(one, other);
        return mismatch < 0 ? one.length : mismatch;
    }

    public int size() {
        return size;
    }

    byte[] bytes(int id) {
        return bytes[id];
    }

    Map<String, Integer> specialTokens() {
        return specialTokens;
    }

    Set<Integer> endTokens() {
        return endTokens;
    }

    /** How many longs a mask has. */
    int words() {
        return (size + Long.SIZE - 1) / Long.SIZE;
    }

    /** Sets the bits of the tokens that end at a node. */
    void addTokens(int node, long[] mask) {
        for (int id = token[node]; id != NONE; id = same[id]) {
            mask[id >> 6] |= 1L << id;
        }
    }

    /** Adds the tokens that end at a node. */
    void addTokens(int node, List<Integer> tokens) {
        for (int id = token[node]; id != NONE; id = same[id]) {
            tokens.add(id);
        }
    }

    /** The tokens of a repetition, which grammars with an equal expression share; made where they are not known. */
    Optional<LoopTokens> loop(Node repeated, Supplier<Optional<LoopTokens>> make) {
        StringBuilder description = new StringBuilder();
        if (!repeated.describe(description)) {
            return make.get();
        }
        synchronized (loops) {
            Optional<LoopTokens> known = loops.get(description.toString());
            if (known == null) {
                known = make.get();
                loops.put(description.toString(), known);
                bytesOfLoops = loops.values().stream()
                        .flatMap(Optional::stream)
                        .mapToLong(LoopTokens::bytes)
                        .sum();
            }
            return known;
        }
    }

    /** How much memory the tokens of repetitions take, about, which all grammars share. */
    public long bytesOfLoops() {
        return bytesOfLoops;
    }
}
