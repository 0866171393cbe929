package baton.testkit;

import baton.kv.DevicePeers;
import baton.kv.KvCopier;
import baton.kv.KvDevice;
import baton.kv.KvDigest;
import baton.kv.KvFence;
import baton.kv.KvMemory;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Stream;

/**
 * Plays a device over ordinary memory: its bytes reach the host by copies only. {@link KvMemory#host} refuses, and the address is
 * none of this process's, so code that takes it for one crashes.
 *
 * <p>A copy happens when its fence is awaited, or before a later copy, as late as a device may do it: code that does not await it
 * sees the bytes of before. So does a digest, of which it computes {@link KvDigest#SUM61} itself.
 */
public final class RefusingMemory implements KvCopier {
    /** Added to the address of the bytes. Not canonical on x86-64 and AArch64: no process has memory there. */
    private static final long ADDRESS = 0x00de_0000_0000_0000L;

    private static final String KIND = "refusing";

    private final MemorySegment bytes;
    private final KvMemory.Device memory;
    private final DevicePeers peers = new Peers();

    @GuardedBy("this")
    private final List<Queued> queue = new ArrayList<>();

    /** Memory beside the bytes. */
    private final Set<MemorySegment> beside = ConcurrentHashMap.newKeySet();

    /** @param bytes the device's, which a test's model reads and writes */
    public RefusingMemory(MemorySegment bytes) {
        this.bytes = bytes;
        this.memory = new KvMemory.Device(address(bytes), bytes.byteSize(), new KvDevice(KIND, 0), this);
    }

    public KvMemory.Device memory() {
        return memory;
    }

    /** The bytes of memory that agents of a test have registered: of the host, or of such a device. */
    public static MemorySegment bytes(KvMemory memory) {
        return switch (memory) {
            case KvMemory.Host host -> host.host();
            case KvMemory.Device device -> ((RefusingMemory) device.copier()).bytes;
        };
    }

    /** The device's address of some of the bytes. */
    public static long address(MemorySegment bytes) {
        return ADDRESS + bytes.address();
    }

    /** Whether agents of a test reach its memory. */
    public static boolean is(KvDevice device) {
        return device.kind().equals(KIND);
    }

    @Override
    public KvFence toHost(List<Range> ranges, MemorySegment host, KvFence after) {
        return enqueue(
                after,
                () -> ranges.forEach(range ->
                        host.asSlice(range.host(), range.bytes()).copyFrom(at(range.device(), range.bytes()))));
    }

    @Override
    public KvFence toDevice(List<Range> ranges, MemorySegment host, KvFence after) {
        return enqueue(
                after,
                () -> ranges.forEach(range ->
                        at(range.device(), range.bytes()).copyFrom(host.asSlice(range.host(), range.bytes()))));
    }

    @Override
    public KvFence digest(KvDigest kind, List<Runs> values, long[] digests, KvFence after) {
        if (kind != KvDigest.SUM61) {
            return KvCopier.super.digest(kind, values, digests, after);
        }
        return enqueue(after, () -> {
            for (int i = 0; i < digests.length; i++) {
                Runs value = values.get(i);
                KvDigest.Running digest = kind.begin();
                for (int run = 0; run < value.count(); run++) {
                    digest.add(at(value.first() + run * value.stride(), value.bytes())
                            .asByteBuffer());
                }
                digests[i] = digest.value();
            }
        });
    }

    /** Bytes of the pool or of memory beside it. */
    private MemorySegment at(long offset, long length) {
        return Stream.concat(Stream.of(bytes), beside.stream())
                .filter(each -> each.address() <= bytes.address() + offset
                        && bytes.address() + offset + length <= each.address() + each.byteSize())
                .findFirst()
                .map(each -> each.asSlice(bytes.address() + offset - each.address(), length))
                .orElseThrow(() -> new IndexOutOfBoundsException(
                        "%d bytes at offset %d are not allocated".formatted(length, offset)));
    }

    @Override
    public KvFence copy(List<Rows> rows, KvFence after) {
        return enqueue(
                after,
                () -> rows.forEach(each -> {
                    for (int i = 0; i < each.count(); i++) {
                        at(each.to() + i * each.toStride(), each.bytes())
                                .copyFrom(at(each.from() + i * each.fromStride(), each.bytes()));
                    }
                }));
    }

    @Override
    public Optional<Beside> allocate(long size) {
        Arena arena = Arena.ofShared();
        MemorySegment memory = arena.allocate(size, 64);
        beside.add(memory);
        return Optional.of(new Beside() {
            @Override
            public long offset() {
                return memory.address() - bytes.address();
            }

            @Override
            public void close() {
                beside.remove(memory);
                arena.close();
            }
        });
    }

    @Override
    public Optional<DevicePeers> peers() {
        return Optional.of(peers);
    }

    /** Pools of this process open each other by the address of their bytes. */
    private final class Peers implements DevicePeers {
        @Override
        public byte[] exported() {
            return ByteBuffer.allocate(3 * Long.BYTES)
                    .putLong(ProcessHandle.current().pid())
                    .putLong(bytes.address())
                    .putLong(bytes.byteSize())
                    .array();
        }

        @Override
        public PeerPool open(byte[] exported) throws IOException {
            ByteBuffer in = ByteBuffer.wrap(exported);
            if (exported.length != 3 * Long.BYTES
                    || in.getLong() != ProcessHandle.current().pid()) {
                throw new IOException("the pool is of another process");
            }
            MemorySegment peer = MemorySegment.ofAddress(in.getLong()).reinterpret(in.getLong());
            return new PeerPool() {
                @Override
                public KvFence copy(List<Copy> copies) {
                    return enqueue(
                            KvFence.PASSED,
                            () -> copies.forEach(
                                    copy -> MemorySegment.copy(peer, copy.from(), bytes, copy.to(), copy.bytes())));
                }

                @Override
                public void close() {}
            };
        }
    }

    private synchronized KvFence enqueue(KvFence after, Runnable work) {
        Queued copy = new Queued(after, work, new AtomicBoolean());
        queue.add(copy);
        return copy;
    }

    /** Copies in the order in which they were started, as one stream of a device does. */
    private synchronized void copyUntil(Queued last) {
        while (!last.done.get()) {
            Queued next = queue.removeFirst();
            next.after.await();
            next.work.run();
            next.done.set(true);
        }
    }

    private final class Queued implements KvFence {
        private final KvFence after;
        private final Runnable work;
        private final AtomicBoolean done;

        private Queued(KvFence after, Runnable work, AtomicBoolean done) {
            this.after = after;
            this.work = work;
            this.done = done;
        }

        @Override
        public boolean isPassed() {
            return done.get();
        }

        @Override
        public void await() {
            copyUntil(this);
        }
    }
}
