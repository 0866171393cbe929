package baton.connectors.onesided;

import baton.kv.KvLayout;
import baton.transfer.Range;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;

/**
 * Geometry of a transfer between one rank of the reader and those of the owner's ranks that have its heads. Blocks are cut into pieces
 * of the slots that share a checksum; whole pieces are moved, so block sizes may differ as long as pieces of the owner's blocks fit into
 * the reader's. Whichever side moves the bytes, the reader is the side that gets them.
 *
 * <p>Which of the owner's blocks have the tokens is not part of it: methods that need them take the owner's block table, by which
 * {@link Piece#index} counts.
 */
public final class BlockMapping {
    /**
     * Heads that come from one of the owner's ranks.
     *
     * @param source index of the rank
     * @param ownerHead the first, as that rank counts
     * @param readerHead the first, as the reader's rank counts
     */
    record Heads(int source, int ownerHead, int readerHead, int count) {}

    /**
     * Neighbouring slots that share a checksum.
     *
     * @param index of the owner's block in the owner's block table
     * @param ownerSlot the first slot in it
     * @param block the reader's block
     * @param slot the first slot in it
     */
    record Piece(int index, int ownerSlot, int block, int slot) {}

    private final TransferPlan plan;
    private final PoolGeometry reader;
    private final List<PoolGeometry> owners;
    private final List<Heads> heads = new ArrayList<>();
    private final List<Piece> pieces = new ArrayList<>();
    /** For each group of layers, the index behind its last piece. */
    private final List<Integer> ends = new ArrayList<>();

    /** @param owners the owner's ranks, in their order; all with the same block size, which {@link #misfit} accepts */
    BlockMapping(TransferPlan plan, PoolGeometry reader, List<PoolGeometry> owners) {
        this.plan = plan;
        this.reader = reader;
        this.owners = owners;
        int ownerSize = ownerLayout().blockSize();
        int readerSize = reader.layout().blockSize();
        int unit = slots();
        plan.groups().ifPresent(groups -> {
            for (int i = 0; i < plan.blocks().length; i++) {
                for (int slot = 0; slot < readerSize; slot += unit) {
                    pieces.add(new Piece(groups.sources()[i], slot, plan.blocks()[i], slot));
                }
            }
            int end = 0;
            for (int size : groups.sizes()) {
                end += size * (readerSize / unit);
                ends.add(end);
            }
        });
        // Slots behind the last token in the owner's last block are moved too, as far as there is room: checksums cover
        // them.
        int endToken = Math.min(endBlock() * ownerSize, plan.firstToken() + plan.blocks().length * readerSize);
        for (int token = plan.firstToken(); plan.groups().isEmpty() && token < endToken; token += unit) {
            int block = plan.blocks()[(token - plan.firstToken()) / readerSize];
            pieces.add(new Piece(token / ownerSize, token % ownerSize, block, token % readerSize));
        }
        if (plan.groups().isEmpty()) {
            ends.add(pieces.size());
        }
        // Where there are fewer heads than ranks, several of the owner's have the same: the first is taken.
        int covered = reader.firstHead();
        int end = covered + reader.layout().kvHeads();
        for (int i = 0; i < owners.size() && covered < end; i++) {
            PoolGeometry owner = owners.get(i);
            int from = Math.max(covered, owner.firstHead());
            int to = Math.min(end, owner.firstHead() + owner.layout().kvHeads());
            if (from == covered && to > from) {
                heads.add(new Heads(i, from - owner.firstHead(), from - reader.firstHead(), to - from));
                covered = to;
            }
        }
    }

    /** Why an owner's blocks cannot be put into blocks of the reader's, or empty if they can. */
    static Optional<String> misfit(PoolGeometry owner, KvLayout reader) {
        int there = owner.layout().blockSize();
        int here = reader.blockSize();
        if (owner.interior() == BlockInterior.CPU_UNKNOWN) {
            return Optional.of("the owner's attn_backend_name is CPU_ATTN, which packs blocks for its processor:"
                    + " vllm_cpu_attn_isa must say how, vec or amx");
        }
        if (owner.interior().isPacked() && there != here) {
            return Optional.of("the owner's blocks are packed by CPU_ATTN and of " + there + " tokens, the reader's of "
                    + here + "; they must be equal");
        }
        boolean fits = (here % there == 0 || there % here == 0) && here % BlockChecksums.unit(there) == 0;
        return fits
                ? Optional.empty()
                : Optional.of(
                        "the owner's block size is " + there + ", the reader's " + here
                                + "; the reader's must be a multiple of the owner's, or both multiples of 16 of which one divides the other");
    }

