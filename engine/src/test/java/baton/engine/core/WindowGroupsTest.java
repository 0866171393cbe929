package baton.engine.core;

import static baton.engine.core.CoreHarness.expected;
import static baton.engine.core.CoreHarness.prompt;
import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.FinishReason;
import baton.engine.core.CoreHarness.Result;
import baton.kv.BlockHash;
import baton.kv.BlockHasher;
import baton.kv.KvEvent;
import baton.kv.KvGroups;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.connector.KvMatch;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Random;
import java.util.Set;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

/** Layers with a window hold only the blocks that it reaches, and the results are those of layers that hold all. */
class WindowGroupsTest {
    private static final int BLOCK_SIZE = 4;
    private static final OptionalInt ALL = OptionalInt.empty();

    private static KvGroups groups(int... windows) {
        return KvGroups.of(Arrays.stream(windows)
                .mapToObj(window -> window == 0 ? ALL : OptionalInt.of(window))
                .toList());
    }

    private static CoreHarness core(int blocks, int maxLength, int budget, KvGroups groups) {
        return new CoreHarness(
                blocks,
                BLOCK_SIZE,
                maxLength,
                groups,
                config -> config.maxNumSeqs(8).maxNumBatchedTokens(budget).kvEvents(true),
                Optional.empty());
    }

    @Test
    void aLongPromptInChunksHoldsTheWindowsBlocksOnly() {
        KvGroups groups = groups(8);
        // 7 positions before a chunk of 8 lie in at most 5 blocks; the null block is one more.
        try (CoreHarness harness = core(6, 400, 8, groups)) {
            assertThat(groups.blocksFor(400, 8, BLOCK_SIZE)).isEqualTo(6);
            Result result = harness.add("a", prompt(1, 380), 20);

            harness.run();

            assertThat(result.tokens).isEqualTo(expected(result.prompt, 20, groups));
            assertThat(harness.steps).allMatch(step -> step.status().usedBlocks() <= 5);
            assertThat(harness.steps).allMatch(step -> step.preempted() == 0);
        }
    }

    @Test
    void aPoolOfTheSameBytesHoldsMoreSequences() {
        KvGroups hybrid = groups(8, 0, 8, 8, 8, 0);
        int layerBlocks = 6 * 60;
        int together = runningAtOnce(layerBlocks / hybrid.layersOfBlock(), hybrid);
        int alone = runningAtOnce(layerBlocks / 6, KvGroups.one(6));

        assertThat(alone).isEqualTo(2);
        assertThat(together).isEqualTo(5);
    }

    /** Sequences of 100 tokens that run at once, each in chunks of 8. */
    private static int runningAtOnce(int blocks, KvGroups groups) {
        try (CoreHarness harness = new CoreHarness(
                blocks,
                BLOCK_SIZE,
                100,
                groups,
                config -> config.maxNumBatchedTokens(200).longPrefillTokenThreshold(8),
                Optional.empty())) {
            for (int i = 0; i < 8; i++) {
                harness.add("r" + i, prompt(i, 96), 4);
            }
            harness.run();
            harness.results
                    .values()
                    .forEach(result -> assertThat(result.tokens).isEqualTo(expected(result.prompt, 4, groups)));
            assertThat(harness.steps).allMatch(step -> step.preempted() == 0);
            return harness.steps.stream()
                    .mapToInt(step -> step.status().running())
                    .max()
                    .orElseThrow();
        }
    }

    /** A step for a prompt of 64 tokens needs up to 19 blocks, one for the next token 3. */
    @Test
    void aSequenceThatDecodesReservesItsWindowOnly() {
        KvGroups groups = groups(8);
        try (CoreHarness harness = core(50, 200, 64, groups)) {
            for (int i = 0; i < 8; i++) {
                harness.add("r" + i, prompt(i, 64), 60);
            }
            harness.run();
            assertThat(harness.steps).allMatch(step -> step.preempted() == 0);
            assertThat(harness.steps).anyMatch(step -> step.status().running() == 8);
            harness.results
                    .values()
                    .forEach(result -> assertThat(result.tokens).isEqualTo(expected(result.prompt, 60, groups)));
        }
    }

