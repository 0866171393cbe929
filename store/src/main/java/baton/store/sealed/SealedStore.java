package baton.store.sealed;

import baton.kv.BlockHash;
import baton.kv.Bursts;
import baton.kv.ConfigException;
import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.kv.connector.Measurement;
import baton.messages.PeerSecret;
import baton.store.BatchRanges;
import baton.store.BlockStore;
import baton.store.IoTasks;
import baton.store.StoreEvent;
import baton.store.StoreFormat;
import baton.store.StoreTask;
import baton.store.SystemIoThreads;
import baton.store.ValueRanges;
import baton.store.remote.Failure;
import baton.store.remote.StoreCounters;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Optional;
import java.util.function.Function;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Seals values ({@link ValueSeal}) before another store takes them, on threads of its own. A value with a wrong tag is a miss and
 * counted. The other store has a format, and so names, of the key.
 */
public final class SealedStore implements BlockStore {
    private static final Logger log = LoggerFactory.getLogger(SealedStore.class);
    private static final int THREADS = 4;
    private static final int MOST_QUEUED = 1024;
    private static final int ALIGNMENT = 64;

    /** The buffer of sealed values of each thread; one value has room in any case. */
    private static final long BUFFER_BYTES = 16L << 20;

    private static final Duration CLOSE_TIMEOUT = Duration.ofSeconds(10);

    private final BlockStore inner;
    private final StoreFormat format;
    private final ValueSeal seal;
    private final Ticker ticker;
    private final long sealedBytes;

    /** Values that a buffer has room for. */
    private final int most;

    /** Reads do not wait behind writes, each of which has a thread until the other store has the values. */
    private final IoTasks reads = new IoTasks(new SystemIoThreads(), THREADS, MOST_QUEUED);

    private final IoTasks writes = new IoTasks(new SystemIoThreads(), THREADS, MOST_QUEUED);
    private final StoreCounters counters;
    private final Bursts bursts;

    /** Buffers in the garbage collector's arena: a buffer that a store never stops using is left to the collector. */
    @GuardedBy("this")
    private final Deque<MemorySegment> buffers = new ArrayDeque<>();

    private SealedStore(BlockStore inner, StoreFormat format, PeerSecret secret, Ticker ticker) {
        this.inner = inner;
        this.format = format;
        this.ticker = ticker;
        seal = new ValueSeal(secret, format);
        sealedBytes = inner.format().valueBytes();
        most = (int) Math.max(1, BUFFER_BYTES / sealedBytes);
        counters = new StoreCounters(inner.name());
        bursts = new Bursts(1, Duration.ofSeconds(30), ticker);
    }

    /**
     * @param secret that keys of values are derived from
     * @param opener of the store that takes the sealed values; it is closed with this one
     * @throws ConfigException if values are too large
     */
    public static SealedStore over(
            Function<StoreFormat, BlockStore> opener, StoreFormat format, PeerSecret secret, Ticker ticker) {
        StoreFormat ofSealed = format.sealedBy(ValueSeal.name(secret));
        if (ofSealed.valueBytes() > Integer.MAX_VALUE) {
            throw new ConfigException(
                    "block_size",
                    "makes values of %d bytes, of which at most %d can be sealed: use a smaller block or chunk size"
                            .formatted(format.valueBytes(), Integer.MAX_VALUE - StoreFormat.SEAL_BYTES));
        }
        return new SealedStore(opener.apply(ofSealed), format, secret, ticker);
    }

    @Override
    public String name() {
        return inner.name();
    }

    @Override
    public StoreFormat format() {
        return format;
    }

    @Override
    public StoreTask contains(List<BlockHash> keys, Deadline deadline) {
        return inner.contains(keys, deadline);
    }

    @Override
    public StoreTask get(List<BlockHash> keys, List<ValueRanges> to, Deadline deadline) {
        return start(reads, new Read(keys, new BatchRanges(to, keys.size(), format.valueBytes()), deadline));
    }

    /** @throws IllegalArgumentException if the ranges do not cover the values */
    @Override
    public StoreTask put(List<BlockHash> keys, List<ValueRanges> from, Deadline deadline) {
        return start(writes, new Write(keys, BatchRanges.ofValues(from, keys.size(), format.valueBytes()), deadline));
    }

    private StoreTask start(IoTasks tasks, Batch batch) {
        if (!tasks.submit(batch)) {
            counters.failed(Failure.QUEUE_FULL, batch.keys.size());
            batch.task.end();
        }
        return batch.task;
    }

    private MemorySegment takeBuffer() {
        synchronized (this) {
            if (!buffers.isEmpty()) {
                return buffers.removeLast();
            }
        }
        return Arena.ofAuto().allocate(most * sealedBytes, ALIGNMENT);
    }

    private synchronized void giveBack(MemorySegment buffer) {
        buffers.addLast(buffer);
    }

    @Override
    public List<StoreEvent> takeEvents() {
        return inner.takeEvents();
    }

