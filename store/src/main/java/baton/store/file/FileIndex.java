package baton.store.file;

import baton.kv.BlockHash;
import baton.kv.Ticker;
import baton.store.FileOperations;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.regex.Pattern;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The files of one format that were seen, with the times. Changes by other processes show only when a file is asked for. Thread-safe. */
final class FileIndex {
    private static final Logger log = LoggerFactory.getLogger(FileIndex.class);

    /** How long a file that was seen is taken to be there. */
    private static final Duration FRESH = Duration.ofSeconds(30);

    /** The precision of files' times of last use. */
    static final Duration TOUCH_INTERVAL = Duration.ofMinutes(1);

    private static final Pattern HASH = Pattern.compile("[0-9a-f]{64}\\.bin");

    private final Path values;
    private final Ticker ticker;
    private final FileOperations files;
    private final Map<BlockHash, Seen> seen = new ConcurrentHashMap<>();
    private volatile boolean closed;

    private static final class Seen {
        private volatile long at;
        private volatile long touched;
    }

    FileIndex(Path root, FsPathLayout layout, Ticker ticker, FileOperations files) {
        this.values = root.resolve(layout.values(0));
        this.ticker = ticker;
        this.files = files;
    }

    /** Walks the directory of the values; takes long. */
    void build() {
        long before = ticker.nanos();
        Instant abandoned = files.now().minus(KvFiles.ABANDONED_AFTER);
        try {
            KvFiles.forEachValueFile(values, files, file -> {
                String name = file.getFileName().toString();
                if (HASH.matcher(name).matches()) {
                    add(FsPathLayout.hash(name));
                } else if (KvFiles.isTemporary(name)
                        && files.attributes(file).lastModifiedTime().toInstant().isBefore(abandoned)) {
                    files.delete(file);
                }
                return !closed;
            });
            log.info(
                    "{} has {} KV cache values, found in {} ms",
                    values,
                    seen.size(),
                    Duration.ofNanos(ticker.nanos() - before).toMillis());
        } catch (IOException e) {
            log.warn("cannot list {}: {}; its files are looked for one by one", values, e.toString());
        }
    }

    void add(BlockHash key) {
        long now = ticker.nanos();
        seen.computeIfAbsent(key, _ -> untouched(now)).at = now;
    }

    private static Seen untouched(long now) {
        Seen entry = new Seen();
        entry.touched = now - TOUCH_INTERVAL.toNanos();
        return entry;
    }

    /** Whether it was known. */
    boolean remove(BlockHash key) {
        return seen.remove(key) != null;
    }

    boolean isFresh(BlockHash key) {
        Seen entry = seen.get(key);
        return entry != null && ticker.nanos() - entry.at < FRESH.toNanos();
    }

    /** Whether its file's time is to be set; it counts as set from now on. */
    boolean touched(BlockHash key) {
        long now = ticker.nanos();
        Seen entry = seen.computeIfAbsent(key, _ -> untouched(now));
        boolean due = now - entry.touched >= TOUCH_INTERVAL.toNanos();
        if (due) {
            entry.touched = now;
        }
        return due;
    }

    int size() {
        return seen.size();
    }

    /** A walk that is under way ends. */
    void close() {
        closed = true;
    }
}
