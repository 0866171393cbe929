package baton.connectors.onesided;

import static org.assertj.core.api.Assertions.assertThat;

import baton.connectors.onesided.BlockMapping.Heads;
import baton.connectors.onesided.BlockMapping.Piece;
import baton.kv.DType;
import baton.kv.KvDigest;
import baton.kv.KvLayout;
import baton.transfer.Range;
import java.util.ArrayList;
import java.util.List;
import java.util.OptionalInt;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Geometry of transfers between pools of other heads and other block sizes. */
class BlockMappingTest {
    private static final int LAYERS = 2;
    private static final int HEAD_DIM = 4;
    private static final int BLOCKS = 20;
    private static final long READER = 1_000_000;
    private static final long OWNER = 9_000_000;

    private static PoolGeometry pool(long address, int heads, int firstHead, int blockSize) {
        KvLayout layout = new KvLayout(LAYERS, heads, HEAD_DIM, blockSize, DType.F32);
        return new PoolGeometry(
                layout,
                firstHead,
                BLOCKS,
                LayerRegions.ofPool(address, layout, OptionalInt.empty()),
                BlockInterior.HEADS);
    }

    private static BlockMapping mapping(TransferPlan plan, PoolGeometry reader, PoolGeometry... owners) {
        return new BlockMapping(plan, reader, List.of(owners));
    }

    private static int[] blocks(int... blocks) {
        return blocks;
    }

    @Test
    void equalGeometriesMoveWholeBlocksAndNeighboursTogether() {
        PoolGeometry reader = pool(READER, 2, 0, 4);
        PoolGeometry owner = pool(OWNER, 2, 0, 4);
        BlockMapping mapping = mapping(new TransferPlan(0, 9, blocks(3, 4, 9)), reader, owner);
        assertThat(mapping.heads()).containsExactly(new Heads(0, 0, 0, 2));
        assertThat(mapping.isWhole(mapping.heads().getFirst())).isTrue();
        assertThat(mapping.pieces())
                .containsExactly(new Piece(0, 0, 3, 0), new Piece(1, 0, 4, 0), new Piece(2, 0, 9, 0));
        long bytes = reader.layout().blockBytes();
        int[] table = {5, 6, 7};
        assertThat(mapping.ranges(mapping.heads().getFirst(), mapping.pieces(), table, 0, LAYERS))
                .containsExactly(
                        new Range(reader.block(3), owner.block(5), 2 * bytes),
                        new Range(reader.block(9), owner.block(7), bytes));
        assertThat(mapping.wholes(mapping.heads().getFirst(), mapping.pieces(), table))
                .hasSize(3);
    }

    @Test
    void aPlanThatBeginsBehindAPrefixSkipsTheOwnersFirstBlocks() {
        BlockMapping mapping = mapping(new TransferPlan(8, 3, blocks(1)), pool(READER, 1, 0, 4), pool(OWNER, 1, 0, 4));
        assertThat(mapping.pieces()).containsExactly(new Piece(2, 0, 1, 0));
        assertThat(mapping.check(blocks(99, 99, 3))).isEmpty();
    }

    @Test
    void groupsOfOtherBlockSizesAreNotRead() {
        TransferPlan plan = TransferPlan.ofGroups(0, 32, blocks(1, 2), List.of(1, 1), List.of(1, 1), 0)
                .orElseThrow();
        PoolGeometry owner = pool(OWNER, 1, 0, 16);
        assertThat(mapping(plan, pool(READER, 1, 0, 16), owner).check(blocks(3, 4)))
                .isEmpty();
        assertThat(mapping(plan, pool(READER, 1, 0, 32), owner).check(blocks(3, 4)))
                .contains(Rejection.MISMATCH);
    }

    @Test
    void ranksThatLackAHeadAreNotRead() {
        BlockMapping mapping = mapping(new TransferPlan(0, 4, blocks(0)), pool(READER, 1, 0, 4), pool(OWNER, 1, 1, 4));
        assertThat(mapping.heads()).isEmpty();
        assertThat(mapping.check(blocks(3))).contains(Rejection.MISMATCH);
    }

    @Test
    void aReaderWithMoreHeadsTakesThemFromSeveralRanks() {
        BlockMapping mapping = mapping(
                new TransferPlan(0, 4, blocks(0)),
                pool(READER, 4, 0, 4),
                pool(OWNER, 2, 0, 4),
                pool(2 * OWNER, 2, 2, 4));
        assertThat(mapping.heads()).containsExactly(new Heads(0, 0, 0, 2), new Heads(1, 0, 2, 2));
        assertThat(mapping.isWhole(mapping.heads().getFirst())).isFalse();
    }

    @Test
    void aReaderWithFewerHeadsTakesItsPartOfTheOwners() {
        BlockMapping mapping = mapping(new TransferPlan(0, 4, blocks(0)), pool(READER, 1, 3, 4), pool(OWNER, 4, 0, 4));
        assertThat(mapping.heads()).containsExactly(new Heads(0, 3, 0, 1));
        KvLayout layout = pool(OWNER, 4, 0, 4).layout();
        List<Range> ranges = mapping.ranges(mapping.heads().getFirst(), mapping.pieces(), blocks(2), 0, LAYERS);
        assertThat(ranges).hasSize(LAYERS).allMatch(range -> range.bytes() == layout.headBytes());
        assertThat(ranges.getFirst().remote()).isEqualTo(OWNER + 2 * layout.blockBytes() + layout.entryOffset(0, 3, 0));
    }

