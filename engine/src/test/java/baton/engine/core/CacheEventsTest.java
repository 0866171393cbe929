package baton.engine.core;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.BlockHash;
import baton.kv.BlockHasher;
import baton.kv.KvEvent;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

/** A router that replays the events of the prefix cache knows what an instance would find. */
class CacheEventsTest {
    private static final int BLOCK_SIZE = 4;

    private final BlockHasher hasher = new BlockHasher(BLOCK_SIZE);
    private final Set<BlockHash> known = new HashSet<>();
    private int removals;

    private void replay(CoreHarness harness) {
        for (KvEvent event : harness.events) {
            switch (event) {
                case KvEvent.BlockStored stored -> {
                    assertThat(stored.blockSize()).isEqualTo(BLOCK_SIZE);
                    int[] tokens = stored.tokenIds().stream()
                            .mapToInt(Integer::intValue)
                            .toArray();
                    BlockHash parent = stored.parent().orElse(null);
                    for (int i = 0; i < stored.blockHashes().size(); i++) {
                        BlockHash hash = parent == null
                                ? hasher.first(tokens, Optional.empty())
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
                assertThat(result.stats.orElseThrow().localCacheHit()).isEqualTo(expected);
                hits += expected;
                if (i % 50 == 49) {
                    assertThat(harness.core.resetPrefixCache()).isTrue();
                    harness.add("after" + i, CoreHarness.prompt(i, 5), 1);
                    harness.run();
                    replay(harness);
                    assertThat(known).hasSize(1);
                }
            }
            assertThat(hits).isPositive();
            assertThat(removals).isPositive();
        }
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
