package baton.engine.core;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.EngineListener;
import baton.kv.BlockHash;
import baton.kv.BlockHasher;
import baton.kv.KvEvent;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import baton.kv.connector.KvMatch;
import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** A router that replays the events of the prefix cache predicts an instance's hits. */
class CacheEventsTest {
    private static final int BLOCK_SIZE = 4;

    private final BlockHasher hasher = new BlockHasher(BLOCK_SIZE);
    private final Set<BlockHash> known = new HashSet<>();
    private int removals;
    private int salted;

    private void replay(CoreHarness harness) {
        for (KvEvent event : harness.events) {
            switch (event) {
                case KvEvent.BlockStored stored -> {
                    assertThat(stored.blockSize()).isEqualTo(BLOCK_SIZE);
                    int[] tokens = stored.tokenIds().stream()
                            .mapToInt(Integer::intValue)
                            .toArray();
                    BlockHash parent = stored.parent().orElse(null);
                    Optional<String> salt = stored.details().extraKeys().orElseThrow().getFirst().stream()
                            .findFirst();
                    salted += salt.isPresent() ? 1 : 0;
                    for (int i = 0; i < stored.blockHashes().size(); i++) {
                        BlockHash hash = parent == null
                                ? hasher.first(tokens, salt)
                                : hasher.next(parent, tokens, i * BLOCK_SIZE);
                        assertThat(stored.blockHashes().get(i)).isEqualTo(hash);
                        assertThat(known.add(hash)).as("%s is new", hash).isTrue();
                        parent = hash;
                    }
                }
                case KvEvent.BlockRemoved removed -> {
                    assertThat(known.removeAll(removed.blockHashes())).isTrue();
                    removals++;
                }
                case KvEvent.AllBlocksCleared() -> known.clear();
            }
        }
        harness.events.clear();
    }

    private int expectedHit(int[] prompt) {
        int hit = 0;
        for (BlockHash hash : hasher.chain(prompt, Optional.empty())) {
            if (hit == (prompt.length - 1) / BLOCK_SIZE || !known.contains(hash)) {
                break;
            }
            hit++;
        }
        return hit * BLOCK_SIZE;
    }

    @Test
    void replayedEventsTellWhichPrefixesAreFound() {
        Random random = new Random(3);
        List<int[]> beginnings =
                IntStream.range(0, 5).mapToObj(i -> CoreHarness.prompt(i, 40)).toList();
        try (CoreHarness harness =
                new CoreHarness(24, BLOCK_SIZE, config -> config.maxNumSeqs(4).kvEvents(true), Optional.empty())) {
            int hits = 0;
            for (int i = 0; i < 300; i++) {
                int[] beginning = beginnings.get(random.nextInt(beginnings.size()));
                int shared = 1 + random.nextInt(beginning.length);
                int[] end = CoreHarness.prompt(100 + i, 1 + random.nextInt(12));
                int[] prompt = IntStream.concat(IntStream.of(beginning).limit(shared), IntStream.of(end))
                        .toArray();
                int expected = expectedHit(prompt);
                CoreHarness.Result result = harness.add("r" + i, prompt, 1 + random.nextInt(6));
                if (random.nextInt(3) == 0) {
                    // With others beside it, which take blocks from each other.
                    for (int other = 0; other < 5; other++) {
                        harness.add("r" + i + "-" + other, CoreHarness.prompt(1000 * i + other, 30), 20);
                    }
                }
                harness.run();
                replay(harness);
                assertThat(result.stats.orElseThrow().prompt().localCacheHit()).isEqualTo(expected);
                hits += expected;
                if (i % 50 == 49) {
                    assertThat(harness.core.resetPrefixCache()).isTrue();
                    // An idle engine reports it too.
                    assertThat(harness.core.hasWork()).isTrue();
                    harness.run();
                    replay(harness);
                    assertThat(known).isEmpty();
                }
            }
            assertThat(hits).isPositive();
            assertThat(removals).isPositive();
        }
    }

