package baton.connectors.nixl;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.connectors.nixl.RangePlan.Read;
import baton.connectors.nixl.RangePlan.Side;
import baton.connectors.nixl.RangePlan.Source;
import baton.connectors.nixl.RangePlan.Tail;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.KvLayout;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

/** Plans carried out on small pools, and what is in the reader's pool afterwards, byte by byte. */
class RangePlanTest {
    private static final int LAYERS = 2;
    private static final int HEAD_DIM = 1;
    private static final int ENTRY = 2 * HEAD_DIM * 2;
    private static final byte UNTOUCHED = (byte) 0x80;

    @Test
    void everySmallGeometryIsReadAsAByteByByteModelSays() {
        Random random = new Random(Long.getLong("tests.seed", 5));
        int plans = 0;
        for (int heads : new int[] {1, 2, 4, 8}) {
            for (int localRanks : new int[] {1, 2, 4}) {
                for (int remoteRanks : new int[] {1, 2, 4}) {
                    for (int[] sizes : new int[][] {{2, 2}, {4, 2}, {2, 4}, {8, 2}, {2, 8}, {1, 3}, {3, 1}}) {
                        for (int to = 0; to <= 17; to++) {
                            for (int from = 0; from <= to; from++) {
                                // All, and of those that begin inside blocks some.
                                if (from % sizes[0] == 0 || random.nextInt(8) == 0) {
                                    readAndCompare(
                                            heads, localRanks, remoteRanks, sizes[0], sizes[1], from, to, random);
                                    plans++;
                                }
                            }
                        }
                    }
                }
            }
        }
        assertThat(plans).isGreaterThan(10_000);
    }

    private static void readAndCompare(
            int heads,
            int localRanks,
            int remoteRanks,
            int localSize,
            int remoteSize,
            int from,
            int to,
            Random random) {
        int tokens = 24;
        Side local = side(heads, localRanks, localSize, tokens, to, random);
        Side remote = side(heads, remoteRanks, remoteSize, tokens, to + random.nextInt(6), random);
        List<byte[]> remotePools = new ArrayList<>();
        for (int rank = 0; rank < remoteRanks; rank++) {
            remotePools.add(filled(remote, rank));
        }
        for (int rank = 0; rank < localRanks; rank++) {
            byte[] pool = new byte[local.poolBlocks() * (int) local.layout().blockBytes()];
            Arrays.fill(pool, UNTOUCHED);
            RangePlan plan = RangePlan.of(local, rank, remote, from, to);
            for (Source source : plan.sources()) {
                Read last = null;
                for (Read read : source.reads()) {
                    System.arraycopy(
                            remotePools.get(source.rank()), (int) read.remote(), pool, (int) read.local(), (int)
                                    read.bytes());
                    boolean goesOn = last != null
                            && last.local() + last.bytes() == read.local()
                            && last.remote() + last.bytes() == read.remote();
                    assertThat(goesOn).as("two reads that could be one").isFalse();
                    last = read;
                }
            }
            for (Tail tail : plan.tail()) {
                Arrays.fill(pool, (int) tail.local(), (int) (tail.local() + tail.bytes()), (byte) 0);
            }
            assertThat(pool)
                    .as(
                            "heads=%d ranks=%d rank=%d remote ranks=%d block sizes %d and %d, tokens %d to %d",
                            heads, localRanks, rank, remoteRanks, localSize, remoteSize, from, to)
                    .isEqualTo(expected(local, rank, from, to));
        }
    }

