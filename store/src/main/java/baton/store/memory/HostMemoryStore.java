package baton.store.memory;

import baton.kv.BlockHash;
import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.kv.connector.Measurement;
import baton.memory.CopyKernel;
import baton.memory.CopyPlan;
import baton.memory.CopyRanges;
import baton.memory.Gate;
import baton.memory.ParallelCopier;
import baton.memory.ValueDigests;
import baton.store.StoreEvent;
import baton.store.StoreFormat;
import baton.store.StoreTask;
import baton.store.ValueCache;
import baton.store.ValueRanges;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.zip.CRC32C;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Values in slots of this host's memory, which threads of its own copy in and out.
 *
 * <p>A put stores all of its values or none: none if there is no room for all that are not there yet. Those that another operation stores at
 * the same time do not count as stored.
 *
 * <p>Shared memory is used by the stores of several processes at the same time. The others find a value that one has stored; each evicts values that none has
 * pinned, and reports the values that it stored and evicted itself. A process that dies in the middle leaves nothing behind: the
 * values that it was storing are not there, and its pins do not count.
 *
 * <p>Where values have checksums, a value that is read as a whole and does not have its own is removed, and is a miss.
 */
public final class HostMemoryStore implements ValueCache {
    private static final Logger LOG = LoggerFactory.getLogger(HostMemoryStore.class);

    /** Operations that wait or copy. */
    private static final int MOST_JOBS = 1024;

    private static final long SEALED = 1L << 32;

    private static final Duration CLOSING = Duration.ofSeconds(30);

    private final StoreFormat format;
    private final HostMemorySettings settings;
    private final Ticker ticker;
    private final Slab slab;
    private final SlotCache cache;
    private final ParallelCopier copier;

    /** For each slot that is filled and will be committed, {@link #SEALED} and the digest; 0 for other slots. */
    private final AtomicLongArray seals;

    @GuardedBy("this")
    private final Set<Job> jobs = new HashSet<>();

    @GuardedBy("this")
    private boolean closed;

    @GuardedBy("this")
    private long rejected;

    @GuardedBy("this")
    private long damaged;

    private HostMemoryStore(
            StoreFormat format, HostMemorySettings settings, Ticker ticker, Slab slab, SlotCache cache) {
        this.format = format;
        this.settings = settings;
        this.ticker = ticker;
        this.slab = slab;
        this.cache = cache;
        this.seals = new AtomicLongArray(cache.slots());
        this.copier = new ParallelCopier("host-memory-copier", settings.threads(), CopyKernel.ofThisMachine());
    }

    /**
     * Opens a store.
     *
     * @param ticker clock of its own deadlines
     * @throws IllegalArgumentException if the capacity has no room for a value
     * @throws IllegalStateException if the system refuses the memory
     * @throws IOException if shared memory cannot be had, or is used with another capacity
     */
    public static HostMemoryStore open(StoreFormat format, HostMemorySettings settings, Ticker ticker)
            throws IOException {
        Geometry geometry = Geometry.of(format, settings.capacityBytes(), settings.eviction());
        Slab slab = settings.shared().isPresent()
                ? SharedSlab.open(geometry, format, settings.shared().get(), ticker)
                : new Slab.Private(geometry);
        boolean attached = false;
        try {
            SlotCache cache = new SlotCache(slab, settings.events());
            if (!cache.attach()) {
                throw new IOException("the shared memory of %s is locked by a process that does not run"
                        .formatted(settings.shared().map(SharedMemory::name).orElse("")));
            }
            attached = true;
            return new HostMemoryStore(format, settings, ticker, slab, cache);
        } finally {
            if (!attached) {
                slab.close();
            }
        }
    }

    @Override
    public String name() {
        return "cpu";
    }

    @Override
    public StoreFormat format() {
        return format;
    }

    @Override
    public MemorySegment memory() {
        return slab.slots();
    }

    @Override
    public Optional<Path> file() {
        return slab.file();
    }

    @Override
    public long offset(int slot) {
        return slot * slab.geometry().slotBytes();
    }

