package baton.cuda.driver;

import baton.kv.Deadline;
import baton.kv.KvFence;
import baton.kv.Ticker;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Stream;

/**
 * Points in a stream as fences. They are numbered, and the stream passes them in order, so an event is used again once its point is passed.
 * A point that is not passed within a deadline is the end of the device: memory of the work before it may be written at any time.
 * Safe for use by several threads.
 */
public final class StreamFences implements AutoCloseable {
    private static final int EVENTS = 256;

    /** Longer than any step or batch of copies. */
    private static final Duration TIMEOUT = Duration.ofMinutes(2);

    private static final long POLL_NANOS = 5_000;

    /** About as long as a step of single tokens, which a thread that sleeps would end late. */
    private static final long SPIN_NANOS = 5_000_000;

    private final Gpu.Stream stream;
    private final Ticker ticker;
    private final List<Gpu.Event> events;

    /** The number of the last point; the first is 1. */
    @GuardedBy("this")
    private long recorded;

    /** The stream has passed the points up to this one. */
    @GuardedBy("this")
    private long passed;

    public StreamFences(Gpu.Stream stream, Ticker ticker) {
        this.stream = stream;
        this.ticker = ticker;
        this.events = Stream.generate(stream.gpu()::event).limit(EVENTS).toList();
    }

    /** The fence of all that was enqueued on the stream. */
    public synchronized KvFence record() {
        stream.gpu().requireWorking();
        long number = recorded + 1;
        // Its event is that of an earlier point.
        await(number - EVENTS);
        event(number).record(stream);
        recorded = number;
        return new Point(number);
    }

    /** Work that is enqueued on a stream after this call waits for a fence: on the device, if the fence is a device's. */
    public static void order(KvFence fence, Gpu.Stream later) {
        later.gpu().requireWorking();
        if (fence instanceof Point point && point.gpu().context() == later.gpu().context()) {
            point.order(later);
        } else {
            fence.await();
        }
    }

    private Gpu.Event event(long number) {
        return events.get((int) (number % EVENTS));
    }

    private synchronized boolean isPassed(long number) {
        stream.gpu().requireWorking();
        if (number > passed && event(number).isPassed()) {
            passed = number;
        }
        return number <= passed;
    }

    /** Returns when all that was enqueued is done. */
    public void synchronize() {
        KvFence last = record();
        long begun = ticker.nanos();
        while (ticker.nanos() - begun < SPIN_NANOS && !last.isPassed()) {
            Thread.onSpinWait();
        }
        last.await();
    }

    private void await(long number) {
        Deadline deadline = Deadline.after(ticker, TIMEOUT);
        while (!isPassed(number)) {
            if (deadline.isOver()) {
                stream.gpu().fail("it has not passed a point of its work within " + deadline);
            }
            LockSupport.parkNanos(POLL_NANOS);
        }
    }

    /** After the stream was synchronized. */
    @Override
    public synchronized void close() {
        passed = recorded;
        events.forEach(Gpu.Event::close);
    }

    private final class Point implements KvFence {
        private final long number;

        private Point(long number) {
            this.number = number;
        }

        private Gpu gpu() {
            return stream.gpu();
        }

        private void order(Gpu.Stream later) {
            synchronized (StreamFences.this) {
                if (!StreamFences.this.isPassed(number)) {
                    later.waitFor(event(number));
                }
            }
        }

        @Override
        public boolean isPassed() {
            return StreamFences.this.isPassed(number);
        }

        @Override
        public void await() {
            StreamFences.this.await(number);
        }
    }
}
