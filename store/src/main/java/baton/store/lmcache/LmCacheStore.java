package baton.store.lmcache;

import baton.kv.BlockHash;
import baton.kv.Bursts;
import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.kv.connector.Measurement;
import baton.store.BatchRanges;
import baton.store.BlockStore;
import baton.store.StoreEvent;
import baton.store.StoreFormat;
import baton.store.StoreTask;
import baton.store.ValueRanges;
import baton.store.lmcache.ObjectTransport.Entry;
import baton.store.lmcache.ObjectTransport.Found;
import baton.store.lmcache.ObjectTransport.Reads;
import baton.store.remote.Failure;
import baton.store.remote.StoreCounters;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.RejectedExecutionException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/*
 * A chunk goes through a buffer: between its bytes in memory, in Baton's layout, and the objects of all ranks, in LMCache's. A buffer has for
 * each object its metadata, its bytes and its check. Chunks of a batch are worked on as buffers become free; threads of the store's own
 * convert them, so neither callers nor the network's threads do.
 */

/**
 * Keeps chunks at a remote store as LMCache does: one object for each rank, under LMCache's key, with LMCache's bytes. A chunk is there when
 * the objects of all ranks are.
 *
 * <p>An object with metadata or a length other than this format's is a miss. One that Baton wrote has an {@link ObjectCheck} beside it, and is
 * a miss if that does not fit; of those that LMCache wrote, damaged bytes cannot be detected. An object that was found to be damaged counts as absent until
 * it has been written again.
 */
public final class LmCacheStore implements BlockStore {
    private static final Logger log = LoggerFactory.getLogger(LmCacheStore.class);
    private static final int THREADS = 2;
    private static final int MOST_OPERATIONS = 1024;
    private static final int MOST_DAMAGED = 1 << 14;
    private static final Duration CLOSE_TIMEOUT = Duration.ofSeconds(10);
    private static final int ALIGNMENT = 64;

    private final StoreFormat format;
    private final List<ChunkShare> shares;
    private final ObjectNames names;
    private final ObjectTransport transport;
    private final ObjectCheck check;
    private final List<ObjectMetadata> metadata;
    private final long[] objectStarts;
    private final long valueStart;
    private final Staging staging;
    private final StoreCounters counters;
    private final Bursts bursts;
    private final Ticker ticker;
    private final ExecutorService threads;

    @GuardedBy("this")
    private final Set<Batch> batches = new HashSet<>();

    @GuardedBy("this")
    private boolean closed;

    /** Keys of which an object is useless; true if it may be written over. */
    @GuardedBy("this")
    private final Map<BlockHash, Boolean> damaged = new LinkedHashMap<>() {
        @Override
        protected boolean removeEldestEntry(Map.Entry<BlockHash, Boolean> eldest) {
            return size() > MOST_DAMAGED;
        }
    };

    /**
     * @param shares of all ranks
     * @param transport closed with this store
     * @param stagingBytes for buffers; at least one is made
     */
    public LmCacheStore(
            StoreFormat format,
            List<ChunkShare> shares,
            ObjectNames names,
            ObjectTransport transport,
            long stagingBytes,
            Ticker ticker) {
        this.format = format;
        this.shares = List.copyOf(shares);
        this.names = names;
        this.transport = transport;
        this.ticker = ticker;
        check = new ObjectCheck(format);
        metadata = shares.stream().map(ChunkShare::metadata).toList();
        objectStarts = new long[shares.size()];
        long at = 0;
        for (int i = 0; i < objectStarts.length; i++) {
            objectStarts[i] = at;
            at += ALIGNMENT + aligned(shares.get(i).bytes()) + aligned(ObjectCheck.BYTES);
        }
        valueStart = at;
        long buffer = valueStart + format.valueBytes();
        staging = new Staging(Math.clamp(stagingBytes / buffer, 1, MOST_OPERATIONS), buffer);
        counters = new StoreCounters("lmcache");
        bursts = new Bursts(1, Duration.ofSeconds(30), ticker);
        threads = Executors.newFixedThreadPool(
                THREADS, Thread.ofPlatform().daemon().name("kv-lmcache-", 0).factory());
    }

    private static long aligned(long bytes) {
        return Math.ceilDiv(bytes, (long) ALIGNMENT) * ALIGNMENT;
    }

    @Override
    public String name() {
        return transport.name();
    }

    @Override
    public StoreFormat format() {
        return format;
    }

    /** Keys of the objects of a chunk; empty if it cannot have any. */
    private Optional<List<String>> objects(BlockHash key) {
        List<String> objects = new ArrayList<>(shares.size());
        for (int worker = 0; worker < shares.size(); worker++) {
            names.name(key, worker).filter(transport::takes).ifPresent(objects::add);
        }
        return objects.size() == shares.size() ? Optional.of(objects) : Optional.empty();
    }

