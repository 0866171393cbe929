package baton.engine.core;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.BlockHash;
import baton.kv.KvGroups;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.OptionalInt;
import java.util.Random;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

class BlockPoolTest {
    private static BlockHash hash(int n) {
        return new BlockHash(n, 2, 3, 4);
    }

    @Test
    void aFreedBlockKeepsItsContentUntilItIsTheLeastRecentlyUsed() {
        BlockPool pool = new BlockPool(3);
        int first = pool.allocate();
        pool.publish(0, first, hash(1), "");
        pool.release(first);
        assertThat(pool.cached(0, hash(1))).hasValue(first);
        int second = pool.allocate();
        int third = pool.allocate();
        assertThat(List.of(second, third)).doesNotContain(first);
        assertThat(pool.cached(0, hash(1))).hasValue(first);
        assertThat(pool.allocate()).isEqualTo(first);
        assertThat(pool.cached(0, hash(1))).isEmpty();
    }

    @Test
    void aHitTakesABlockOutOfTheFreeList() {
        BlockPool pool = new BlockPool(2);
        int block = pool.allocate();
        pool.publish(0, block, hash(1), "");
        pool.release(block);
        pool.hold(block);
        assertThat(pool.free()).isEqualTo(1);
        assertThat(pool.allocate()).isNotEqualTo(block);
        assertThatThrownBy(pool::allocate)
                .isInstanceOf(IllegalStateException.class)
                .hasMessageContaining("no free block");
    }

    @Test
    void resetIsRefusedWhileBlocksAreHeld() {
        BlockPool pool = new BlockPool(2);
        int block = pool.allocate();
        pool.publish(0, block, hash(1), "");
        assertThat(pool.reset()).isFalse();
        assertThat(pool.cached(0, hash(1))).isPresent();
        pool.release(block);
        assertThat(pool.reset()).isTrue();
        assertThat(pool.cached(0, hash(1))).isEmpty();
        pool.checkInvariants();
    }

    @Test
    void releasingAFreeBlockIsAnError() {
        BlockPool pool = new BlockPool(1);
        assertThatThrownBy(() -> pool.release(0)).hasMessageContaining("block=0");
    }

    @Test
    void aTenantThatUsesMoreThanItsShareEvictsItsOwnBlocks() {
        BlockPool pool = new BlockPool(8, KvGroups.one(1), CacheEvents.disabled(), 0.5);
        for (int i = 0; i < 3; i++) {
            cache(pool, hash(i), "small");
        }
        for (int i = 10; i < 30; i++) {
            cache(pool, hash(i), "large");
        }
        for (int i = 0; i < 3; i++) {
            assertThat(pool.cached(0, hash(i)))
                    .as("block %d of the small tenant", i)
                    .isPresent();
        }
        // It also has the block that its next one takes.
        assertThat(IntStream.range(10, 30).filter(i -> pool.cached(0, hash(i)).isPresent()))
                .containsExactly(25, 26, 27, 28, 29);
        pool.checkInvariants();
    }

    private static void cache(BlockPool pool, BlockHash hash, String tenant) {
        int block = pool.allocate();
        pool.publish(0, block, hash, tenant);
        pool.release(block);
    }

    /** The pool equals a model: a map of published blocks, and reference counts. */
    @Test
    void randomUseKeepsTheInvariants() {
        long seed = Long.getLong("tests.seed", System.nanoTime());
        Random random = new Random(seed);
        BlockPool pool = new BlockPool(23, KvGroups.one(1), CacheEvents.disabled(), 0.3);
        List<Integer> held = new ArrayList<>();
        Map<Integer, Integer> published = new HashMap<>();
        for (int i = 0; i < 20_000; i++) {
            switch (random.nextInt(5)) {
                case 0, 1 -> {
                    if (pool.free() > 0) {
                        int block = pool.allocate();
                        assertThat(held).as("seed %d", seed).doesNotContain(block);
                        published.values().remove(block);
                        held.add(block);
                    }
                }
                case 2 -> {
                    int key = random.nextInt(40);
                    if (!held.isEmpty()) {
                        int block = held.get(random.nextInt(held.size()));
                        pool.publish(0, block, hash(key), "tenant " + key % 3);
                        if (!published.containsValue(block)) {
                            published.putIfAbsent(key, block);
                        }
                    }
                }
                case 3 -> {
                    OptionalInt cached = pool.cached(0, hash(random.nextInt(40)));
                    cached.ifPresent(block -> {
                        pool.hold(block);
                        held.add(block);
                    });
                }
                default -> {
                    if (!held.isEmpty()) {
                        pool.release(held.remove(random.nextInt(held.size())));
                    }
                }
            }
            pool.checkInvariants();
            assertThat(pool.used()).isEqualTo((int) held.stream().distinct().count());
            for (int key = 0; key < 40; key++) {
                Integer block = published.get(key);
                assertThat(pool.cached(0, hash(key)))
                        .as("seed %d key %d", seed, key)
                        .isEqualTo(block == null ? OptionalInt.empty() : OptionalInt.of(block));
            }
        }
    }
}
