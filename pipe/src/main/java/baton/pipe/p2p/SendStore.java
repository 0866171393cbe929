package baton.pipe.p2p;

import baton.kv.Deadline;
import baton.kv.KvFence;
import baton.kv.KvMemory;
import baton.kv.Ticker;
import baton.messages.PeerAddress;
import baton.messages.p2p.P2pMessage.TensorHead;
import baton.pipe.BuddyPool;
import baton.pipe.p2p.P2pException.Fault;
import baton.pipe.p2p.P2pStats.Count;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.time.Duration;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/**
 * Memory of tensors to be sent, {@code kv_buffer_size} in all, and those that are kept until their peers request them: when there
 * is no room for another one, the oldest of these are evicted.
 *
 * <p>A sender that finds no room waits for the peer that holds most of it, as long as every peer has tensors to take: then queued
 * tensors keep all peers busy, and a single slow one only slows the sender down. While a peer has none, waiting harms that peer;
 * such waits use up the slow peer's patience, which is a tenth of a tensor's time limit at first, and grows by a quarter of the
 * time in which the peer takes a tensor. When it is used up, the tensors that were queued last for the slow peer are dropped,
 * with their whole group. Tensors for the slow peer itself are refused once it has taken none for as long as the full patience.
 */
final class SendStore implements AutoCloseable {
    private static final int PATIENCE_SHARE = 4;
    private static final int MOST_GIVEN_UP = 256;
    private static final Duration REMEMBERED = Duration.ofMinutes(1);

    private final P2pSettings settings;
    private final P2pStats stats;
    private final Ticker ticker;
    private final BuddyPool memory;
    private final long mostPatience;

    /** The tensors by peer and id, oldest first. */
    @GuardedBy("this")
    private final Map<ReceiveStore.Key, Outgoing> kept = new LinkedHashMap<>();

    /** The state of peers to which tensors were sent lately. */
    @GuardedBy("this")
    private final Map<PeerAddress, Account> accounts = new HashMap<>();

    SendStore(P2pSettings settings, P2pStats stats, Ticker ticker) {
        this.settings = settings;
        this.stats = stats;
        this.ticker = ticker;
        this.memory = new BuddyPool(settings.bufferBytes());
        this.mostPatience = settings.transfer().toNanos() / 10;
    }

    /** A peer's part of the memory, and how long other peers may still wait because of it. */
    private final class Account {
        private long held;
        private long patience = mostPatience;
        private long lastTaken = ticker.nanos();
        private long lastUse = lastTaken;

        /** Groups of which no more tensors are sent. */
        private final Set<String> givenUp = new LinkedHashSet<>();
    }

    /**
     * A tensor for a peer.
     *
     * @param filled passed when the piece has its bytes
     */
    record Outgoing(
            PeerAddress to, String tensorId, TensorHead head, BuddyPool.Piece piece, KvFence filled, long since) {
        ReceiveStore.Key key() {
            return new ReceiveStore.Key(to, tensorId);
        }

        Outgoing filled(KvFence by) {
            return new Outgoing(to, tensorId, head, piece, by, since);
        }
    }

    /** Makes room. */
    interface PushOut {
        /**
         * Drops the group of the tensor that was queued last for a peer.
         *
         * @return the group; empty if none is queued
         */
        Optional<String> lastOf(PeerAddress peer);
    }

    void prepare(Optional<KvMemory.Device> device) {
        memory.prepare(device);
    }

    long reserved() {
        return memory.reserved();
    }