    @Override
    public StoreTask contains(List<BlockHash> keys, Deadline deadline) {
        StoreTask task = new StoreTask(keys.size(), deadline);
        List<String> asked = new ArrayList<>(keys.size() * shares.size());
        List<Integer> askedKeys = new ArrayList<>(keys.size());
        for (int i = 0; i < keys.size(); i++) {
            Optional<List<String>> objects = isDamaged(keys.get(i)) ? Optional.empty() : objects(keys.get(i));
            if (objects.isPresent()) {
                askedKeys.add(i);
                asked.addAll(objects.get());
            }
        }
        if (asked.isEmpty()) {
            task.end();
            return task;
        }
        StoreTask inner = transport.contains(asked, deadline);
        task.onDone(inner::cancel);
        inner.onQuiet(() -> {
            inner.cancel();
            for (int i = 0; i < askedKeys.size(); i++) {
                boolean all = true;
                for (int worker = 0; worker < shares.size(); worker++) {
                    all &= inner.succeeded(i * shares.size() + worker);
                }
                if (all) {
                    task.succeed(askedKeys.get(i));
                }
            }
            counters.count(StoreCounters.Result.FOUND, task.succeededCount());
            counters.count(StoreCounters.Result.ABSENT, keys.size() - task.succeededCount());
            task.end();
        });
        return task;
    }

    @Override
    public StoreTask get(List<BlockHash> keys, List<ValueRanges> to, Deadline deadline) {
        return start(new Read(keys, to, deadline));
    }

    /** @throws IllegalArgumentException if the ranges do not cover the values */
    @Override
    public StoreTask put(List<BlockHash> keys, List<ValueRanges> from, Deadline deadline) {
        return start(new Write(keys, from, deadline));
    }

    private StoreTask start(Batch batch) {
        Optional<Failure> refused = Optional.empty();
        synchronized (this) {
            if (closed) {
                refused = Optional.of(Failure.CLOSED);
            } else if (batches.size() == MOST_OPERATIONS) {
                refused = Optional.of(Failure.QUEUE_FULL);
            } else {
                batches.add(batch);
            }
        }
        if (refused.isPresent()) {
            counters.failed(refused.get(), batch.keys.size());
            batch.task.end();
            return batch.task;
        }
        batch.task.onDone(batch::abandon);
        batch.begin();
        return batch.task;
    }

    private synchronized boolean isDamaged(BlockHash key) {
        return damaged.containsKey(key);
    }

    private synchronized boolean mayReplace(BlockHash key) {
        return damaged.getOrDefault(key, false);
    }

    private synchronized void ended(Batch batch) {
        batches.remove(batch);
        notifyAll();
    }

    /**
     * An object is there that is not this chunk's.
     *
     * @param replaced whether it is written over, as it is of no use to anything
     */
    private void useless(BlockHash key, String object, Failure why, String text, boolean replaced) {
        counters.failed(why, 1);
        synchronized (this) {
            damaged.put(key, replaced);
        }
        bursts.event(more -> log.warn("{}: {} is not used: {}{}", name(), object, text, more));
    }

    private static String what(Failure failure) {
        return switch (failure) {
            case CHECKSUM -> "its bytes do not fit their checksum";
            case WRONG_KEY -> "its checksum is that of other tokens";
            case WRONG_FORMAT -> "it is of another model, or computed by other numbers of ranks";
            default -> "its checksum is of another version";
        };
    }

    @Override
    public List<StoreEvent> takeEvents() {
        return counters.takeEvents();
    }

    @Override
    public boolean hasReadUnverified() {
        return counters.hasUnverified();
    }

    @Override
    public List<Measurement> takeMeasurements() {
        List<Measurement> all = new ArrayList<>(transport.takeMeasurements());
        all.addAll(counters.takeCounts());
        return all;
    }

    @Override
    public void close() {
        List<Batch> last;
        synchronized (this) {
            if (closed) {
                return;
            }
            closed = true;
            last = List.copyOf(batches);
        }
        last.forEach(batch -> batch.task.cancel());
        transport.close();
        if (awaitBatches()) {
            threads.shutdown();
            staging.close();
        } else {
            log.warn("{} does not answer; memory that it uses is left", name());
        }
    }

    private synchronized boolean awaitBatches() {
        return Deadline.after(ticker, CLOSE_TIMEOUT).awaitUninterruptibly(this, this::isIdle);
    }

    private synchronized boolean isIdle() {
        return batches.isEmpty();
    }