    @Test
    void wholeBlocksNextToEachOtherAreOneRead() {
        KvLayout layout = new KvLayout(16, 8, 64, 16, DType.BF16);
        Side local = new Side(layout, 8, 1, 100, new int[] {7, 8, 9, 20, 21});
        Side remote = new Side(layout, 8, 1, 100, new int[] {30, 31, 32, 33, 40});
        long block = layout.blockBytes();

        RangePlan plan = RangePlan.of(local, 0, remote, 0, 79);

        assertThat(plan.sources())
                .containsExactly(new Source(
                        0,
                        List.of(
                                new Read(7 * block, 30 * block, 3 * block),
                                new Read(20 * block, 33 * block, block),
                                new Read(21 * block, 40 * block, block))));
        assertThat(plan.tail()).hasSize(16 * 8).contains(new Tail(21 * block + 15 * 256, 256));
        assertThat(plan.sources().getFirst().ranges(1000, 1L << 40).getFirst().remote())
                .isEqualTo((1L << 40) + 30 * block);
    }

    @Test
    void aShareOfTheHeadsIsOneReadPerLayerOfABlock() {
        Side local = new Side(new KvLayout(3, 4, 64, 16, DType.BF16), 8, 2, 10, new int[] {1, 2});
        Side remote = new Side(new KvLayout(3, 8, 64, 16, DType.BF16), 8, 1, 10, new int[] {5, 6});
        RangePlan one = RangePlan.of(local, 1, remote, 0, 32);
        assertThat(one.sources()).hasSize(1);
        assertThat(one.sources().getFirst().reads()).hasSize(2 * 3);
        assertThat(one.sources().getFirst().bytes())
                .isEqualTo(2 * local.layout().blockBytes());

        RangePlan two = RangePlan.of(remote, 0, local, 0, 32);
        assertThat(two.sources()).extracting(Source::rank).containsExactly(0, 1);
        assertThat(two.sources())
                .allSatisfy(source -> assertThat(source.reads()).hasSize(2 * 3));
    }

    @Test
    void oneOfTheRanksThatHaveTheSameHeadIsRead() {
        Side local = new Side(new KvLayout(1, 2, 4, 2, DType.BF16), 2, 1, 4, new int[] {0});
        Side remote = new Side(new KvLayout(1, 1, 4, 2, DType.BF16), 2, 4, 4, new int[] {0});
        assertThat(RangePlan.of(local, 0, remote, 0, 2).sources())
                .extracting(Source::rank)
                .containsExactly(0, 2);
        for (int rank = 0; rank < 4; rank++) {
            assertThat(RangePlan.of(remote, rank, local, 0, 2).sources())
                    .containsExactly(new Source(0, List.of(new Read(0, rank / 2 * 32L, 32))));
            assertThat(RangePlan.of(remote, rank, remote, 0, 2).sources())
                    .extracting(Source::rank)
                    .containsExactly(rank);
        }
    }

    @Test
    void nothingToReadIsNoReads() {
        Side side = new Side(new KvLayout(1, 1, 4, 2, DType.BF16), 1, 1, 4, new int[] {0});
        assertThat(RangePlan.of(side, 0, side, 2, 2)).isEqualTo(new RangePlan(List.of(), List.of()));
    }

    @Test
    void whatCannotBeIsRefusedWithBothValues() {
        Side local = new Side(new KvLayout(2, 2, 4, 16, DType.BF16), 4, 2, 10, new int[] {1, 2});
        refused(local, with(local, new KvLayout(3, 2, 4, 16, DType.BF16)), 16, "num_layers", "is 3", "2 here");
        refused(local, with(local, new KvLayout(2, 2, 8, 16, DType.BF16)), 16, "head_size", "is 8", "4 here");
        refused(local, with(local, new KvLayout(2, 2, 4, 16, DType.F32)), 16, "dtype", "is float32", "bfloat16 here");
        refused(local, with(local, new KvLayout(2, 2, 4, 24, DType.BF16)), 16, "block_size", "is 24", "16 here");
        refused(
                local,
                with(local, new KvLayout(2, 4, 4, 16, DType.BF16)),
                16,
                "num_kv_heads",
                "is 4",
                "2 ranks",
                "4 heads");
        refused(local, new Side(local.layout(), 8, 2, 10, local.blocks()), 16, "num_kv_heads", "is 8", "4 here");
        refused(local, new Side(local.layout(), 4, 3, 10, local.blocks()), 16, "tp_size", "is 3", "2 here");
        refused(local, new Side(local.layout(), 4, 0, 10, local.blocks()), 16, "tp_size", "is 0", "2 here");
        refused(
                local,
                new Side(local.layout(), 4, 2, 10, new int[] {1}),
                17,
                "remote_block_ids",
                "has 1 blocks",
                "must have 2");
        refused(
                local,
                new Side(local.layout(), 4, 2, 10, new int[] {1, 10}),
                17,
                "remote_block_ids",
                "block 10",
                "0 to 9");
        refused(
                local,
                new Side(local.layout(), 4, 2, 10, new int[] {-1, 3}),
                17,
                "remote_block_ids",
                "block -1",
                "0 to 9");
        refused(local, local, 33, "local_block_ids", "has 2 blocks", "must have 3");
        assertThatThrownBy(() -> RangePlan.of(local, 2, local, 0, 1))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("tp_rank: is 2");
        assertThatThrownBy(() -> RangePlan.of(local, 0, local, 2, 1))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("from 2 to 1");
    }