    /** Why the tokens cannot be in the blocks of an owner's block table that a peer sent, or empty if they can. */
    Optional<Rejection> check(int[] ownerBlocks) {
        boolean ofOtherSize = plan.groups().isPresent()
                && ownerLayout().blockSize() != reader.layout().blockSize();
        int covered = heads.stream().mapToInt(Heads::count).sum();
        if (ofOtherSize || covered < reader.layout().kvHeads()) {
            return Optional.of(Rejection.MISMATCH);
        }
        int[] indices = plan.groups()
                .map(TransferPlan.Groups::sources)
                .orElseGet(
                        () -> IntStream.range(plan.firstToken() / ownerLayout().blockSize(), endBlock())
                                .toArray());
        if (Arrays.stream(indices).anyMatch(index -> index >= ownerBlocks.length)) {
            return Optional.of(Rejection.TRUNCATED);
        }
        int blocks = owners.stream().mapToInt(PoolGeometry::blocks).min().orElse(0);
        return Arrays.stream(indices).map(index -> ownerBlocks[index]).anyMatch(block -> block < 0 || block >= blocks)
                ? Optional.of(Rejection.INVALID)
                : Optional.empty();
    }

    private int endBlock() {
        return Math.ceilDiv(plan.endToken(), ownerLayout().blockSize());
    }

    TransferPlan plan() {
        return plan;
    }

    List<Heads> heads() {
        return heads;
    }

    List<Piece> pieces() {
        return pieces;
    }

    /** For each group of layers, the index behind its last piece. */
    List<Integer> ends() {
        return ends;
    }

    /** The prompt's tokens up to the end of the owner's block that has a piece of that group. */
    int tokensUntil(int group, int piece) {
        int size = ownerLayout().blockSize();
        return size
                * (plan.groups().isEmpty()
                        ? pieces.get(piece).index() + 1
                        : endBlock() - (ends.get(group) - 1 - piece) / (size / slots()));
    }

    KvLayout ownerLayout() {
        return owners.getFirst().layout();
    }

    /** Slots of a piece. */
    int slots() {
        return BlockChecksums.unit(ownerLayout().blockSize());
    }

    /** Whether blocks are moved as they are, with all of their heads. */
    boolean isWhole(Heads from) {
        PoolGeometry owner = owners.get(from.source());
        return reader.layout().equals(owner.layout())
                && from.count() == reader.layout().kvHeads()
                && reader.isPool()
                && owner.isPool();
    }

    /** Whether {@link #ranges} moves pages as the owner has them, which then must be rearranged ({@link PageRearrangement}). */
    boolean isRearranged(Heads from) {
        PoolGeometry owner = owners.get(from.source());
        boolean allHeads = from.count() == owner.layout().kvHeads()
                && from.count() == reader.layout().kvHeads();
        return owner.interior().isPacked()
                || (owner.interior() == BlockInterior.TOKENS
                        && reader.interior() == BlockInterior.HEADS
                        && allHeads
                        && owner.layout().blockSize() == reader.layout().blockSize());
    }

    BlockInterior ownerInterior(Heads from) {
        return owners.get(from.source()).interior();
    }

    /** Ranges of whole blocks, one for each of the reader's blocks. {@link Range#local} is the reader's address. */
    List<Range> wholes(Heads from, List<Piece> some, int[] ownerBlocks) {
        PoolGeometry owner = owners.get(from.source());
        return some.stream()
                .filter(piece -> piece.slot() == 0)
                .map(piece -> new Range(
                        reader.block(piece.block()),
                        owner.block(ownerBlocks[piece.index()]),
                        reader.layout().blockBytes()))
                .toList();
    }

