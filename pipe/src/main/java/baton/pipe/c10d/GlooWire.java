package baton.pipe.c10d;

import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.pipe.PipeException;
import baton.pipe.TensorBytes;
import baton.pipe.Wire;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.bytedeco.javacpp.Pointer;
import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.ProcessGroupGloo;
import org.bytedeco.pytorch.TCPStore;
import org.bytedeco.pytorch.TensorOptions;
import org.bytedeco.pytorch.TensorVector;
import org.bytedeco.pytorch.Work;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

/**
 * A group of two ranks. Each message is preceded by its size, because Gloo ends the process if more arrives than was asked for.
 *
 * <p>Gloo waits in native code, so calls from virtual threads are made on two platform threads of the wire's own.
 *
 * <p>The native group is freed when the wire is closed and no call is inside: closing aborts pending work.
 */
final class GlooWire implements Wire {
    private static final int SIZE = 1;
    private static final int BYTES = 2;

    /** The limit for the arrival of bytes that were sent before the peer's end. */
    private static final Duration GRACE = Duration.ofSeconds(1);

    /** The limit for a receive that is under way when the peer ends. */
    private static final Duration RECEIVE_GRACE = Duration.ofSeconds(10);

    private final ProcessGroupGloo group;
    private final TCPStore store;
    private final int peer;
    private final LivenessSocket liveness;
    private final Ticker ticker;
    private final NativeCalls calls = new NativeCalls("gloo-wire", 2);

    /** Work that calls inside wait for; guarded by this, as the fields below. */
    @GuardedBy("this")
    private final List<Work> waited = new ArrayList<>();

    /** The number of receives under way. */
    private final AtomicInteger receiving = new AtomicInteger();

    @GuardedBy("this")
    private int inside;

    @GuardedBy("this")
    private boolean closed;

    GlooWire(ProcessGroupGloo group, TCPStore store, int peer, LivenessSocket liveness, Ticker ticker) {
        this.group = group;
        this.store = store;
        this.peer = peer;
        this.liveness = liveness;
        this.ticker = ticker;
        liveness.watch(() -> after(GRACE, this::otherEnded));
    }

    private void otherEnded() {
        if (receiving.get() > 0) {
            after(RECEIVE_GRACE.minus(GRACE), this::close);
        } else {
            close();
        }
    }

    private static void after(Duration time, Runnable then) {
        CompletableFuture.delayedExecutor(time.toMillis(), TimeUnit.MILLISECONDS, Thread::startVirtualThread)
                .execute(then);
    }

    LivenessSocket liveness() {
        return liveness;
    }

    @Override
    public void send(TensorBytes bytes, Duration timeout) throws PipeException {
        move("send", bytes.host(), timeout, (size, data, wait) -> {
            size.set(ValueLayout.JAVA_LONG, 0, bytes.byteSize());
            wait.until(() -> group.send(over(size), peer, SIZE));
            wait.until(() -> group.send(over(data), peer, BYTES));
        });
    }

    @Override
    public void receive(TensorBytes into, Duration timeout) throws PipeException {
        int unusedMore = receiving.incrementAndGet();
        try {
            move("receive", into.host(), timeout, (size, data, wait) -> {
                wait.until(() -> group.recv(over(size), peer, SIZE));
                long comes = size.get(ValueLayout.JAVA_LONG, 0);
                if (comes != data.byteSize()) {
                    throw new PipeException("the peer sends %d bytes".formatted(comes));
                }
                wait.until(() -> group.recv(over(data), peer, BYTES));
            });
        } finally {
            int unusedFewer = receiving.decrementAndGet();
        }
    }

    private interface Move {
        void move(MemorySegment size, MemorySegment data, Wait wait) throws PipeException;
    }

    private interface Start {
        Work start();
    }

    private interface Wait {
        void until(Start start) throws PipeException;
    }

    private void move(String what, MemorySegment data, Duration timeout, Move move) throws PipeException {
        if (data.byteSize() > 0) {
            boolean unusedDone = calls.make(() -> moveHere(what, data, timeout, move), this::close);
        }
    }

    private boolean moveHere(String what, MemorySegment data, Duration timeout, Move move) throws PipeException {
        Deadline deadline = Deadline.after(ticker, timeout);
        enter();
        // The scope ends before the arena: until then Gloo's thread may use the memory.
        try (Arena arena = Arena.ofConfined();
                PointerScope _ = new PointerScope()) {
            move.move(arena.allocate(Long.BYTES, Long.BYTES), data, start -> {
                Work work = start(start);
                try {
                    if (!work._wait(GlooTransport.milliseconds(deadline.remaining()))) {
                        throw new PipeException("the wire is closed");
                    }
                } finally {
                    over(work);
                }
            });
            return true;
        } catch (PipeException e) {
            close();
            throw new PipeException("%s of %d bytes: %s".formatted(what, data.byteSize(), e.getMessage()), e);
        } catch (RuntimeException e) {
            close();
            throw new PipeException("%s of %d bytes: %s".formatted(what, data.byteSize(), GlooTransport.reason(e)), e);
        } finally {
            exit();
        }
    }

    /** A view of the memory, not a copy. */
    private static TensorVector over(MemorySegment memory) {
        return new TensorVector(torch.from_blob(
                new Address(memory.address()), new long[] {memory.byteSize()}, new TensorOptions(ScalarType.Byte)));
    }

    private synchronized void enter() throws PipeException {
        if (closed) {
            throw new PipeException("the wire is closed");
        }
        inside++;
    }

    private synchronized Work start(Start start) throws PipeException {
        if (closed) {
            throw new PipeException("the wire is closed");
        }
        Work work = start.start();
        waited.add(work);
        return work;
    }

    /** The pointer scope frees the work. */
    private synchronized void over(Work work) {
        waited.remove(work);
    }

    private synchronized void exit() {
        inside--;
        if (closed && inside == 0) {
            free();
        }
    }

    private void free() {
        group.close();
        store.close();
    }

    @Override
    public synchronized void close() {
        if (closed) {
            return;
        }
        closed = true;
        calls.close();
        liveness.close();
        if (inside == 0) {
            free();
        }
        waited.forEach(Work::abort);
    }

    @Override
    public String toString() {
        return "gloo wire to rank " + peer;
    }

    private static final class Address extends Pointer {
        Address(long address) {
            super((Pointer) null);
            this.address = address;
        }
    }
}