    @Override
    public int presentFromFront(List<BlockHash> keys) {
        return cache.presentFromFront(keys);
    }

    @Override
    public boolean isPresent(BlockHash key) {
        return cache.isPresent(key);
    }

    @Override
    public int pin(BlockHash key) {
        int slot = cache.pin(key);
        if (slot != NONE) {
            cache.use(new int[] {slot});
        }
        return slot;
    }

    @Override
    public int hold(BlockHash key) {
        return cache.pin(key);
    }

    @Override
    public void unpin(int slot) {
        cache.unpin(slot);
    }

    @Override
    public boolean reserve(List<BlockHash> keys, int[] slots) {
        return cache.reserve(keys, slots);
    }

    @Override
    public void commit(int slot) {
        BlockHash key = cache.table().index().key(slot);
        boolean checked = settings.checksums();
        long sealed = seals.getAndSet(slot, 0);
        cache.commit(slot, checked, checked ? sealed == 0 ? digest(slot) : (int) sealed : 0);
        cache.stored(List.of(key));
    }

    @Override
    public void seal(int slot) {
        if (settings.checksums()) {
            seals.set(slot, SEALED | Integer.toUnsignedLong(digest(slot)));
        }
    }

    private int digest(int slot) {
        CRC32C crc = new CRC32C();
        long bytes = format.valueBytes();
        for (long at = 0; at < bytes; at += 1 << 30) {
            crc.update(slab.slots()
                    .asSlice(offset(slot) + at, Math.min(1 << 30, bytes - at))
                    .asByteBuffer());
        }
        return (int) crc.getValue();
    }

    @Override
    public void abort(int slot) {
        seals.set(slot, 0);
        cache.abort(slot);
    }

    @Override
    public void drop(List<BlockHash> keys) {
        for (BlockHash key : keys) {
            int slot = cache.find(key);
            if (slot != NONE) {
                cache.discard(slot, key);
            }
        }
    }

    @Override
    public int slots() {
        return cache.slots();
    }

    @Override
    public int used() {
        return cache.used();
    }

    @Override
    public boolean reset() {
        return cache.reset();
    }

    @Override
    public StoreTask contains(List<BlockHash> keys, Deadline deadline) {
        StoreTask task = new StoreTask(keys.size(), deadline);
        synchronized (this) {
            if (closed) {
                return StoreTask.rejected(keys.size(), deadline);
            }
            task.succeed(0, cache.present(keys));
        }
        task.end();
        return task;
    }

    @Override
    public StoreTask get(List<BlockHash> keys, List<ValueRanges> to, Deadline deadline) {
        Job job = new Job(keys, bytesOfKeys(keys.size(), to), deadline, false);
        if (!admit(job)) {
            return StoreTask.rejected(keys.size(), deadline);
        }
        for (int i = 0; i < job.slots.length; i++) {
            job.slots[i] = cache.pin(keys.get(i));
        }
        cache.use(job.slots);
        begin(job, () -> job.start(to));
        return job.task;
    }

    /** @throws IllegalArgumentException if the ranges of a key have not as many bytes as its value */
    @Override
    public StoreTask put(List<BlockHash> keys, List<ValueRanges> from, Deadline deadline) {
        long[] bytes = bytesOfKeys(keys.size(), from);
        for (int i = 0; i < bytes.length; i++) {
            if (bytes[i] != format.valueBytes()) {
                throw new IllegalArgumentException("ranges of %s (key %d) have %d bytes, a value has %d"
                        .formatted(keys.get(i), i, bytes[i], format.valueBytes()));
            }
        }
        Job job = new Job(keys, bytes, deadline, true);
        if (!admit(job)) {
            return StoreTask.rejected(keys.size(), deadline);
        }
        boolean reserved = cache.reserve(keys, job.slots);
        begin(job, () -> {
            if (reserved) {
                job.start(from);
            } else {
                // Without slots: it succeeds for values that were there already.
                job.end(End.COPIED);
            }
        });
        return job.task;
    }

