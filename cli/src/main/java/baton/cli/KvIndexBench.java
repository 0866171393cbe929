package baton.cli;

import baton.bench.frame.Layout;
import baton.messages.events.ReceivedKvEvent;
import baton.router.cache.BlockIndex;
import baton.router.cache.IndexBudget;
import baton.router.cache.TokenChain;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.Random;
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

    /** How the figures are shown. */
    static final Layout FIGURES = new Layout()
            .line(
                    "index of {blocks|%,d} blocks: {bytes|%.1f|1e-6} MB; on one thread, million blocks/s: stored {stored_per_second|%.2f|1e-6},"
                            + " removed and stored anew {replaced_per_second|%.2f|1e-6}, looked up {looked_up_per_second|%.2f|1e-6}, hashed and looked up"
                            + " {hashed_and_looked_up_per_second|%.2f|1e-6}");

    /** Writes operations in a second, the best of the rounds so far; hashing is that of a block's tokens. */
    void run(ObjectNode json) {
        for (int i = 0; i < ROUNDS; i++) {
            round(i, json);
        }
    }

    private void round(int seed, ObjectNode json) {
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
                    hashes, OptionalLong.empty(), tokens[i], BLOCK_TOKENS, 0, NO_KEYS, PLACE, "full_attention", "");
            removals[i] = new ReceivedKvEvent.Removed(hashes, PLACE);
        }
        BlockIndex table = new BlockIndex(new IndexBudget(4L * blocks + 4096));
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
        json.put("blocks", table.size()).put("bytes", bytes);
        best(json, "stored_per_second", store);
        best(json, "replaced_per_second", replace);
        best(json, "looked_up_per_second", known);
        best(json, "hashed_and_looked_up_per_second", hashed);
    }

    private static void best(ObjectNode json, String name, double rate) {
        json.put(name, Math.max(rate, json.path(name).asDouble(0)));
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