    @Test
    void aPrefixIsFoundWhileItsLastWindowIsThere() {
        KvGroups groups = groups(0, 8);
        try (CoreHarness harness = core(64, 200, 64, groups)) {
            int[] whole = prompt(3, 100);
            harness.add("first", whole, 1);
            harness.run();

            Result again = harness.add("again", Arrays.copyOf(whole, 90), 3);
            harness.run();

            assertThat(again.stats.orElseThrow().prompt().localCacheHit()).isEqualTo(88);
            assertThat(again.tokens).isEqualTo(expected(again.prompt, 3, groups));
        }
    }

    /** The blocks that its window left behind were freed first, so they are evicted first. */
    @Test
    void aPrefixWithoutItsLastWindowIsNotFound() {
        KvGroups groups = groups(0, 8);
        try (CoreHarness harness = core(40, 120, 16, groups)) {
            int[] whole = prompt(3, 64);
            harness.add("first", whole, 1);
            harness.run();
            harness.add("other", prompt(4, 40), 1);
            harness.run();
            List<BlockHash> hashes = hashes(whole);
            assertThat(harness.core.cachedHashes(0)).containsAll(hashes.subList(0, 12));
            assertThat(harness.core.cachedHashes(1))
                    .containsAll(hashes.subList(10, 14))
                    .doesNotContainAnyElementsOf(hashes.subList(0, 10));

            Result longer = harness.add("longer", whole, 3);
            harness.run();
            Result shorter = harness.add("shorter", Arrays.copyOf(whole, 40), 3);
            harness.run();

            assertThat(longer.stats.orElseThrow().prompt().localCacheHit()).isEqualTo(56);
            assertThat(longer.tokens).isEqualTo(expected(longer.prompt, 3, groups));
            assertThat(shorter.stats.orElseThrow().prompt().localCacheHit()).isZero();
            assertThat(shorter.tokens).isEqualTo(expected(shorter.prompt, 3, groups));
        }
    }

    private static CoreHarness loading(int blocks, int budget, KvGroups groups, ScriptedConnector connector) {
        return new CoreHarness(
                blocks,
                BLOCK_SIZE,
                300,
                groups,
                config -> config.maxNumSeqs(8)
                        .maxNumBatchedTokens(budget)
                        .kvTransfer(KvTransferConfig.builder("Scripted", KvRole.BOTH)
                                .build()),
                Optional.of(connector));
    }

    /** The load ends behind the window of the prefix, which has blocks held by another request. */
    @Test
    void hitsThatALoadLeavesBehindMakeNoRoom() {
        ScriptedConnector connector = new ScriptedConnector();
        connector.match = (request, computed) ->
                request.id().equals("b") ? new KvMatch.Tokens(240 - computed, true) : new KvMatch.None();
        KvGroups groups = groups(64);
        try (CoreHarness harness = loading(29, 32, groups, connector)) {
            int[] whole = prompt(3, 240);
            Result first = harness.add("a", Arrays.copyOf(whole, 80), 20);
            while (first.tokens.size() < 4) {
                harness.step();
            }
            Result second = harness.add("b", whole, 2);
            harness.step();
            assertThat(connector.isLoading("b")).isFalse();
            while (!connector.isLoading("b")) {
                harness.step();
            }
            connector.complete("b");
            harness.run();
            assertThat(first.tokens).isEqualTo(expected(first.prompt, 20, groups));
            assertThat(second.tokens).isEqualTo(expected(whole, 2, groups));
        }
    }

    /** Peers that were never reached hold a quarter of the pool, in blocks of all groups. */
    @Test
    void blocksOfAllGroupsCountForUnreachedPeers() {
        ScriptedConnector connector = new ScriptedConnector();
        connector.match = (request, computed) -> new KvMatch.Tokens(40, true, false);
        try (CoreHarness harness = loading(160, 64, groups(0, 0, 0, 8), connector)) {
            for (String id : List.of("a", "b", "c")) {
                harness.add(id, prompt(1, 40), 2);
            }
            harness.step();
            assertThat(harness.core.status(Optional.empty()).waitingForRemoteKv())
                    .isEqualTo(1);
            harness.core.abort("a");
            harness.step();
            assertThat(connector.isLoading("b")).isFalse();
            connector.nextReceived.add("a");
            for (String id : List.of("b", "c")) {
                while (!connector.isLoading(id)) {
                    harness.step();
                }
                harness.core.abort(id);
                connector.nextReceived.add(id);
            }
            harness.run();
        }
    }