    private static void refused(Side local, Side remote, int to, String... words) {
        assertThatThrownBy(() -> RangePlan.of(local, 0, remote, 0, to))
                .isInstanceOf(ConfigException.class)
                .hasMessageContainingAll(words);
    }

    private static Side with(Side side, KvLayout layout) {
        return new Side(layout, side.modelKvHeads(), side.tensorParallelSize(), side.poolBlocks(), side.blocks());
    }

    private static Side side(int heads, int ranks, int blockSize, int tokens, int held, Random random) {
        KvLayout layout = new KvLayout(LAYERS, Math.max(1, heads / ranks), HEAD_DIM, blockSize, DType.BF16);
        int pool = layout.blocksFor(tokens) + 2;
        List<Integer> ids = new ArrayList<>(IntStream.range(0, pool).boxed().toList());
        // In order they coalesce, shuffled they do not.
        if (random.nextBoolean()) {
            Collections.shuffle(ids, random);
        }
        int[] blocks = ids.subList(0, layout.blocksFor(held)).stream()
                .mapToInt(Integer::intValue)
                .toArray();
        return new Side(layout, heads, ranks, pool, blocks);
    }

    /** A rank's pool with the model's values for each token in it, and rubbish in the blocks of others. */
    private static byte[] filled(Side side, int rank) {
        byte[] pool = new byte[side.poolBlocks() * (int) side.layout().blockBytes()];
        Arrays.fill(pool, (byte) 0x81);
        for (int token = 0; token < side.blocks().length * side.layout().blockSize(); token++) {
            fill(side, rank, pool, token, false);
        }
        return pool;
    }

    private static byte[] expected(Side local, int rank, int from, int to) {
        byte[] pool = new byte[local.poolBlocks() * (int) local.layout().blockBytes()];
        Arrays.fill(pool, UNTOUCHED);
        int end = from < to ? local.layout().blocksFor(to) * local.layout().blockSize() : to;
        for (int token = from; token < end; token++) {
            fill(local, rank, pool, token, token >= to);
        }
        return pool;
    }

    private static void fill(Side side, int rank, byte[] pool, int token, boolean zero) {
        KvLayout layout = side.layout();
        int block = side.blocks()[token / layout.blockSize()];
        for (int layer = 0; layer < LAYERS; layer++) {
            for (int head = 0; head < layout.kvHeads(); head++) {
                int modelHead = rank * side.modelKvHeads() / side.tensorParallelSize() + head;
                for (int i = 0; i < ENTRY; i++) {
                    long at = (((long) block * LAYERS + layer) * layout.kvHeads() + head) * layout.blockSize() * ENTRY
                            + (long) token % layout.blockSize() * ENTRY
                            + i;
                    pool[(int) at] = zero ? 0 : (byte) ((token * 53 + layer * 29 + modelHead * 7 + i) % 127 + 1);
                }
            }
        }
    }
}
