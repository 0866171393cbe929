package baton.connectors.nixl;

import baton.kv.KvLayout;
import baton.transfer.Range;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;

/**
 * Where the bytes of a load come from and go to, for one of the reader's ranks ("local") and those of the owner ("remote") that
 * have its heads. Blocks are cut into pieces of the slots that have a digest together; whole pieces are moved, so block sizes may
 * differ as long as pieces of the owner's blocks fit into the reader's.
 */
final class BlockMapping {
    /**
     * Heads that are read from one of the peer's ranks.
     *
     * @param source index of the rank
     * @param remoteHead the first, as that rank counts
     * @param localHead the first, as we count
     */
    record Heads(int source, int remoteHead, int localHead, int count) {}

    /**
     * Neighbouring slots.
     *
     * @param index of the remote block in the reference
     * @param remote the remote block
     * @param remoteSlot the first slot there
     * @param local the local block
     * @param localSlot the first slot here
     */
    record Piece(int index, int remote, int remoteSlot, int local, int localSlot) {}

    private final NixlConnectorMetadata.Load load;
    private final RankInfo self;
    private final List<RankInfo> sources;
    private final List<Heads> heads = new ArrayList<>();
    private final List<Piece> pieces = new ArrayList<>();
    private final Optional<Rejection> wrong;

    /** @param sources the peer's ranks, in their order */
    BlockMapping(NixlConnectorMetadata.Load load, RankInfo self, List<RankInfo> sources) {
        this.load = load;
        this.self = self;
        this.sources = sources;
        int there = remoteLayout().blockSize();
        int here = self.layout().blockSize();
        int unit = BlockChecksums.unit(there);
        int first = load.firstToken() / there;
        int end = Math.ceilDiv(load.firstToken() + load.tokens(), there);
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
        // What is behind the last token in the last blocks comes along, as far as there is room.
        int endToken = Math.min(end * there, load.firstToken() + load.blocks().length * here);
        for (int token = load.firstToken(); token < endToken; token += unit) {
            int index = token / there;
            int local = (token - load.firstToken()) / here;
            pieces.add(new Piece(index, remote[index], token % there, load.blocks()[local], token % here));
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

    /** Why blocks of one size cannot be checked in blocks of another, or empty if they can. */
    static Optional<String> misfit(KvLayout owner, KvLayout reader) {
        int there = owner.blockSize();
        int here = reader.blockSize();
        boolean fits = (here % there == 0 || there % here == 0) && here % BlockChecksums.unit(there) == 0;
        return fits
                ? Optional.empty()
                : Optional.of(
                        "the owner's block size is " + there + ", the reader's " + here
                                + "; the reader's must be a multiple of the owner's, or both multiples of 16 of which one divides the other");
    }

    /** Why nothing can be read. */
    Optional<Rejection> wrong() {
        return wrong;
    }

    NixlConnectorMetadata.Load load() {
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

    /** Slots of a piece. */
    int slots() {
        return BlockChecksums.unit(remoteLayout().blockSize());
    }

    /** Whether blocks come as they are, with all of their heads. */
    boolean isWhole(Heads from) {
        return self.layout().equals(sources.get(from.source()).layout())
                && from.count() == self.layout().kvHeads();
    }

    /** Bytes of whole blocks, a range for each of ours. */
    List<Range> wholes(Heads from, List<Piece> some) {
        RankInfo source = sources.get(from.source());
        long bytes = self.layout().blockBytes();
        return some.stream()
                .filter(piece -> piece.localSlot() == 0)
                .map(piece ->
                        new Range(self.pool() + piece.local() * bytes, source.pool() + piece.remote() * bytes, bytes))
                .toList();
    }

    /** The bytes of some blocks in the layers {@code [firstLayer, endLayer)}. */
    List<Range> ranges(Heads from, List<Piece> some, int firstLayer, int endLayer) {
        RankInfo source = sources.get(from.source());
        KvLayout local = self.layout();
        KvLayout remote = source.layout();
        List<Range> ranges = new ArrayList<>();
        boolean whole = isWhole(from) && endLayer - firstLayer == local.layers();
        boolean sameBlocks = local.blockSize() == remote.blockSize() && slots() == local.blockSize();
        for (Piece piece : some) {
            long localBlock = self.pool() + piece.local() * local.blockBytes();
            long remoteBlock = source.pool() + piece.remote() * remote.blockBytes();
            if (whole) {
                if (piece.localSlot() == 0) {
                    append(ranges, localBlock, remoteBlock, local.blockBytes());
                }
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
                            localBlock + local.entryOffset(layer, from.localHead() + head, piece.localSlot()),
                            remoteBlock + remote.entryOffset(layer, from.remoteHead() + head, piece.remoteSlot()),
                            slots() * remote.entryBytes());
                }
            }
        }
        return ranges;
    }

    /**
     * The entries of the pieces' blocks in the owner's table of seals.
     *
     * @param local address for {@link #sealSlots} entries
     * @param remote address of the table
     */
    List<Range> sealRanges(Heads from, long local, long remote) {
        long entry = BlockChecksums.entryBytes(sources.get(from.source()).layout());
        List<Range> ranges = new ArrayList<>();
        int last = -1;
        for (Piece piece : pieces) {
            if (piece.index() != last) {
                append(ranges, local + sealSlot(piece) * entry, remote + piece.remote() * entry, entry);
                last = piece.index();
            }
        }
        return ranges;
    }

    /** Where the entry of a piece's block lies: no two loads fill a local block at the same time. */
    long sealSlot(Piece piece) {
        int here = self.layout().blockSize();
        int there = remoteLayout().blockSize();
        if (there <= here) {
            return (long) piece.local() * (here / there) + piece.localSlot() / there;
        }
        // One remote block fills several local ones: that which has its first slot here counts.
        int inLoad = Math.max(0, piece.index() * there - load.firstToken()) / here;
        return load.blocks()[inLoad];
    }

    /** How many such places there are. */
    int sealSlots() {
        return self.blocks()
                * Math.max(1, self.layout().blockSize() / remoteLayout().blockSize());
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
