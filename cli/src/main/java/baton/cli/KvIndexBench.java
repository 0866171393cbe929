package baton.cli;

import baton.messages.events.ReceivedKvEvent;
import baton.router.cache.BlockTable;
import baton.router.cache.Budget;
import baton.router.cache.TokenChain;
import java.io.PrintWriter;
import java.util.Locale;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.Random;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

/**
 * Measures the router's index of the blocks that an instance holds, on one thread: as many blocks as are given are stored, looked up as the prompts that
 * they are of, and replaced by others, of which each is a removal and a store.
 *
 * @param blocks that are held
 */
record KvIndexBench(int blocks) {
    static final int MOST_BLOCKS = 8_000_000;

    private static final int BLOCK_TOKENS = 16;
    private static final int BLOCKS_OF_PROMPT = 250;
    private static final int ROUNDS = 3;
    private static final String PLACE = "GPU/0/";
    private static final long[] NO_KEYS = new long[0];

    /**
     * Operations in a second, the best of some rounds.
     *
     * @param store blocks, with the hashing of their tokens
     * @param known blocks of prompts of which the hashes are made already
     * @param hashed blocks of prompts, with the hashing of their tokens
     * @param replace removals and stores
     * @param bytes of the index's arrays
     */
    record Figures(int blocks, double store, double known, double hashed, double replace, long bytes) {
        void print(PrintWriter out) {
            out.printf(
                    Locale.ROOT,
                    "index of %,d blocks: %.1f MB; on one thread, million blocks/s: stored %.2f, removed and stored anew %.2f, looked up %.2f, hashed"
                            + " and looked up %.2f%n",
                    blocks,
                    bytes / 1e6,
                    store / 1e6,
                    replace / 1e6,
                    known / 1e6,
                    hashed / 1e6);
        }

        ObjectNode toJson() {
            return JsonMapper.builder()
                    .build()
                    .createObjectNode()
                    .put("blocks", blocks)
                    .put("bytes", bytes)
                    .put("stored_per_second", store)
                    .put("replaced_per_second", replace)
                    .put("looked_up_per_second", known)
                    .put("hashed_and_looked_up_per_second", hashed);
        }
    }

    Figures run() {
        Figures best = round(0);
        for (int i = 1; i < ROUNDS; i++) {
            Figures next = round(i);
            best = new Figures(
                    blocks,
                    Math.max(best.store, next.store),
                    Math.max(best.known, next.known),
                    Math.max(best.hashed, next.hashed),
                    Math.max(best.replace, next.replace),
                    next.bytes);
        }
        return best;
    }

    private Figures round(int seed) {
        int prompts = Math.max(1, blocks / BLOCKS_OF_PROMPT);
        int[][] tokens = new int[prompts][BLOCKS_OF_PROMPT * BLOCK_TOKENS];
        ReceivedKvEvent[] stores = new ReceivedKvEvent[prompts];
        ReceivedKvEvent[] removals = new ReceivedKvEvent[prompts];
        Random random = new Random(seed);
        for (int i = 0; i < prompts; i++) {
            for (int j = 0; j < tokens[i].length; j++) {
                tokens[i][j] = random.nextInt(128_000);
            }
            long[] hashes = random.longs(BLOCKS_OF_PROMPT).toArray();
            stores[i] = new ReceivedKvEvent.Stored(
                    hashes, OptionalLong.empty(), tokens[i], BLOCK_TOKENS, NO_KEYS, PLACE, "full_attention", "");
            removals[i] = new ReceivedKvEvent.Removed(hashes, PLACE);
        }
        BlockTable table = new BlockTable(new Budget(4L * blocks + 4096));
        double store = rate(prompts, i -> table.apply(stores[i]));
        long bytes = table.bytes();
        TokenChain[] chains = new TokenChain[prompts];
        double hashed = rate(prompts, i -> {
            chains[i] = new TokenChain(tokens[i], Optional.empty(), Optional.empty());
            requireWhole(table.known(chains[i]), tokens[i].length);
        });
        double known = rate(prompts, i -> requireWhole(table.known(chains[i]), tokens[i].length));
        double replace = 2
                * rate(prompts, i -> {
                    table.apply(removals[i]);
                    table.apply(stores[i]);
                });
        return new Figures(table.size(), store, known, hashed, replace, bytes);
    }

    private static void requireWhole(int known, int tokens) {
        if (known != tokens) {
            throw new IllegalStateException(known + " of " + tokens + " tokens are known, though all are held");
        }
    }

    private interface Step {
        void run(int prompt);
    }

    /** Blocks in a second. */
    private static double rate(int prompts, Step step) {
        long start = System.nanoTime();
        for (int i = 0; i < prompts; i++) {
            step.run(i);
        }
        return (double) prompts * BLOCKS_OF_PROMPT * 1e9 / (System.nanoTime() - start);
    }
}
