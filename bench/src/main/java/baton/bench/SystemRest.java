package baton.bench;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.concurrent.TimeUnit;

/**
 * Waits until the machine's processors are at rest: a server that has just answered may go on for a second, as one that polls for its next
 * request does, and take a processor from the server that is measured next. Where there is no {@code /proc/stat} nothing is waited for.
 */
final class SystemRest {
    private static final Path STAT = Path.of("/proc/stat");
    private static final Duration LOOK = Duration.ofMillis(100);
    /** The share of all processors' time between two looks that counts as rest. */
    private static final double LITTLE = 0.1;
    /** Looks in a row with little use. */
    private static final int ENOUGH = 2;

    // Columns behind the line's name: user nice system idle iowait ...
    private static final int IDLE = 3;
    private static final int IOWAIT = 4;

    private final Path stat;

    SystemRest() {
        this(STAT);
    }

    SystemRest(Path stat) {
        this.stat = stat;
    }

    /** Returns whether they are at rest, after {@code atMost} at the latest. */
    boolean await(Duration atMost) throws IOException {
        if (!Files.isReadable(stat)) {
            return true;
        }
        long end = System.nanoTime() + atMost.toNanos();
        long[] before = ticks();
        for (int rests = 0; rests < ENOUGH; ) {
            if (System.nanoTime() >= end) {
                return false;
            }
            try {
                TimeUnit.NANOSECONDS.sleep(LOOK.toNanos());
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                throw new IOException("interrupted", e);
            }
            long[] now = ticks();
            long all = Arrays.stream(now).sum() - Arrays.stream(before).sum();
            long idle = now[IDLE] + now[IOWAIT] - before[IDLE] - before[IOWAIT];
            rests = all - idle <= LITTLE * all ? rests + 1 : 0;
            before = now;
        }
        return true;
    }

    /** The ticks of all processors together, by kind. */
    private long[] ticks() throws IOException {
        String line = Files.readAllLines(stat).getFirst();
        // Behind the eighth are parts of the first two.
        return Arrays.stream(line.split("\\s+"))
                .skip(1)
                .limit(8)
                .mapToLong(Long::parseLong)
                .toArray();
    }
}
