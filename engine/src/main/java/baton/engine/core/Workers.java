package baton.engine.core;

import baton.engine.CpuBinding;
import baton.engine.kernel.ParallelFor;
import baton.engine.model.Logits;
import baton.engine.model.ModelRanks;
import baton.engine.model.ModelRunner;
import baton.engine.model.ModelRunner.Comparison;
import baton.engine.model.ModelRunner.LoadedTokens;
import baton.engine.model.ModelRunner.SequenceSlice;
import baton.kv.Deadline;
import baton.kv.KvCache;
import baton.kv.KvTransferConfig;
import baton.kv.Ticker;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.HandshakeMetadata;
import baton.kv.connector.HiddenState;
import baton.kv.connector.KvConnector;
import baton.kv.connector.Rank;
import baton.kv.connector.ReportMerger;
import baton.kv.connector.WorkerConnector;
import baton.kv.connector.WorkerMetadata;
import baton.kv.connector.WorkerReport;
import baton.kv.staging.StagedConnector;
import baton.transfer.Region;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.SortedSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;
import java.util.function.Function;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The workers of all ranks, driven by the engine's thread. One rank alone runs on that thread; several, or one that is pinned to
 * cores, have a thread each. Every call returns when all ranks have done their part, so between two calls no rank runs. A call
 * fails if one rank fails, after all have ended.
 */
