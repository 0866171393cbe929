package baton.connectors.sharedstorage;

import baton.kv.KvCache;
import baton.kv.KvLayout;
import baton.kv.Ticker;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.Measurement;
import baton.kv.connector.Rank;
import baton.kv.connector.WorkerReport;
import baton.store.prompt.FileOperations;
import baton.store.prompt.SharedStorage;
import baton.store.prompt.StorageException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.SequencedMap;
import java.util.Set;
import java.util.concurrent.Semaphore;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Moves layers between files and the pools while the forward pass computes. One for all ranks of an engine: whatever the ranks'
 * shares, a file holds all heads of a layer and an entry all layers, so each load and each save of a step concerns all pools.
 *
 * <h2>Threads</h2>
 *
 * Each load and each save of a step is a {@link Job} with a virtual thread of its own, which goes through the layers in order.
 * The ranks' threads tell save jobs which layers are in their pools, and wait for load jobs layer by layer. A job touches the
 * pools only while it holds its own lock and is not over. A rank's thread ends a job under the same lock, so a job that is
 * over, for instance because of its deadline, never reads or writes a pool again, however long its file takes.
 *
 * <h2>Layouts</h2>
 *
 * A file's layer is {@code [token][kv head][K | V]}, a block's layer {@code [kv head][slot][K | V]}. Jobs rearrange between
 * the pools and a buffer of one layer; at most {@value #CONCURRENT_JOBS} jobs hold such a buffer.
 *
 * <h2>Failures</h2>
 *
 * A load that fails makes all blocks of its load invalid. A save is committed only when all ranks have computed all their layers
 * and all loads of the step are known to be good or to concern other blocks, so what was computed from invalid blocks is never
 * stored.
 */
final class StepFileIo {
    private static final Logger log = LoggerFactory.getLogger(StepFileIo.class);

    private static final int CONCURRENT_JOBS = 8;

    /** How often a wait looks at the ticker, whose time need not be the system's. */
    private static final long POLL_MILLIS = 10;

    private static final Duration CLOSE_TIMEOUT = Duration.ofSeconds(5);

    private final ConnectorContext context;
    private final SharedStorageConnector.Settings settings;
    private final Ticker ticker;
    private final Semaphore permits = new Semaphore(CONCURRENT_JOBS);
    private final SequencedMap<Rank, KvCache> caches = new LinkedHashMap<>();
    private final List<Thread> threads = new ArrayList<>();
    private final Set<Integer> invalidBlocks = new HashSet<>();
    private final List<Measurement> measurements = new ArrayList<>();
    private Optional<Pools> pools = Optional.empty();
    private Step step = new Step(0, List.of(), List.of());

    StepFileIo(ConnectorContext context, SharedStorageConnector.Settings settings) {
        this.context = context;
        this.settings = settings;
        this.ticker = context.ticker();
    }

    /** A rank's pool. All ranks' come before the first step. */
    synchronized void register(Rank rank, KvCache cache) {
        caches.put(rank, cache);
        if (caches.size() == context.tensorParallelSize() * context.pipelineParallelSize()) {
            pools = Optional.of(Pools.of(caches, context, settings, ticker));
        }
    }

    /** One step's jobs, the same for all ranks. */
    record Step(long number, List<LoadJob> loads, List<SaveJob> saves) {}

    /** Begins a step, the rank's {@code number}th: the first rank to come starts its jobs. */
    synchronized Step begin(long number, ConnectorMetadata metadata) {
        if (step.number == number) {
            return step;
        }
        // Whatever an interrupted step has left.
        step.saves.forEach(save -> save.fail("abandoned"));
        finishSaves(step, ticker.nanos());
        finishLoads(step);
        threads.removeIf(thread -> !thread.isAlive());

        List<LoadJob> loads = new ArrayList<>();
        List<SaveJob> saves = new ArrayList<>();
        if (metadata instanceof SharedStorageConnectorMetadata plan) {
            for (SharedStorageConnectorMetadata.Load load : plan.loads()) {
                loads.add(start(new LoadJob(load), "kv-load-" + load.requestId()));
            }
            for (SharedStorageConnectorMetadata.Save save : plan.saves()) {
                saves.add(start(new SaveJob(save), "kv-save-" + save.requestId()));
            }
        }
        step = new Step(number, List.copyOf(loads), List.copyOf(saves));
        return step;
    }

    /** Returns when the rank's layer is in its pool or known not to be. */
    void awaitLayer(Step current, Rank rank, int layer) {
        int ofModel = pools().firstLayer(rank) + layer;
        current.loads.forEach(load -> load.awaitLayer(ofModel));
    }

    /** The rank's layer is in its pool, and stays so until {@link #finish} returns. */
    void layerIsReady(Step current, Rank rank, int layer) {
        current.saves.forEach(save -> save.layerIsReady(rank, layer));
    }

    /** The rank has computed its part of the step. Returns when all ranks have and the step's jobs are over. */
    void finish(Step current, Rank rank) {
        finishLoads(current);
        Set<Integer> invalid;
        synchronized (this) {
            invalid = Set.copyOf(invalidBlocks);
        }
        for (SaveJob save : current.saves) {
            if (Collections.disjoint(invalid, save.save.blockSet())) {
                save.mayCommit(rank);
            } else {
                save.fail("load_failed");
            }
        }
        finishSaves(current, ticker.nanos() + settings.timeout().toNanos());
    }

    /** What has happened since the last report to any rank. */
    WorkerReport report(Step current) {
        finishLoads(current);
        synchronized (this) {
            if (invalidBlocks.isEmpty() && measurements.isEmpty()) {
                return WorkerReport.NOTHING;
            }
            WorkerReport report = new WorkerReport(Set.of(), Set.of(), invalidBlocks, measurements);
            invalidBlocks.clear();
            measurements.clear();
            return report;
        }
    }

    /** Ends what is under way; returns when no job uses a pool, and soon after when no thread is left. */
    synchronized void close() {
        step.loads.forEach(load -> load.fail("closed"));
        step.saves.forEach(save -> save.fail("closed"));
        step = new Step(step.number, List.of(), List.of());
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

    private void finishLoads(Step current) {
        for (LoadJob job : current.loads) {
            job.awaitEnd(job.deadline());
            if (job.isFirstToLook()) {
                record(job);
            }
        }
    }

    private synchronized void record(LoadJob job) {
        SharedStorageConnectorMetadata.Load load = job.load;
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
            measurements.add(Measurement.count("baton:kv_load_bytes", bytes(load.blocks())));
            measurements.add(Measurement.seconds("baton:kv_load", job.secondsAfter(job.startNanos())));
        }
    }

    /** Saving overlaps with computing; what counts as its time is what the step waits for it after its last layer. */
    private void finishSaves(Step current, long deadline) {
        long computed = ticker.nanos();
        for (SaveJob job : current.saves) {
            job.awaitEnd(deadline);
            if (job.isFirstToLook()) {
                record(job, computed);
            }
        }
    }

    private synchronized void record(SaveJob job, long computed) {
        Optional<String> cause = job.cause();
        if (cause.isPresent()) {
            measurements.add(Measurement.count("baton:kv_save_failures", 1, "cause", cause.get()));
            log.debug("request {}: its KV was not saved: {}", job.save.requestId(), job.reason());
        } else if (job.stored) {
            measurements.add(Measurement.count("baton:kv_save_bytes", bytes(job.save.blocks())));
            measurements.add(Measurement.seconds("baton:kv_save", job.secondsAfter(computed)));
        }
    }

    private double bytes(int[] blocks) {
        return blocks.length * (double) context.modelLayout().blockBytes();
    }

    private Pools pools() {
        return pools.orElseThrow(() -> new IllegalStateException("all ranks must register first"));
    }

    private <J extends Job> J start(J job, String name) {
        threads.add(job.start(name));
        return job;
    }

    /** One rank's pool, and which of the model's heads it has. */
    record Pool(KvCache cache, int firstHead) {}

    /** A layer of the model: where it is in the pools of those ranks that have it. */
    record Layer(int inPool, List<Pool> pools) {}

    /** The pools of all ranks and the storage; rearranges between blocks and a file's order. */
    record Pools(KvLayout model, List<Layer> layers, Map<Rank, Integer> firstLayers, SharedStorage storage) {
        static Pools of(
                SequencedMap<Rank, KvCache> caches,
                ConnectorContext context,
                SharedStorageConnector.Settings settings,
                Ticker ticker) {
            List<Layer> layers = new ArrayList<>();
            List<String> names = new ArrayList<>();
            Map<Rank, Integer> firstLayers = new HashMap<>();
            for (int stage = 0; stage < context.pipelineParallelSize(); stage++) {
                List<Pool> pools = new ArrayList<>();
                for (int tensor = 0; tensor < context.tensorParallelSize(); tensor++) {
                    Rank rank = new Rank(stage, tensor);
                    int firstHead = context.modelLayout().kvHeads() * tensor / context.tensorParallelSize();
                    pools.add(new Pool(Objects.requireNonNull(caches.get(rank), "no pool"), firstHead));
                    firstLayers.put(rank, layers.size());
                }
                List<String> ofStage = pools.getFirst().cache.layerNames();
                for (int layer = 0; layer < ofStage.size(); layer++) {
                    layers.add(new Layer(layer, List.copyOf(pools)));
                }
                names.addAll(ofStage);
            }
            SharedStorage.Format format = SharedStorageConnector.format(context, names);
            return new Pools(
                    context.modelLayout(),
                    layers,
                    firstLayers,
                    new SharedStorage(settings.root(), format, settings.layouts(), ticker, FileOperations.SYSTEM));
        }

        int firstLayer(Rank rank) {
            return Objects.requireNonNull(firstLayers.get(rank), "no pool");
        }

        /** Copies one layer of blocks into {@code packed}, which holds as many tokens as they. */
        void gather(int[] blocks, int layer, MemorySegment packed) {
            layers.get(layer).pools.forEach(pool -> copy(pool, blocks, layers.get(layer).inPool, packed, 0, false));
        }

        /** Fills one layer of blocks from {@code packed}, starting at its {@code firstToken}. */
        void scatter(int[] blocks, int layer, MemorySegment packed, int firstToken) {
            layers.get(layer)
                    .pools
                    .forEach(pool -> copy(pool, blocks, layers.get(layer).inPool, packed, firstToken, true));
        }

        private void copy(Pool from, int[] blocks, int layer, MemorySegment packed, int firstToken, boolean toPool) {
            KvCache cache = from.cache;
            KvLayout layout = cache.layout();
            long entry = layout.entryBytes();
            long token = model.kvHeads() * entry;
            MemorySegment pool = cache.memory();
            for (int i = 0; i < blocks.length; i++) {
                long inPool = cache.layerStart(blocks[i], layer);
                long block = (firstToken + (long) i * layout.blockSize()) * token;
                for (int head = 0; head < layout.kvHeads(); head++) {
                    long inPacked = block + (from.firstHead + head) * entry;
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
            return arena.allocate(tokens * (model.kvHeads() * model.entryBytes()), 64);
        }
    }

    /** One request's load or save. Its fields are guarded by its monitor. */
    abstract class Job {
        private final long startNanos = ticker.nanos();
        private long endNanos;
        private boolean over;
        private boolean lookedAt;
        private Optional<String> cause = Optional.empty();
        private String reason = "";
        private Optional<Thread> thread = Optional.empty();

        final synchronized Thread start(String name) {
            Thread started = Thread.ofVirtual().name(name).start(this::runGuarded);
            thread = Optional.of(started);
            return started;
        }

        /** Goes through the layers. Runs on the job's own thread, without the monitor. */
        abstract void run(Pools pools) throws StorageException, InterruptedException;

        private void runGuarded() {
            try {
                permits.acquire();
                try {
                    run(pools());
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

        /** Ends the job, unless it is over already. When this returns the job does not touch the pools any more. */
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

        /** True once: what became of the job is to be told once, whichever rank asks. */
        final synchronized boolean isFirstToLook() {
            boolean first = !lookedAt;
            lookedAt = true;
            return first;
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

    final class LoadJob extends Job {
        private final SharedStorageConnectorMetadata.Load load;
        private int loadedLayers;

        LoadJob(SharedStorageConnectorMetadata.Load load) {
            this.load = load;
        }

        @Override
        void run(Pools pools) throws StorageException {
            try (Arena arena = Arena.ofConfined()) {
                MemorySegment packed = pools.buffer(arena, load.entry().tokens());
                for (int layer = 0; layer < pools.layers.size(); layer++) {
                    pools.storage.read(load.entry(), layer, packed);
                    synchronized (this) {
                        if (isOver()) {
                            return;
                        }
                        pools.scatter(load.blocks(), layer, packed, load.firstToken());
                        loadedLayers++;
                        notifyAll();
                    }
                }
            } catch (StorageException e) {
                switch (e.fault()) {
                    case DIGEST, DAMAGED, MISSING -> pools.storage.distrust(load.entry());
                    case INCOMPATIBLE, FOREIGN, NO_SPACE, DENIED, IO -> {}
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

    final class SaveJob extends Job {
        private final SharedStorageConnectorMetadata.Save save;
        /** By rank, how many of its layers are in its pool. */
        private final Map<Rank, Integer> readyLayers = new HashMap<>();

        private final Set<Rank> mayCommit = new HashSet<>();
        private volatile boolean stored;

        SaveJob(SharedStorageConnectorMetadata.Save save) {
            this.save = save;
        }

        @Override
        void run(Pools pools) throws StorageException, InterruptedException {
            try (SharedStorage.Writer writer = pools.storage.write(save.name(), save.tokens());
                    Arena arena = Arena.ofConfined()) {
                MemorySegment packed = pools.buffer(arena, save.tokens());
                for (int layer = 0; layer < pools.layers.size(); layer++) {
                    synchronized (this) {
                        while (!isOver() && !isReady(pools, layer)) {
                            wait();
                        }
                        if (isOver()) {
                            return;
                        }
                        pools.gather(save.blocks(), layer, packed);
                    }
                    writer.layer(layer, packed);
                }
                synchronized (this) {
                    while (!isOver() && mayCommit.size() < caches.size()) {
                        wait();
                    }
                    if (isOver()) {
                        return;
                    }
                }
                stored = writer.commit();
            }
        }

        /** True if all ranks that have a part of the layer have computed it. */
        private boolean isReady(Pools pools, int layer) {
            return caches.keySet().stream()
                    .filter(rank -> {
                        int inPool = layer - pools.firstLayer(rank);
                        return inPool >= 0 && inPool < cache(rank).layout().layers();
                    })
                    .allMatch(rank -> readyLayers.getOrDefault(rank, 0) > layer - pools.firstLayer(rank));
        }

        synchronized void layerIsReady(Rank rank, int layer) {
            readyLayers.put(rank, layer + 1);
            notifyAll();
        }

        synchronized void mayCommit(Rank rank) {
            if (readyLayers.getOrDefault(rank, 0) < cache(rank).layout().layers()) {
                fail("abandoned", "not all layers were computed");
                return;
            }
            mayCommit.add(rank);
            notifyAll();
        }

        private KvCache cache(Rank rank) {
            return Objects.requireNonNull(caches.get(rank), "no pool");
        }
    }
}
