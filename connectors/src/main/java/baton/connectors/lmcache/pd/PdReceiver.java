package baton.connectors.lmcache.pd;

import baton.connectors.ConnectorRuntime;
import baton.kv.BlockHash;
import baton.kv.Bursts;
import baton.kv.ConfigException;
import baton.kv.Deadline;
import baton.kv.InvalidFieldException;
import baton.kv.Ticker;
import baton.kv.connector.Counts;
import baton.kv.connector.Measurement;
import baton.messages.GuardedReception;
import baton.messages.MessageException;
import baton.messages.PeerAddress;
import baton.messages.PeerChannel;
import baton.messages.PeerChannel.Caller;
import baton.messages.PeerChannel.Guest;
import baton.store.BlockStore;
import baton.store.StoreEvent;
import baton.store.StoreFormat;
import baton.store.StoreTask;
import baton.store.ValueCache;
import baton.store.ValueRanges;
import baton.transfer.Range;
import baton.transfer.Transfer;
import baton.transfer.TransferAgent;
import baton.transfer.TransferException;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.time.Duration;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.locks.LockSupport;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/*
 * Blocks that are offered are read into the buffer at once, verified, and found there as in any other cache. Look-ups wait for blocks that are announced,
 * or named by a request of which the hand-over has not begun here.
 *
 * Only this instance writes to its memory: a sender that dies, or reuses its memory too early, spoils a read, which its checksum shows, and nothing else.
 *
 * Locks: the monitor guards the state; "agentLock" has the agent used by one thread at a time.
 */

/** A decode instance's side: an empty store behind the buffer that knows which blocks are coming. Thread-safe. */
public final class PdReceiver implements BlockStore {
    private static final Logger log = LoggerFactory.getLogger(PdReceiver.class);
    private static final String PORT = "pd_peer_init_port";
    private static final Duration CLOSE = Duration.ofSeconds(10);
    private static final Duration POLL = Duration.ofMillis(1);
    private static final int MOST_REMEMBERED = 10_000;
    private static final int MOST_ANNOUNCED = 1 << 20;

    private final PdSettings settings;
    private final PdPool pool;
    private final Ticker ticker;
    private final PeerChannel channel;
    private final Bursts complaints;
    private final Counts counts = new Counts();
    private final Object agentLock = new Object();
    /** Threads that wait for a transfer. */
    private final Set<Thread> readers = ConcurrentHashMap.newKeySet();

    /** How many announcements, and requests, say that a block is coming. */
    @GuardedBy("this")
    private final Map<BlockHash, Integer> coming = new HashMap<>();

    /** The expected blocks by request. */
    @GuardedBy("this")
    private final Map<String, Expected> expected = new HashMap<>();

    /** Hand-overs that have begun; the oldest first. */
    @GuardedBy("this")
    private final Set<String> begun = new LinkedHashSet<>();

    @GuardedBy("this")
    private final List<Waiting> waiting = new ArrayList<>();

    @GuardedBy("this")
    private int reading;

    @GuardedBy("this")
    private boolean closed;

    private record Expected(String transfer, List<BlockHash> blocks) {}

    private record Waiting(List<BlockHash> blocks, StoreTask task) {}

    /**
     * Listens.
     *
     * @param pool closed with this
     * @throws ConfigException if the address cannot be had
     */
    public PdReceiver(PdSettings settings, PdPool pool, ConnectorRuntime runtime, Ticker ticker) {
        this.settings = settings;
        this.pool = pool;
        this.ticker = ticker;
        this.channel = runtime.peerChannel(settings.access());
        this.complaints = new Bursts(1, Duration.ofSeconds(10), ticker);
        pool.agent().onProgress(() -> readers.forEach(LockSupport::unpark));
        settings.access().expectPeers();
        try {
            var _ = channel.listen(
                    settings.host(), settings.port(), new GuardedReception(settings.access(), PORT, Visit::new));
        } catch (MessageException e) {
            channel.close();
            throw new ConfigException(PORT, String.valueOf(e.getMessage()), e);
        }
    }

    @Override
    public String name() {
        return "pd";
    }

    @Override
    public StoreFormat format() {
        return pool.format();
    }

    /** Expects a request's blocks from that hand-over. A hand-over that has begun already names its blocks itself. */
    synchronized void expect(String requestId, String transfer, List<BlockHash> blocks) {
        if (!closed && !begun.contains(transfer) && expected.size() < MOST_REMEMBERED) {
            expected.put(requestId, new Expected(transfer, List.copyOf(blocks)));
            for (BlockHash block : blocks) {
                coming.merge(block, 1, Integer::sum);
            }
        }
    }

    /** The request does not wait any more. */
    void forget(String requestId) {
        synchronized (this) {
            Expected gone = expected.remove(requestId);
            if (gone != null) {
                gone.blocks.forEach(this::settled);
            }
        }
        endWaits();
    }

    private synchronized void settled(BlockHash block) {
        coming.computeIfPresent(block, (_, reasons) -> reasons == 1 ? null : reasons - 1);
    }

