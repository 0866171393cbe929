package baton.connectors.onesided;

import baton.connectors.onesided.BlockChecksums.Unit;
import baton.connectors.onesided.BlockMapping.Piece;
import baton.kv.KvCache;
import baton.kv.KvDigest;
import baton.kv.KvLayout;
import baton.memory.RunDigests;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.OptionalLong;

/**
 * Checksums of a load's pieces, by piece and head: computed by the agent while it moves the bytes, if it can, else in the background as
 * soon as pieces are here.
 */
final class PieceDigests {
    private static final int AT_ONCE = 4;

    private final BlockMapping map;
    private final KvCache cache;
    private final KvDigest kind;
    private final long[] digests;
    /** Whether each piece is digested; set by the digesting thread before its transfer or its task is over. */
    private final boolean[] isDigested;

    private final TaskGroup tasks;
    private volatile boolean byAgent;
    /** Some were made before all blocks were here. */
    private boolean early;

    /** @param kind the owner's */
    PieceDigests(RankContext context, BlockMapping map, KvDigest kind) {
        this.kind = kind;
        this.tasks = new TaskGroup(context.background());
        this.map = map;
        this.cache = context.cache();
        this.digests = new long[map.pieces().size() * cache.layout().kvHeads()];
        this.isDigested = new boolean[map.pieces().size()];
    }

    /** Takes over the digests computed while peers wrote the blocks. */
    void take(ArrivalChecksums arrived) {
        early = true;
        int heads = cache.layout().kvHeads();
        for (int piece = 0; piece < isDigested.length; piece++) {
            isDigested[piece] = true;
            for (int head = 0; head < heads; head++) {
                OptionalLong digest = arrived.of(piece, head);
                isDigested[piece] &= digest.isPresent();
                digests[piece * heads + head] = digest.orElse(0);
            }
        }
    }

    /** Whether agents compute digests of that kind, of memory that they can read. */
    boolean mayBeByAgent() {
        return kind == KvDigest.CRC32C && !BlockChecksums.isOfDevice(cache);
    }

    /** The digests of the pieces {@code [from, to)}, for an agent that moves them as whole blocks, each in one range. */
    RunDigests ofWholes(int from, int to) {
        KvLayout layout = cache.layout();
        int each = layout.blockSize() / map.slots();
        return new RunDigests(
                layout.layers(),
                layout.kvHeads() * each,
                Math.toIntExact(map.slots() * layout.entryBytes()),
                (block, crc32c) -> {
                    byAgent = true;
                    int first = from + block * each;
                    // The last pieces of a block may not be wanted.
                    int end = Math.min(first + each, to);
                    int heads = layout.kvHeads();
                    for (int piece = first; piece < end; piece++) {
                        for (int head = 0; head < heads; head++) {
                            digests[piece * heads + head] = Integer.toUnsignedLong(crc32c[head * each + piece - first]);
                        }
                    }
                    Arrays.fill(isDigested, first, end, true);
                });
    }

    /** True if an agent has computed the digests of its transfers. */
    boolean wereByAgent() {
        return byAgent;
    }

    /** The pieces {@code [from, to)} are here: digests those that are not digested. */
    void digest(int from, int to) {
        int first = from;
        while (first < to && isDigested[first]) {
            first++;
        }
        int each = Math.max(1, Math.ceilDiv(to - first, AT_ONCE));
        for (int begin = first; begin < to; begin += each) {
            int some = begin;
            tasks.run(() -> digestPieces(some, Math.min(some + each, to)));
        }
    }

    private void digestPieces(int from, int to) {
        int heads = cache.layout().kvHeads();
        List<Unit> units = new ArrayList<>();
        for (Piece piece : map.pieces().subList(from, to)) {
            for (int head = 0; head < heads; head++) {
                units.add(new Unit(piece.block(), head, piece.slot(), map.slots()));
            }
        }
        long[] some = BlockChecksums.digests(cache, kind, units);
        System.arraycopy(some, 0, digests, from * heads, some.length);
        Arrays.fill(isDigested, from, to, true);
    }

    /** Digests all pieces as they are, if some were digested before all blocks were here. False if none was. */
    boolean digestAgain() {
        boolean again = early;
        early = false;
        if (again) {
            Arrays.fill(isDigested, false);
            digest(0, isDigested.length);
        }
        return again;
    }

    /** The tasks that digest. */
    TaskGroup tasks() {
        return tasks;
    }

    long of(int piece, int head) {
        return digests[piece * cache.layout().kvHeads() + head];
    }
}