    /** Begins with a job that has its slots. A store that is being closed waits for it to end, which it does at once then. */
    private void begin(Job job, Runnable work) {
        boolean late;
        synchronized (this) {
            job.hasSlots = true;
            late = closed;
        }
        if (late) {
            job.end(End.CANCELLED);
        } else {
            work.run();
        }
    }

    private long[] bytesOfKeys(int keys, List<ValueRanges> all) {
        long[] bytes = new long[keys];
        long valueBytes = format.valueBytes();
        for (ValueRanges ranges : all) {
            for (int i = 0; i < ranges.size(); i++) {
                long inValue = ranges.valueOffset(i);
                long length = ranges.bytes(i);
                if (inValue < 0 || length > valueBytes - inValue) {
                    throw new IndexOutOfBoundsException("valueOffset=%d length=%d are not within a value of %d bytes"
                            .formatted(inValue, length, valueBytes));
                }
                bytes[ranges.key(i)] += length;
            }
        }
        return bytes;
    }

    /** Whether there is room for an operation that has something to do. */
    private synchronized boolean admit(Job job) {
        if (closed || job.slots.length == 0 || job.task.isDone()) {
            return false;
        }
        if (jobs.size() >= MOST_JOBS) {
            rejected++;
            return false;
        }
        jobs.add(job);
        return true;
    }

    private synchronized void remove(Job job) {
        jobs.remove(job);
        notifyAll();
    }

    @Override
    public List<StoreEvent> takeEvents() {
        return cache.takeEvents();
    }

    @Override
    public synchronized List<Measurement> takeMeasurements() {
        List<Measurement> taken = new ArrayList<>(closed ? List.of() : cache.takeMeasurements());
        if (rejected > 0) {
            taken.add(Measurement.count("baton:kv_store_rejected", rejected, "store", name()));
            rejected = 0;
        }
        if (damaged > 0) {
            taken.add(Measurement.count("baton:kv_store_damaged", damaged, "store", name()));
            damaged = 0;
        }
        return taken;
    }

    /** Afterwards nothing but {@link #takeEvents} and operations, which are rejected, can be called: the memory is given back. */
    @Override
    public void close() {
        List<Job> open;
        synchronized (this) {
            if (closed) {
                return;
            }
            closed = true;
            open = jobs.stream().filter(job -> job.hasSlots).toList();
        }
        open.forEach(job -> job.end(End.CANCELLED));
        copier.close();
        if (!areOver(Deadline.after(ticker, CLOSING))) {
            LOG.warn("operations of the host-memory store did not end in {}: its memory is not given back", CLOSING);
            return;
        }
        int used = cache.inUse();
        if (used > 0) {
            // Another process must not fill these slots: a read that hangs may yet write to one, or a write send its
            // new content.
            LOG.warn("{} slots of the host-memory store are still read or written: its memory is not given back", used);
            return;
        }
        cache.detach();
        slab.close();
    }

    private synchronized boolean areOver(Deadline deadline) {
        return deadline.awaitUninterruptibly(this, this::isIdle);
    }

    private synchronized boolean isIdle() {
        return jobs.isEmpty();
    }

    private enum End {
        COPIED,
        CANCELLED
    }

    /** An operation that copies. Its slots are pinned, or being filled, until it is over. */
    private final class Job extends Gate<End> implements ParallelCopier.Completion {
        private final StoreTask task;
        private final List<BlockHash> keys;
        private final boolean isPut;
        private final int[] slots;
        /** Whether {@link #slots} are final. Guarded by the store's monitor. */
        private boolean hasSlots;

        /** The bytes of all ranges of each key. */
        private final long[] bytes;

        private final Optional<ValueDigests> digests;

        private Job(List<BlockHash> keys, long[] bytes, Deadline deadline, boolean isPut) {
            this.task = new StoreTask(keys.size(), deadline);
            this.keys = keys;
            this.bytes = bytes;
            this.isPut = isPut;
            this.slots = new int[keys.size()];
            Arrays.fill(slots, NONE);
            this.digests = settings.checksums()
                    ? Optional.of(new ValueDigests(slots.length, format.valueBytes()))
                    : Optional.empty();
        }

