package baton.cuda.model;

import baton.cuda.driver.CudaException;
import baton.cuda.driver.Gpu;
import baton.cuda.driver.StreamFences;
import baton.cuda.kernel.CopyOps;
import baton.kv.DevicePeers;
import baton.kv.KvCopier.Rows;
import baton.kv.KvFence;
import baton.kv.Ticker;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;

/**
 * Shares a pool with other processes by CUDA's IPC handles, and within this process by its address. Copies are on a stream of their own.
 *
 * <p>Exported: the device's uuid (16), pid (8), address (8), bytes (8), handle (64).
 */
public final class CudaPeers implements DevicePeers, AutoCloseable {
    private static final int UUID_BYTES = 16;
    private static final int HANDLE_BYTES = 64;

    /** Bytes of a copy: a launch counts pieces of fewer than 4 GiB. */
    private static final long LONGEST = 1L << 30;

    /** Up to so many ranges are copies of the driver each; more are one launch. */
    private static final int FEW_RANGES = 3;

    private static final int EXPORTED_BYTES = UUID_BYTES + 3 * Long.BYTES + HANDLE_BYTES;

    private final Gpu gpu;
    private final Gpu.Buffer pool;
    private final CopyOps kernels;
    private final StreamFences fences;
    private final byte[] uuid;

    /** A batch is enqueued as a whole, and its fence behind it. */
    @GuardedBy("this")
    private final Gpu.Stream stream;

    @GuardedBy("this")
    private final BatchMemory.Pool memories;

    /**
     * Shares a pool.
     *
     * @param pool an allocation of the driver's, which outlives this
     * @param kernels of the pool's device
     */
    public CudaPeers(Gpu.Buffer pool, CopyOps kernels, Ticker ticker) {
        this.gpu = pool.gpu();
        this.pool = pool;
        this.kernels = kernels;
        this.memories = new BatchMemory.Pool(gpu);
        this.stream = gpu.stream();
        this.fences = new StreamFences(stream, ticker);
        this.uuid = HexFormat.of().parseHex(gpu.info().uuid());
    }

    @Override
    public byte[] exported() {
        return ByteBuffer.allocate(EXPORTED_BYTES)
                .put(uuid)
                .putLong(ProcessHandle.current().pid())
                .putLong(pool.address())
                .putLong(pool.bytes())
                .put(gpu.driver().exportMemory(gpu.context(), pool.address()))
                .array();
    }

    @Override
    public PeerPool open(byte[] exported) throws IOException {
        if (exported.length != EXPORTED_BYTES) {
            throw new IOException("a pool of a CUDA device is described by %d bytes, not %d"
                    .formatted(EXPORTED_BYTES, exported.length));
        }
        ByteBuffer in = ByteBuffer.wrap(exported);
        byte[] device = new byte[UUID_BYTES];
        in.get(device);
        if (ByteBuffer.wrap(device).compareTo(ByteBuffer.wrap(uuid)) != 0) {
            throw new IOException("the peer's pool is on device %s, this one on %s"
                    .formatted(HexFormat.of().formatHex(device), gpu.info().uuid()));
        }
        boolean here = in.getLong() == ProcessHandle.current().pid();
        long address = in.getLong();
        long bytes = in.getLong();
        if (here) {
            // The driver opens handles of other processes only.
            return new Pool(address, bytes, false);
        }
        byte[] handle = new byte[HANDLE_BYTES];
        in.get(handle);
        try {
            return new Pool(gpu.driver().openMemory(gpu.context(), handle), bytes, true);
        } catch (CudaException e) {
            throw new IOException(
                    "the peer's pool cannot be opened by its IPC handle, which needs the same user and process namespace: "
                            + e.getMessage(),
                    e);
        }
    }

    /** Copies that follow each other in both pools are one. */
    private static List<Copy> merged(List<Copy> copies) {
        List<Copy> merged = new ArrayList<>();
        for (int i = 0; i < copies.size(); ) {
            Copy first = copies.get(i);
            long length = first.bytes();
            for (i++; i < copies.size() && length < LONGEST && isNext(first, length, copies.get(i)); i++) {
                length += copies.get(i).bytes();
            }
            merged.add(new Copy(first.from(), first.to(), length));
        }
        return merged;
    }

    private static boolean isNext(Copy first, long length, Copy next) {
        return next.from() == first.from() + length && next.to() == first.to() + length;
    }

    private synchronized KvFence copy(long from, List<Copy> copies) {
        if (copies.size() <= FEW_RANGES) {
            copies.forEach(each -> stream.copy(pool.address() + each.to(), from + each.from(), each.bytes()));
            return fences.record();
        }
        return copy(
                from,
                copies.stream()
                        .map(each -> new Rows(each.from(), 0, each.to(), 0, 1, each.bytes()))
                        .toList(),
                KvFence.PASSED);
    }

    /**
     * Copies rows by one launch.
     *
     * @param from address that their {@code from} counts from; their {@code to} counts from this pool's
     */
    synchronized KvFence copy(long from, List<Rows> rows, KvFence after) {
        BatchMemory memory = memories.take((long) CopyOps.ROWS_WORDS * rows.size());
        long word = 0;
        for (Rows each : rows) {
            long source = from + each.from();
            long target = pool.address() + each.to();
            memory.put(word, source, each.fromStride(), target, each.toStride(), each.count(), each.bytes());
            word += CopyOps.ROWS_WORDS;
        }
        StreamFences.order(after, stream);
        memory.upload(stream, word);
        kernels.copy(stream, memory.address(), rows.size());
        KvFence copied = fences.record();
        memory.usedUntil(copied);
        return copied;
    }

    private final class Pool implements PeerPool {
        private final long address;
        private final long bytes;
        private final boolean opened;

        private Pool(long address, long bytes, boolean opened) {
            this.address = address;
            this.bytes = bytes;
            this.opened = opened;
        }

        @Override
        public KvFence copy(List<Copy> copies) {
            for (Copy each : copies) {
                boolean within = each.bytes() >= 0
                        && each.from() >= 0
                        && each.from() <= bytes - each.bytes()
                        && each.to() >= 0
                        && each.to() <= pool.bytes() - each.bytes();
                if (!within) {
                    throw new IllegalArgumentException(
                            "%s: the pools have %d and %d bytes".formatted(each, bytes, pool.bytes()));
                }
            }
            return CudaPeers.this.copy(address, merged(copies));
        }

        @Override
        public void close() {
            if (opened) {
                gpu.driver().closeMemory(gpu.context(), address);
            }
        }
    }

    /** After the last copy has passed, and pools of peers are closed. */
    @Override
    public synchronized void close() {
        Owned all = new Owned();
        memories.close(all);
        Gpu.Stream copies = stream;
        all.add(copies, copies::close);
        all.add(fences, fences::close);
        all.close();
    }
}
