package baton.store.file;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.Setting;
import baton.store.prompt.SharedStorage;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.OptionalLong;

/**
 * How a {@link FileBlockStore} works, see {@link #of}.
 *
 * @param field the setting that names the root, for errors
 * @param root directory of the files of all formats; made if it does not exist
 * @param readThreads values read at once, at most
 * @param writeThreads values written at once, at most
 * @param queued batches that wait for a thread, of reads, of writes and of look-ups; further ones are rejected
 * @param fsync whether a file is on the device before it can be found. Without it a crash of the machine may leave files that are cut or
 *     zero, which their checksums show; so this is only for those that want to lose as little as possible then
 * @param limits above which the values of all formats in the root are removed that were not used for longest
 */
public record FileStoreSettings(
        String field,
        Path root,
        int readThreads,
        int writeThreads,
        int queued,
        IoMode io,
        boolean fsync,
        Limits limits) {
    public static final String ROOT = "root_dir";
    private static final String READ_THREADS = "n_read_threads";
    private static final String WRITE_THREADS = "n_write_threads";
    private static final String IO = "io";
    private static final String FSYNC = "fsync";
    private static final String MAX_BYTES = "max_bytes";
    private static final String MAX_AGE = "max_age_seconds";

    private static final int THREADS = 16;

    /** The settings that {@link #of} reads. */
    public static final List<Setting> SETTINGS = List.of(
            Setting.absent(ROOT, "required", "Directory of the files."),
            Setting.of(READ_THREADS, THREADS, "Values read at once."),
            Setting.of(WRITE_THREADS, THREADS, "Values written at once."),
            Setting.of(IO, label(IoMode.BUFFERED), "`buffered`, or `direct`, which leaves the page cache to others."),
            Setting.of(FSYNC, false, "Whether a file is on the device before it can be found."),
            Setting.absent(MAX_BYTES, "no limit", "Of all files; those not used for longest are removed above it."),
            Setting.absent(MAX_AGE, "no limit", "Files not used for so long are removed."));

    private static final int MOST_THREADS = 256;
    private static final int QUEUED = 1024;

    /** Whether the operating system caches files. */
    public enum IoMode {
        /** {@code O_DIRECT} where the file system supports it, which leaves the machine's memory to others; else buffered. */
        DIRECT,
        BUFFERED
    }

    /**
     * When values are removed.
     *
     * @param maxBytes of all files
     * @param maxAge since the last use
     */
    public record Limits(OptionalLong maxBytes, Optional<Duration> maxAge) {
        public static final Limits NONE = new Limits(OptionalLong.empty(), Optional.empty());

        boolean areSet() {
            return maxBytes.isPresent() || maxAge.isPresent();
        }
    }

    /** The defaults. */
    public static FileStoreSettings of(String field, Path root) {
        return new FileStoreSettings(field, root, THREADS, THREADS, QUEUED, IoMode.BUFFERED, false, Limits.NONE);
    }

    /**
     * As JSON gives them: {@code root_dir}, {@code n_read_threads} and {@code n_write_threads} as vLLM's fs tier has them, and
     * {@code io} ({@code direct} or {@code buffered}), {@code fsync}, {@code max_bytes}, {@code max_age_seconds}.
     *
     * @throws ConfigException naming the wrong setting
     */
    public static FileStoreSettings of(JsonFields given) {
        JsonFields fields = given.withDefaults(SETTINGS);
        String field = fields.field(ROOT);
        Path root = SharedStorage.root(
                field, fields.string(ROOT).orElseThrow(() -> new ConfigException(field, "is missing")));
        FileStoreSettings defaults = of(field, root);
        return new FileStoreSettings(
                field,
                root,
                fields.integer(READ_THREADS, 1, MOST_THREADS).orElseThrow(),
                fields.integer(WRITE_THREADS, 1, MOST_THREADS).orElseThrow(),
                defaults.queued,
                fields.string(IO)
                        .map(name -> ConfigException.choose(
                                fields.field(IO), name, IoMode.values(), FileStoreSettings::label))
                        .orElseThrow(),
                fields.bool(FSYNC).orElseThrow(),
                new Limits(
                        positive(fields, MAX_BYTES).map(OptionalLong::of).orElse(OptionalLong.empty()),
                        positive(fields, MAX_AGE).map(Duration::ofSeconds)));
    }

    private static String label(IoMode mode) {
        return mode.name().toLowerCase(Locale.ROOT);
    }

    private static Optional<Long> positive(JsonFields fields, String name) {
        Optional<Long> value = fields.integer(name);
        value.filter(number -> number <= 0).ifPresent(number -> {
            throw new ConfigException(fields.field(name), "is " + number + ", must be positive");
        });
        return value;
    }
}
