package baton.connectors.nixl;

import baton.kv.ConfigException;
import baton.kv.KvLayout;
import baton.transfer.Range;
import java.util.ArrayList;
import java.util.List;

/**
 * What one rank reads to have the keys and values of a request's tokens that a peer's ranks have.
 *
 * <p>Tensor parallel sizes may differ when one divides the other, block sizes likewise, in both directions. A remote block that is
 * needed is read with all of its slots, also those after the last token, as far as the local blocks have room: the digest of a block
 * covers all of it, and whole blocks next to each other are one range. What comes in behind the last token is in {@link #tail}.
 *
 * @param sources one for each remote rank that is read from, in order
 * @param tail the slots of the last local block behind the last token. To be zeroed once the reads are done and checked
 */
record RangePlan(List<Source> sources, List<Tail> tail) {
    RangePlan {
        sources = List.copyOf(sources);
        tail = List.copyOf(tail);
    }

    /**
     * A remote rank and what is read from it.
     *
     * @param rank its rank in the peer's tensor parallel group
     * @param reads in order of local blocks; no two of them could be one
     */
    record Source(int rank, List<Read> reads) {
        Source {
            reads = List.copyOf(reads);
        }

        /** The reads as a transfer agent takes them, with the addresses of both pools. */
        List<Range> ranges(long localPool, long remotePool) {
            return reads.stream()
                    .map(read -> new Range(localPool + read.local(), remotePool + read.remote(), read.bytes()))
                    .toList();
        }

        long bytes() {
            return reads.stream().mapToLong(Read::bytes).sum();
        }
    }

    /** A piece, by its offsets in both pools. */
    record Read(long local, long remote, long bytes) {}

    /** A piece of the local pool, by its offset. */
    record Tail(long local, long bytes) {}

    /**
     * One side of the transfer.
     *
     * @param layout of a rank's pool
     * @param modelKvHeads key/value heads of the whole model
     * @param tensorParallelSize ranks that share them
     * @param poolBlocks blocks in a rank's pool
     * @param blocks the request's block table, from its first token on; the same in each rank
     */
    record Side(KvLayout layout, int modelKvHeads, int tensorParallelSize, int poolBlocks, int[] blocks) {
        private int firstHead(int rank) {
            return (int) ((long) rank * modelKvHeads / tensorParallelSize);
        }
    }

    /**
     * Plans the reads of the tokens {@code [from, to)}.
     *
     * @param rank of the reader
     * @throws ConfigException if the sides do not fit each other, or a block table has too few blocks or one that its pool has not;
     *     the message has both values
     */
    static RangePlan of(Side local, int rank, Side remote, int from, int to) {
        check(local, rank, remote, from, to);
        if (from == to) {
            return new RangePlan(List.of(), List.of());
        }
        List<Coalescer> perRank = new ArrayList<>();
        for (Heads heads : heads(local, rank, remote)) {
            Coalescer reads = new Coalescer(heads.rank());
            read(local, remote, heads, from, to, reads);
            perRank.add(reads);
        }
        return new RangePlan(perRank.stream().map(Coalescer::source).toList(), tail(local, to));
    }

    /**
     * Heads that are next to each other in a pool of each side.
     *
     * @param rank the remote rank
     * @param local the first of them in the reader's pool
     * @param remote the first of them in the remote rank's
     */
    private record Heads(int rank, int local, int remote, int count) {}

    /** Where the reader's heads are. Where several ranks have the same head, those that lie over the same readers are used. */
    private static List<Heads> heads(Side local, int rank, Side remote) {
        List<Heads> found = new ArrayList<>();
        int source = (int) ((long) rank * remote.tensorParallelSize() / local.tensorParallelSize());
        int head = 0;
        while (head < local.layout().kvHeads()) {
            int wanted = local.firstHead(rank) + head;
            while (wanted >= remote.firstHead(source) + remote.layout().kvHeads()) {
                source++;
            }
            int inSource = wanted - remote.firstHead(source);
            int count =
                    Math.min(local.layout().kvHeads() - head, remote.layout().kvHeads() - inSource);
            found.add(new Heads(source, head, inSource, count));
            head += count;
        }
        return found;
    }

    private static void read(Side local, Side remote, Heads heads, int from, int to, Coalescer reads) {
        KvLayout here = local.layout();
        KvLayout there = remote.layout();
        // All slots of the remote blocks come along, if there is room for them.
        int end = Math.min(there.blocksFor(to) * there.blockSize(), here.blocksFor(to) * here.blockSize());
        boolean sameBlocks = here.equals(there);
        for (int first = from; first < end; ) {
            int localEnd = Math.min(end, (first / here.blockSize() + 1) * here.blockSize());
            if (sameBlocks && first % here.blockSize() == 0) {
                reads.add(blockStart(local, first), blockStart(remote, first), here.blockBytes());
            } else {
                readInBlock(local, remote, heads, first, localEnd, reads);
            }
            first = localEnd;
        }
    }

