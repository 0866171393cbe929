package baton.cuda.model;

import java.util.ArrayDeque;
import java.util.Deque;

/** Resources that are closed together, the last first; a failure to close one does not keep others open. */
final class Owned implements AutoCloseable {
    private final Deque<Runnable> closes = new ArrayDeque<>();

    <T> T add(T made, Runnable close) {
        closes.push(close);
        return made;
    }

    /** The first exception has the others. */
    @Override
    public void close() {
        if (closes.isEmpty()) {
            return;
        }
        try {
            closes.pop().run();
        } catch (RuntimeException | Error e) {
            closeAfter(e);
            throw e;
        }
        close();
    }

    /** Closes all after a failure. */
    void closeAfter(Throwable failure) {
        try {
            close();
        } catch (RuntimeException | Error e) {
            suppress(failure, e);
        }
    }

    /** An exception that another one hides. */
    @SuppressWarnings("ReferenceEquality")
    static void suppress(Throwable failure, Throwable other) {
        // A driver may report one failure again and again.
        if (failure != other) {
            failure.addSuppressed(other);
        }
    }
}
