package baton.cli;

import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Standard error, written by a thread of its own: an event loop that logs a line waits neither for the file or pipe nor for another
 * event loop that is writing. Lines are written at most a few milliseconds late, all of them until {@link #close()} returns. A
 * thread waits only if {@value #MOST_WAITING} bytes have not been taken yet.
 */
final class LogOutput extends OutputStream {
    private static final int MOST_WAITING = 1 << 20;
    /** After a write, so that a thread that logs seldom has to wake this one up. */
    private static final long PAUSE_NANOS = TimeUnit.MILLISECONDS.toNanos(2);

    /** The limit for writing the remaining lines at the end. */
    private static final Duration MOST_AT_END = Duration.ofSeconds(10);

    private final PrintStream before;
    private final Thread thread;
    private final ReentrantLock lock = new ReentrantLock();
    private final Condition changed = lock.newCondition();
    private byte[] waiting = new byte[8 << 10];
    private int length;
    private boolean idle;
    private boolean closed;

    private LogOutput(PrintStream before) {
        this.before = before;
        this.thread = Thread.ofPlatform().daemon().name("log-output").unstarted(this::run);
    }

    /** Writes to {@code target}. */
    static LogOutput to(PrintStream target) {
        LogOutput output = new LogOutput(target);
        output.thread.start();
        return output;
    }

    /** Everything that is written to {@link System#err} goes this way from now on. */
    static LogOutput install() {
        LogOutput output = to(System.err);
        System.setErr(new PrintStream(output, false, StandardCharsets.UTF_8));
        return output;
    }

    @Override
    public void write(int value) {
        write(new byte[] {(byte) value}, 0, 1);
    }

    @Override
    public void write(byte[] bytes, int offset, int count) {
        lock.lock();
        try {
            while (length > 0 && length + count > MOST_WAITING && !closed) {
                changed.awaitUninterruptibly();
            }
            if (closed) {
                before.write(bytes, offset, count);
                before.flush();
                return;
            }
            if (length + count > waiting.length) {
                waiting = Arrays.copyOf(waiting, Math.max(length + count, 2 * waiting.length));
            }
            System.arraycopy(bytes, offset, waiting, length, count);
            length += count;
            if (idle) {
                changed.signalAll();
            }
        } finally {
            lock.unlock();
        }
    }

    private void run() {
        byte[] taken = new byte[8 << 10];
        boolean last = false;
        while (!last) {
            int count;
            lock.lock();
            try {
                idle = true;
                while (length == 0 && !closed) {
                    changed.awaitUninterruptibly();
                }
                idle = false;
                last = closed;
                byte[] full = waiting;
                waiting = taken;
                taken = full;
                count = length;
                length = 0;
                changed.signalAll();
            } finally {
                lock.unlock();
            }
            before.write(taken, 0, count);
            before.flush();
            if (!last) {
                pause();
            }
        }
    }

    /** Ends early when the output is closed. */
    private void pause() {
        lock.lock();
        try {
            for (long left = PAUSE_NANOS; left > 0 && !closed && length < MOST_WAITING / 2; ) {
                left = changed.awaitNanos(left);
            }
        } catch (InterruptedException e) {
            // Of a daemon thread that nothing interrupts: it goes on without the pause.
            Thread.currentThread().interrupt();
        } finally {
            lock.unlock();
        }
    }

    /** Writes the remaining lines. Later lines are written at once. */
    @Override
    public void close() throws IOException {
        lock.lock();
        try {
            closed = true;
            changed.signalAll();
        } finally {
            lock.unlock();
        }
        try {
            if (!thread.join(MOST_AT_END)) {
                throw new IOException("not all was written within " + MOST_AT_END.toSeconds() + " s");
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IOException("interrupted before all was written", e);
        }
    }
}
