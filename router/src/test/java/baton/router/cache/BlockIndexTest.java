package baton.router.cache;

import static org.assertj.core.api.Assertions.assertThat;

import baton.messages.events.ExtraKeys;
import baton.messages.events.ReceivedKvEvent;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.Random;
import java.util.Set;
import org.junit.jupiter.api.Test;

class BlockIndexTest {
    private static final int BLOCK = 4;
    private static final String GPU = "GPU/0/";
    private static final String CPU = "CPU/0/";

    private final IndexBudget budget = new IndexBudget(1 << 22);
    private final BlockIndex table = new BlockIndex(budget);

    private static ReceivedKvEvent.Stored stored(
            String place, OptionalLong parent, int[] tokens, long[] extra, long... hashes) {
        return new ReceivedKvEvent.Stored(hashes, parent, tokens, BLOCK, 0, extra, place, "full_attention", "");
    }

    private static ReceivedKvEvent.Stored stored(int[] tokens, long... hashes) {
        return stored(GPU, OptionalLong.empty(), tokens, new long[0], hashes);
    }

    private static int[] tokens(int from, int count) {
        int[] tokens = new int[count];
        Arrays.setAll(tokens, i -> from + i);
        return tokens;
    }

    private static TokenChain prompt(int... tokens) {
        return new TokenChain(tokens, Optional.empty(), Optional.empty());
    }

    @Test
    void aPromptIsKnownAsFarAsItsBlocksAreHeld() {
        table.apply(stored(tokens(0, 8), 11, 12));
        table.apply(stored(GPU, OptionalLong.of(12), tokens(8, 4), new long[0], 13));

        assertThat(table.known(prompt(tokens(0, 15)))).isEqualTo(12);
        assertThat(table.known(prompt(tokens(0, 7)))).isEqualTo(4);
        assertThat(table.known(prompt(tokens(4, 8)))).isZero();
        table.apply(new ReceivedKvEvent.Removed(new long[] {12}, GPU));
        assertThat(table.known(prompt(tokens(0, 15)))).isEqualTo(4);
        // It comes back, and the blocks behind it were there all the time.
        table.apply(stored(GPU, OptionalLong.of(11), tokens(4, 4), new long[0], 12));
        assertThat(table.known(prompt(tokens(0, 15)))).isEqualTo(12);
        table.apply(new ReceivedKvEvent.Cleared());
        assertThat(table.known(prompt(tokens(0, 15)))).isZero();
        assertThat(budget.used()).isZero();
    }

    /** The same tokens under many hashes of the publisher, which come and go. */
    @Test
    void contentsOfManyHashesAreForgottenWithTheLastOfThem() {
        for (int content = 0; content < 2000; content++) {
            long[] hashes = new long[300];
            for (int i = 0; i < hashes.length; i++) {
                hashes[i] = 1 + content * 1000L + i;
                table.apply(stored(tokens(content * 4, 4), hashes[i]));
            }
            table.apply(new ReceivedKvEvent.Removed(Arrays.copyOf(hashes, 299), GPU));
            assertThat(table.known(prompt(tokens(content * 4, 4)))).isEqualTo(4);
            table.apply(new ReceivedKvEvent.Removed(new long[] {hashes[299]}, GPU));
            assertThat(table.known(prompt(tokens(content * 4, 4)))).isZero();
        }
        assertThat(table.size()).isZero();
    }

    /** Two engines have other hashes of the same blocks: each table knows its own, and both know the prompt. */
    @Test
    void blocksOfEnginesThatHashInDifferentWaysMeet() {
        BlockIndex other = new BlockIndex(budget);
        table.apply(stored(tokens(0, 8), 11, 12));
        other.apply(stored(tokens(0, 8), -5, -6));
        assertThat(table.known(prompt(tokens(0, 8)))).isEqualTo(8);
        assertThat(other.known(prompt(tokens(0, 8)))).isEqualTo(8);
    }

    @Test
    void aBlockIsHeldAsLongAsItIsInOnePlace() {
        table.apply(stored(tokens(0, 4), 11));
        // Offloaded blocks come without tokens unless they describe themselves.
        table.apply(stored(CPU, OptionalLong.empty(), new int[0], new long[0], 11));
        table.apply(new ReceivedKvEvent.Removed(new long[] {11}, GPU));
        assertThat(table.known(prompt(tokens(0, 4)))).isEqualTo(4);
        table.apply(new ReceivedKvEvent.Removed(new long[] {11}, CPU));
        assertThat(table.known(prompt(tokens(0, 4)))).isZero();
        assertThat(table.size()).isZero();
    }

    @Test
    void saltAndAdapterKeepBlocksApart() {
        table.apply(
                stored(GPU, OptionalLong.empty(), tokens(0, 8), new long[] {ExtraKeys.of(List.of("salt")), 0}, 11, 12));
        table.apply(stored(
                GPU,
                OptionalLong.empty(),
                tokens(0, 8),
                new long[] {ExtraKeys.of(List.of("lora", "salt")), ExtraKeys.of(List.of("lora"))},
                21,
                22));
        assertThat(table.known(prompt(tokens(0, 8)))).isZero();
        assertThat(table.known(new TokenChain(tokens(0, 8), Optional.of("salt"), Optional.empty())))
                .isEqualTo(8);
        assertThat(table.known(new TokenChain(tokens(0, 8), Optional.of("salt"), Optional.of("lora"))))
                .isEqualTo(8);
        assertThat(table.known(new TokenChain(tokens(0, 8), Optional.empty(), Optional.of("lora"))))
                .isZero();
    }