    @Override
    public List<Measurement> takeMeasurements() {
        List<Measurement> all = new ArrayList<>(inner.takeMeasurements());
        all.addAll(counters.takeCounts());
        return all;
    }

    @Override
    public void close() {
        inner.close();
        Deadline deadline = Deadline.after(ticker, CLOSE_TIMEOUT);
        if (!reads.awaitIdle(deadline) || !writes.awaitIdle(deadline)) {
            log.warn("{} does not answer; values are not sealed and opened any more", name());
        }
    }

    /** Values that go through a buffer, as many at once as it has room for. */
    private abstract class Batch implements IoTasks.Task {
        final List<BlockHash> keys;
        final BatchRanges ranges;
        final StoreTask task;

        Batch(List<BlockHash> keys, BatchRanges ranges, Deadline deadline) {
            this.keys = List.copyOf(keys);
            this.ranges = ranges;
            this.task = new StoreTask(keys.size(), deadline);
        }

        /** @return whether the inner store uses the buffer no more */
        abstract boolean move(int from, int to, MemorySegment buffer);

        @Override
        public final boolean isOverdue() {
            return task.deadline().isOver();
        }

        @Override
        public final void run() {
            try {
                boolean free = true;
                for (int from = 0; from < keys.size() && free && !task.isDone(); from += most) {
                    MemorySegment buffer = takeBuffer();
                    free = move(from, Math.min(keys.size(), from + most), buffer);
                    if (free) {
                        giveBack(buffer);
                    }
                }
            } catch (RuntimeException | Error e) {
                log.error("values of {} could not be sealed or opened", name(), e);
            } finally {
                task.end();
            }
        }

        /** The sealed values of keys in a buffer, one after the other. */
        final List<ValueRanges> inBuffer(int count, MemorySegment buffer) {
            ValueRanges values = new ValueRanges(buffer);
            for (int i = 0; i < count; i++) {
                values.add(i, 0, i * sealedBytes, sealedBytes);
            }
            return List.of(values);
        }

        /** Waits until an operation of the inner store is quiet; returns false if it is not by the deadline. */
        final boolean isOver(StoreTask operation) {
            Object monitor = new Object();
            Runnable notify = () -> {
                synchronized (monitor) {
                    monitor.notifyAll();
                }
            };
            task.onDone(operation::cancel);
            operation.onQuiet(notify);
            synchronized (monitor) {
                return task.deadline().awaitUninterruptibly(monitor, operation::isQuiet);
            }
        }
    }

    private final class Read extends Batch {
        private Read(List<BlockHash> keys, BatchRanges ranges, Deadline deadline) {
            super(keys, ranges, deadline);
        }

        @Override
        boolean move(int from, int to, MemorySegment buffer) {
            StoreTask got = inner.get(keys.subList(from, to), inBuffer(to - from, buffer), task.deadline());
            boolean over = isOver(got);
            for (int key = from; over && key < to; key++) {
                if (got.succeeded(key - from) && !task.isDone()) {
                    open(key, buffer.asSlice((key - from) * sealedBytes, sealedBytes));
                }
            }
            return over;
        }

        private void open(int key, MemorySegment sealed) {
            Optional<MemorySegment> whole = ranges.whole(key, format.valueBytes());
            MemorySegment value =
                    whole.orElseGet(() -> MemorySegment.ofArray(new byte[Math.toIntExact(format.valueBytes())]));
            if (!seal.open(keys.get(key), sealed, value)) {
                counters.failed(Failure.SEAL, 1);
                bursts.event(more -> log.warn(
                        "{}: the value of {} is not used: it was changed after it was sealed{}",
                        name(),
                        keys.get(key),
                        more));
                return;
            }
            if (whole.isEmpty()) {
                ranges.scatter(key, 0, value, format.valueBytes());
            }
            task.succeed(key);
        }
    }

    private final class Write extends Batch {
        private Write(List<BlockHash> keys, BatchRanges ranges, Deadline deadline) {
            super(keys, ranges, deadline);
        }

        @Override
        boolean move(int from, int to, MemorySegment buffer) {
            StoreTask present = inner.contains(keys.subList(from, to), task.deadline());
            if (!isOver(present)) {
                return true;
            }
            List<Integer> absent = new ArrayList<>();
            for (int key = from; key < to; key++) {
                if (present.succeeded(key - from)) {
                    task.succeed(key);
                } else {
                    seal.seal(
                            keys.get(key),
                            ranges.pieces(key, format.valueBytes()).orElseThrow(),
                            buffer.asSlice(absent.size() * sealedBytes, sealedBytes));
                    absent.add(key);
                }
            }
            if (absent.isEmpty()) {
                return true;
            }
            StoreTask put = inner.put(
                    absent.stream().map(keys::get).toList(), inBuffer(absent.size(), buffer), task.deadline());
            boolean over = isOver(put);
            for (int i = 0; i < absent.size(); i++) {
                if (put.succeeded(i)) {
                    task.succeed(absent.get(i));
                }
            }
            return over;
        }
    }
}
