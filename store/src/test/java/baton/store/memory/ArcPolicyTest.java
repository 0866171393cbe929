package baton.store.memory;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.BlockHash;
import baton.kv.DType;
import baton.kv.KvLayout;
import baton.kv.ModelFingerprint;
import baton.store.StoreFormat;
import java.util.List;
import java.util.Random;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** T1, T2, their ghosts and the adaptive target, with the semantics of vLLM's ARC policy. */
class ArcPolicyTest {
    private static final StoreFormat FORMAT = new StoreFormat(
            new ModelFingerprint("org/model", "a1".repeat(32)), new KvLayout(1, 1, 8, 2, DType.BF16), 1, 1, 1);

    private static final int SLOTS = 4;

    @AutoClose
    private final Slab slab = new Slab.Private(Geometry.of(FORMAT, SLOTS * FORMAT.valueBytes(), Eviction.ARC));

    private final SlotCache cache = new SlotCache(slab, true);
    private final ArcPolicy policy = (ArcPolicy) cache.policy();

    @BeforeEach
    void attach() {
        assertThat(cache.attach()).isTrue();
    }

    static List<BlockHash> keys(int... numbers) {
        return IntStream.of(numbers)
                .mapToObj(each -> new BlockHash(each, 0, 0, 0))
                .toList();
    }

    private boolean store(int... numbers) {
        int[] slots = new int[numbers.length];
        boolean reserved = cache.reserve(keys(numbers), slots);
        for (int slot : slots) {
            if (slot != KeyIndex.NONE) {
                cache.commit(slot, false, 0);
            }
        }
        return reserved;
    }

    /** As a request that reads them; the next reservation applies it. */
    private void read(int... numbers) {
        int[] slots = keys(numbers).stream().mapToInt(cache::pin).toArray();
        assertThat(slots).doesNotContain(KeyIndex.NONE);
        cache.use(slots);
        for (int slot : slots) {
            cache.unpin(slot);
        }
        assertThat(cache.reserve(List.of(), new int[0])).isTrue();
    }

    private List<Long> present(int from, int to) {
        return keys(IntStream.rangeClosed(from, to).toArray()).stream()
                .filter(cache::isPresent)
                .map(BlockHash::a)
                .toList();
    }

    @Test
    void whatIsReadMovesFromT1ToT2() {
        store(1, 2, 3);
        assertThat(policy.sizes()).containsExactly(3, 0, 0, 0);
        read(3);
        assertThat(policy.sizes()).containsExactly(2, 1, 0, 0);
        read(3);
        assertThat(policy.sizes()).containsExactly(2, 1, 0, 0);
    }

    @Test
    void valuesUsedOnceAreEvictedBeforeValuesUsedAgain() {
        store(1, 2, 3, 4);
        read(3, 4);
        store(5);
        assertThat(present(1, 5)).containsExactly(1L, 3L, 4L, 5L);
        store(6, 7);
        assertThat(present(1, 7)).containsExactly(3L, 4L, 6L, 7L);
        assertThat(policy.sizes()).containsExactly(2, 2, 3, 0);
        store(8, 9, 10);
        assertThat(present(1, 10)).as("T1 is used up, then the end of T2").containsExactly(3L, 8L, 9L, 10L);
        assertThat(policy.sizes()).containsExactly(3, 1, 4, 1);
    }

    @Test
    void aKeyThatComesBackFromB1GivesT1RoomAndOneFromB2TakesIt() {
        store(1, 2, 3, 4);
        read(1, 2, 3);
        store(5);
        assertThat(policy.sizes()).containsExactly(1, 3, 1, 0);
        assertThat(policy.target()).isZero();
        store(4);
        assertThat(policy.target()).isEqualTo(1);
        assertThat(policy.sizes()).as("5 has gone from T1, 4 is back").containsExactly(1, 3, 1, 0);
        store(5);
        assertThat(policy.target()).isEqualTo(2);
        assertThat(policy.sizes()).as("T1 has less than its room, T2 gives").containsExactly(2, 2, 0, 1);
        assertThat(present(1, 5)).containsExactly(1L, 2L, 4L, 5L);
        store(3);
        assertThat(policy.target()).isEqualTo(1);
        assertThat(present(1, 5)).containsExactly(1L, 2L, 3L, 5L);
        assertThat(policy.sizes()).containsExactly(2, 2, 1, 0);
    }

    @Test
    void theTargetStaysBetweenZeroAndAllSlots() {
        Random random = new Random(5);
        for (int i = 0; i < 5000; i++) {
            store(random.nextInt(12));
            if (random.nextInt(3) == 0) {
                present(0, 11).stream().limit(1).forEach(key -> read(Math.toIntExact(key)));
            }
            assertThat(policy.target()).isBetween(0.0, (double) SLOTS);
            assertThat(IntStream.of(policy.sizes())).allMatch(size -> size <= SLOTS);
            assertThat(policy.sizes()[0] + policy.sizes()[1]).isEqualTo(cache.used());
        }
    }

    @Test
    void ghostsAreAtMostAsManyAsSlots() {
        for (int i = 0; i < 50; i++) {
            store(i);
        }
        assertThat(policy.sizes()).containsExactly(4, 0, 4, 0);
        assertThat(policy.target()).isZero();
        store(41);
        assertThat(policy.target()).as("41 is forgotten").isZero();
        store(43);
        assertThat(policy.target()).isEqualTo(1);
    }

    @Test
    void aFailedStoreLeavesNothing() {
        store(1, 2, 3, 4);
        int[] slots = new int[1];
        cache.reserve(keys(5), slots);
        cache.abort(slots[0]);
        assertThat(policy.sizes()).containsExactly(3, 0, 1, 0);
        store(5);
        assertThat(policy.target()).as("5 was never there").isZero();
        assertThat(policy.sizes()).containsExactly(4, 0, 1, 0);
    }

    @Test
    void aReservationWithoutRoomAdaptsNothing() {
        store(1, 2, 3, 4);
        store(5);
        List<Integer> pinned = present(1, 5).stream()
                .map(key -> cache.pin(keys(Math.toIntExact(key)).getFirst()))
                .toList();
        assertThat(store(4)).isFalse();
        assertThat(policy.target()).isZero();
        pinned.forEach(cache::unpin);
        assertThat(store(4)).isTrue();
        assertThat(policy.target()).isEqualTo(1);
    }

    @Test
    void aResetForgetsGhostsAndTarget() {
        store(1, 2, 3, 4);
        store(5, 6);
        store(4);
        assertThat(policy.target()).isEqualTo(1);
        assertThat(cache.reset()).isTrue();
        assertThat(policy.target()).isZero();
        assertThat(policy.sizes()).containsExactly(0, 0, 0, 0);
        store(1, 2);
        assertThat(policy.target()).isZero();
    }
}
