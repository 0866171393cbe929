package baton.pipe.memory;

import baton.kv.KvCopier.Range;
import baton.kv.KvDevice;
import baton.kv.KvFence;
import baton.pipe.PipeException;
import baton.pipe.TensorBytes;
import baton.pipe.Wire;
import baton.pipe.WireTransport;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Predicate;

/** Wires within a process, between users of the same transport object. Hosts are arbitrary names. */
public final class MemoryTransport implements WireTransport {
    /** Bytes in flight in one direction at most, as in a socket's buffer. */
    private static final int UNDER_WAY = 256 << 10;

    private static final Duration LONGEST = Duration.ofDays(1);

    private final Predicate<KvDevice> reached;
    private final AtomicLong deviceBytes = new AtomicLong();
    private final Map<String, CompletableFuture<Wire>> waiting = new HashMap<>();
    private long offers;
    private boolean closed;

    public MemoryTransport() {
        this(_ -> false);
    }

    /** @param reached devices: wires move bytes from and to their memory */
    public MemoryTransport(Predicate<KvDevice> reached) {
        this.reached = reached;
    }

    @Override
    public String name() {
        return "memory";
    }

    @Override
    public boolean reaches(KvDevice device) {
        return reached.test(device);
    }

    /** Bytes that were sent from devices' memory and received into it. */
    public long deviceBytes() {
        return deviceBytes.get();
    }

    @Override
    public Wire meet(String host, int port, int rank, Duration timeout) throws PipeException {
        if (rank != 0 && rank != 1) {
            throw new IllegalArgumentException("rank=" + rank + " must be 0 or 1");
        }
        String place = host + ":" + port;
        CompletableFuture<Wire> mine = new CompletableFuture<>();
        synchronized (waiting) {
            if (closed) {
                throw new PipeException("the transport is closed");
            }
            CompletableFuture<Wire> other = waiting.remove(place + " rank " + (1 - rank));
            if (other != null) {
                return connect(other);
            }
            if (waiting.putIfAbsent(place + " rank " + rank, mine) != null) {
                throw new PipeException("rank " + rank + " waits at " + place + " already");
            }
        }
        try {
            return await(mine, "rank " + (1 - rank) + " at " + place, timeout);
        } catch (PipeException e) {
            withdraw(place + " rank " + rank, mine);
            throw e;
        }
    }

    @Override
    public Offer offer(String host) throws PipeException {
        CompletableFuture<Wire> mine = new CompletableFuture<>();
        String id;
        synchronized (waiting) {
            if (closed) {
                throw new PipeException("the transport is closed");
            }
            id = "memory:" + ++offers + ":" + host;
            waiting.put(id, mine);
        }
        AtomicBoolean taken = new AtomicBoolean();
        return new Offer() {
            @Override
            public byte[] id() {
                return id.getBytes(StandardCharsets.UTF_8);
            }

            @Override
            public Wire accept(Duration timeout) throws PipeException {
                Wire wire = await(mine, "the other end of " + id, timeout);
                taken.set(true);
                return wire;
            }

            @Override
            public void close() {
                if (!taken.get()) {
                    withdraw(id, mine);
                }
            }
        };
    }

    @Override
    public Wire join(byte[] id, String host, Duration timeout) throws PipeException {
        String asked = new String(id, StandardCharsets.UTF_8);
        if (!asked.startsWith("memory:") || !asked.endsWith(":" + host)) {
            throw new PipeException("'%s' is no id of a wire offered at %s".formatted(asked, host));
        }
        synchronized (waiting) {
            CompletableFuture<Wire> other = waiting.remove(asked);
            if (other == null) {
                throw new PipeException("no transport offers " + asked);
            }
            return connect(other);
        }
    }

    private Wire connect(CompletableFuture<Wire> other) {
        Direction there = new Direction();
        Direction back = new Direction();
        other.complete(new End(there, back));
        return new End(back, there);
    }

