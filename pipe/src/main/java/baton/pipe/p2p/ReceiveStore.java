package baton.pipe.p2p;

import baton.kv.Deadline;
import baton.kv.KvMemory;
import baton.kv.Ticker;
import baton.messages.PeerAddress;
import baton.messages.p2p.P2pMessage.TensorHead;
import baton.pipe.BuddyPool;
import baton.pipe.p2p.P2pException.Fault;
import baton.pipe.p2p.P2pStats.Count;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Supplier;

/**
 * Received tensors that wait to be taken.
 *
 * <p>A tensor is identified by its id and its sender, so that no peer can replace another's tensor. Memory comes from the buffer,
 * which may be a device's, then from the pool, which is the host's; when both are full, the sender waits.
 */
final class ReceiveStore implements AutoCloseable {
    /** Unwanted groups that are remembered. */
    private static final int MOST_UNWANTED = 8192;

    /** Tensors at a time, however small; failed ones are remembered up to half as many. */
    private static final int MOST_SLOTS = 1 << 16;

    private final P2pSettings settings;
    private final P2pStats stats;
    private final Ticker ticker;
    private final BuddyPool buffer;
    private final BuddyPool pool;

    @GuardedBy("this")
    private final Map<Key, Slot> slots = new HashMap<>();

    @GuardedBy("this")
    private final Map<String, Boolean> unwanted = new LinkedHashMap<>();

    @GuardedBy("this")
    private boolean closed;

    ReceiveStore(P2pSettings settings, P2pStats stats, Ticker ticker) {
        this.settings = settings;
        this.stats = stats;
        this.ticker = ticker;
        this.buffer = new BuddyPool(settings.bufferBytes());
        this.pool = new BuddyPool(settings.poolBytes());
    }

    /** A tensor's id and its sender. */
    record Key(PeerAddress from, String tensorId) {
        /** The id up to a {@code #}: tensors of one request have the same. */
        String group() {
            return group(tensorId);
        }

        static String group(String tensorId) {
            int hash = tensorId.indexOf('#');
            return hash < 0 ? tensorId : tensorId.substring(0, hash);
        }
    }

    private sealed interface Slot {
        long since();

        record Here(TensorHead head, BuddyPool.Piece piece, long since) implements Slot {}

        record Failed(P2pException why, long since) implements Slot {}
    }

    void prepare(Optional<KvMemory.Device> device) {
        buffer.prepare(device);
    }

    long bufferReserved() {
        return buffer.reserved();
    }

