package baton.engine.kernel;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.charset.StandardCharsets;
import java.util.Optional;
import java.util.function.LongSupplier;
import org.jspecify.annotations.Nullable;

/**
 * The time that the calling thread has been able to run and had no processor, in nanoseconds since it began; 0 where the system does not report it.
 * One thread at a time may ask.
 *
 * @see <a href="https://docs.kernel.org/scheduler/sched-stats.html">{@code /proc/PID/schedstat}</a>
 */
final class RunDelay implements LongSupplier, AutoCloseable {
    private static final String OF_CALLER = "/proc/thread-self/schedstat";

    private final byte[] text = new byte[80];
    private @Nullable Thread thread;
    private Optional<RandomAccessFile> file = Optional.empty();

    @Override
    public long getAsLong() {
        try {
            if (!Thread.currentThread().equals(thread)) {
                close();
                thread = Thread.currentThread();
                file = Optional.of(new RandomAccessFile(OF_CALLER, "r"));
            }
            return file.isEmpty() ? 0 : read(file.get());
        } catch (IOException | NumberFormatException e) {
            close();
            return 0;
        }
    }

    /** The second of three numbers. */
    private long read(RandomAccessFile from) throws IOException {
        from.seek(0);
        int length = from.read(text);
        String[] numbers = new String(text, 0, Math.max(0, length), StandardCharsets.US_ASCII).split(" ");
        if (numbers.length < 2) {
            throw new IOException("no number of nanoseconds");
        }
        return Long.parseLong(numbers[1]);
    }

    @Override
    public void close() {
        try {
            if (file.isPresent()) {
                file.get().close();
            }
        } catch (IOException e) {
            // It was read only.
        }
        file = Optional.empty();
    }
}
