package baton.connectors.sharedstorage;

import baton.kv.Deadline;
import baton.kv.KvCache;
import baton.kv.Ticker;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.Measurement;
import baton.kv.connector.Rank;
import baton.kv.connector.WorkerReport;
import baton.store.FileOperations;
import baton.store.IoTasks;
import baton.store.IoThreads;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Optional;
import java.util.SequencedMap;
import java.util.Set;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Moves layers between files and the pools while the forward pass computes. One for all ranks of an engine: whatever the ranks'
 * shares, a file holds all heads of a layer and an entry all layers, so each load and each save of a step concerns all pools.
 *
 * <p>Each load and each save of a step is a {@link StepJob}. The ranks' threads tell save jobs which layers are in their pools, and wait
 * for load jobs layer by layer. At most {@value #CONCURRENT_JOBS} jobs use files, and hold a buffer of one layer, at once. When so many
 * hang, jobs of later steps fail at once and are not waited for.
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

    private static final Duration CLOSE_TIMEOUT = Duration.ofSeconds(5);

    private final ConnectorContext context;
    private final SharedStorageSettings settings;
    private final Ticker ticker;
    private final IoThreads threads;
    private final FileOperations files;
    private final IoTasks tasks;
    private final SequencedMap<Rank, KvCache> caches = new LinkedHashMap<>();
    private final Set<Integer> invalidBlocks = new HashSet<>();
    private final List<Measurement> measurements = new ArrayList<>();
    private Optional<RankPools> pools = Optional.empty();
    private Step step = new Step(0, List.of(), List.of());

    StepFileIo(ConnectorContext context, SharedStorageSettings settings, IoThreads threads, FileOperations files) {
        this.context = context;
        this.settings = settings;
        this.threads = threads;
        this.files = files;
        this.tasks = new IoTasks(threads, CONCURRENT_JOBS, Integer.MAX_VALUE);
        this.ticker = context.ticker();
    }

    /** A rank's pool. All ranks' come before the first step. */
    synchronized void register(Rank rank, KvCache cache) {
        caches.put(rank, cache);
        if (caches.size() == context.tensorParallelSize() * context.pipelineParallelSize()) {
            pools = Optional.of(RankPools.of(caches, context, settings, files));
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

        List<LoadJob> loads = new ArrayList<>();
        List<SaveJob> saves = new ArrayList<>();
        if (metadata instanceof SharedStorageConnectorMetadata plan) {
            for (SharedStorageConnectorMetadata.Load load : plan.loads()) {
                loads.add(new LoadJob(load, pools(), settings.timeout().toNanos(), tasks, threads, ticker));
            }
            for (SharedStorageConnectorMetadata.Save save : plan.saves()) {
                saves.add(new SaveJob(save, pools(), tasks, threads, ticker));
            }
        }
        loads.forEach(StepJob::begin);
        saves.forEach(StepJob::begin);
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
            if (Collections.disjoint(invalid, save.save().blockSet())) {
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

    /** Ends what is under way; returns when no job uses a pool, and, unless a file hangs, when no task is left. */
    synchronized void close() {
        step.loads.forEach(load -> load.fail("closed"));
        step.saves.forEach(save -> save.fail("closed"));
        step = new Step(step.number, List.of(), List.of());
        Deadline deadline = Deadline.after(Ticker.system(), CLOSE_TIMEOUT);
        try {
            while (!tasks.isIdle() && !deadline.isOver()) {
                tasks.awaitChange();
            }
            if (!tasks.isIdle()) {
                log.warn("{} does not answer; some of what was being written may be left there", settings.root());
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private void finishLoads(Step current) {
        for (LoadJob job : current.loads) {
            job.awaitEnd(job.deadline());
            if (job.isFirstReport()) {
                record(job);
            }
        }
    }

    private synchronized void record(LoadJob job) {
        SharedStorageConnectorMetadata.Load load = job.load();
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
            if (job.isFirstReport()) {
                record(job, computed);
            }
        }
    }

    private synchronized void record(SaveJob job, long computed) {
        Optional<String> cause = job.cause();
        if (cause.isPresent()) {
            measurements.add(Measurement.count("baton:kv_save_failures", 1, "cause", cause.get()));
            log.debug("request {}: its KV was not saved: {}", job.save().requestId(), job.reason());
        } else if (job.isStored()) {
            measurements.add(
                    Measurement.count("baton:kv_save_bytes", bytes(job.save().blocks())));
            measurements.add(Measurement.seconds("baton:kv_save", job.secondsAfter(computed)));
        }
    }

    private double bytes(int[] blocks) {
        return blocks.length * (double) context.modelLayout().blockBytes();
    }

    private RankPools pools() {
        return pools.orElseThrow(() -> new IllegalStateException("all ranks must register first"));
    }
}
