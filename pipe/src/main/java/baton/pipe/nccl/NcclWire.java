package baton.pipe.nccl;

import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.pipe.PipeException;
import baton.pipe.TensorBytes;
import baton.pipe.Wire;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.concurrent.locks.LockSupport;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Two communicators, one for each direction, so that sending never waits for receiving; and the control connection over which the
 * ranks have exchanged their ids: its end is the end of the peer. Bytes of host memory are copied through pinned memory and
 * memory of the GPU; those of the GPU's memory go from and to where they are. Pieces have the same size on both sides, so each end may have
 * either.
 *
 * <p>Over the control connection both sides announce the start of a message, so that no kernel waits on a GPU for a peer that
 * does not send or receive; and the receiver acknowledges its end, for which the sender waits: NCCL drops buffered data when a
 * communicator is ended.
 *
 * <p>Sending, receiving and closing do not block in a native call: waits poll, at the deadline and for the wire's end as well,
 * and communicators are ended on threads of their own.
 */
final class NcclWire implements Wire {
    private static final Logger LOG = LoggerFactory.getLogger(NcclWire.class);

    /** Sent by rank 0 before the two unique ids. */
    private static final byte[] MAGIC = "baton-nccl/2 ids".getBytes(StandardCharsets.US_ASCII);

    private static final long BETWEEN_LOOKS = 20_000;
    private static final String LATE = "the peer has not kept up";

    /** The limit for the GPU's work for a communicator that was ended. */
    private static final Duration LAST_WORK = Duration.ofMinutes(1);

    /** Control words about the next message in a direction. */
    private static final byte SENDING = 0;

    private static final byte RECEIVING = 1;
    private static final byte RECEIVED = 2;

    private final NcclLanes lanes;
    private final NcclApi api;
    private final Wire control;
    private final Ticker ticker;

    /** How often each control word was received. */
    private final AtomicLongArray heard = new AtomicLongArray(RECEIVED + 1);

    private final Way out;
    private final Way in;
    private volatile boolean closed;

    /**
     * Makes communicators with the peer of a control connection, which the wire closes.
     *
     * @throws PipeException if that cannot be done in time; the connection is closed then
     */
    static NcclWire over(Wire control, NcclLanes lanes, int rank, Ticker ticker, Deadline deadline)
            throws PipeException {
        NcclWire wire = new NcclWire(control, lanes, rank, ticker);
        try {
            byte[] ids = rank == 0 ? wire.offerIds(deadline) : wire.takeIds(deadline);
            byte[][] each = {
                Arrays.copyOf(ids, NcclApi.UNIQUE_ID_BYTES),
                Arrays.copyOfRange(ids, NcclApi.UNIQUE_ID_BYTES, 2 * NcclApi.UNIQUE_ID_BYTES)
            };
            // Both ranks in the same order: first the way from 0 to 1.
            (rank == 0 ? wire.out : wire.in).open(each[0], rank, deadline);
            (rank == 0 ? wire.in : wire.out).open(each[1], rank, deadline);
            Thread.ofVirtual().name("nccl-peer").start(wire::watch);
            return wire;
        } catch (PipeException | RuntimeException e) {
            wire.close();
            throw e;
        }
    }

    private NcclWire(Wire control, NcclLanes lanes, int rank, Ticker ticker) {
        this.control = control;
        this.ticker = ticker;
        this.lanes = lanes;
        this.api = lanes.api();
        this.out = new Way(true, 1 - rank);
        this.in = new Way(false, 1 - rank);
    }