    /** As of an instance that drafts with EAGLE: the same block with other tokens behind it is another one. */
    @Test
    void aBlockWithALookaheadIsKnownIfThePromptGoesOnLikeThat() {
        int[] tokens = {0, 1, 2, 3, 4, 5, 4, 5, 6, 7, 8, 9};
        table.apply(new ReceivedKvEvent.Stored(
                new long[] {11, 12}, OptionalLong.empty(), tokens, BLOCK, 2, new long[0], GPU, "full_attention", ""));
        assertThat(table.known(prompt(tokens(0, 10)))).isEqualTo(8);
        assertThat(table.known(prompt(tokens(0, 9)))).isEqualTo(4);
        assertThat(table.known(prompt(0, 1, 2, 3, 4, 6, 7, 8))).isZero();
        assertThat(table.known(prompt(0, 1, 2, 3, 4))).isZero();
    }

    @Test
    void blocksOfUnknownParentsAndOfWindowsAreLeftOut() {
        table.apply(stored(GPU, OptionalLong.of(99), tokens(0, 4), new long[0], 11));
        assertThat(table.size()).isZero();
        assertThat(table.leftOut()).isEqualTo(1);
        table.apply(new ReceivedKvEvent.Stored(
                new long[] {12},
                OptionalLong.empty(),
                tokens(0, 4),
                BLOCK,
                0,
                new long[0],
                "GPU/1/",
                "sliding_window",
                ""));
        assertThat(table.known(prompt(tokens(0, 4)))).isZero();
    }

    @Test
    void placesOfWindowsAndOfRemovalsAreNotCounted() {
        for (int group = 0; group < 40; group++) {
            String place = "GPU/" + group + "/";
            table.apply(new ReceivedKvEvent.Stored(
                    new long[] {12},
                    OptionalLong.empty(),
                    tokens(0, 4),
                    BLOCK,
                    0,
                    new long[0],
                    place,
                    "sliding_window",
                    ""));
            table.apply(new ReceivedKvEvent.Removed(new long[] {12}, place));
        }
        table.apply(stored(CPU, OptionalLong.empty(), tokens(0, 4), new long[0], 11));
        assertThat(table.known(prompt(tokens(0, 4)))).isEqualTo(4);
    }

    @Test
    void blocksWithoutRoomAreLeftOut() {
        BlockIndex small = new BlockIndex(new IndexBudget(1000));
        for (int i = 0; i < 2000; i++) {
            small.apply(stored(tokens(i * 100, 4), i + 1));
        }
        assertThat(small.size()).isEqualTo(768);
        assertThat(small.leftOut()).isEqualTo(2000 - 768);
        assertThat(small.known(prompt(tokens(0, 4)))).isEqualTo(4);
    }

    /** Random stores and removals, against sets. */
    @Test
    void theTableEqualsAModel() {
        long seed = Long.getLong("tests.seed", System.nanoTime());
        Random random = new Random(seed);
        Map<Long, Set<String>> model = new HashMap<>();
        for (int step = 0; step < 60_000; step++) {
            // Each hash is that of the one block of its number; hash 0 is one as any other.
            long hash = random.nextInt(4000);
            String place = random.nextBoolean() ? GPU : CPU;
            if (random.nextInt(step / 15_000 % 2 == 0 ? 4 : 2) > 0) {
                table.apply(stored(place, OptionalLong.empty(), tokens((int) hash * 10, 4), new long[0], hash));
                model.computeIfAbsent(hash, _ -> new HashSet<>()).add(place);
            } else {
                table.apply(new ReceivedKvEvent.Removed(new long[] {hash}, place));
                model.computeIfPresent(hash, (_, places) -> {
                    places.remove(place);
                    return places.isEmpty() ? null : places;
                });
            }
        }
        assertThat(table.size()).as("seed %d", seed).isEqualTo(model.size());
        for (int hash = 0; hash < 4000; hash++) {
            assertThat(table.known(prompt(tokens(hash * 10, 4))))
                    .as("seed %d, block %d", seed, hash)
                    .isEqualTo(model.containsKey((long) hash) ? 4 : 0);
        }
    }

    @Test
    void aMillionBlocksTakeLessThanAHundredMegabytes() {
        long parent = 0;
        for (int i = 0; i < 1_000_000; i++) {
            table.apply(stored(
                    GPU,
                    i % 500 == 0 ? OptionalLong.empty() : OptionalLong.of(parent),
                    tokens(i, 4),
                    new long[0],
                    i * 7L + 1));
            parent = i * 7L + 1;
        }
        assertThat(table.size()).isEqualTo(1_000_000);
        assertThat(table.bytes()).isLessThan(100_000_000);
    }
}
