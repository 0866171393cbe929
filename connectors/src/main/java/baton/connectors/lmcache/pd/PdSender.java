package baton.connectors.lmcache.pd;

import baton.connectors.ConnectorRuntime;
import baton.kv.BlockHash;
import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.kv.connector.Counts;
import baton.kv.connector.Measurement;
import baton.messages.PeerAddress;
import baton.messages.PeerChannel;
import baton.store.BlockStore;
import baton.store.StoreEvent;
import baton.store.StoreFormat;
import baton.store.StoreTask;
import baton.store.ValueRanges;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Gatherers;

/*
 * A request's blocks are announced to its receiver when the request comes. When some have been computed they are copied into the buffer,
 * and offered: the receiver reads the blocks that it lacks and reports those that it has. Until it has answered, or its time is up, their
 * slots are pinned.
 *
 * Each receiver has a thread of its own here, as one that does not answer must not delay the others.
 */

/** A prefill instance's side: a store behind the buffer to which blocks are only put. Thread-safe. */
public final class PdSender implements BlockStore {
    private static final Duration CLOSE = Duration.ofSeconds(10);

    private final PdSettings settings;
    private final PdPool pool;
    private final ConnectorRuntime runtime;
    private final Ticker ticker;
    private final PeerChannel channel;
    private final Counts counts = new Counts();

    @GuardedBy("this")
    private final Map<PeerAddress, PdLink> links = new HashMap<>();

    /** The transfers by the buffer's key. */
    @GuardedBy("this")
    private final Map<BlockHash, Named> names = new HashMap<>();

    @GuardedBy("this")
    private boolean closed;

    private record Named(Transfer transfer, BlockHash block) {}

    /** A prompt's hand-over. Guarded by the sender's monitor. */
    static final class Transfer {
        private final String id;
        private final PdLink link;
        /** Announced, and not offered. */
        private final Set<BlockHash> left;

        private final List<BlockHash> named = new ArrayList<>();

        private Transfer(String id, PdLink link, List<BlockHash> blocks) {
            this.id = id;
            this.link = link;
            this.left = new LinkedHashSet<>(blocks);
        }

        String id() {
            return id;
        }
    }

    /** @param pool closed with this */
    public PdSender(PdSettings settings, PdPool pool, ConnectorRuntime runtime, Ticker ticker) {
        this.settings = settings;
        this.pool = pool;
        this.runtime = runtime;
        this.ticker = ticker;
        this.channel = runtime.peerChannel(settings.access());
    }

    @Override
    public String name() {
        return "pd";
    }

    @Override
    public StoreFormat format() {
        return pool.format();
    }

    /** Announces a prompt's blocks. */
    synchronized Transfer begin(PeerAddress receiver, String id, List<BlockHash> blocks) {
        PdLink link = links.get(receiver);
        if (link == null) {
            link = new PdLink(receiver, settings, pool, channel, ticker, this::idle);
            links.put(receiver, link);
            runtime.background().execute(link);
        }
        for (int at = 0; at < blocks.size(); at += PdMessage.MOST_BLOCKS) {
            int end = Math.min(at + PdMessage.MOST_BLOCKS, blocks.size());
            link.tell(new PdMessage.Begin(id, end == blocks.size(), blocks.subList(at, end)));
        }
        return new Transfer(id, link, blocks);
    }

    private synchronized boolean idle(PdLink link, boolean always) {
        if (!always && !link.isIdle()) {
            return false;
        }
        links.remove(link.receiver(), link);
        notifyAll();
        return true;
    }

    /** Whether the receiver has not been found to be away, or to refuse this instance. */
    boolean isReached(Transfer transfer) {
        return !transfer.link.isFailed();
    }

    /** @param own the buffer's keys of blocks */
    synchronized void name(Transfer transfer, List<BlockHash> own, List<BlockHash> blocks) {
        for (int i = 0; i < own.size(); i++) {
            if (names.putIfAbsent(own.get(i), new Named(transfer, blocks.get(i))) == null) {
                transfer.named.add(own.get(i));
            }
        }
    }

    /** Ends a hand-over: blocks that have not been offered will not come. */
    synchronized void end(Transfer transfer) {
        for (BlockHash own : transfer.named) {
            names.remove(own);
        }
        transfer.left.stream()
                .gather(Gatherers.windowFixed(PdMessage.MOST_BLOCKS))
                .forEach(some -> transfer.link.tell(new PdMessage.Gone(some)));
    }

    /** Nothing is read back from a receiver. */
    @Override
    public StoreTask contains(List<BlockHash> keys, Deadline deadline) {
        return StoreTask.rejected(keys.size(), deadline);
    }

    @Override
    public StoreTask get(List<BlockHash> keys, List<ValueRanges> to, Deadline deadline) {
        return StoreTask.rejected(keys.size(), deadline);
    }

    /** Succeeds for the blocks that the receiver has. The values are in the buffer, one range each, and of one request. */
    @Override
    public StoreTask put(List<BlockHash> keys, List<ValueRanges> from, Deadline deadline) {
        ValueRanges ranges = from.getFirst();
        long[] offsets = new long[keys.size()];
        for (int i = 0; i < ranges.size(); i++) {
            if (ranges.valueOffset(i) == 0) {
                offsets[ranges.key(i)] = ranges.memoryOffset(i);
            }
        }
        StoreTask task = new StoreTask(keys.size(), deadline);
        List<BlockHash> blocks = new ArrayList<>(keys.size());
        boolean taken = false;
        synchronized (this) {
            Named first = names.get(keys.getFirst());
            if (first != null && !closed) {
                for (BlockHash key : keys) {
                    Named named = names.get(key);
                    if (named != null && named.transfer == first.transfer) {
                        blocks.add(named.block);
                    }
                }
                taken = blocks.size() == keys.size() && first.transfer.link.offer(blocks, offsets, task);
                if (taken) {
                    blocks.forEach(first.transfer.left::remove);
                }
            }
        }
        task.onDone(() -> {
            int there = task.succeededCount();
            counts.add("baton:kv_pd_blocks", there, "result", "sent");
            counts.add("baton:kv_pd_blocks", keys.size() - there, "result", "failed");
        });
        if (!taken) {
            task.end();
        }
        return task;
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

    private synchronized boolean isUnlinked() {
        return links.isEmpty();
    }

    @Override
    public void close() {
        Deadline deadline = Deadline.after(ticker, CLOSE);
        synchronized (this) {
            closed = true;
            links.values().forEach(PdLink::close);
        }
        channel.close();
        synchronized (this) {
            boolean _ = deadline.awaitUninterruptibly(this, this::isUnlinked);
        }
        pool.close();
    }
}
