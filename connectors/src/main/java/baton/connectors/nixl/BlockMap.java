package baton.connectors.nixl;

import baton.kv.KvLayout;
import baton.transfer.Range;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;

/**
 * Where the bytes of a load come from and go to, for one of our ranks and those of the peer that have its heads. A block of ours
 * holds one or more of the peer's.
 */
final class BlockMap {
    /**
     * Heads that are read from one of the peer's ranks.
     *
     * @param source index of the rank
     * @param remoteHead the first, as that rank counts
     * @param localHead the first, as we count
     */
    record Heads(int source, int remoteHead, int localHead, int count) {}

    /**
     * One of the peer's blocks.
     *
     * @param index in the reference
     * @param remote its number there
     * @param local our block that it goes into
     * @param slot the first of our block's slots that it fills
     */
    record Piece(int index, int remote, int local, int slot) {}

    private final NixlStep.Load load;
    private final RankInfo self;
    private final List<RankInfo> sources;
    private final List<Heads> heads = new ArrayList<>();
    private final List<Piece> pieces = new ArrayList<>();
    private final Optional<Rejection> wrong;

    /** @param sources the peer's ranks, in their order */
    BlockMap(NixlStep.Load load, RankInfo self, List<RankInfo> sources) {
        this.load = load;
        this.self = self;
        this.sources = sources;
        int size = remoteLayout().blockSize();
        int first = load.firstToken() / size;
        int end = Math.ceilDiv(load.firstToken() + load.tokens(), size);
        int[] remote = load.source().blocks();
        if (end > remote.length) {
            wrong = Optional.of(Rejection.TRUNCATED);
            return;
        }
        int most = sources.stream().mapToInt(RankInfo::blocks).min().orElse(0);
        if (Arrays.stream(remote, first, end).anyMatch(block -> block >= most)) {
            wrong = Optional.of(Rejection.INVALID);
            return;
        }
        wrong = Optional.empty();
        int ownSize = self.layout().blockSize();
        for (int i = first; i < end; i++) {
            int token = i * size - load.firstToken();
            pieces.add(new Piece(i, remote[i], load.blocks()[token / ownSize], token % ownSize));
        }
        int covered = self.firstHead();
        int last = covered + self.layout().kvHeads();
        for (int i = 0; i < sources.size() && covered < last; i++) {
            RankInfo source = sources.get(i);
            int from = Math.max(covered, source.firstHead());
            int to = Math.min(last, source.firstHead() + source.layout().kvHeads());
            if (from == covered && to > from) {
                heads.add(new Heads(i, from - source.firstHead(), from - self.firstHead(), to - from));
                covered = to;
            }
        }
    }

    /** Why nothing can be read. */
    Optional<Rejection> wrong() {
        return wrong;
    }

    NixlStep.Load load() {
        return load;
    }

    List<Heads> heads() {
        return heads;
    }

    List<Piece> pieces() {
        return pieces;
    }

    KvLayout remoteLayout() {
        return sources.getFirst().layout();
    }

    /** Slots of our block that one of the peer's blocks fills. */
    int slots() {
        return remoteLayout().blockSize();
    }

    /** The bytes of the blocks. */
    List<Range> ranges(Heads from) {
        return ranges(from, pieces, 0, self.layout().layers());
    }

    /** The bytes of some blocks in the layers {@code [firstLayer, endLayer)}. */
    List<Range> ranges(Heads from, List<Piece> some, int firstLayer, int endLayer) {
        RankInfo source = sources.get(from.source());
        KvLayout local = self.layout();
        KvLayout remote = source.layout();
        List<Range> ranges = new ArrayList<>();
        boolean whole = local.equals(remote) && from.count() == local.kvHeads() && endLayer - firstLayer == local.layers();
        boolean sameBlocks = local.blockSize() == remote.blockSize();
        for (Piece piece : some) {
            long localBlock = self.pool() + piece.local() * local.blockBytes();
            long remoteBlock = source.pool() + piece.remote() * remote.blockBytes();
            if (whole) {
                append(ranges, localBlock, remoteBlock, local.blockBytes());
                continue;
            }
            for (int layer = firstLayer; layer < endLayer; layer++) {
                if (sameBlocks) {
                    append(
                            ranges,
                            localBlock + local.entryOffset(layer, from.localHead(), 0),
                            remoteBlock + remote.entryOffset(layer, from.remoteHead(), 0),
                            from.count() * local.headBytes());
                    continue;
                }
                for (int head = 0; head < from.count(); head++) {
                    append(
                            ranges,
                            localBlock + local.entryOffset(layer, from.localHead() + head, piece.slot()),
                            remoteBlock + remote.entryOffset(layer, from.remoteHead() + head, 0),
                            remote.headBytes());
                }
            }
        }
        return ranges;
    }

    /**
     * The entries of the pieces in the peer's table of seals.
     *
     * @param local address for {@link #sealSlot} entries
     * @param remote address of the table
     */
    List<Range> sealRanges(Heads from, long local, long remote) {
        long entry = Seals.entryBytes(sources.get(from.source()).layout().kvHeads());
        List<Range> ranges = new ArrayList<>();
        for (Piece piece : pieces) {
            append(ranges, local + sealSlot(piece) * entry, remote + piece.remote() * entry, entry);
        }
        return ranges;
    }

    /** Where the entry of a piece lies: no two loads fill a block at the same time. */
    long sealSlot(Piece piece) {
        int ratio = self.layout().blockSize() / slots();
        return (long) piece.local() * ratio + piece.slot() / slots();
    }

    /** How many such places there are. */
    int sealSlots() {
        return self.blocks() * (self.layout().blockSize() / slots());
    }

    /** Neighbours on both sides become one range. */
    private static void append(List<Range> ranges, long local, long remote, long bytes) {
        if (!ranges.isEmpty()) {
            Range last = ranges.getLast();
            if (last.local() + last.bytes() == local && last.remote() + last.bytes() == remote) {
                ranges.set(ranges.size() - 1, new Range(last.local(), last.remote(), last.bytes() + bytes));
                return;
            }
        }
        ranges.add(new Range(local, remote, bytes));
    }
}