final class Workers implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(Workers.class);

    /** Longer than a rank waits for its peers, so a rank that is still running after this has failed. */
    private static final Duration TIMEOUT = Duration.ofMinutes(10);

    /**
     * The reports of the connectors of all ranks for a step.
     *
     * @param merged the reports of all ranks, merged
     * @param metadata of the reports, by rank; only of reports that had some
     */
    record StepReport(WorkerReport merged, Map<Rank, WorkerMetadata> metadata) {
        static final StepReport NOTHING = new StepReport(WorkerReport.NOTHING, Map.of());

        /** A report of measurements only. */
        StepReport measurementsOnly() {
            return new StepReport(new WorkerReport(Set.of(), Set.of(), Set.of(), merged.measurements()), Map.of());
        }
    }

    private final List<Worker> workers = new ArrayList<>();
    /** The rank of each worker. */
    private final List<Rank> ranks = new ArrayList<>();

    private final Map<Rank, HandshakeMetadata> handshakes = new HashMap<>();
    private final List<ExecutorService> threads = new ArrayList<>();
    private final Ticker ticker;
    private final int logitsRank;
    private boolean connected;
    private final boolean wantHidden;
    private final ReportMerger merger;
    private final ConnectorFailures failures;
    private Optional<String> stuck = Optional.empty();
    /** A connector could not be closed: its transfers may go on. */
    private boolean mayTransfer;

    /** The connector over staging pools, where it needs host memory and the ranks' pools are a device's. */
    static KvConnector staged(KvConnector connector, KvTransferConfig config, KvCache pool) {
        return StagedConnector.where(
                connector,
                config,
                pool,
                (arena, bytes) -> Region.allocate(arena, bytes, "the staging pool of a connector")
                        .asPool());
    }

    /**
     * @param context of the rank of the given runner
     * @param clock stopped by the rank that gives the logits
     * @param failures records the exceptions of the connectors in steps
     */
    Workers(
            ModelRanks ranks,
            CpuBinding binding,
            Optional<KvConnector> connector,
            Function<ModelRunner, ConnectorContext> context,
            Ticker ticker,
            StepClock clock,
            ConnectorFailures failures) {
        this.ticker = ticker;
        this.logitsRank = ranks.logitsRank();
        this.connected = connector.isPresent();
        this.merger = new ReportMerger(ranks.runners().size());
        this.failures = failures;
        try {
            List<SortedSet<Integer>> cores = binding.coresByRank();
            for (int i = 0; i < ranks.runners().size(); i++) {
                // One rank's time is the step's; the others compute meanwhile.
                make(
                        ranks.rank(i),
                        ranks.runners().get(i),
                        connector,
                        context,
                        i == ranks.logitsRank() ? clock : new StepClock(ticker),
                        failures);
                if (ranks.runners().size() > 1 || !cores.isEmpty()) {
                    threads.add(Executors.newSingleThreadExecutor(Thread.ofPlatform()
                            .name("rank-pp%d-tp%d"
                                    .formatted(
                                            ranks.rank(i).pipeline(),
                                            ranks.rank(i).tensor()))
                            .factory()));
                }
            }
            for (int i = 0; i < cores.size(); i++) {
                SortedSet<Integer> own = cores.get(i);
                results(List.of(threads.get(i).submit(() -> {
                    CpuAffinity.pin("cpu_bind", own);
                    return true;
                })));
            }
            this.wantHidden = workers.stream().anyMatch(Worker::wantsHidden);
        } catch (RuntimeException | Error e) {
            closeConnectors();
            threads.forEach(ExecutorService::shutdown);
            throw e;
        }
    }

    private void make(
            Rank rank,
            ModelRunner runner,
            Optional<KvConnector> kvConnector,
            Function<ModelRunner, ConnectorContext> context,
            StepClock clock,
            ConnectorFailures failures) {
        Optional<WorkerConnector> connector =
                kvConnector.map(c -> new GuardedWorker(c.worker(context.apply(runner), rank), failures));
        try {
            Worker worker = new Worker(runner, connector, clock);
            connector.flatMap(WorkerConnector::handshakeMetadata).ifPresent(metadata -> handshakes.put(rank, metadata));
            workers.add(worker);
            ranks.add(rank);
        } catch (RuntimeException | Error e) {
            connector.ifPresent(WorkerConnector::close);
            throw e;
        }
    }

    /** The handshake metadata of the ranks. */
    Map<Rank, HandshakeMetadata> handshakes() {
        return Map.copyOf(handshakes);
    }

    /** Begins a step: the connectors start their loads. */
    void startLoad(ConnectorMetadata metadata) {
        stuck.ifPresent(why -> {
            throw new IllegalStateException(why);
        });
        if (connected) {
            each(worker -> worker.startLoad(metadata));
        }
    }

    /** Whether {@link #forward} needs the ends of prompts. */
    boolean wantHidden() {
        return wantHidden;
    }

    /**
     * Computes a step.
     *
     * @param hiddenOf the requests with a prompt that ends with a slice, by its index; empty unless connectors {@link #wantHidden}
     * @param loaded tokens of slices to compare with the model's, by its index
     * @return its logits, none if there was nothing to compute; the caller closes them
     */
    Optional<Logits> forward(
            List<SequenceSlice> slices, Map<Integer, String> hiddenOf, Map<Integer, LoadedTokens> loaded) {
        if (slices.isEmpty()) {
            return Optional.empty();
        }
        List<Logits> computed = all(worker -> worker.forward(slices, hiddenOf, loaded), Logits::close);
        Logits logits = computed.get(logitsRank);
        for (int i = 0; i < computed.size(); i++) {
            if (i != logitsRank) {
                computed.get(i).close();
            }
        }
        return Optional.of(logits);
    }

    /** The comparison of the step's loaded tokens, by all ranks. */
    Comparison comparison() {
        return workers.stream().map(Worker::comparison).reduce(Comparison.NONE, Comparison::and);
    }

    /**
     * Finishes the ranks' saves of a step that all have computed, so that none waits for one that has failed.
     *
     * @param discarded requests of which nothing is to be saved
     */
    void finishSaves(Set<String> discarded) {
        // Ranks wait for each other's saves, in vain if a connector has failed.
        if (connected && !failures.any()) {
            if (!discarded.isEmpty()) {
                each(worker -> worker.discardSaves(discarded));
            }
            each(Worker::waitForSave);
        }
    }

    /** Has the rank that gives the logits work with its threads. */
    <T> T withThreads(Function<ParallelFor, T> work) {
        Worker worker = workers.get(logitsRank);
        if (threads.isEmpty()) {
            return work.apply(worker.threads());
        }
        return results(List.of(threads.get(logitsRank).submit(() -> work.apply(worker.threads()))))
                .getFirst();
    }

    /** The reports of the connectors of all ranks, this step's loads and saves included. */
    StepReport report(Set<String> finished) {
        if (!connected) {
            return StepReport.NOTHING;
        }
        List<WorkerReport> reports = all(worker -> worker.report(finished), _ -> {});
        Map<Rank, WorkerMetadata> metadata = new LinkedHashMap<>();
        for (int i = 0; i < reports.size(); i++) {
            Rank rank = ranks.get(i);
            reports.get(i).metadata().ifPresent(of -> metadata.put(rank, of));
        }
        return new StepReport(usable(merger.merge(reports)), Collections.unmodifiableMap(metadata));
    }

    /** Without hidden states that are not this model's. */
    private WorkerReport usable(WorkerReport report) {
        if (report.hidden().values().stream().allMatch(workers.get(logitsRank)::takes)) {
            return report;
        }
        Map<String, HiddenState> hidden = new HashMap<>(report.hidden());
        hidden.values().removeIf(state -> !workers.get(logitsRank).takes(state));
        LOG.warn(
                "Hidden states of requests {} are not this model's: their prompts' last tokens are computed here",
                report.hidden().keySet().stream()
                        .filter(id -> !hidden.containsKey(id))
                        .toList());
        return report.withHidden(hidden);
    }

    /** Closes the connectors, on their threads, for good. They are not called any more. */
    void disconnect() {
        connected = false;
        closeConnectors();
    }

    /** Closes the connectors on their threads, then the runners. */
    @Override
    public void close() {
        try {
            closeConnectors();
        } finally {
            threads.forEach(ExecutorService::shutdown);
            if (stuck.isPresent()) {
                LOG.error("The memory of the model stays allocated: {}", stuck.get());
            } else if (mayTransfer) {
                LOG.error("The memory of the model stays allocated: the connector could not be closed");
            } else {
                workers.reversed().forEach(Worker::closeRunner);
            }
        }
    }

    private void closeConnectors() {
        if (stuck.isEmpty()) {
            try {
                each(Worker::closeConnector);
            } catch (RuntimeException | Error e) {
                mayTransfer = true;
                throw e;
            }
        }
    }

    private void each(Consumer<Worker> action) {
        all(
                worker -> {
                    action.accept(worker);
                    return true;
                },
                _ -> {});
    }

    /** @param discard releases results if some rank has none */
    private <T> List<T> all(Function<Worker, T> action, Consumer<T> discard) {
        if (threads.isEmpty()) {
            List<T> results = new ArrayList<>();
            for (Worker worker : workers) {
                results.add(action.apply(worker));
            }
            return results;
        }
        List<Future<T>> futures = new ArrayList<>();
        for (int i = 0; i < threads.size(); i++) {
            Worker worker = workers.get(i);
            futures.add(threads.get(i).submit(() -> action.apply(worker)));
        }
        try {
            return results(futures);
        } catch (RuntimeException | Error e) {
            futures.stream()
                    .filter(future -> future.state() == Future.State.SUCCESS)
                    .forEach(future -> discard.accept(future.resultNow()));
            throw e;
        }
    }

    /** Waits for all, and throws the exception because of which the others failed. */
    private <T> List<T> results(List<Future<T>> futures) {
        Deadline deadline = Deadline.after(ticker, TIMEOUT);
        List<T> results = new ArrayList<>();
        List<Throwable> thrown = new ArrayList<>();
        boolean interrupted = false;
        for (int i = 0; i < futures.size(); ) {
            try {
                results.add(deadline.get(futures.get(i)));
                i++;
            } catch (ExecutionException e) {
                thrown.add(e.getCause() == null ? e : e.getCause());
                i++;
            } catch (InterruptedException e) {
                // Ranks compute in memory that the interrupted caller would free.
                interrupted = true;
            } catch (TimeoutException e) {
                stuck = Optional.of("rank %d has not ended its part of a step within %s".formatted(i, TIMEOUT));
                break;
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
        if (stuck.isPresent()) {
            throw new IllegalStateException(stuck.get());
        }
        if (thrown.isEmpty()) {
            return results;
        }
        Throwable first = thrown.stream()
                .filter(failure -> thrown.stream().noneMatch(other -> other.equals(failure.getCause())))
                .findFirst()
                .orElseThrow();
        thrown.stream().filter(other -> !other.equals(first)).forEach(first::addSuppressed);
        switch (first) {
            case RuntimeException e -> throw e;
            case Error e -> throw e;
            default -> throw new IllegalStateException("a rank has failed: " + first, first);
        }
    }
}