    /**
     * Memory for a tensor; waits until other ones have been sent, or evicts the oldest kept ones.
     *
     * @throws P2pException if there is none in time, or the tensor's group was given up
     */
    synchronized BuddyPool.Piece reserve(PeerAddress to, String tensorId, long bytes, Duration timeout, PushOut pushOut)
            throws P2pException {
        long left = timeout.toNanos();
        try {
            while (true) {
                // Again after each wait, which releases the monitor.
                Account own = accounts.computeIfAbsent(to, _ -> new Account());
                own.lastUse = ticker.nanos();
                if (own.givenUp.contains(ReceiveStore.Key.group(tensorId))) {
                    throw new P2pException(
                            Fault.GIVEN_UP,
                            "other tensors of the group of %s did not reach %s".formatted(tensorId, to));
                }
                Optional<BuddyPool.Piece> piece = memory.allocate(bytes);
                if (piece.isPresent()) {
                    own.held += bytes;
                    return piece.get();
                }
                if (!kept.isEmpty() && bytes <= memory.capacity()) {
                    stats.add(Count.EVICTED, 1);
                    drop(kept.keySet().iterator().next());
                    continue;
                }
                PeerAddress slowest = hasMost(to, bytes);
                Account account = accounts.getOrDefault(slowest, own);
                boolean harms = accounts.values().stream().anyMatch(each -> each != account && each.held == 0);
                boolean impatient = harms && account.patience <= 0;
                long untilStalled = mostPatience - (own.lastUse - own.lastTaken);
                boolean stalled = impatient && account == own && untilStalled <= 0;
                if (left <= 0 || bytes > memory.capacity() || stalled) {
                    throw new P2pException(
                            Fault.OUT_OF_MEMORY,
                            "no room to send %s of %d bytes: %d of kv_buffer_size=%d are in use, %d of them for %s"
                                    .formatted(
                                            tensorId, bytes, memory.used(), memory.capacity(), account.held, slowest));
                }
                if (impatient && account != own) {
                    Optional<String> dropped = pushOut.lastOf(slowest);
                    if (dropped.isPresent()) {
                        giveUp(account, dropped.get());
                        continue;
                    }
                }
                long most = left;
                if (harms && !impatient) {
                    most = Math.min(left, account.patience);
                } else if (impatient && account == own) {
                    most = Math.min(left, untilStalled);
                }
                long before = ticker.nanos();
                boolean unusedInTime =
                        Deadline.after(ticker, Duration.ofNanos(most)).awaitNotify(this);
                long waited = ticker.nanos() - before;
                left -= waited;
                if (harms) {
                    account.patience = Math.max(0, account.patience - waited);
                }
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new P2pException(Fault.CANCELLED, "interrupted while waiting to send " + tensorId, e);
        }
    }

    /** The peer with most of the memory, if that one got so much more. */
    @GuardedBy("this")
    private PeerAddress hasMost(PeerAddress to, long more) {
        PeerAddress found = to;
        long most = more
                + Optional.ofNullable(accounts.get(to)).map(own -> own.held).orElse(0L);
        for (Map.Entry<PeerAddress, Account> each : accounts.entrySet()) {
            if (each.getValue().held > most) {
                found = each.getKey();
                most = each.getValue().held;
            }
        }
        return found;
    }

    /** The peer has taken a tensor. */
    synchronized void taken(PeerAddress by) {
        long now = ticker.nanos();
        Optional.ofNullable(accounts.get(by)).ifPresent(account -> {
            account.patience = Math.min(mostPatience, account.patience + (now - account.lastTaken) / PATIENCE_SHARE);
            account.lastTaken = now;
        });
    }

    /** Refuses further tensors of a group. */
    synchronized void giveUp(PeerAddress to, String group) {
        Optional.ofNullable(accounts.get(to)).ifPresent(account -> giveUp(account, group));
    }

    private static void giveUp(Account account, String group) {
        account.givenUp.add(group);
        if (account.givenUp.size() > MOST_GIVEN_UP) {
            account.givenUp.remove(account.givenUp.iterator().next());
        }
    }

    synchronized void keep(Outgoing outgoing) {
        Outgoing before = kept.put(outgoing.key(), outgoing);
        if (before != null) {
            free(before);
        }
    }

    /** Takes a kept tensor out; the caller has to {@link #free} or {@link #keep} it. */
    synchronized Optional<Outgoing> take(PeerAddress by, String tensorId) {
        return Optional.ofNullable(kept.remove(new ReceiveStore.Key(by, tensorId)));
    }

    /** Frees its memory, once nothing writes to it. */
    void free(Outgoing outgoing) {
        outgoing.filled.await();
        synchronized (this) {
            long bytes = outgoing.piece.memory().byteSize();
            Optional.ofNullable(accounts.get(outgoing.to)).ifPresent(account -> account.held -= bytes);
            outgoing.piece.close();
            notifyAll();
        }
    }

    private synchronized void drop(ReceiveStore.Key key) {
        Optional.ofNullable(kept.remove(key)).ifPresent(this::free);
    }

    synchronized void forget(String group) {
        kept.keySet().stream().filter(key -> key.group().equals(group)).toList().forEach(this::drop);
    }

    synchronized void expire() {
        long now = ticker.nanos();
        kept.values().stream()
                .filter(outgoing -> now - outgoing.since > settings.keep().toNanos())
                .toList()
                .forEach(outgoing -> {
                    stats.add(Count.EXPIRED, 1);
                    drop(outgoing.key());
                });
        accounts.values().removeIf(account -> account.held == 0 && now - account.lastUse > REMEMBERED.toNanos());
    }

    long used() {
        return memory.used();
    }

    @Override
    public void close() {
        synchronized (this) {
            kept.values().forEach(this::free);
            kept.clear();
        }
        memory.close();
    }
}