    private static List<BlockHash> hashes(int[] tokens) {
        BlockHasher hasher = new BlockHasher(BLOCK_SIZE);
        List<BlockHash> hashes = new ArrayList<>();
        for (int i = 0; (i + 1) * BLOCK_SIZE <= tokens.length; i++) {
            hashes.add(
                    i == 0
                            ? hasher.first(tokens, Optional.empty())
                            : hasher.next(hashes.getLast(), tokens, i * BLOCK_SIZE));
        }
        return hashes;
    }

    @Test
    void noBlockOfNumbersThatAreNotFiniteIsFoundAgain() {
        KvGroups groups = groups(8);
        try (CoreHarness harness = core(20, 100, 16, groups)) {
            int[] whole = prompt(3, 60);
            harness.runner.unusableAfter = whole[59];
            harness.add("bad", whole, 1);

            harness.run();

            assertThat(harness.result("bad").reason).contains(FinishReason.ERROR);
            assertThat(harness.core.cachedHashes(0)).isEmpty();
        }
    }

    @Test
    void eventsNameTheGroup() {
        KvGroups groups = groups(8, 0);
        try (CoreHarness harness = core(30, 60, 16, groups)) {
            for (int i = 0; i < 6; i++) {
                harness.add("r" + i, prompt(i, 40), 1);
                harness.run();
            }
            List<Set<BlockHash>> known = List.of(new HashSet<>(), new HashSet<>());
            for (KvEvent event : harness.events) {
                switch (event) {
                    case KvEvent.BlockStored stored -> {
                        int group = stored.details().place().group().orElseThrow();
                        assertThat(stored.details().specKind())
                                .contains(group == 0 ? "sliding_window" : "full_attention");
                        assertThat(stored.details().slidingWindow())
                                .isEqualTo(group == 0 ? Optional.of(8) : Optional.empty());
                        stored.blockHashes()
                                .forEach(hash ->
                                        assertThat(known.get(group).add(hash)).isTrue());
                    }
                    case KvEvent.BlockRemoved removed ->
                        assertThat(known.get(removed.place().group().orElseThrow())
                                        .removeAll(removed.blockHashes()))
                                .isTrue();
                    case KvEvent.AllBlocksCleared() -> known.forEach(Set::clear);
                }
            }
            assertThat(known.get(0)).isEqualTo(harness.core.cachedHashes(0)).isNotEmpty();
            assertThat(known.get(1)).isEqualTo(harness.core.cachedHashes(1)).isNotEmpty();
        }
    }

    /** Random windows, arrivals, aborts, block sizes, budgets and pools under pressure: the oracle's output, and no block in use. */
    @Test
    void randomLoadsEndRightAndLeaveNoBlockInUse() {
        long seed = Long.getLong("tests.seed", System.nanoTime());
        int hits = 0;
        int preemptions = 0;
        for (int round = 0; round < 60; round++) {
            Random random = new Random(seed + round);
            int blockSize = 1 + random.nextInt(8);
            int most = 1 + random.nextInt(30);
            KvGroups groups = KvGroups.of(IntStream.range(0, 1 + random.nextInt(6))
                    .mapToObj(_ -> random.nextInt(3) == 0 ? ALL : OptionalInt.of(1 + random.nextInt(2) * most))
                    .toList());
            int seqs = 1 + random.nextInt(8);
            int budget = seqs + random.nextInt(40);
            int longest = 20 + random.nextInt(150);
            int blocks = groups.blocksFor(longest, budget, blockSize) + random.nextInt(60);
            boolean caching = random.nextInt(4) > 0;
            try (CoreHarness harness = new CoreHarness(
                    blocks,
                    blockSize,
                    longest,
                    groups,
                    config ->
                            config.maxNumSeqs(seqs).maxNumBatchedTokens(budget).enablePrefixCaching(caching),
                    Optional.empty())) {
                harness.runRandomLoad(random, longest - 4, longest, "seed %d round %d".formatted(seed, round));
                hits += harness.steps.stream()
                        .mapToInt(step -> (int) step.prefixCacheHits())
                        .sum();
                preemptions += harness.steps.stream()
                        .mapToInt(step -> step.preempted())
                        .sum();
            }
        }
        assertThat(hits).as("prefix cache hits").isPositive();
        assertThat(preemptions).as("preemptions").isPositive();
    }
}