    /**
     * Memory for an announced tensor; waits for room.
     *
     * @throws P2pException if there is none in time, or the tensor is unwanted; a {@link #take} of the tensor then fails too
     */
    synchronized BuddyPool.Piece reserve(Key key, long bytes, Deadline deadline) throws P2pException {
        try {
            while (true) {
                if (closed || unwanted.containsKey(key.group())) {
                    stats.add(Count.UNWANTED, 1);
                    throw new P2pException(Fault.CANCELLED, "no request waits for " + key.tensorId);
                }
                boolean full = slots.size() >= MOST_SLOTS;
                Optional<BuddyPool.Piece> piece = full ? Optional.empty() : buffer.allocate(bytes);
                if (piece.isPresent()) {
                    return piece.get();
                }
                piece = full ? Optional.empty() : pool.allocate(bytes);
                if (piece.isPresent()) {
                    stats.add(Count.SPILLED_TENSORS, 1);
                    stats.add(Count.SPILLED_BYTES, bytes);
                    return piece.get();
                }
                if (deadline.isOver() || Math.max(buffer.capacity(), pool.capacity()) < bytes) {
                    stats.add(Count.OUT_OF_MEMORY, 1);
                    P2pException why = new P2pException(
                            Fault.OUT_OF_MEMORY,
                            "no room for %d bytes of %s: %d of kv_buffer_size=%d and %d of mem_pool_size=%d are in use"
                                    .formatted(
                                            bytes,
                                            key.tensorId,
                                            buffer.used(),
                                            buffer.capacity(),
                                            pool.used(),
                                            pool.capacity()));
                    remember(key, why);
                    throw why;
                }
                boolean unusedInTime = deadline.awaitNotify(this);
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new P2pException(Fault.CANCELLED, "interrupted while waiting for " + key.tensorId, e);
        }
    }

    /** The tensor is complete. Takes the memory over. */
    synchronized void arrived(Key key, TensorHead head, BuddyPool.Piece piece) {
        stats.add(Count.RECEIVED_TENSORS, 1);
        stats.add(Count.RECEIVED_BYTES, piece.memory().byteSize());
        if (closed || unwanted.containsKey(key.group())) {
            stats.add(Count.UNWANTED, 1);
            piece.close();
            notifyAll();
        } else {
            replace(key, new Slot.Here(head, piece, ticker.nanos()));
        }
    }

    /** The tensor will not arrive. */
    synchronized void failed(Key key, BuddyPool.Piece piece, P2pException why) {
        piece.close();
        if (!unwanted.containsKey(key.group())) {
            remember(key, why);
        }
        notifyAll();
    }

    /** Memory was returned, or a peer's connection has ended: waiting calls check again. */
    synchronized void wake() {
        notifyAll();
    }

    /** Whether the tensor is here, or has failed. */
    synchronized boolean has(Key key) {
        return slots.containsKey(key);
    }

    /**
     * Takes a tensor out; waits for it.
     *
     * @param gone the reason why the peer cannot send it any more, if there is one
     */
    synchronized TensorExchange.Received take(Key key, Deadline deadline, Supplier<Optional<String>> gone)
            throws P2pException {
        try {
            while (true) {
                Optional<Slot> slot = Optional.ofNullable(slots.remove(key));
                if (slot.isPresent()) {
                    switch (slot.get()) {
                        case Slot.Here(TensorHead head, BuddyPool.Piece piece, long _) -> {
                            return new TensorExchange.Received(head, piece.memory(), () -> giveBack(piece));
                        }
                        case Slot.Failed(P2pException why, long _) -> throw why;
                    }
                }
                if (closed || unwanted.containsKey(key.group())) {
                    throw new P2pException(Fault.CANCELLED, "no request waits for " + key.tensorId);
                }
                Optional<String> reason = gone.get();
                if (reason.isPresent()) {
                    throw new P2pException(Fault.PEER_GONE, key.from + " has gone: " + reason.get());
                }
                if (deadline.isOver()) {
                    throw new P2pException(
                            Fault.DEADLINE, "%s has not put %s within %s".formatted(key.from, key.tensorId, deadline));
                }
                boolean unusedInTime = deadline.awaitNotify(this);
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new P2pException(Fault.CANCELLED, "interrupted while waiting for " + key.tensorId, e);
        }
    }

    private void giveBack(BuddyPool.Piece piece) {
        piece.close();
        wake();
    }

    @GuardedBy("this")
    private void remember(Key key, P2pException why) {
        if (slots.size() < MOST_SLOTS / 2) {
            replace(key, new Slot.Failed(why, ticker.nanos()));
        }
    }

    @GuardedBy("this")
    private void replace(Key key, Slot slot) {
        discard(Optional.ofNullable(slots.put(key, slot)));
        notifyAll();
    }

    private static void discard(Optional<Slot> slot) {
        slot.ifPresent(old -> {
            if (old instanceof Slot.Here here) {
                here.piece.close();
            }
        });
    }

    /** Drops a group's tensors, later ones as well. */
    synchronized void forget(String group) {
        unwanted.put(group, true);
        if (unwanted.size() > MOST_UNWANTED) {
            unwanted.remove(unwanted.keySet().iterator().next());
        }
        slots.entrySet().removeIf(entry -> {
            boolean drop = entry.getKey().group().equals(group);
            if (drop) {
                discard(Optional.of(entry.getValue()));
            }
            return drop;
        });
        notifyAll();
    }

    /** Drops tensors that were not taken for long; a later {@link #take} of one fails at once. */
    synchronized void expire() {
        long now = ticker.nanos();
        List<Key> old = slots.entrySet().stream()
                .filter(entry ->
                        now - entry.getValue().since() > settings.keep().toNanos())
                .map(Map.Entry::getKey)
                .toList();
        for (Key key : old) {
            if (slots.remove(key) instanceof Slot.Here here) {
                stats.add(Count.EXPIRED, 1);
                here.piece.close();
                notifyAll();
                remember(
                        key,
                        new P2pException(
                                Fault.MISSING,
                                "no request took %s within %d ms"
                                        .formatted(key.tensorId, settings.keep().toMillis())));
            }
        }
    }

    long bufferUsed() {
        return buffer.used();
    }

    long poolUsed() {
        return pool.used();
    }

    @Override
    public void close() {
        synchronized (this) {
            closed = true;
            slots.values().forEach(slot -> discard(Optional.of(slot)));
            slots.clear();
            notifyAll();
        }
        buffer.close();
        pool.close();
    }
}
