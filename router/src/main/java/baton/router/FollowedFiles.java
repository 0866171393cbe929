package baton.router;

import baton.kv.Bursts;
import baton.kv.ConfigException;
import baton.kv.Ticker;
import baton.router.metrics.RouterMetric;
import baton.router.metrics.RouterMetrics;
import io.vertx.core.Future;
import io.vertx.core.Vertx;
import io.vertx.core.WorkerExecutor;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Reads files at intervals, and reports changes of their content. Files that cannot be read or used change nothing, are
 * logged, and are tried again at the next look.
 */
final class FollowedFiles implements AutoCloseable {
    /** Takes new contents, in the order of the files. */
    interface Use {
        /**
         * Returns when they are in use.
         *
         * @throws ConfigException if the contents cannot be used
         */
        Future<?> accept(List<byte[]> contents) throws IOException;
    }

    static final Duration INTERVAL = Duration.ofSeconds(2);
    private static final Duration LONGEST = Duration.ofSeconds(10);
    private static final int MOST_BYTES = 1 << 20;
    private static final Logger log = LoggerFactory.getLogger(FollowedFiles.class);
    private static final Duration BETWEEN_LINES = Duration.ofSeconds(30);

    private final Vertx vertx;
    private final String what;
    private final List<Path> files;
    private final Use use;
    private final RouterMetrics metrics;
    private final Bursts failures;
    private final WorkerExecutor worker;
    private final AtomicBoolean looking = new AtomicBoolean();
    private final long timer;
    /** Owned by the worker's one thread, after the constructor. */
    private List<byte[]> last;

    /**
     * @param what names the files in the log
     * @param used their contents that are in use already
     */
    FollowedFiles(
            Vertx vertx,
            String what,
            List<Path> files,
            List<byte[]> used,
            Use use,
            RouterMetrics metrics,
            Ticker ticker) {
        this.vertx = vertx;
        this.metrics = metrics;
        this.what = what;
        this.files = List.copyOf(files);
        this.last = List.copyOf(used);
        this.use = use;
        this.failures = new Bursts(1, BETWEEN_LINES, ticker);
        this.worker = vertx.createSharedWorkerExecutor("baton-follows " + what, 1);
        this.timer = vertx.setPeriodic(INTERVAL.toMillis(), _ -> look());
    }

    /** @throws IOException naming the file that cannot be read, or is longer than 1 MiB */
    static List<byte[]> read(List<Path> files) throws IOException {
        List<byte[]> contents = new ArrayList<>();
        for (Path file : files) {
            if (Files.size(file) > MOST_BYTES) {
                throw new IOException(file + " is longer than " + MOST_BYTES + " bytes");
            }
            contents.add(Files.readAllBytes(file));
        }
        return contents;
    }

    /** Looks now, unless it looks already. */
    Future<Boolean> look() {
        if (looking.compareAndSet(false, true)) {
            return worker.executeBlocking(() -> {
                        follow();
                        return true;
                    })
                    .onComplete(_ -> looking.set(false));
        }
        return Future.succeededFuture(false);
    }

    private void follow() {
        try {
            List<byte[]> read = read(files);
            if (!Arrays.deepEquals(read.toArray(), last.toArray())) {
                use.accept(read).toCompletionStage().toCompletableFuture().get(LONGEST.toNanos(), TimeUnit.NANOSECONDS);
                last = read;
                metrics.count(RouterMetric.FOLLOWED_FILES, what, "used");
                log.info("{}: read anew", what);
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        } catch (IOException | ConfigException | ExecutionException | TimeoutException e) {
            metrics.count(RouterMetric.FOLLOWED_FILES, what, "refused");
            failures.event(more -> log.warn("{}: {}; the earlier content stays in use{}", what, e.toString(), more));
        }
    }

    @Override
    public void close() {
        vertx.cancelTimer(timer);
        worker.close();
    }
}
