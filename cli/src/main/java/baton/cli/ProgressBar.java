package baton.cli;

import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.io.Console;
import java.io.PrintWriter;
import java.util.Locale;
import java.util.Optional;

/** How many of a number of things are done, on one line of a terminal that is written anew; nothing where there is no terminal. */
final class ProgressBar implements AutoCloseable {
    private static final int WIDTH = 40;
    private static final long REDRAW_NANOS = 100_000_000;

    private final PrintWriter out;
    private final int total;
    private final boolean shown;
    private final long begun = System.nanoTime();

    @GuardedBy("this")
    private long drawn = begun - REDRAW_NANOS;

    ProgressBar(PrintWriter out, int total, boolean shown) {
        this.out = out;
        this.total = total;
        this.shown = shown;
    }

    /** Whether this process has a terminal. */
    static boolean hasTerminal() {
        return Optional.ofNullable(System.console()).map(Console::isTerminal).orElse(false);
    }

    synchronized void update(int done) {
        long now = System.nanoTime();
        if (shown && (now - drawn >= REDRAW_NANOS || done == total)) {
            drawn = now;
            out.print("\r" + line(done, total, (now - begun) * 1e-9));
            out.flush();
        }
    }

    static String line(int done, int total, double seconds) {
        int filled = (int) ((long) WIDTH * done / Math.max(1, total));
        double rate = done / Math.max(seconds, 1e-9);
        String left = done == 0 ? "?" : time((total - done) / rate);
        return String.format(
                Locale.ROOT,
                "%3d%%|%s%s| %d/%d [%s<%s, %.2f req/s]",
                100L * done / Math.max(1, total),
                "█".repeat(filled),
                " ".repeat(WIDTH - filled),
                done,
                total,
                time(seconds),
                left,
                rate);
    }

    private static String time(double seconds) {
        long whole = Math.round(seconds);
        return String.format(Locale.ROOT, "%02d:%02d", whole / 60, whole % 60);
    }

    @Override
    public synchronized void close() {
        if (shown) {
            out.println();
            out.flush();
        }
    }
}