    /** The parts of a buffer. */
    private List<Entry> entries(List<String> objects, MemorySegment buffer) {
        List<Entry> entries = new ArrayList<>(shares.size());
        for (int worker = 0; worker < shares.size(); worker++) {
            long at = objectStarts[worker];
            long bytes = shares.get(worker).bytes();
            entries.add(new Entry(
                    objects.get(worker),
                    buffer.asSlice(at, ObjectMetadata.BYTES),
                    buffer.asSlice(at + ALIGNMENT, bytes),
                    buffer.asSlice(at + ALIGNMENT + aligned(bytes), ObjectCheck.BYTES)));
        }
        return entries;
    }

    private MemorySegment value(MemorySegment buffer) {
        return buffer.asSlice(valueStart, format.valueBytes());
    }

    /** Chunks that are worked on as there are buffers. */
    private abstract class Batch {
        final List<BlockHash> keys;
        final StoreTask task;
        final BatchRanges ranges;

        @GuardedBy("this")
        private int next;

        @GuardedBy("this")
        private int open;

        @GuardedBy("this")
        private boolean over;

        @GuardedBy("this")
        private final Set<StoreTask> transfers = new HashSet<>();

        Batch(List<BlockHash> keys, BatchRanges ranges, Deadline deadline) {
            this.keys = List.copyOf(keys);
            this.task = new StoreTask(keys.size(), deadline);
            this.ranges = ranges;
        }

        abstract void begin();

        /** Whether the chunk needs anything. */
        abstract boolean isWanted(int key);

        /** Works on a chunk; ends with {@link #finished}. */
        abstract void work(int key, List<String> objects, MemorySegment buffer);

        /** Begins with as many chunks as there are buffers. */
        final void pump() {
            while (true) {
                Optional<MemorySegment> buffer = Optional.empty();
                Optional<List<String>> objects = Optional.empty();
                int key;
                synchronized (this) {
                    while (next < keys.size() && objects.isEmpty()) {
                        objects = isWanted(next) ? objects(keys.get(next)) : Optional.empty();
                        next += objects.isEmpty() ? 1 : 0;
                    }
                    key = next;
                    if (objects.isPresent()) {
                        buffer = staging.take(this::pump);
                        if (buffer.isEmpty()) {
                            return;
                        }
                        next++;
                        open++;
                    }
                }
                if (buffer.isEmpty()) {
                    endIfLast();
                    return;
                }
                work(key, objects.orElseThrow(), buffer.get());
            }
        }

        private void endIfLast() {
            synchronized (this) {
                if (over || open > 0 || next < keys.size()) {
                    return;
                }
                over = true;
            }
            ended(this);
            task.end();
        }

        final void finished(MemorySegment buffer) {
            synchronized (this) {
                open--;
            }
            staging.giveBack(buffer);
            endIfLast();
        }

        /** The task is done: chunks that are not begun are left out. */
        final void abandon() {
            List<StoreTask> last;
            int left;
            synchronized (this) {
                if (over) {
                    return;
                }
                left = keys.size() - next + open;
                next = keys.size();
                last = List.copyOf(transfers);
            }
            if (task.deadline().isOver()) {
                counters.failed(Failure.TIMEOUT, left);
            }
            last.forEach(StoreTask::cancel);
            endIfLast();
        }

        /** Runs something when a transfer uses no memory any more. It ends when the batch does. */
        final void follow(StoreTask transfer, Runnable then) {
            synchronized (this) {
                transfers.add(transfer);
            }
            if (task.isDone()) {
                transfer.cancel();
            }
            transfer.onQuiet(() -> {
                synchronized (this) {
                    transfers.remove(transfer);
                }
                then.run();
            });
        }

        /** Runs something on a thread of the store. */
        final void convert(MemorySegment buffer, Runnable action) {
            try {
                threads.execute(() -> {
                    try {
                        action.run();
                    } catch (RuntimeException | Error e) {
                        log.error("a chunk could not be converted", e);
                        finished(buffer);
                    }
                });
            } catch (RejectedExecutionException _) {
                finished(buffer);
            }
        }
    }

    private final class Read extends Batch {
        private Read(List<BlockHash> keys, List<ValueRanges> to, Deadline deadline) {
            super(keys, new BatchRanges(to, keys.size(), format.valueBytes()), deadline);
        }

        @Override
        void begin() {
            pump();
        }

        @Override
        boolean isWanted(int key) {
            return true;
        }

        @Override
        void work(int key, List<String> objects, MemorySegment buffer) {
            List<Entry> entries = entries(objects, buffer);
            Reads reads = transport.get(entries, task.deadline());
            follow(reads.task(), () -> {
                if (task.isDone() || reads.task().succeededCount() < shares.size()) {
                    counters.count(StoreCounters.Result.MISS, 1);
                    finished(buffer);
                } else {
                    convert(buffer, () -> arrived(key, entries, reads, buffer));
                }
            });
        }