    private static Wire await(CompletableFuture<Wire> wire, String awaited, Duration timeout) throws PipeException {
        try {
            return wire.get(nanos(timeout), TimeUnit.NANOSECONDS);
        } catch (TimeoutException e) {
            throw new PipeException("%s has not come within %d ms".formatted(awaited, timeout.toMillis()), e);
        } catch (ExecutionException e) {
            throw new PipeException("waiting for " + awaited + ": " + e.getMessage(), e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new PipeException("waiting for " + awaited + ": interrupted", e);
        }
    }

    /** Withdraws an offer; a wire that was made meanwhile is closed. */
    private void withdraw(String place, CompletableFuture<Wire> mine) {
        synchronized (waiting) {
            waiting.remove(place, mine);
        }
        if (!mine.completeExceptionally(new PipeException("it was withdrawn")) && !mine.isCompletedExceptionally()) {
            mine.join().close();
        }
    }

    @Override
    public void close() {
        synchronized (waiting) {
            closed = true;
            waiting.values().forEach(each -> each.completeExceptionally(new PipeException("the transport was closed")));
            waiting.clear();
        }
    }

    private static long nanos(Duration timeout) {
        return (timeout.compareTo(LONGEST) > 0 ? LONGEST : timeout).toNanos();
    }

    private final class End implements Wire {
        private final Direction out;
        private final Direction in;

        private End(Direction out, Direction in) {
            this.out = out;
            this.in = in;
        }

        @Override
        public void send(TensorBytes bytes, Duration timeout) throws PipeException {
            if (!(bytes instanceof TensorBytes.Device device)) {
                moved(out.put(bytes.host(), timeout));
                return;
            }
            try (Arena arena = Arena.ofShared()) {
                MemorySegment copy = arena.allocate(device.byteSize());
                device.pool()
                        .copier()
                        .toHost(whole(device), copy, KvFence.PASSED)
                        .await();
                moved(out.put(copy, timeout));
            }
        }

        @Override
        public void receive(TensorBytes into, Duration timeout) throws PipeException {
            if (!(into instanceof TensorBytes.Device device)) {
                moved(in.take(into.host(), timeout));
                return;
            }
            try (Arena arena = Arena.ofShared()) {
                MemorySegment copy = arena.allocate(device.byteSize());
                moved(in.take(copy, timeout));
                device.pool()
                        .copier()
                        .toDevice(whole(device), copy, KvFence.PASSED)
                        .await();
            }
        }

        private List<Range> whole(TensorBytes.Device device) {
            deviceBytes.addAndGet(device.byteSize());
            return List.of(new Range(device.offset(), 0, device.byteSize()));
        }

        private void moved(String failure) throws PipeException {
            if (!failure.isEmpty()) {
                close();
                throw new PipeException(failure);
            }
        }

        @Override
        public void close() {
            out.close();
            in.discard();
        }

        @Override
        public String toString() {
            return "memory wire";
        }
    }

    /** A ring of bytes. */
    private static final class Direction {
        private final MemorySegment ring = MemorySegment.ofArray(new byte[UNDER_WAY]);
        private final ReentrantLock lock = new ReentrantLock();
        private final Condition changed = lock.newCondition();
        private long written;
        private long read;
        private boolean closed;

        /** @return the error; empty if there is none */
        String put(MemorySegment bytes, Duration timeout) {
            return move(bytes, timeout, false);
        }

        String take(MemorySegment into, Duration timeout) {
            return move(into, timeout, true);
        }

        private String move(MemorySegment bytes, Duration timeout, boolean taking) {
            long left = nanos(timeout);
            long at = 0;
            lock.lock();
            try {
                while (at < bytes.byteSize()) {
                    long ready = taking ? written - read : closed ? 0 : UNDER_WAY - (written - read);
                    if (ready > 0) {
                        long place = (taking ? read : written) % UNDER_WAY;
                        long length = Math.min(Math.min(ready, UNDER_WAY - place), bytes.byteSize() - at);
                        if (taking) {
                            MemorySegment.copy(ring, place, bytes, at, length);
                            read += length;
                        } else {
                            MemorySegment.copy(bytes, at, ring, place, length);
                            written += length;
                        }
                        at += length;
                        changed.signalAll();
                    } else if (closed) {
                        return "the wire is closed, after %d of %d bytes".formatted(at, bytes.byteSize());
                    } else if (left <= 0) {
                        return "the peer has not kept up within %d ms, after %d of %d bytes"
                                .formatted(timeout.toMillis(), at, bytes.byteSize());
                    } else {
                        left = changed.awaitNanos(left);
                    }
                }
                return closed && !taking ? "the wire is closed" : "";
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                return "the waiting thread was interrupted";
            } finally {
                lock.unlock();
            }
        }

        /** Bytes in flight can still be received. */
        void close() {
            end(false);
        }

        /** Drops bytes in flight. */
        void discard() {
            end(true);
        }

        private void end(boolean discard) {
            lock.lock();
            try {
                closed = true;
                if (discard) {
                    read = written;
                }
                changed.signalAll();
            } finally {
                lock.unlock();
            }
        }
    }
}