    private byte[] offerIds(Deadline deadline) throws PipeException {
        lanes.useDevice();
        byte[] first = api.uniqueId();
        byte[] second = api.uniqueId();
        byte[] ids = Arrays.copyOf(first, first.length + second.length);
        System.arraycopy(second, 0, ids, first.length, second.length);
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment said = arena.allocate(MAGIC.length + ids.length);
            MemorySegment.copy(MAGIC, 0, said, ValueLayout.JAVA_BYTE, 0, MAGIC.length);
            MemorySegment.copy(ids, 0, said, ValueLayout.JAVA_BYTE, MAGIC.length, ids.length);
            control.send(said, deadline.remaining());
        }
        return ids;
    }

    private byte[] takeIds(Deadline deadline) throws PipeException {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment said = arena.allocate(MAGIC.length + 2L * NcclApi.UNIQUE_ID_BYTES);
            control.receive(said, deadline.remaining());
            byte[] bytes = said.toArray(ValueLayout.JAVA_BYTE);
            if (!Arrays.equals(bytes, 0, MAGIC.length, MAGIC, 0, MAGIC.length)) {
                throw new PipeException(control + " does not speak of NCCL: both sides need transport=nccl");
            }
            return Arrays.copyOfRange(bytes, MAGIC.length, bytes.length);
        }
    }

    /** Counts received control words until the connection ends, which closes this wire. */
    private void watch() {
        try (Arena arena = Arena.ofShared()) {
            MemorySegment word = arena.allocate(1);
            while (true) {
                // Without a deadline: a silent peer is not dead; the connection's end ends it.
                control.receive(word, Deadline.LONGEST);
                int said = word.get(ValueLayout.JAVA_BYTE, 0);
                if (said < 0 || said >= heard.length()) {
                    throw new PipeException("the peer says " + said);
                }
                heard.incrementAndGet(said);
            }
        } catch (PipeException e) {
            LOG.debug("{} ends", this, e);
        }
        close();
    }

    private synchronized void say(byte word, Deadline deadline) throws PipeException {
        try (Arena arena = Arena.ofConfined()) {
            control.send(arena.allocateFrom(ValueLayout.JAVA_BYTE, word), deadline.remaining());
        }
    }

    private boolean hasHeard(byte word, long times) {
        return heard.get(word) >= times;
    }

    @Override
    public void send(TensorBytes bytes, Duration timeout) throws PipeException {
        out.move(bytes, timeout);
    }

    @Override
    public void receive(TensorBytes into, Duration timeout) throws PipeException {
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

    /** One direction. One thread at a time is inside; closing waits until it notices. */
    private final class Way {
        private final boolean sends;
        private final int peer;
        private NcclLanes.@Nullable Lane lane;
        private long communicator;
        private long messages;

        Way(boolean sends, int peer) {
            this.sends = sends;
            this.peer = peer;
        }

        synchronized void open(byte[] uniqueId, int rank, Deadline deadline) throws PipeException {
            lane = lanes.take();
            lanes.useDevice();
            communicator = api.communicator(uniqueId, rank);
            await(deadline, "communicators were not made", () -> api.isReady(communicator));
        }

        synchronized void move(TensorBytes bytes, Duration timeout) throws PipeException {
            if (bytes.byteSize() == 0) {
                return;
            }
            Deadline deadline = Deadline.after(ticker, timeout);
            long at = 0;
            try {
                messages++;
                NcclLanes.Lane own = lane;
                if (closed || own == null) {
                    throw new PipeException("the wire is closed");
                }
                say(sends ? SENDING : RECEIVING, deadline);
                await(deadline, LATE, () -> hasHeard(sends ? RECEIVING : SENDING, messages));
                lanes.useDevice();
                while (at < bytes.byteSize()) {
                    long length = Math.min(NcclLanes.PIECE, bytes.byteSize() - at);
                    switch (bytes) {
                        case TensorBytes.Host(MemorySegment host) -> stage(host.asSlice(at, length), own, deadline);
                        case TensorBytes.Device device -> enqueue(device.address() + at, length, own, deadline);
                    }
                    at += length;
                }
                await(deadline, LATE, () -> api.isReady(communicator) && api.isDone(own.stream()));
                if (sends) {
                    await(deadline, LATE, () -> hasHeard(RECEIVED, messages));
                } else {
                    say(RECEIVED, deadline);
                }
            } catch (PipeException e) {
                closed = true;
                control.close();
                AtomicBoolean idle = new AtomicBoolean();
                Optional<Thread> ending = end(idle);
                if (bytes instanceof TensorBytes.Device device && ending.isPresent()) {
                    awaitIdle(ending.get(), idle, device);
                }
                // The peer may close before the GPU is known to be done here: a message that has arrived is no less
                // sent.
                if (!sends || !hasHeard(RECEIVED, messages)) {
                    String what = (sends ? "send of " : "receive of ") + bytes.byteSize();
                    throw new PipeException(
                            "%s bytes, after %d: %s: %s".formatted(what, at, NcclWire.this, e.getMessage()), e);
                }
            }
        }

        private void enqueue(long address, long length, NcclLanes.Lane own, Deadline deadline) throws PipeException {
            api.move(sends, address, length, peer, communicator, own.stream());
            await(deadline, LATE, () -> api.isReady(communicator));
        }

        private void stage(MemorySegment piece, NcclLanes.Lane own, Deadline deadline) throws PipeException {
            MemorySegment staged = MemorySegment.ofAddress(own.pinned()).reinterpret(piece.byteSize());
            if (sends) {
                staged.copyFrom(piece);
                api.copy(own.onDevice(), own.pinned(), piece.byteSize(), true, own.stream());
            }
            enqueue(own.onDevice(), piece.byteSize(), own, deadline);
            if (!sends) {
                api.copy(own.pinned(), own.onDevice(), piece.byteSize(), false, own.stream());
            }
            await(deadline, LATE, () -> api.isReady(communicator) && api.isDone(own.stream()));
            if (!sends) {
                piece.copyFrom(staged);
            }
        }

        private interface Condition {
            boolean holds() throws PipeException;
        }

        private void await(Deadline deadline, String late, Condition condition) throws PipeException {
            while (!condition.holds()) {
                if (closed) {
                    throw new PipeException("the wire is closed");
                }
                if (deadline.isOver()) {
                    throw new PipeException(late + " within " + deadline);
                }
                if (Thread.currentThread().isInterrupted()) {
                    throw new PipeException("the waiting thread was interrupted");
                }
                LockSupport.parkNanos(BETWEEN_LOOKS);
            }
        }

        synchronized void close() {
            Optional<Thread> _ = end(new AtomicBoolean());
        }

        /**
         * On a thread of its own, because NCCL frees memory then, which waits for the kernels of other wires. The lane is kept
         * only if the communicator is known to be done with it.
         *
         * @param idle set when the GPU is done with the communicator's memory
         * @return the thread, unless the communicator was ended before
         */
        private Optional<Thread> end(AtomicBoolean idle) {
            NcclLanes.Lane own = lane;
            long ended = communicator;
            if (own == null) {
                return Optional.empty();
            }
            lane = null;
            communicator = 0;
            return Optional.of(Thread.ofPlatform().daemon().name("nccl-end").start(() -> {
                try {
                    lanes.useDevice();
                    if (ended != 0) {
                        api.abort(ended);
                    }
                    Deadline deadline = Deadline.after(ticker, LAST_WORK);
                    while (!api.isDone(own.stream())) {
                        if (deadline.isOver()) {
                            throw new PipeException("the GPU goes on");
                        }
                        LockSupport.parkNanos(BETWEEN_LOOKS);
                    }
                    idle.set(true);
                    lanes.giveBack(own);
                } catch (PipeException e) {
                    LOG.warn("{} does not end in order: {}", NcclWire.this, e.getMessage());
                }
            }));
        }

        private void awaitIdle(Thread ending, AtomicBoolean idle, TensorBytes.Device memory) {
            // An interrupted thread waits too: the memory is another tensor's when this returns.
            boolean interrupted = Thread.interrupted();
            Deadline deadline = Deadline.after(ticker, LAST_WORK);
            while (ending.isAlive() && !idle.get() && !deadline.isOver()) {
                LockSupport.parkNanos(BETWEEN_LOOKS);
                interrupted |= Thread.interrupted();
            }
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
            if (!idle.get()) {
                LOG.error("{}: the GPU goes on with a tensor that has failed", NcclWire.this);
                memory.pool().copier().fail("NCCL goes on with a tensor that has failed, %s".formatted(NcclWire.this));
            }
        }
    }
}