        private void arrived(int key, List<Entry> entries, Reads reads, MemorySegment buffer) {
            boolean right = true;
            for (int worker = 0; right && worker < shares.size(); worker++) {
                right = isRight(
                        keys.get(key),
                        worker,
                        entries.get(worker),
                        reads.found().apply(worker));
            }
            if (right && !task.isDone()) {
                Optional<MemorySegment> whole = ranges.whole(key, format.valueBytes());
                MemorySegment value = whole.orElseGet(() -> value(buffer));
                for (int worker = 0; worker < shares.size(); worker++) {
                    shares.get(worker).decode(entries.get(worker).bytes(), value);
                }
                if (whole.isEmpty()) {
                    ranges.scatter(key, 0, value, format.valueBytes());
                }
                counters.read(format.valueBytes());
                task.succeed(key);
            }
            finished(buffer);
        }

        private boolean isRight(BlockHash key, int worker, Entry entry, Found found) {
            if (found.bytes() != entry.bytes().byteSize()) {
                String text = "it has %d bytes in place of %d"
                        .formatted(found.bytes(), entry.bytes().byteSize());
                // One that is as long as it says belongs to another format, with layers or heads of its own.
                boolean whole = found.metadata() == ObjectMetadata.BYTES
                        && ObjectMetadata.read(entry.metadata()).length() == found.bytes();
                useless(key, entry.key(), Failure.LENGTH, text, !whole);
                return false;
            }
            boolean hasCheck = found.check() == ObjectCheck.BYTES;
            Optional<Failure> wrong = hasCheck
                    ? check.check(entry.check(), key, worker, entry.bytes())
                    : Optional.of(Failure.CHECKSUM).filter(_ -> found.check() != 0);
            if (wrong.isPresent()) {
                useless(key, entry.key(), wrong.get(), what(wrong.get()), wrong.get() == Failure.CHECKSUM);
                return false;
            }
            if (found.metadata() != 0 && !fits(found.metadata(), entry, worker)) {
                useless(key, entry.key(), Failure.WRONG_FORMAT, "its metadata is not that of this format", hasCheck);
                return false;
            }
            if (!hasCheck) {
                counters.count(StoreCounters.Result.UNVERIFIED, 1);
            }
            return true;
        }
    }

    private boolean fits(int bytes, Entry entry, int worker) {
        return bytes == ObjectMetadata.BYTES
                && ObjectMetadata.read(entry.metadata()).matches(metadata.get(worker));
    }

    /** Writes chunks that are not there. */
    private final class Write extends Batch {
        private volatile Optional<StoreTask> present = Optional.empty();

        private Write(List<BlockHash> keys, List<ValueRanges> from, Deadline deadline) {
            super(keys, BatchRanges.ofValues(from, keys.size(), format.valueBytes()), deadline);
        }

        @Override
        void begin() {
            StoreTask asked = contains(keys, task.deadline());
            follow(asked, () -> {
                for (int key = 0; key < keys.size(); key++) {
                    if (asked.succeeded(key)) {
                        counters.count(StoreCounters.Result.PRESENT, 1);
                        task.succeed(key);
                    }
                }
                present = Optional.of(asked);
                pump();
            });
        }

        @Override
        boolean isWanted(int key) {
            return !present.orElseThrow().succeeded(key) && (!isDamaged(keys.get(key)) || mayReplace(keys.get(key)));
        }

        @Override
        void work(int key, List<String> objects, MemorySegment buffer) {
            convert(buffer, () -> send(key, objects, buffer));
        }

        private void send(int key, List<String> objects, MemorySegment buffer) {
            if (task.isDone()) {
                finished(buffer);
                return;
            }
            MemorySegment value = ranges.whole(key, format.valueBytes()).orElseGet(() -> {
                MemorySegment gathered = value(buffer);
                ranges.gather(key, 0, gathered, format.valueBytes());
                return gathered;
            });
            List<Entry> entries = entries(objects, buffer);
            for (int worker = 0; worker < shares.size(); worker++) {
                Entry entry = entries.get(worker);
                shares.get(worker).encode(value, entry.bytes());
                metadata.get(worker).write(entry.metadata());
                check.write(entry.check(), keys.get(key), worker, entry.bytes());
            }
            StoreTask sent = transport.put(entries, task.deadline());
            follow(sent, () -> {
                if (sent.succeededCount() == shares.size()) {
                    synchronized (LmCacheStore.this) {
                        damaged.remove(keys.get(key));
                    }
                    counters.stored(keys.get(key), format.valueBytes());
                    task.succeed(key);
                }
                finished(buffer);
            });
        }
    }
}
