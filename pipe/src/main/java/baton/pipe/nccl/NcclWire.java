package baton.pipe.nccl;

import baton.pipe.PipeException;
import baton.pipe.Wire;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.concurrent.locks.LockSupport;
import java.util.concurrent.locks.ReentrantLock;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Two communicators, one for each way, so that sending never waits for receiving; and the connection over which the two ranks have
 * agreed on them, whose end is the end of the peer. Host memory goes through pinned memory and memory of the GPU, piece by
 * piece; both sides cut alike.
 *
 * <p>Nothing here blocks in a native call: waits look again and again, at the deadline and whether the wire was closed as well.
 */
final class NcclWire implements Wire {
    private static final Logger LOG = LoggerFactory.getLogger(NcclWire.class);

    /** What rank 0 says before the two unique ids. */
    private static final byte[] MAGIC = "baton-nccl/1 ids".getBytes(StandardCharsets.US_ASCII);

    private static final long PIECE = 4L << 20;
    private static final long BETWEEN_LOOKS = 20_000;
    private static final Duration FOREVER = Duration.ofDays(3650);

    private final NcclApi api;
    private final int device;
    private final Wire control;
    private final Way out;
    private final Way in;
    private volatile boolean closed;

    /**
     * Makes communicators with the peer at the other end of a connection, which is the wire's from now on.
     *
     * @throws PipeException if that cannot be done in time; the connection is closed then
     */
    static NcclWire over(Wire control, NcclApi api, int device, int rank, Duration timeout) throws PipeException {
        Wait wait = new Wait(timeout);
        NcclWire wire = new NcclWire(control, api, device, rank);
        try {
            byte[] ids = rank == 0 ? wire.offerIds(wait) : wire.takeIds(wait);
            byte[][] each = {
                Arrays.copyOf(ids, NcclApi.UNIQUE_ID_BYTES),
                Arrays.copyOfRange(ids, NcclApi.UNIQUE_ID_BYTES, 2 * NcclApi.UNIQUE_ID_BYTES)
            };
            // Both ranks in the same order: first the way from 0 to 1.
            (rank == 0 ? wire.out : wire.in).open(each[0], rank, wait);
            (rank == 0 ? wire.in : wire.out).open(each[1], rank, wait);
            Thread.ofVirtual().name("nccl-peer").start(wire::watch);
            return wire;
        } catch (PipeException | RuntimeException e) {
            wire.close();
            throw e;
        }
    }

    private NcclWire(Wire control, NcclApi api, int device, int rank) {
        this.control = control;
        this.api = api;
        this.device = device;
        this.out = new Way(true, 1 - rank);
        this.in = new Way(false, 1 - rank);
    }

