package baton.connectors.onesided;

import baton.connectors.onesided.BlockChecksums.Unit;
import baton.connectors.onesided.BlockMapping.Heads;
import baton.connectors.onesided.BlockMapping.Piece;
import baton.connectors.onesided.PeerNotification.PushPart;
import baton.kv.KvCache;
import baton.kv.KvDigest;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.stream.Stream;

/**
 * Checksums of blocks that peers push, computed layer after layer while they arrive, so that little is left to be checked after the last
 * layer. A wrong notification makes a checksum that is not the owner's, and a layer that is written twice, because the push began anew,
 * makes none: then the blocks are digested again as they are. So are those of a device's pool, all at once.
 *
 * <p>One thread calls it; parts are digested in the background, one after the other.
 */
final class ArrivalChecksums {
    /** Written after it was digested, so that the checksum is not of the current bytes. */
    private static final int WRITTEN_AGAIN = -1;

    private final BlockMapping map;
    private final KvCache cache;
    private final Executor background;
    private final Runnable wake;
    /** The digests by piece and head. */
    private final List<KvDigest.Running> digests;
    /** For each piece and head, the number of digested layers, or {@link #WRITTEN_AGAIN}. */
    private final int[] layers;

    private int parts;

    private CompletableFuture<Boolean> last = CompletableFuture.completedFuture(true);

    /**
     * @param kind the owner's
     * @param wake called by any thread when nothing is left to be digested
     */
    ArrivalChecksums(BlockMapping map, KvCache cache, KvDigest kind, Executor background, Runnable wake) {
        this.map = map;
        this.cache = cache;
        this.background = background;
        this.wake = wake;
        int count = map.pieces().size() * cache.layout().kvHeads();
        digests = Stream.generate(kind::begin).limit(count).toList();
        layers = new int[count];
    }

    /** @param source which of the owner's ranks has written it */
    void onPart(int source, PushPart part) {
        Optional<Heads> from =
                map.heads().stream().filter(heads -> heads.source() == source).findFirst();
        if (from.isEmpty()
                || part.firstLayer() < 0
                || part.endLayer() > cache.layout().layers()
                || part.firstPiece() < 0
                || part.endPiece() > map.pieces().size()) {
            return;
        }
        parts++;
        if (BlockChecksums.isOfDevice(cache)) {
            return;
        }
        Heads heads = from.get();
        last = last.thenApplyAsync(_ -> digest(heads, part), background);
        // A stage of its own: the engine that is woken must find the one before it done.
        CompletableFuture<Boolean> _ = last.whenComplete((_, _) -> wake.run());
    }

    private boolean digest(Heads heads, PushPart part) {
        for (int i = part.firstPiece(); i < part.endPiece(); i++) {
            Piece piece = map.pieces().get(i);
            for (int head = heads.readerHead(); head < heads.readerHead() + heads.count(); head++) {
                int at = i * cache.layout().kvHeads() + head;
                for (int layer = part.firstLayer(); layer < part.endLayer(); layer++) {
                    if (layers[at] == layer) {
                        BlockChecksums.add(
                                digests.get(at),
                                cache,
                                new Unit(piece.block(), head, piece.slot(), map.slots()),
                                layer);
                        layers[at]++;
                    } else if (layers[at] > layer) {
                        layers[at] = WRITTEN_AGAIN;
                    }
                }
            }
        }
        return true;
    }

    /** Notifications of parts so far. */
    int parts() {
        return parts;
    }

    /** Discards all checksums: the bytes may have changed since. Called when idle. */
    void forget() {
        Arrays.fill(layers, WRITTEN_AGAIN);
    }

    /** True if nothing is being digested; {@link #of} then covers all parts so far. */
    boolean isIdle() {
        return last.isDone();
    }

    /** Returns when nothing reads the pool any more. */
    void await() {
        last.handle((_, _) -> true).join();
    }

    /** The checksum of a piece, if all of its layers came one after the other. Called when idle. */
    OptionalLong of(int piece, int head) {
        int at = piece * cache.layout().kvHeads() + head;
        return layers[at] == cache.layout().layers()
                ? OptionalLong.of(digests.get(at).value())
                : OptionalLong.empty();
    }
}