    /** Requests load from elsewhere, within a step or across steps, blocks fail, requests are preempted, aborted and salted. */
    @ParameterizedTest
    @CsvSource({"RECOMPUTE, 1", "RECOMPUTE, 2", "FAIL, 3", "FAIL, 4"})
    void replayedEventsEqualThePoolsCacheAfterEveryStep(LoadFailurePolicy policy, int seed) {
        Random random = new Random(seed);
        ScriptedConnector connector = new ScriptedConnector();
        connector.match = (request, computed) -> {
            int tokens = random.nextInt(4) == 0 ? request.promptLength() - 1 - computed : 0;
            return tokens > 0 ? new KvMatch.Tokens(tokens, random.nextBoolean()) : new KvMatch.None();
        };
        connector.fails = (load, index) -> random.nextInt(8) == 0;
        List<int[]> beginnings =
                IntStream.range(0, 4).mapToObj(i -> CoreHarness.prompt(i, 40)).toList();
        Set<String> alive = new LinkedHashSet<>();
        try (CoreHarness harness = new CoreHarness(
                24,
                BLOCK_SIZE,
                config -> config.maxNumSeqs(6)
                        .maxNumBatchedTokens(24)
                        .kvEvents(true)
                        .kvTransfer(KvTransferConfig.builder("Scripted", KvRole.BOTH)
                                .loadFailurePolicy(policy)
                                .build()),
                Optional.of(connector))) {
            int arrivals = 0;
            int resets = 0;
            for (int step = 0; step < 3000 || harness.core.hasWork(); step++) {
                boolean over = step >= 3000;
                if (!over && alive.size() < 8 && random.nextInt(3) > 0) {
                    int[] beginning = beginnings.get(random.nextInt(beginnings.size()));
                    int[] prompt = IntStream.concat(
                                    IntStream.of(beginning).limit(1 + random.nextInt(40)),
                                    IntStream.of(CoreHarness.prompt(100 + step, 1 + random.nextInt(8))))
                            .toArray();
                    String id = "r" + arrivals++;
                    Optional<String> salt = random.nextInt(5) == 0 ? Optional.of("salt") : Optional.empty();
                    harness.add(id, prompt, 1 + random.nextInt(24), salt);
                    alive.add(id);
                }
                if (random.nextInt(40) == 0 && !alive.isEmpty()) {
                    harness.core.abort(alive.iterator().next());
                }
                for (String id : alive) {
                    if (connector.isLoading(id) && (over || random.nextInt(3) == 0)) {
                        connector.complete(id);
                    }
                }
                if (random.nextInt(20) == 0) {
                    // Any block, perhaps one that requests share.
                    connector.nextInvalid.add(random.nextInt(24));
                }
                if (harness.core.hasWork()) {
                    harness.step();
                    replay(harness);
                    assertThat(known).as("step %d", step).isEqualTo(harness.core.cachedHashes(0));
                }
                alive.removeIf(id -> harness.result(id).reason.isPresent() && !connector.isLoading(id));
                if (resets < 5 && alive.isEmpty() && harness.core.resetPrefixCache()) {
                    resets++;
                }
            }
            assertThat(arrivals).isGreaterThan(100);
            assertThat(resets).isPositive();
            assertThat(removals).isGreaterThan(100);
            assertThat(harness.measured.get("baton:kv_load_failed_requests")).isPositive();
            assertThat(harness.steps.stream()
                            .mapToInt(EngineListener.StepStats::preempted)
                            .sum())
                    .isPositive();
            assertThat(salted).isPositive();
        }
    }

    @Test
    void eventsAreInTheFormOfVllmAndBeforeThoseOfTheConnector() {
        ScriptedConnector connector = new ScriptedConnector();
        KvEvent ofConnector = new KvEvent.BlockRemoved(List.of(new BlockHash(1, 2, 3, 4)), KvEvent.MEDIUM_CPU);
        connector.nextEvents.add(ofConnector);
        int[] prompt = CoreHarness.prompt(1, 9);
        try (CoreHarness harness =
                new CoreHarness(24, BLOCK_SIZE, config -> config.kvEvents(true), Optional.of(connector))) {
            harness.add("a", prompt, 4, Optional.of("salt"));
            harness.run();

            int[] tokens = IntStream.concat(
                            IntStream.of(prompt),
                            CoreHarness.expected(prompt, 3).stream().mapToInt(Integer::intValue))
                    .toArray();
            List<BlockHash> hashes = hasher.chain(tokens, Optional.of("salt"));
            assertThat(harness.events)
                    .containsExactly(
                            stored(
                                    hashes.subList(0, 2),
                                    Optional.empty(),
                                    tokens,
                                    0,
                                    List.of(List.of("salt"), List.of())),
                            ofConnector,
                            stored(hashes.subList(2, 3), Optional.of(hashes.get(1)), tokens, 8, List.of(List.of())));
            harness.events.clear();
            assertThat(harness.core.resetPrefixCache()).isTrue();
            harness.add("b", CoreHarness.prompt(2, 3), 1);
            harness.run();
            assertThat(harness.events).containsExactly(new KvEvent.AllBlocksCleared());
        }
    }

    private static KvEvent stored(
            List<BlockHash> hashes, Optional<BlockHash> parent, int[] tokens, int from, List<List<String>> extraKeys) {
        return new KvEvent.BlockStored(
                hashes,
                parent,
                Arrays.stream(tokens, from, from + hashes.size() * BLOCK_SIZE)
                        .boxed()
                        .toList(),
                BLOCK_SIZE,
                Optional.empty(),
                Optional.of("GPU"),
                new KvEvent.Details(
                        Optional.of(extraKeys),
                        new KvEvent.Place(Optional.of(0), Optional.empty(), Optional.empty()),
                        Optional.of("full_attention"),
                        Optional.empty(),
                        Optional.empty()));
    }

    @Test
    void thereAreNoEventsUnlessTheyAreAskedFor() {
        try (CoreHarness harness = new CoreHarness(24, BLOCK_SIZE, config -> config.maxNumSeqs(4), Optional.empty())) {
            harness.add("r", CoreHarness.prompt(1, 30), 4);
            harness.run();
            assertThat(harness.events).isEmpty();
        }
    }
}