        private void start(List<ValueRanges> all) {
            long sum = 0;
            for (int i = 0; i < slots.length; i++) {
                sum += slots[i] == NONE ? 0 : bytes[i];
            }
            // The copying ends as soon as the task is found to be late, or is cancelled.
            task.onDone(() -> end(End.CANCELLED));
            if (sum == 0) {
                end(End.COPIED);
            } else {
                List<CopyRanges> sources = new ArrayList<>(all.size());
                all.forEach(ranges -> sources.add(new Ranges(this, ranges)));
                copier.startRanges(this, this, sources, sum, digests.isPresent());
            }
        }

        @Override
        public void copied() {
            end(End.COPIED);
        }

        @Override
        public void failed(Throwable cause) {
            LOG.error("copying {} the host-memory store failed", isPut ? "to" : "from", cause);
            end(End.CANCELLED);
        }

        @Override
        public void rejected() {
            end(End.CANCELLED);
        }

        @Override
        protected void over(End end) {
            try {
                if (isPut) {
                    finishPut(end == End.COPIED);
                } else {
                    finishGet(end == End.COPIED);
                }
            } finally {
                task.end();
                remove(this);
            }
        }

        private void finishPut(boolean copied) {
            List<BlockHash> stored = new ArrayList<>(slots.length);
            for (int i = 0; i < slots.length; i++) {
                if (slots[i] == NONE) {
                    if (copied && cache.isPresent(keys.get(i))) {
                        task.succeed(i);
                    }
                } else if (copied) {
                    int key = i;
                    cache.commit(
                            slots[i],
                            digests.isPresent(),
                            digests.map(all -> all.crc32c(key)).orElse(0));
                    stored.add(keys.get(i));
                    task.succeed(i);
                } else {
                    cache.abort(slots[i]);
                }
            }
            cache.stored(stored);
        }

        private void finishGet(boolean copied) {
            for (int i = 0; i < slots.length; i++) {
                if (slots[i] == NONE) {
                    continue;
                }
                boolean isRight = !copied || isRight(i);
                cache.unpin(slots[i]);
                if (!isRight) {
                    cache.discard(slots[i], keys.get(i));
                    synchronized (HostMemoryStore.this) {
                        damaged++;
                    }
                } else if (copied) {
                    task.succeed(i);
                }
            }
        }

        private boolean isRight(int key) {
            int slot = slots[key];
            SlotTable table = cache.table();
            if (digests.isEmpty()
                    || bytes[key] != format.valueBytes()
                    || !table.hasChecksum(slot)
                    || digests.get().crc32c(key) == table.checksum(slot)) {
                return true;
            }
            // Ranges that overlap have another digest, too.
            if (digest(slot) == table.checksum(slot)) {
                return true;
            }
            LOG.warn("value {} in slot {} of the host-memory store is damaged: removed", keys.get(key), slot);
            return false;
        }
    }

    /** Ranges in one memory, and where they are in the slots. */
    private final class Ranges implements CopyRanges {
        private final Job job;
        private final ValueRanges ranges;

        private Ranges(Job job, ValueRanges ranges) {
            this.job = job;
            this.ranges = ranges;
        }

        @Override
        public int size() {
            return ranges.size();
        }

        @Override
        public long bytes(int range) {
            return job.slots[ranges.key(range)] == NONE ? 0 : ranges.bytes(range);
        }

        @Override
        public CopyPlan newPlan() {
            MemorySegment slots = slab.slots();
            return job.isPut
                    ? new CopyPlan(ranges.memory(), slots, job.digests)
                    : new CopyPlan(slots, ranges.memory(), job.digests);
        }

        @Override
        public void addTo(CopyPlan plan, int range, long at, long length) {
            int key = ranges.key(range);
            long inValue = ranges.valueOffset(range) + at;
            long inSlots = offset(job.slots[key]) + inValue;
            long inMemory = ranges.memoryOffset(range) + at;
            plan.add(key, inValue, job.isPut ? inMemory : inSlots, job.isPut ? inSlots : inMemory, length);
        }
    }
}
