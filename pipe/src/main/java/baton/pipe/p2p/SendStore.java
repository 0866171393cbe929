package baton.pipe.p2p;

import baton.messages.p2p.P2pMessage.TensorHead;
import baton.messages.p2p.PeerAddress;
import baton.pipe.p2p.P2pException.Fault;
import baton.pipe.p2p.P2pStats.Count;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Memory of tensors on their way out, {@code kv_buffer_size} in all, and those that are kept until their peers get them: when there is no
 * room for another, those that have been there longest go.
 */
final class SendStore implements AutoCloseable {
    private final P2pSettings settings;
    private final P2pStats stats;
    private final BuddyPool memory;
    private final ReentrantLock lock = new ReentrantLock();
    private final Condition room = lock.newCondition();

    /** By peer and id, oldest first. */
    private final Map<ReceiveStore.Key, Outgoing> kept = new LinkedHashMap<>();

    SendStore(P2pSettings settings, P2pStats stats) {
        this.settings = settings;
        this.stats = stats;
        this.memory = new BuddyPool(settings.bufferBytes());
    }

    /** A tensor for a peer. */
    record Outgoing(PeerAddress to, String tensorId, TensorHead head, BuddyPool.Piece piece, long since) {
        ReceiveStore.Key key() {
            return new ReceiveStore.Key(to, tensorId);
        }
    }

    /**
     * Memory for a tensor; waits until others have been sent, or drops the oldest that are kept.
     *
     * @throws P2pException if there is none in time
     */
    BuddyPool.Piece reserve(String tensorId, long bytes, Duration timeout) throws P2pException {
        long left = timeout.toNanos();
        lock.lock();
        try {
            while (true) {
                Optional<BuddyPool.Piece> piece = memory.allocate(bytes);
                if (piece.isPresent()) {
                    return piece.get();
                }
                if (!kept.isEmpty() && bytes <= memory.capacity()) {
                    stats.add(Count.EVICTED, 1);
                    drop(kept.keySet().iterator().next());
                    continue;
                }
                if (left <= 0 || bytes > memory.capacity()) {
                    throw new P2pException(
                            Fault.OUT_OF_MEMORY,
                            "no room to send %s of %d bytes: %d of kv_buffer_size=%d are in use"
                                    .formatted(tensorId, bytes, memory.used(), memory.capacity()));
                }
                left = room.awaitNanos(left);
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new P2pException(Fault.CANCELLED, "interrupted while waiting to send " + tensorId, e);
        } finally {
            lock.unlock();
        }
    }

    void keep(Outgoing outgoing) {
        lock.lock();
        try {
            Outgoing before = kept.put(outgoing.key(), outgoing);
            if (before != null) {
                free(before);
            }
        } finally {
            lock.unlock();
        }
    }

    /** Takes a kept tensor out, to be {@link #free freed} by the caller, or kept again. */
    Optional<Outgoing> take(PeerAddress by, String tensorId) {
        lock.lock();
        try {
            return Optional.ofNullable(kept.remove(new ReceiveStore.Key(by, tensorId)));
        } finally {
            lock.unlock();
        }
    }

    /** Its memory is free. */
    void free(Outgoing outgoing) {
        free(outgoing.piece);
    }

    void free(BuddyPool.Piece piece) {
        lock.lock();
        try {
            piece.close();
            room.signalAll();
        } finally {
            lock.unlock();
        }
    }

    private void drop(ReceiveStore.Key key) {
        Optional.ofNullable(kept.remove(key)).ifPresent(this::free);
    }

    void forget(String group) {
        lock.lock();
        try {
            kept.keySet().stream()
                    .filter(key -> key.group().equals(group))
                    .toList()
                    .forEach(this::drop);
        } finally {
            lock.unlock();
        }
    }

    void expire() {
        long now = System.nanoTime();
        lock.lock();
        try {
            kept.values().stream()
                    .filter(outgoing -> now - outgoing.since > settings.keep().toNanos())
                    .toList()
                    .forEach(outgoing -> {
                        stats.add(Count.EXPIRED, 1);
                        drop(outgoing.key());
                    });
        } finally {
            lock.unlock();
        }
    }

    long used() {
        return memory.used();
    }

    @Override
    public void close() {
        lock.lock();
        try {
            kept.values().forEach(this::free);
            kept.clear();
        } finally {
            lock.unlock();
        }
        memory.close();
    }
}
