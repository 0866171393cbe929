package baton.connectors.sharedstorage;

import baton.kv.KvCache;
import baton.kv.KvLayout;
import baton.kv.Ticker;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.HandshakeMetadata;
import baton.kv.connector.Measurement;
import baton.kv.connector.WorkerConnector;
import baton.kv.connector.WorkerReport;
import baton.store.safetensors.SharedStorage;
import baton.store.safetensors.StorageException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.Semaphore;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Moves layers between files and the pool while the forward pass computes.
 *
 * <h2>Threads</h2>
 *
 * Each load and each save of a step is a {@link Job} with a virtual thread of its own, which goes through the layers in order.
 * The rank's thread tells save jobs which layers are in the pool, and waits for load jobs layer by layer. A job touches the
 * pool only while it holds its own lock and is not over. The rank's thread ends a job under the same lock, so a job that is
 * over, for instance because of its deadline, never reads or writes the pool again, however long its file takes.
 *
 * <h2>Layouts</h2>
 *
 * A file's layer is {@code [token][kv head][K | V]}, a block's layer {@code [kv head][slot][K | V]}. Jobs rearrange between
 * the pool and a buffer of one layer; at most {@value #CONCURRENT_JOBS} jobs hold such a buffer.
 *
 * <h2>Failures</h2>
 *
 * A load that fails makes all blocks of its load invalid. A save is committed only when all loads of the step are known to
 * be good or to concern other blocks, so what was computed from invalid blocks is never stored.
 */
final class SharedStorageWorker implements WorkerConnector {
    private static final Logger log = LoggerFactory.getLogger(SharedStorageWorker.class);

    private static final int CONCURRENT_JOBS = 8;

    /** How often a wait looks at the ticker, whose time need not be the system's. */
    private static final long POLL_MILLIS = 10;

    private static final Duration CLOSE_TIMEOUT = Duration.ofSeconds(5);

    private final ConnectorContext context;
    private final SharedStorageConnector.Settings settings;
    private final Ticker ticker;
    private final Semaphore permits = new Semaphore(CONCURRENT_JOBS);
    private final List<LoadJob> loads = new ArrayList<>();
    private final List<SaveJob> saves = new ArrayList<>();
    private final List<Thread> threads = new ArrayList<>();
    private final Set<Integer> invalidBlocks = new HashSet<>();
    private final List<Measurement> measurements = new ArrayList<>();
    private Optional<Pool> registered = Optional.empty();

    SharedStorageWorker(ConnectorContext context, SharedStorageConnector.Settings settings) {
        this.context = context;
        this.settings = settings;
        this.ticker = context.ticker();
    }

    @Override
    public void register(KvCache cache) {
        SharedStorage storage =
                new SharedStorage(settings.root(), SharedStorageConnector.format(context, cache.layerNames()), ticker);
        registered = Optional.of(new Pool(cache, storage));
    }

    @Override
    public Optional<HandshakeMetadata> handshakeMetadata() {
        return Optional.of(new SharedStorageConnector.LayerNames(pool().cache.layerNames()));
    }

    @Override
    public void startLoad(ConnectorMetadata metadata) {
        // Whatever an interrupted step has left.
        saves.forEach(save -> save.fail("abandoned"));
        finishSaves(ticker.nanos());
        finishLoads();
        threads.removeIf(thread -> !thread.isAlive());

        if (!(metadata instanceof StepPlan plan)) {
            return;
        }
        for (StepPlan.Load load : plan.loads()) {
            loads.add(start(new LoadJob(load), "kv-load-" + load.requestId()));
        }
        for (StepPlan.Save save : plan.saves()) {
            saves.add(start(new SaveJob(save), "kv-save-" + save.requestId()));
        }
    }

    @Override
    public void waitForLayerLoad(int layer) {
        loads.forEach(load -> load.awaitLayer(layer));
    }

    @Override
    public void saveLayer(int layer) {
        saves.forEach(save -> save.layerIsReady(layer));
    }

    @Override
    public void waitForSave() {
        finishLoads();
        for (SaveJob save : saves) {
            if (Collections.disjoint(invalidBlocks, save.save.blockSet())) {
                save.mayCommit();
            } else {
                save.fail("load_failed");
            }
        }
        finishSaves(ticker.nanos() + settings.timeout().toNanos());
    }

    @Override
    public WorkerReport report(Set<String> finished) {
        finishLoads();
        if (invalidBlocks.isEmpty() && measurements.isEmpty()) {
            return WorkerReport.NOTHING;
        }
        WorkerReport report = new WorkerReport(Set.of(), Set.of(), invalidBlocks, measurements);
        invalidBlocks.clear();
        measurements.clear();
        return report;
    }

    /** Ends what is under way; returns when no thread of this worker uses the pool, and soon after when none is left. */
    @Override
    public void close() {
        loads.forEach(load -> load.fail("closed"));
        saves.forEach(save -> save.fail("closed"));
        loads.clear();
        saves.clear();
        for (Thread thread : threads) {
            try {
                if (!thread.join(CLOSE_TIMEOUT)) {
                    log.warn("{} still waits for its file", thread.getName());
                }
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                return;
            }
        }
        threads.clear();
    }

    private void finishLoads() {
        for (LoadJob job : loads) {
            job.awaitEnd(job.deadline());
            StepPlan.Load load = job.load;
            Optional<String> cause = job.cause();
            if (cause.isPresent()) {
                invalidBlocks.addAll(load.blockSet());
                measurements.add(Measurement.count("baton:kv_load_failures", 1, "cause", cause.get()));
                log.warn(
                        "request {}: loading {} tokens from KV cache entry {} failed: {}; {} blocks are invalid",
                        load.requestId(),
                        load.blocks().length * context.layout().blockSize(),
                        load.entry().name(),
                        job.reason(),
                        load.blocks().length);
            } else {
                measurements.add(Measurement.count(
                        "baton:kv_load_bytes",
                        load.blocks().length * (double) context.layout().blockBytes()));
                measurements.add(Measurement.seconds("baton:kv_load", job.secondsAfter(job.startNanos())));
            }
        }
        loads.clear();
    }

    /** Saving overlaps with computing; what counts as its time is what the step waits for it after its last layer. */
    private void finishSaves(long deadline) {
        long computed = ticker.nanos();
        for (SaveJob job : saves) {
            job.awaitEnd(deadline);
            Optional<String> cause = job.cause();
            if (cause.isPresent()) {
                measurements.add(Measurement.count("baton:kv_save_failures", 1, "cause", cause.get()));
                log.debug("request {}: its KV was not saved: {}", job.save.requestId(), job.reason());
            } else if (job.stored) {
                measurements.add(Measurement.count(
                        "baton:kv_save_bytes",
                        job.save.blocks().length * (double) context.layout().blockBytes()));
                measurements.add(Measurement.seconds("baton:kv_save", job.secondsAfter(computed)));
            }
        }
        saves.clear();
    }

    private Pool pool() {
        return registered.orElseThrow(() -> new IllegalStateException("register must come first"));
    }

    private <J extends Job> J start(J job, String name) {
        threads.add(job.start(name));
        return job;
    }

    /** The pool and where its layers go; rearranges between blocks and a file's order. */
    private record Pool(KvCache cache, SharedStorage storage) {
        /** Copies one layer of blocks into {@code packed}, which holds as many tokens as they. */
        void gather(int[] blocks, int layer, MemorySegment packed) {
            copy(blocks, layer, packed, 0, false);
        }

        /** Fills one layer of blocks from {@code packed}, starting at its {@code firstToken}. */
        void scatter(int[] blocks, int layer, MemorySegment packed, int firstToken) {
            copy(blocks, layer, packed, firstToken, true);
        }

        private void copy(int[] blocks, int layer, MemorySegment packed, int firstToken, boolean toPool) {
            KvLayout layout = cache.layout();
            long entry = layout.entryBytes();
            long token = layout.kvHeads() * entry;
            MemorySegment pool = cache.memory();
            for (int i = 0; i < blocks.length; i++) {
                long inPool = cache.layerStart(blocks[i], layer);
                long block = (firstToken + (long) i * layout.blockSize()) * token;
                for (int head = 0; head < layout.kvHeads(); head++) {
                    long inPacked = block + head * entry;
                    for (int slot = 0; slot < layout.blockSize(); slot++) {
                        if (toPool) {
                            MemorySegment.copy(packed, inPacked, pool, inPool, entry);
                        } else {
                            MemorySegment.copy(pool, inPool, packed, inPacked, entry);
                        }
                        inPool += entry;
                        inPacked += token;
                    }
                }
            }
        }

        MemorySegment buffer(Arena arena, int tokens) {
            KvLayout layout = cache.layout();
            return arena.allocate(tokens * (layout.kvHeads() * layout.entryBytes()), 64);
        }
    }

    /** One request's load or save. Its fields are guarded by its monitor. */
    private abstract class Job {
        private final long startNanos = ticker.nanos();
        private long endNanos;
        private boolean over;
        private Optional<String> cause = Optional.empty();
        private String reason = "";
        private Optional<Thread> thread = Optional.empty();

        final synchronized Thread start(String name) {
            Thread started = Thread.ofVirtual().name(name).start(this::runGuarded);
            thread = Optional.of(started);
            return started;
        }

        /** Goes through the layers. Runs on the job's own thread, without the monitor. */
        abstract void run(Pool pool) throws StorageException, InterruptedException;

        private void runGuarded() {
            try {
                permits.acquire();
                try {
                    run(pool());
                    end();
                } finally {
                    permits.release();
                }
            } catch (StorageException e) {
                fail(e.fault().label(), String.valueOf(e.getMessage()));
            } catch (InterruptedException e) {
                fail("interrupted");
            } catch (RuntimeException | OutOfMemoryError e) {
                log.error("{} failed unexpectedly", Thread.currentThread().getName(), e);
                fail("internal", e.toString());
            }
        }

        final void fail(String label) {
            fail(label, label);
        }

        /** Ends the job, unless it is over already. When this returns the job does not touch the pool any more. */
        final synchronized void fail(String label, String why) {
            if (!over) {
                cause = Optional.of(label);
                reason = why;
                end();
                thread.filter(own -> !own.equals(Thread.currentThread())).ifPresent(Thread::interrupt);
            }
        }

        private synchronized void end() {
            if (!over) {
                over = true;
                endNanos = ticker.nanos();
                notifyAll();
            }
        }

        final synchronized boolean isOver() {
            return over;
        }

        final synchronized Optional<String> cause() {
            return cause;
        }

        final synchronized String reason() {
            return reason;
        }

        /** From then to the job's end; 0 if it ended before. */
        final synchronized double secondsAfter(long nanos) {
            return Math.max(0, endNanos - nanos) / 1e9;
        }

        final long startNanos() {
            return startNanos;
        }

        /** Returns when the job is over. At the deadline it is. */
        final synchronized void awaitEnd(long deadline) {
            while (!over) {
                awaitChange(deadline);
            }
        }

        /** Lets time pass, or fails the job if the deadline has passed. Called with the monitor held, in a loop. */
        @SuppressWarnings("WaitNotInLoop") // The loops are the callers'.
        final void awaitChange(long deadline) {
            if (ticker.nanos() - deadline >= 0) {
                fail("timeout", "not done within " + settings.timeout());
                return;
            }
            try {
                wait(POLL_MILLIS);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                fail("interrupted");
            }
        }
    }

    private final class LoadJob extends Job {
        private final StepPlan.Load load;
        private int loadedLayers;

        LoadJob(StepPlan.Load load) {
            this.load = load;
        }

        @Override
        void run(Pool pool) throws StorageException {
            try (Arena arena = Arena.ofConfined()) {
                MemorySegment packed = pool.buffer(arena, load.entry().tokens());
                for (int layer = 0; layer < pool.cache.layout().layers(); layer++) {
                    pool.storage.read(load.entry(), layer, packed);
                    synchronized (this) {
                        if (isOver()) {
                            return;
                        }
                        pool.scatter(load.blocks(), layer, packed, load.firstToken());
                        loadedLayers++;
                        notifyAll();
                    }
                }
            } catch (StorageException e) {
                switch (e.fault()) {
                    case DIGEST, DAMAGED, MISSING -> pool.storage.distrust(load.entry());
                    case INCOMPATIBLE, NO_SPACE, DENIED, IO -> {}
                }
                throw e;
            }
        }

        /** Returns when the layer is in the pool or the load has failed. */
        synchronized void awaitLayer(int layer) {
            while (!isOver() && loadedLayers <= layer) {
                awaitChange(deadline());
            }
        }

        long deadline() {
            return startNanos() + settings.timeout().toNanos();
        }
    }

    private final class SaveJob extends Job {
        private final StepPlan.Save save;
        private int readyLayers;
        private boolean mayCommit;
        private volatile boolean stored;

        SaveJob(StepPlan.Save save) {
            this.save = save;
        }

        @Override
        void run(Pool pool) throws StorageException, InterruptedException {
            int layers = pool.cache.layout().layers();
            try (SharedStorage.Writer writer = pool.storage.write(save.name(), save.tokens());
                    Arena arena = Arena.ofConfined()) {
                MemorySegment packed = pool.buffer(arena, save.tokens());
                for (int layer = 0; layer < layers; layer++) {
                    synchronized (this) {
                        while (!isOver() && readyLayers <= layer) {
                            wait();
                        }
                        if (isOver()) {
                            return;
                        }
                        pool.gather(save.blocks(), layer, packed);
                    }
                    writer.layer(layer, packed);
                }
                synchronized (this) {
                    while (!isOver() && !mayCommit) {
                        wait();
                    }
                    if (isOver()) {
                        return;
                    }
                }
                stored = writer.commit();
            }
        }

        /** The layer is in the pool, and stays so until the job is over. */
        synchronized void layerIsReady(int layer) {
            readyLayers = layer + 1;
            notifyAll();
        }

        synchronized void mayCommit() {
            if (readyLayers < context.layout().layers()) {
                fail("abandoned", "not all layers were computed");
                return;
            }
            mayCommit = true;
            notifyAll();
        }
    }
}