    private synchronized boolean isComing(BlockHash block) {
        return coming.containsKey(block) && !pool.memory().isPresent(block);
    }

    /** The read is over when none of these is coming any more. It never succeeds, as blocks that have come are in the buffer. */
    @Override
    public StoreTask contains(List<BlockHash> keys, Deadline deadline) {
        StoreTask task = new StoreTask(keys.size(), deadline);
        boolean waits;
        synchronized (this) {
            waits = !closed && keys.stream().anyMatch(this::isComing);
            if (waits) {
                waiting.add(new Waiting(List.copyOf(keys), task));
            }
        }
        if (!waits) {
            task.end();
        }
        return task;
    }

    private void endWaits() {
        List<StoreTask> over = new ArrayList<>();
        synchronized (this) {
            boolean all = closed;
            waiting.removeIf(each -> {
                boolean ends = all || each.task.isDone() || each.blocks.stream().noneMatch(this::isComing);
                if (ends) {
                    over.add(each.task);
                }
                return ends;
            });
        }
        over.forEach(StoreTask::end);
    }

    @Override
    public StoreTask get(List<BlockHash> keys, List<ValueRanges> to, Deadline deadline) {
        return StoreTask.rejected(keys.size(), deadline);
    }

    @Override
    public StoreTask put(List<BlockHash> keys, List<ValueRanges> from, Deadline deadline) {
        return StoreTask.rejected(keys.size(), deadline);
    }

    /** A sender's connection, on the thread that it has. */
    private final class Visit implements Guest {
        private final Caller caller;
        private Optional<TransferAgent.Peer> peer = Optional.empty();
        /** Announced blocks, with the number of their announcements. */
        private final Map<BlockHash, Integer> announced = new LinkedHashMap<>();

        private Visit(Caller caller) {
            this.caller = caller;
        }

        @Override
        public void received(List<byte[]> frames) throws MessageException {
            try {
                switch (PdMessage.decode(frames.getFirst())) {
                    case PdMessage.Hello hello -> hello(hello);
                    case PdMessage.Begin begin -> begin(begin);
                    case PdMessage.Gone(List<BlockHash> blocks) -> settle(blocks);
                    case PdMessage.Ready ready -> ready(ready);
                    case PdMessage.Answer _ -> throw new MessageException("an answer to no question");
                }
            } catch (InvalidFieldException | MessageException e) {
                String why = String.valueOf(e.getMessage());
                settings.access().refuse(PORT + ": " + caller.host(), why);
                throw new MessageException(why, e);
            }
        }

        private void hello(PdMessage.Hello hello) throws MessageException {
            String refused = "";
            if (!hello.format().equals(format().describe())) {
                refused = "its blocks are " + PeerAddress.shown(hello.format()) + ", must be " + format().describe();
            } else {
                try {
                    peer = Optional.of(pool.agent().connect(hello.agent(), PdSettings.CONNECT));
                } catch (TransferException e) {
                    refused = "its transfer agent cannot be reached: " + e.getMessage();
                }
            }
            if (!refused.isEmpty()) {
                settings.access().refuse(PORT + ": " + caller.identity(), refused);
            }
            caller.answer(List.of(new PdMessage.Answer(refused, new BitSet()).encode()));
        }

        private void begin(PdMessage.Begin begin) throws MessageException {
            synchronized (PdReceiver.this) {
                if (coming.size() + begin.blocks().size() > MOST_ANNOUNCED) {
                    throw new MessageException("too many blocks are announced");
                }
                for (BlockHash block : begin.blocks()) {
                    announced.merge(block, 1, Integer::sum);
                    coming.merge(block, 1, Integer::sum);
                }
                if (begin.last()) {
                    begun.add(begin.transfer());
                    if (begun.size() > MOST_REMEMBERED) {
                        begun.remove(begun.iterator().next());
                    }
                    expected.values().removeIf(each -> {
                        boolean has = each.transfer.equals(begin.transfer());
                        if (has) {
                            each.blocks.forEach(PdReceiver.this::settled);
                        }
                        return has;
                    });
                }
            }
            endWaits();
        }

        private void settle(List<BlockHash> blocks) {
            synchronized (PdReceiver.this) {
                for (BlockHash block : blocks) {
                    if (announced.computeIfPresent(block, (_, times) -> times - 1) != null) {
                        announced.remove(block, 0);
                        settled(block);
                    }
                }
            }
            endWaits();
        }

        private void ready(PdMessage.Ready ready) throws MessageException {
            synchronized (PdReceiver.this) {
                if (closed || peer.isEmpty()) {
                    throw new MessageException("blocks are offered before a Hello was taken");
                }
                reading++;
            }
            Optional<BitSet> there;
            try {
                there = read(peer.get(), ready);
            } finally {
                settle(ready.blocks());
                synchronized (PdReceiver.this) {
                    reading--;
                    PdReceiver.this.notifyAll();
                }
            }
            if (there.isEmpty()) {
                // Bytes that were lost, or that arrive late, would damage later transfers over the agents' connection.
                peer.get().close();
                peer = Optional.empty();
            }
            PdMessage.Answer answer = there.map(blocks -> new PdMessage.Answer("", blocks))
                    .orElseGet(() -> new PdMessage.Answer("its blocks cannot be read", new BitSet()));
            caller.answer(List.of(answer.encode()));
        }