    @Test
    void ofReplicatedHeadsTheFirstRanksAreTaken() {
        // Two of the owner's four ranks have the same head each.
        BlockMapping mapping = mapping(
                new TransferPlan(0, 4, blocks(0)),
                pool(READER, 2, 0, 4),
                pool(OWNER, 1, 0, 4),
                pool(OWNER, 1, 0, 4),
                pool(OWNER, 1, 1, 4),
                pool(OWNER, 1, 1, 4));
        assertThat(mapping.heads()).containsExactly(new Heads(0, 0, 0, 1), new Heads(2, 0, 1, 1));
    }

    /** Each slot of the plan's tokens gets the bytes of its token, of every layer and head, once. */
    @ParameterizedTest
    @CsvSource({
        "16, 16, 0, 40",
        "16, 32, 0, 40",
        "32, 16, 0, 40",
        "32, 16, 16, 17",
        "16, 48, 0, 100",
        "4, 8, 8, 9",
        "5, 5, 5, 3"
    })
    void everyTokenIsMovedOnce(int ownerSize, int readerSize, int firstToken, int tokens) {
        PoolGeometry reader = pool(READER, 2, 0, readerSize);
        PoolGeometry owner = pool(OWNER, 2, 0, ownerSize);
        assertThat(BlockMapping.misfit(owner, reader.layout())).isEmpty();
        int[] blocks = IntStream.range(0, Math.ceilDiv(tokens, readerSize))
                .map(i -> BLOCKS - 1 - i)
                .toArray();
        int[] table = IntStream.range(0, Math.ceilDiv(firstToken + tokens, ownerSize))
                .map(i -> (i * 7 + 3) % BLOCKS)
                .toArray();
        BlockMapping mapping = mapping(new TransferPlan(firstToken, tokens, blocks), reader, owner);
        assertThat(mapping.check(table)).isEmpty();
        List<Range> ranges = mapping.ranges(mapping.heads().getFirst(), mapping.pieces(), table, 0, LAYERS);
        for (int token = firstToken; token < firstToken + tokens; token++) {
            int inPlan = token - firstToken;
            for (int layer = 0; layer < LAYERS; layer++) {
                for (int head = 0; head < 2; head++) {
                    long local = reader.block(blocks[inPlan / readerSize])
                            + reader.layout().entryOffset(layer, head, inPlan % readerSize);
                    long remote = owner.block(table[token / ownerSize])
                            + owner.layout().entryOffset(layer, head, token % ownerSize);
                    List<Range> holding = new ArrayList<>(ranges);
                    holding.removeIf(range -> local < range.local() || local >= range.local() + range.bytes());
                    assertThat(holding)
                            .as("token %d, layer %d, head %d", token, layer, head)
                            .hasSize(1);
                    assertThat(holding.getFirst().remote()
                                    + local
                                    - holding.getFirst().local())
                            .isEqualTo(remote);
                }
            }
        }
        assertThat(ranges)
                .allMatch(range -> range.local() >= READER
                        && range.local() + range.bytes() <= reader.block(BLOCKS)
                        && range.remote() >= OWNER
                        && range.remote() + range.bytes() <= owner.block(BLOCKS));
    }

    @Test
    void checksumsOfDifferentOwnerBlocksHaveDifferentPlaces() {
        BlockMapping mapping =
                mapping(new TransferPlan(0, 64, blocks(3, 7)), pool(READER, 1, 0, 32), pool(OWNER, 1, 0, 16));
        assertThat(mapping.pieces().stream().mapToLong(mapping::checksumEntry).distinct())
                .hasSize(4)
                .allMatch(entry -> entry < mapping.checksumEntries());
    }

    @Test
    void anOwnersBlockThatFillsSeveralHasItsChecksumsOnce() {
        BlockMapping mapping =
                mapping(new TransferPlan(0, 64, blocks(3, 7, 8, 9)), pool(READER, 1, 0, 16), pool(OWNER, 1, 0, 32));
        BlockChecksums.Table table = new BlockChecksums.Table(KvDigest.CRC32C, OWNER);
        assertThat(mapping.checksumRanges(mapping.heads().getFirst(), blocks(1, 5), 0, table))
                .hasSize(2);
        assertThat(mapping.pieces().stream().map(mapping::checksumEntry)).containsExactly(3L, 3L, 8L, 8L);
    }

    @Test
    void aTruncatedBlockTableIsRejected() {
        BlockMapping mapping =
                mapping(new TransferPlan(0, 9, blocks(0, 1, 2)), pool(READER, 1, 0, 4), pool(OWNER, 1, 0, 4));
        assertThat(mapping.check(blocks(1, 2))).contains(Rejection.TRUNCATED);
        assertThat(mapping.check(blocks())).contains(Rejection.TRUNCATED);
        assertThat(mapping.check(blocks(1, 2, 3))).isEmpty();
    }

    @Test
    void blockIdsOutsideTheOwnersPoolAreRejected() {
        BlockMapping mapping =
                mapping(new TransferPlan(0, 9, blocks(0, 1, 2)), pool(READER, 1, 0, 4), pool(OWNER, 1, 0, 4));
        assertThat(mapping.check(blocks(1, 2, BLOCKS))).contains(Rejection.INVALID);
        assertThat(mapping.check(blocks(1, -1, 2))).contains(Rejection.INVALID);
        // Not needed for these tokens.
        assertThat(mapping.check(blocks(1, 2, 3, BLOCKS))).isEmpty();
    }

    @ParameterizedTest
    @CsvSource({"16, 24", "24, 16", "48, 32", "8, 4", "5, 16"})
    void blockSizesThatChecksumsDoNotCoverAreRefused(int ownerSize, int readerSize) {
        assertThat(BlockMapping.misfit(
                        pool(OWNER, 1, 0, ownerSize),
                        pool(READER, 1, 0, readerSize).layout()))
                .isPresent();
    }
}
