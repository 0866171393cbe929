package baton.connectors.nixl;

import baton.connectors.nixl.BlockMapping.Heads;
import baton.connectors.nixl.BlockMapping.Piece;
import baton.kv.KvCache;
import java.util.Arrays;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.zip.CRC32C;

/**
 * Digests of blocks that peers write, made layer after layer while they come, so that little is left to be checked after the last
 * layer. What a peer says wrongly makes a digest that is not the seal's, and what it writes twice, because it began anew, has none: then
 * the blocks are digested as they are.
 *
 * <p>One thread calls it; it digests beside that, one thing after the other.
 */
final class ArrivalChecksums {
    private static final String PART = "PUSH_PART:";
    /** After it was digested, so that what is there now was not. */
    private static final int WRITTEN_AGAIN = -1;

    private final BlockMapping map;
    private final KvCache cache;
    private final Executor background;
    private final Runnable wake;
    /** By piece and head of ours. */
    private final CRC32C[] digests;
    /** By piece and head of ours: how many layers were digested, or {@link #WRITTEN_AGAIN}. */
    private final int[] layers;

    private int writes;

    private CompletableFuture<Boolean> last = CompletableFuture.completedFuture(true);

    /** @param wake called by any thread when nothing is left to be digested */
    ArrivalChecksums(BlockMapping map, KvCache cache, Executor background, Runnable wake) {
        this.map = map;
        this.cache = cache;
        this.background = background;
        this.wake = wake;
        int count = map.pieces().size() * cache.layout().kvHeads();
        digests = new CRC32C[count];
        Arrays.setAll(digests, _ -> new CRC32C());
        layers = new int[count];
    }

    /** That the layers {@code [firstLayer, endLayer)} of some pieces of a load have been written. */
    record Part(int firstLayer, int endLayer, int firstPiece, int endPiece) {
        /** @param attempt of the load's registration */
        String encode(String attempt) {
            return PART + attempt + ":" + firstLayer + ":" + endLayer + ":" + firstPiece + ":" + endPiece;
        }

        static boolean is(String message) {
            return message.startsWith(PART);
        }

        /** Empty if the message is not of that load, or makes no sense. */
        static Optional<Part> read(String message, String attempt) {
            String prefix = PART + attempt + ":";
            if (!message.startsWith(prefix)) {
                return Optional.empty();
            }
            String[] numbers = message.substring(prefix.length()).split(":", -1);
            try {
                return numbers.length == 4
                        ? Optional.of(new Part(
                                Integer.parseInt(numbers[0]),
                                Integer.parseInt(numbers[1]),
                                Integer.parseInt(numbers[2]),
                                Integer.parseInt(numbers[3])))
                        : Optional.empty();
            } catch (NumberFormatException _) {
                return Optional.empty();
            }
        }
    }

    /** @param source which of the owner's ranks has written it */
    void written(int source, Part part) {
        Optional<Heads> from =
                map.heads().stream().filter(heads -> heads.source() == source).findFirst();
        if (from.isEmpty()
                || part.firstLayer() < 0
                || part.endLayer() > cache.layout().layers()
                || part.firstPiece() < 0
                || part.endPiece() > map.pieces().size()) {
            return;
        }
        writes++;
        Heads heads = from.get();
        last = last.thenApplyAsync(_ -> digest(heads, part), background);
        // Apart: who is woken must find it done.
        CompletableFuture<Boolean> _ = last.whenComplete((_, _) -> wake.run());
    }

    private boolean digest(Heads heads, Part part) {
        for (int i = part.firstPiece(); i < part.endPiece(); i++) {
            Piece piece = map.pieces().get(i);
            for (int head = heads.localHead(); head < heads.localHead() + heads.count(); head++) {
                int at = i * cache.layout().kvHeads() + head;
                for (int layer = part.firstLayer(); layer < part.endLayer(); layer++) {
                    if (layers[at] == layer) {
                        BlockChecksums.update(
                                digests[at],
                                cache.memory(),
                                cache.layout(),
                                piece.local(),
                                layer,
                                head,
                                piece.localSlot(),
                                map.slots());
                        layers[at]++;
                    } else if (layers[at] > layer) {
                        layers[at] = WRITTEN_AGAIN;
                    }
                }
            }
        }
        return true;
    }

    /** Of which it was told. */
    int writes() {
        return writes;
    }

    /** What was digested may not be what is there. Called when idle. */
    void forget() {
        Arrays.fill(layers, WRITTEN_AGAIN);
    }

    /** True if nothing is being digested. What was written before {@link #of} is asked is then in it. */
    boolean isIdle() {
        return last.isDone();
    }

    /** Returns when nothing reads the pool any more. */
    void await() {
        last.handle((_, _) -> true).join();
    }

    /** The digest of a piece, if all of its layers came one after the other. Asked when idle. */
    OptionalInt of(int piece, int head) {
        int at = piece * cache.layout().kvHeads() + head;
        return layers[at] == cache.layout().layers()
                ? OptionalInt.of((int) digests[at].getValue())
                : OptionalInt.empty();
    }
}