    /** Ranges of some pieces in the layers {@code [firstLayer, endLayer)}. {@link Range#local} is the reader's address. */
    List<Range> ranges(Heads from, List<Piece> some, int[] ownerBlocks, int firstLayer, int endLayer) {
        PoolGeometry owner = owners.get(from.source());
        KvLayout local = reader.layout();
        List<Range> ranges = new ArrayList<>();
        boolean whole = isWhole(from) && endLayer - firstLayer == local.layers();
        int each = piecesOfPage(from);
        int next = 0;
        while (next < some.size()) {
            Piece piece = some.get(next);
            int ownerBlock = ownerBlocks[piece.index()];
            boolean isPage = piece.slot() == 0
                    && next + each <= some.size()
                    && some.get(next + each - 1).block() == piece.block();
            if (whole && isPage) {
                Range.append(
                        ranges, new Range(reader.block(piece.block()), owner.block(ownerBlock), local.blockBytes()));
            } else {
                for (int layer = firstLayer; layer < endLayer; layer++) {
                    if (isPage) {
                        Range.append(
                                ranges,
                                new Range(
                                        reader.page(layer, piece.block()) + from.readerHead() * local.headBytes(),
                                        owner.page(layer, ownerBlock) + from.ownerHead() * local.headBytes(),
                                        from.count() * local.headBytes()));
                    } else {
                        entries(ranges, from, piece, ownerBlock, layer);
                    }
                }
            }
            next += isPage ? each : 1;
        }
        return ranges;
    }

    /** The number of pieces in a page that can be moved unchanged; more than there are if pages cannot be. */
    private int piecesOfPage(Heads from) {
        PoolGeometry owner = owners.get(from.source());
        boolean alike = isRearranged(from)
                || (owner.interior() == BlockInterior.HEADS && reader.interior() == BlockInterior.HEADS);
        return alike && owner.layout().blockSize() == reader.layout().blockSize()
                ? reader.layout().blockSize() / slots()
                : pieces.size() + 1;
    }

    private void entries(List<Range> ranges, Heads from, Piece piece, int ownerBlock, int layer) {
        PoolGeometry owner = owners.get(from.source());
        for (int head = 0; head < from.count(); head++) {
            for (int slot = 0; slot < slots(); slot++) {
                Range.append(
                        ranges,
                        new Range(
                                reader.entry(layer, piece.block(), from.readerHead() + head, piece.slot() + slot),
                                owner.entry(layer, ownerBlock, from.ownerHead() + head, piece.ownerSlot() + slot),
                                owner.layout().entryBytes()));
            }
        }
    }

    /**
     * The entries of the pieces' blocks in the owner's table of checksums.
     *
     * @param local address for {@link #checksumEntries} entries
     * @param table the owner's
     */
    List<Range> checksumRanges(Heads from, int[] ownerBlocks, long local, BlockChecksums.Table table) {
        long entry = BlockChecksums.entryBytes(owners.get(from.source()).layout(), table.kind());
        long remote = table.address();
        List<Range> ranges = new ArrayList<>();
        int last = -1;
        for (Piece piece : pieces) {
            if (piece.index() != last) {
                Range.append(
                        ranges,
                        new Range(
                                local + checksumEntry(piece) * entry,
                                remote + ownerBlocks[piece.index()] * entry,
                                entry));
                last = piece.index();
            }
        }
        return ranges;
    }

    /** Index of the place for the checksums of a piece's block: no two loads that fill different blocks have the same. */
    long checksumEntry(Piece piece) {
        int readerSize = reader.layout().blockSize();
        int ownerSize = ownerLayout().blockSize();
        if (ownerSize <= readerSize) {
            return (long) piece.block() * (readerSize / ownerSize) + piece.slot() / ownerSize;
        }
        // One block of the owner's fills several of the reader's: the one that gets its first slot counts.
        int inPlan = Math.max(0, piece.index() * ownerSize - plan.firstToken()) / readerSize;
        return plan.blocks()[inPlan];
    }

    /** How many such places there are. */
    int checksumEntries() {
        return reader.blocks()
                * Math.max(1, reader.layout().blockSize() / ownerLayout().blockSize());
    }
}