    private byte[] offerIds(Wait wait) throws PipeException {
        api.useDevice(device);
        byte[] first = api.uniqueId();
        byte[] second = api.uniqueId();
        byte[] ids = Arrays.copyOf(first, first.length + second.length);
        System.arraycopy(second, 0, ids, first.length, second.length);
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment said = arena.allocate(MAGIC.length + ids.length);
            MemorySegment.copy(MAGIC, 0, said, ValueLayout.JAVA_BYTE, 0, MAGIC.length);
            MemorySegment.copy(ids, 0, said, ValueLayout.JAVA_BYTE, MAGIC.length, ids.length);
            control.send(said, wait.left());
        }
        return ids;
    }

    private byte[] takeIds(Wait wait) throws PipeException {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment said = arena.allocate(MAGIC.length + 2L * NcclApi.UNIQUE_ID_BYTES);
            control.receive(said, wait.left());
            byte[] bytes = said.toArray(ValueLayout.JAVA_BYTE);
            if (!Arrays.equals(bytes, 0, MAGIC.length, MAGIC, 0, MAGIC.length)) {
                throw new PipeException(control + " does not speak of NCCL: both sides need transport=nccl");
            }
            return Arrays.copyOfRange(bytes, MAGIC.length, bytes.length);
        }
    }

    /** Nobody says anything more, so what ends this is the end of the peer. */
    private void watch() {
        try (Arena arena = Arena.ofShared()) {
            control.receive(arena.allocate(1), FOREVER);
            LOG.warn("{} says something where nothing is to be said", this);
        } catch (PipeException e) {
            LOG.debug("{} ends", this, e);
        }
        close();
    }

    @Override
    public void send(MemorySegment bytes, Duration timeout) throws PipeException {
        out.move(bytes, timeout);
    }

    @Override
    public void receive(MemorySegment into, Duration timeout) throws PipeException {
        in.move(into, timeout);
    }

    @Override
    public void close() {
        closed = true;
        control.close();
        out.close();
        in.close();
    }

    @Override
    public String toString() {
        return "nccl wire by " + control;
    }

    /** Until when. */
    private static final class Wait {
        private final Duration timeout;
        private final long end;

        Wait(Duration timeout) {
            this.timeout = timeout.compareTo(FOREVER) > 0 ? FOREVER : timeout;
            this.end = System.nanoTime() + this.timeout.toNanos();
        }

        Duration left() {
            return Duration.ofNanos(Math.max(0, end - System.nanoTime()));
        }
    }

    /** One way. One thread at a time is inside; closing waits for it to notice. */
    private final class Way {
        private final boolean sends;
        private final int peer;
        private final ReentrantLock inside = new ReentrantLock();
        private long communicator;
        private long stream;
        private long pinned;
        private long onDevice;

        Way(boolean sends, int peer) {
            this.sends = sends;
            this.peer = peer;
        }

        void open(byte[] uniqueId, int rank, Wait wait) throws PipeException {
            inside.lock();
            try {
                api.useDevice(device);
                stream = api.stream();
                pinned = api.pinnedMemory(PIECE);
                onDevice = api.deviceMemory(PIECE);
                communicator = api.communicator(uniqueId, rank);
                await(wait, "communicators were not made", () -> api.isReady(communicator));
            } finally {
                inside.unlock();
            }
        }

        void move(MemorySegment bytes, Duration timeout) throws PipeException {
            Wait wait = new Wait(timeout);
            inside.lock();
            try {
                long at = 0;
                try {
                    requireOpen();
                    api.useDevice(device);
                    MemorySegment staged = MemorySegment.ofAddress(pinned).reinterpret(PIECE);
                    while (at < bytes.byteSize()) {
                        long length = Math.min(PIECE, bytes.byteSize() - at);
                        if (sends) {
                            MemorySegment.copy(bytes, at, staged, 0, length);
                            api.copy(onDevice, pinned, length, true, stream);
                        }
                        api.move(sends, onDevice, length, peer, communicator, stream);
                        await(wait, "the peer has not kept up", () -> api.isReady(communicator));
                        if (!sends) {
                            api.copy(pinned, onDevice, length, false, stream);
                        }
                        await(wait, "the peer has not kept up", () -> api.isReady(communicator) && api.isDone(stream));
                        if (!sends) {
                            MemorySegment.copy(staged, 0, bytes, at, length);
                        }
                        at += length;
                    }
                } catch (PipeException e) {
                    throw new PipeException(
                            "%s of %d bytes, after %d: %s: %s"
                                    .formatted(
                                            sends ? "send" : "receive",
                                            bytes.byteSize(),
                                            at,
                                            NcclWire.this,
                                            e.getMessage()),
                            e);
                }
            } catch (PipeException e) {
                closed = true;
                control.close();
                free();
                throw e;
            } finally {
                inside.unlock();
            }
        }

        private interface Condition {
            boolean holds() throws PipeException;
        }

        private void await(Wait wait, String late, Condition condition) throws PipeException {
            while (!condition.holds()) {
                requireOpen();
                if (wait.left().isZero()) {
                    throw new PipeException(late + " within " + wait.timeout.toMillis() + " ms");
                }
                if (Thread.currentThread().isInterrupted()) {
                    throw new PipeException("the waiting thread was interrupted");
                }
                LockSupport.parkNanos(BETWEEN_LOOKS);
            }
        }

        private void requireOpen() throws PipeException {
            if (closed) {
                throw new PipeException("the wire is closed");
            }
        }

        void close() {
            inside.lock();
            try {
                free();
            } finally {
                inside.unlock();
            }
        }

        /** The communicator first: with it ends what the GPU does with the memory. */
        private void free() {
            try {
                api.useDevice(device);
                if (communicator != 0) {
                    long ended = communicator;
                    communicator = 0;
                    api.abort(ended);
                }
                if (stream != 0) {
                    long ended = stream;
                    stream = 0;
                    api.freeStream(ended);
                }
                if (onDevice != 0) {
                    long ended = onDevice;
                    onDevice = 0;
                    api.freeDeviceMemory(ended);
                }
                if (pinned != 0) {
                    long ended = pinned;
                    pinned = 0;
                    api.freePinnedMemory(ended);
                }
            } catch (PipeException e) {
                LOG.warn("{} does not end in order: {}", NcclWire.this, e.getMessage());
            }
        }
    }
}