        @Override
        public void left() {
            List<BlockHash> lost = new ArrayList<>();
            synchronized (PdReceiver.this) {
                announced.forEach((block, times) -> lost.addAll(Collections.nCopies(times, block)));
            }
            settle(lost);
            // The peer's other connection, if it has made one by now, has the same agent.
            peer.filter(each -> !each.alive()).ifPresent(TransferAgent.Peer::close);
        }
    }

    /** Reads blocks into the buffer. Returns which are there then; empty if the transfer failed. */
    private Optional<BitSet> read(TransferAgent.Peer peer, PdMessage.Ready ready) {
        List<BlockHash> blocks = ready.blocks();
        int[] slots = new int[blocks.size()];
        BitSet there = new BitSet();
        ValueCache memory = pool.memory();
        if (!memory.reserve(blocks, slots)) {
            count("no_room", blocks.size());
            for (int i = 0; i < slots.length; i++) {
                there.set(i, memory.isPresent(blocks.get(i)));
            }
            return Optional.of(there);
        }
        Transfer.State state = transfer(peer, ranges(ready, slots));
        boolean read = state instanceof Transfer.State.Done;
        if (state instanceof Transfer.State.Failed(Transfer.Cause cause, String message)) {
            complaints.event(
                    more -> log.warn("blocks of a prefill instance were not read: {}: {}{}", cause, message, more));
        }
        for (int i = 0; i < slots.length; i++) {
            int slot = slots[i];
            if (slot == ValueCache.NONE) {
                there.set(i);
            } else if (!read) {
                memory.abort(slot);
                count("unread", 1);
            } else if (pool.checksum(blocks.get(i), memory.offset(slot)) != ready.checksums()[i]) {
                memory.abort(slot);
                counts.add("baton:kv_handoff_rejected", 1, "cause", "corrupt");
            } else {
                memory.seal(slot);
                memory.commit(slot);
                there.set(i);
                count("received", 1);
            }
        }
        return read ? Optional.of(there) : Optional.empty();
    }

    private void count(String result, int blocks) {
        counts.add("baton:kv_pd_blocks", blocks, "result", result);
    }

    private List<Range> ranges(PdMessage.Ready ready, int[] slots) {
        List<Range> ranges = new ArrayList<>();
        long bytes = format().valueBytes();
        for (int i = 0; i < slots.length; i++) {
            if (slots[i] != ValueCache.NONE) {
                Range.append(ranges, new Range(pool.address(slots[i]), ready.addresses()[i], bytes));
            }
        }
        return ranges;
    }

    /** Returns when nothing is read any more. */
    private Transfer.State transfer(TransferAgent.Peer peer, List<Range> ranges) {
        if (ranges.isEmpty()) {
            return new Transfer.State.Done(0, Duration.ZERO);
        }
        Transfer transfer;
        synchronized (agentLock) {
            transfer = pool.agent()
                    .start(TransferAgent.Operation.READ, peer, ranges, Optional.empty(), settings.readTimeout());
        }
        Thread reader = Thread.currentThread();
        readers.add(reader);
        boolean interrupted = false;
        try {
            Transfer.State state = state(transfer);
            while (state instanceof Transfer.State.UnderWay) {
                // For a moment only: an agent may never call the listener of its progress.
                LockSupport.parkNanos(this, POLL.toNanos());
                if (Thread.interrupted()) {
                    interrupted = true;
                    transfer.cancel();
                }
                state = state(transfer);
            }
            return state;
        } finally {
            readers.remove(reader);
            if (interrupted) {
                reader.interrupt();
            }
        }
    }

    private Transfer.State state(Transfer transfer) {
        synchronized (agentLock) {
            // Nothing that a sender's agent says means anything here.
            pool.agent().takeNotifications();
            return transfer.state();
        }
    }

    @Override
    public List<StoreEvent> takeEvents() {
        return List.of();
    }

    @Override
    public List<Measurement> takeMeasurements() {
        List<Measurement> taken = counts.take();
        settings.access().takeRefusedMeasurement().ifPresent(taken::add);
        return taken;
    }

    private synchronized boolean isQuiet() {
        return reading == 0;
    }

    @Override
    public void close() {
        Deadline deadline = Deadline.after(ticker, CLOSE);
        synchronized (this) {
            closed = true;
        }
        endWaits();
        channel.close();
        pool.close();
        synchronized (this) {
            if (!deadline.awaitUninterruptibly(this, this::isQuiet)) {
                throw new IllegalStateException("blocks are still being read after " + deadline);
            }
        }
    }
}