    /** The tokens {@code [from, to)} of one local block. */
    private static void readInBlock(Side local, Side remote, Heads heads, int from, int to, Coalescer reads) {
        KvLayout here = local.layout();
        KvLayout there = remote.layout();
        for (int layer = 0; layer < here.layers(); layer++) {
            for (int head = 0; head < heads.count(); head++) {
                for (int first = from; first < to; ) {
                    int next = Math.min(to, (first / there.blockSize() + 1) * there.blockSize());
                    reads.add(
                            blockStart(local, first)
                                    + here.entryOffset(layer, heads.local() + head, first % here.blockSize()),
                            blockStart(remote, first)
                                    + there.entryOffset(layer, heads.remote() + head, first % there.blockSize()),
                            (next - first) * here.entryBytes());
                    first = next;
                }
            }
        }
    }

    private static List<Tail> tail(Side local, int to) {
        KvLayout layout = local.layout();
        int used = to % layout.blockSize();
        if (used == 0) {
            return List.of();
        }
        List<Tail> tail = new ArrayList<>();
        for (int layer = 0; layer < layout.layers(); layer++) {
            for (int head = 0; head < layout.kvHeads(); head++) {
                tail.add(new Tail(
                        blockStart(local, to) + layout.entryOffset(layer, head, used),
                        (layout.blockSize() - used) * layout.entryBytes()));
            }
        }
        return tail;
    }

    private static long blockStart(Side side, int token) {
        return side.blocks()[token / side.layout().blockSize()] * side.layout().blockBytes();
    }

    private static void check(Side local, int rank, Side remote, int from, int to) {
        KvLayout here = local.layout();
        KvLayout there = remote.layout();
        same("num_layers", there.layers(), here.layers());
        same("head_size", there.headDim(), here.headDim());
        same("dtype", there.dtype().torchName(), here.dtype().torchName());
        same("num_kv_heads", remote.modelKvHeads(), local.modelKvHeads());
        divides("tp_size", remote.tensorParallelSize(), local.tensorParallelSize());
        divides("block_size", there.blockSize(), here.blockSize());
        heads("num_kv_heads of the local pool", local);
        heads("num_kv_heads of the remote pool", remote);
        if (rank < 0 || rank >= local.tensorParallelSize()) {
            throw new ConfigException("tp_rank", "is " + rank + ", must be 0 to " + (local.tensorParallelSize() - 1));
        }
        if (from < 0 || to < from) {
            throw new ConfigException("tokens", "are from " + from + " to " + to + ", must be in order");
        }
        blocks("local_block_ids", local, from, to);
        blocks("remote_block_ids", remote, from, to);
    }

    private static void same(String field, Object remote, Object local) {
        if (!remote.equals(local)) {
            throw new ConfigException(
                    field, "is " + remote + " in the remote instance and " + local + " here; must be equal");
        }
    }

    private static void divides(String field, int remote, int local) {
        if (remote < 1 || local < 1 || (remote % local != 0 && local % remote != 0)) {
            throw new ConfigException(
                    field,
                    "is " + remote + " in the remote instance and " + local + " here; one must divide the other");
        }
    }

    private static void heads(String field, Side side) {
        int ranks = side.tensorParallelSize();
        int heads = side.modelKvHeads();
        int held = Math.max(1, heads / ranks);
        if ((heads % ranks != 0 && ranks % heads != 0) || side.layout().kvHeads() != held) {
            throw new ConfigException(
                    field,
                    "is " + side.layout().kvHeads() + ", which is not the share that one of " + ranks + " ranks has of "
                            + heads + " heads");
        }
    }

    /** Refuses what would be read from, or written to, memory that is not the request's. */
    private static void blocks(String field, Side side, int from, int to) {
        int needed = side.layout().blocksFor(to);
        if (side.blocks().length < needed) {
            throw new ConfigException(
                    field,
                    "has " + side.blocks().length + " blocks of "
                            + side.layout().blockSize() + " tokens, must have " + needed + " for " + to + " tokens");
        }
        for (int i = from / side.layout().blockSize(); i < needed; i++) {
            if (side.blocks()[i] < 0 || side.blocks()[i] >= side.poolBlocks()) {
                throw new ConfigException(
                        field, "has block " + side.blocks()[i] + ", must be 0 to " + (side.poolBlocks() - 1));
            }
        }
    }

    /** Collects reads; one that goes on where the last one ends becomes part of it. */
    private static final class Coalescer {
        private final int rank;
        private final List<Read> reads = new ArrayList<>();
        private long local;
        private long remote;
        private long bytes;

        private Coalescer(int rank) {
            this.rank = rank;
        }

        private void add(long nextLocal, long nextRemote, long nextBytes) {
            if (bytes > 0 && local + bytes == nextLocal && remote + bytes == nextRemote) {
                bytes += nextBytes;
                return;
            }
            flush();
            local = nextLocal;
            remote = nextRemote;
            bytes = nextBytes;
        }

        private void flush() {
            if (bytes > 0) {
                reads.add(new Read(local, remote, bytes));
            }
            bytes = 0;
        }

        private Source source() {
            flush();
            return new Source(rank, reads);
        }
    }
}
