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
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.SequencedMap;
import java.util.Set;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Moves layers between files and the pools. One for all ranks of an engine: whatever the ranks' shares, a file holds all heads of a layer
 * and an entry all layers, so each load and each save concerns all pools.
 *
 * <p>A load runs between steps, beside those of other requests, while its request waits: no step waits for it. A save runs within the step
 * that computes the last of its tokens, layer by layer as the ranks' threads report which are in their pools, and the step waits for it: a
 * prompt that is answered is in the storage, so a consumer that is asked next finds it. At most {@value #CONCURRENT_JOBS} jobs of either
 * kind use files, and hold a buffer of one layer, at once. When so many saves hang, those of later steps fail at once and are not waited
 * for; loads that hang are failed when their time is over.
 *
 * <h2>Failures</h2>
 *
 * A load that fails makes all blocks of its load invalid. A save is committed only when all ranks have computed all their layers.
 */
final class FileTransfers {
    private static final Logger log = LoggerFactory.getLogger(FileTransfers.class);

    private static final int CONCURRENT_JOBS = 8;

    private static final Duration CLOSE_TIMEOUT = Duration.ofSeconds(5);

    private static final WorkerReport BUSY = new WorkerReport(Set.of(), Set.of(), Set.of(), List.of(), true);

    private final ConnectorContext context;
    private final SharedStorageSettings settings;
    private final Ticker ticker;
    private final IoThreads threads;
    private final FileOperations files;
    private final IoTasks loadTasks;
    private final IoTasks saveTasks;
    private final SequencedMap<Rank, KvCache> caches = new LinkedHashMap<>();

    /** Loads that no rank has seen the end of. */
    private final List<LoadJob> loads = new ArrayList<>();

    /** For each rank, the finished loads that it has not reported. */
    private final Map<Rank, List<Loaded>> loaded = new HashMap<>();

    private final List<Measurement> measurements = new ArrayList<>();
    private Optional<RankPools> pools = Optional.empty();
    private Step step = new Step(0, List.of());

    /**
     * A load that is over.
     *
     * @param invalid blocks that were not filled
     * @param verified whether the files have checksums
     */
    private record Loaded(String requestId, Set<Integer> invalid, boolean verified) {}

    FileTransfers(ConnectorContext context, SharedStorageSettings settings, IoThreads threads, FileOperations files) {
        this.context = context;
        this.settings = settings;
        this.threads = threads;
        this.files = files;
        this.loadTasks = new IoTasks(threads, CONCURRENT_JOBS, Integer.MAX_VALUE);
        this.saveTasks = new IoTasks(threads, CONCURRENT_JOBS, Integer.MAX_VALUE);
        this.ticker = context.ticker();
    }

    /** A rank's pool. All ranks' come before the first step. */
    synchronized void register(Rank rank, KvCache cache) {
        caches.put(rank, cache);
        loaded.put(rank, new ArrayList<>());
        if (caches.size() == context.tensorParallelSize() * context.pipelineParallelSize()) {
            pools = Optional.of(RankPools.of(caches, context, settings, files));
        }
    }

    /** One step's saves, the same for all ranks. */
    record Step(long number, List<SaveJob> saves) {}

    /** Begins a step, the rank's {@code number}th: the first rank to come starts its jobs. */
    synchronized Step begin(long number, ConnectorMetadata metadata) {
        if (step.number == number) {
            return step;
        }
        // Whatever an interrupted step has left.
        step.saves.forEach(save -> save.fail("abandoned"));
        finishSaves(step, ticker.nanos());

        List<SaveJob> saves = new ArrayList<>();
        if (metadata instanceof SharedStorageConnectorMetadata plan) {
            for (SharedStorageConnectorMetadata.Load load : plan.loads()) {
                LoadJob job = new LoadJob(load, pools(), settings.timeout().toNanos(), loadTasks, threads, context);
                loads.add(job);
                job.begin();
            }
            for (SharedStorageConnectorMetadata.Save save : plan.saves()) {
                SaveJob job = new SaveJob(save, pools(), saveTasks, threads, ticker);
                saves.add(job);
                job.begin();
            }
        }
        step = new Step(number, List.copyOf(saves));
        return step;
    }

    /** The rank's layer is in its pool, and stays so until {@link #finish} returns. */
    void layerIsReady(Step current, Rank rank, int layer) {
        current.saves.forEach(save -> save.layerIsReady(rank, layer));
    }

    /** Fails the step's saves of these requests. */
    void discard(Step current, Set<String> requestIds) {
        current.saves.stream()
                .filter(save -> requestIds.contains(save.save().requestId()))
                .forEach(save -> save.fail("wrong", "the results of the step are wrong"));
    }

    /** The rank has computed its part of the step. Returns when all ranks have and the step's saves are over. */
    void finish(Step current, Rank rank) {
        current.saves.forEach(save -> save.mayCommit(rank));
        finishSaves(current, ticker.nanos() + settings.timeout().toNanos());
    }

    /** Saving overlaps with computing; its measured time is the step's wait after its last layer. */
    private void finishSaves(Step current, long deadline) {
        long computed = ticker.nanos();
        for (SaveJob job : current.saves) {
            job.awaitEnd(deadline);
            if (job.isFirstReport()) {
                record(job, computed);
            }
        }
    }

    /** The events since the rank's last report. Measurements are in one rank's only. */
    synchronized WorkerReport report(Rank rank) {
        for (LoadJob job : List.copyOf(loads)) {
            job.expire();
            if (job.isOver()) {
                loads.remove(job);
                record(job);
            }
        }
        List<Loaded> own = loaded.getOrDefault(rank, List.of());
        if (own.isEmpty() && measurements.isEmpty()) {
            return loads.isEmpty() ? WorkerReport.NOTHING : BUSY;
        }
        Set<String> received = new LinkedHashSet<>();
        Set<Integer> invalid = new LinkedHashSet<>();
        Set<String> unverified = new LinkedHashSet<>();
        for (Loaded each : own) {
            received.add(each.requestId());
            invalid.addAll(each.invalid());
            if (!each.verified()) {
                unverified.add(each.requestId());
            }
        }
        WorkerReport report = new WorkerReport(Set.of(), received, invalid, measurements, !loads.isEmpty())
                .withUnverified(unverified);
        own.clear();
        measurements.clear();
        return report;
    }

    private synchronized void record(LoadJob job) {
        SharedStorageConnectorMetadata.Load load = job.load();
        Optional<String> cause = job.cause();
        if (cause.isPresent()) {
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
        Loaded over = new Loaded(
                load.requestId(),
                cause.isPresent() ? load.blockSet() : Set.of(),
                load.entry().proven());
        loaded.values().forEach(ofRank -> ofRank.add(over));
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

    /** Ends all jobs; returns when no job uses a pool, and, unless a file hangs, when no task is left. */
    synchronized void close() {
        loads.forEach(load -> load.fail("closed"));
        loads.clear();
        step.saves.forEach(save -> save.fail("closed"));
        step = new Step(step.number, List.of());
        Deadline deadline = Deadline.after(Ticker.system(), CLOSE_TIMEOUT);
        try {
            for (IoTasks tasks : List.of(loadTasks, saveTasks)) {
                while (!tasks.isIdle() && !deadline.isOver()) {
                    tasks.awaitChange();
                }
                if (!tasks.isIdle()) {
                    log.warn("{} does not answer; unfinished files may be left there", settings.root());
                }
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private double bytes(int[] blocks) {
        return blocks.length * (double) context.modelLayout().blockBytes();
    }

    private RankPools pools() {
        return pools.orElseThrow(() -> new IllegalStateException("all ranks must register first"));
    }
}
