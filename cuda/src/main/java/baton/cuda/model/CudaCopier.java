package baton.cuda.model;

import baton.cuda.driver.CudaException;
import baton.cuda.driver.Driver;
import baton.cuda.driver.Gpu;
import baton.cuda.driver.StreamFences;
import baton.cuda.kernel.CopyOps;
import baton.kv.DevicePeers;
import baton.kv.KvCopier;
import baton.kv.KvDigest;
import baton.kv.KvFence;
import baton.kv.Ticker;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/** Copies and digests of a pool on a stream of their own, beside the model's launches. */
public final class CudaCopier implements KvCopier, AutoCloseable {
    private static final int RUNS_WORDS = 4;

    private final Gpu gpu;
    private final long pool;
    private final CopyOps kernels;
    private final StreamFences fences;
    private final CudaPeers peers;

    /** A batch is enqueued as a whole, and its fence behind it. */
    @GuardedBy("this")
    private final Gpu.Stream stream;

    @GuardedBy("this")
    private final BatchMemory.Pool memories;

    /**
     * Copies and digests a pool.
     *
     * @param pool an allocation of the driver's, which outlives this
     * @param kernels of the pool's device
     */
    public CudaCopier(Gpu.Buffer pool, CopyOps kernels) {
        this.gpu = pool.gpu();
        this.pool = pool.address();
        this.peers = new CudaPeers(pool, kernels, Ticker.system());
        this.kernels = kernels;
        this.memories = new BatchMemory.Pool(gpu);
        this.stream = gpu.stream();
        this.fences = new StreamFences(stream, Ticker.system());
    }

    @Override
    public synchronized KvFence toHost(List<Range> ranges, MemorySegment host, KvFence after) {
        StreamFences.order(after, stream);
        for (Rows each : rows(ranges)) {
            stream.copyToHost(each.of(host), pool + each.first.device(), each.rows);
        }
        return fences.record();
    }

    @Override
    public synchronized KvFence toDevice(List<Range> ranges, MemorySegment host, KvFence after) {
        StreamFences.order(after, stream);
        for (Rows each : rows(ranges)) {
            stream.copyToDevice(pool + each.first.device(), each.of(host), each.rows);
        }
        return fences.record();
    }

    /** Ranges that follow each other in both memories are one. */
    private static List<Range> merged(List<Range> ranges) {
        List<Range> merged = new ArrayList<>();
        for (Range next : ranges) {
            Range last = merged.isEmpty() ? new Range(0, 0, 0) : merged.getLast();
            boolean follows =
                    last.device() + last.bytes() == next.device() && last.host() + last.bytes() == next.host();
            if (follows && !merged.isEmpty()) {
                merged.removeLast();
                merged.add(new Range(last.device(), last.host(), last.bytes() + next.bytes()));
            } else {
                merged.add(next);
            }
        }
        return merged;
    }

    /** A copy of the driver's, with the first of its ranges. */
    record Rows(Range first, Driver.Rows rows) {
        MemorySegment of(MemorySegment host) {
            return host.asSlice(first.host(), (rows.count() - 1) * rows.onHost() + rows.bytes());
        }
    }

    /** Ranges that are equally long and equally far apart are one copy: those of a layer in blocks with consecutive numbers. */
    static List<Rows> rows(List<Range> ranges) {
        List<Rows> all = new ArrayList<>();
        List<Range> merged = merged(ranges);
        for (int i = 0; i < merged.size(); ) {
            Range first = merged.get(i);
            Range second = i + 1 < merged.size() ? merged.get(i + 1) : first;
            long onDevice = second.device() - first.device();
            long onHost = second.host() - first.host();
            int count = 1;
            while (Math.min(onDevice, onHost) >= first.bytes()
                    && Math.max(onDevice, onHost) <= Integer.MAX_VALUE
                    && i + count < merged.size()
                    && isRow(first, merged.get(i + count), count * onDevice, count * onHost)) {
                count++;
            }
            all.add(new Rows(first, new Driver.Rows(count, first.bytes(), onDevice, onHost)));
            i += count;
        }
        return all;
    }

    private static boolean isRow(Range first, Range next, long onDevice, long onHost) {
        return next.bytes() == first.bytes()
                && next.device() == first.device() + onDevice
                && next.host() == first.host() + onHost;
    }

    @Override
    public KvFence digest(KvDigest kind, List<Runs> values, long[] digests, KvFence after) {
        return kind == KvDigest.SUM61 && digests.length > 0
                ? digest(values, digests, after)
                : KvCopier.super.digest(kind, values, digests, after);
    }

    private synchronized KvFence digest(List<Runs> values, long[] digests, KvFence after) {
        long words = (long) RUNS_WORDS * digests.length;
        BatchMemory memory = memories.take(words + digests.length);
        long word = 0;
        for (Runs runs : values) {
            memory.put(word, pool + runs.first(), runs.stride(), runs.count(), runs.bytes());
            word += RUNS_WORDS;
        }
        long results = words * Long.BYTES;
        MemorySegment copy = memory.host().memory().asSlice(results, (long) Long.BYTES * digests.length);
        StreamFences.order(after, stream);
        memory.upload(stream, words);
        kernels.digest(stream, memory.address(), digests.length, memory.address() + results);
        stream.copyToHost(copy, memory.address() + results);
        Digested fence = new Digested(fences.record(), copy, digests);
        memory.usedUntil(fence);
        return fence;
    }

    /** Passed when the digests are on the host, and copied to the caller's array. */
    private static final class Digested implements KvFence {
        private final KvFence computed;
        private final MemorySegment copy;
        private final long[] digests;

        @GuardedBy("this")
        private boolean taken;

        Digested(KvFence computed, MemorySegment copy, long[] digests) {
            this.computed = computed;
            this.copy = copy;
            this.digests = digests;
        }

        private synchronized void take() {
            if (!taken) {
                MemorySegment.copy(copy, ValueLayout.JAVA_LONG, 0, digests, 0, digests.length);
                taken = true;
            }
        }

        @Override
        public boolean isPassed() {
            boolean passed = computed.isPassed();
            if (passed) {
                take();
            }
            return passed;
        }

        @Override
        public void await() {
            computed.await();
            take();
        }
    }

    @Override
    public KvFence copy(List<KvCopier.Rows> rows, KvFence after) {
        return peers.copy(pool, rows, after);
    }

    @Override
    public Optional<Beside> allocate(long bytes) {
        try {
            return Optional.of(new BesidePool(gpu.allocate(bytes)));
        } catch (CudaException e) {
            if (e.isOutOfMemory()) {
                return Optional.empty();
            }
            throw e;
        }
    }

    private final class BesidePool implements Beside {
        private final Gpu.Buffer memory;

        private BesidePool(Gpu.Buffer memory) {
            this.memory = memory;
        }

        @Override
        public long offset() {
            return memory.address() - pool;
        }

        @Override
        public void close() {
            memory.close();
        }
    }

    @Override
    public void fail(String why) {
        gpu.fail(why);
    }

    @Override
    public Optional<DevicePeers> peers() {
        return Optional.of(peers);
    }

    @Override
    public Pinned pin(MemorySegment host) {
        gpu.driver().registerHost(gpu.context(), host);
        return () -> gpu.driver().unregisterHost(gpu.context(), host);
    }

    /** After the last copy. */
    @Override
    public synchronized void close() {
        Owned all = new Owned();
        memories.close(all);
        Gpu.Stream copies = stream;
        all.add(copies, copies::close);
        all.add(fences, fences::close);
        all.add(fences, fences::synchronize);
        all.add(peers, peers::close);
        all.close();
    }
}
