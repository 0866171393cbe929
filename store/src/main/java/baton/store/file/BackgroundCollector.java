package baton.store.file;

import baton.kv.Ticker;
import baton.store.FileOperations;
import baton.store.IoTasks;
import java.io.IOException;
import java.time.Duration;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Removes values of Baton's, of all formats in the root, when they are above the limits: when this process has written so much, and from time to
 * time, as other processes may write too. Files that vLLM has stored there are not touched. Thread-safe.
 */
final class BackgroundCollector {
    private static final Logger log = LoggerFactory.getLogger(BackgroundCollector.class);

    private static final Duration INTERVAL = Duration.ofMinutes(10);

    /** Before another attempt when one could not remove enough. */
    private static final Duration RETRY = Duration.ofSeconds(10);

    /** A collection leaves room, so that not each value that is written needs one. */
    private static final double FILL = 0.9;

    private final FileStoreSettings.Limits limits;
    private final Ticker ticker;
    private final FileOperations operations;
    private final KvFiles files;
    private final IoTasks background;
    private final Consumer<KvFiles.KvFile> removed;
    private final Consumer<KvFiles.Collected> listener;
    private final AtomicBoolean running = new AtomicBoolean();
    private final AtomicLong total = new AtomicLong();
    private volatile long due;
    private volatile long retry;
    private volatile boolean closed;

    /**
     * @param removed takes each file that has been removed
     * @param listener takes the result of each collection
     */
    BackgroundCollector(
            FileStoreSettings settings,
            Ticker ticker,
            FileOperations operations,
            IoTasks background,
            Consumer<KvFiles.KvFile> removed,
            Consumer<KvFiles.Collected> listener) {
        this.limits = settings.limits();
        this.ticker = ticker;
        this.operations = operations;
        this.files = new KvFiles(settings.root(), operations, KvFiles.Scope.BATON_VALUES);
        this.background = background;
        this.removed = removed;
        this.listener = listener;
        this.due = ticker.nanos();
        this.retry = due;
    }

    /** A file of so many bytes was written. */
    void added(long bytes) {
        total.addAndGet(bytes);
        poll();
    }

    /** Collects in the background if it is time to. */
    void poll() {
        long now = ticker.nanos();
        boolean over =
                limits.maxBytes().isPresent() && total.get() > limits.maxBytes().getAsLong();
        boolean wanted = now - due >= 0 || (over && now - retry >= 0);
        if (wanted && !closed && running.compareAndSet(false, true)) {
            if (!background.submit(new FileBlockStore.Background(this::collect))) {
                running.set(false);
            }
        }
    }

    private void collect() {
        try {
            long before = total.get();
            KvFiles.Collected result =
                    files.collect(new KvFiles.Request(limits, FILL, false, operations.now()), removed, () -> closed);
            total.addAndGet(result.leftBytes() - before);
            if (result.removed() > 0) {
                log.info(
                        "removed {} KV cache values, {} bytes; {} bytes are left",
                        result.removed(),
                        result.removedBytes(),
                        result.leftBytes());
            }
            listener.accept(result);
        } catch (IOException e) {
            log.warn("cannot look for KV cache values to remove: {}", e.toString());
        } finally {
            long now = ticker.nanos();
            due = now + INTERVAL.toNanos();
            boolean over = limits.maxBytes().isPresent()
                    && total.get() > limits.maxBytes().getAsLong();
            retry = over ? now + RETRY.toNanos() : now;
            running.set(false);
        }
    }

    /** A collection that is under way ends. */
    void close() {
        closed = true;
    }
}
