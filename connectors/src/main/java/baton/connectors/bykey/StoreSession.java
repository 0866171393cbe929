package baton.connectors.bykey;

import baton.connectors.bykey.StoreConnectorMetadata.Load;
import baton.connectors.bykey.StoreConnectorMetadata.Save;
import baton.kv.BlockHash;
import baton.kv.Deadline;
import baton.kv.KvCache;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.Measurement;
import baton.kv.connector.Rank;
import baton.store.StoreTask;
import baton.store.ValueCache;
import baton.store.ValueRanges;
import baton.store.tiered.Tier;
import baton.store.tiered.TieredStore;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.BiConsumer;
import java.util.function.Consumer;
import java.util.function.Supplier;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The store and the pools of one engine, which both sides of its connector share. Copies between pools and store are for all ranks at once,
 * as these are threads of one process; the first rank's thread starts them, and every rank is notified of their ends.
 *
 * <p>Thread-safe. The store is called without the monitor.
 */
public final class StoreSession {
    private static final Logger log = LoggerFactory.getLogger(StoreSession.class);
    private static final String PREFIX = "vllm:kv_offload_";

    /** Copies in memory that are not over after this time have been lost. */
    private static final Duration CLOSE_TIMEOUT = Duration.ofSeconds(10);

    /** The limit for values on their way from memory to the stores behind it. */
    private static final Duration CASCADE_TIMEOUT = Duration.ofSeconds(30);

    private final ConnectorContext context;
    private final TieredStore store;
    private final StorePolicy policy;
    private final int ranks;

    @GuardedBy("this")
    private final Map<Rank, KvCache> caches = new LinkedHashMap<>();

    @GuardedBy("this")
    private List<PoolRanges> pools = List.of();

    /** For each rank, the results that it has not reported. */
    @GuardedBy("this")
    private final Map<Rank, Deque<Loaded>> loaded = new HashMap<>();

    @GuardedBy("this")
    private final List<Long> saved = new ArrayList<>();

    /** Saves under way, by the request. */
    @GuardedBy("this")
    private final Map<String, Set<StoreTask>> saving = new HashMap<>();

    /** Copies that may use the pools. */
    @GuardedBy("this")
    private final Set<StoreTask> copies = new HashSet<>();

    @GuardedBy("this")
    private final List<Measurement> measurements = new ArrayList<>();

    @GuardedBy("this")
    private boolean stopped;

    /** Sides that have not been closed. */
    @GuardedBy("this")
    private int open;

    /**
     * A load that is over.
     *
     * @param invalid blocks that were not filled
     */
    record Loaded(String requestId, Set<Integer> invalid, boolean withinStep) {}

    /**
     * A session of memory and of the stores behind it.
     *
     * @param acquire the longest that a request waits for values that are not in memory
     * @param behind opens the stores, the fastest first, and adds each; the memory and these are closed if it fails
     */
    public static StoreSession open(
            ConnectorContext context,
            ValueCache memory,
            StorePolicy policy,
            Duration acquire,
            Consumer<List<Tier>> behind) {
        List<Tier> tiers = new ArrayList<>();
        try {
            behind.accept(tiers);
        } catch (RuntimeException e) {
            tiers.forEach(tier -> tier.store().close());
            memory.close();
            throw e;
        }
        TieredStore.Timeouts timeouts = new TieredStore.Timeouts(acquire, CASCADE_TIMEOUT);
        return new StoreSession(context, new TieredStore(memory, tiers, timeouts, context.ticker()), policy);
    }

    /** @param store closed with the last side */
    public StoreSession(ConnectorContext context, TieredStore store, StorePolicy policy) {
        this.context = context;
        this.store = store;
        this.policy = policy;
        this.ranks = context.tensorParallelSize() * context.pipelineParallelSize();
    }

    public TieredStore store() {
        return store;
    }

    StorePolicy policy() {
        return policy;
    }

    /** Adds measurements to those of the store. */
    public synchronized void measured(List<Measurement> more) {
        measurements.addAll(more);
    }

    /** A side has been made, which will call {@link #sideClosed}. */
    synchronized void sideOpened() {
        open++;
    }

    synchronized void register(Rank rank, KvCache cache) {
        caches.put(rank, cache);
        loaded.put(rank, new ArrayDeque<>());
        if (caches.size() < ranks) {
            return;
        }
        List<PoolRanges> all = new ArrayList<>();
        int layers = 0;
        for (int stage = 0; stage < context.pipelineParallelSize(); stage++) {
            int ofStage = 0;
            for (int tensor = 0; tensor < context.tensorParallelSize(); tensor++) {
                Rank each = new Rank(stage, tensor);
                KvCache pool = caches.get(each);
                if (pool == null) {
                    throw new IllegalStateException("no pool of rank " + each);
                }
                all.add(PoolRanges.of(pool, context.modelLayout(), each, layers, context.tensorParallelSize()));
                ofStage = pool.layout().layers();
            }
            layers += ofStage;
        }
        pools = List.copyOf(all);
    }

    /** Starts a load. */
    void load(Load load) {
        int perChunk = store.format().blocksPerChunk();
        List<ValueRanges> ranges = ranges(true, (pool, to) -> {
            for (int i = 0; i < load.blocks().length; i++) {
                int place = load.places()[i];
                pool.add(to, place / perChunk, place % perChunk, load.blocks()[i]);
            }
        });
        long start = context.ticker().nanos();
        StoreTask task = start(load.keys(), () -> store.memory().get(load.keys(), ranges, deadline()));
        task.onQuiet(() -> {
            task.cancel();
            Set<Integer> invalid = new HashSet<>();
            for (int i = 0; i < load.blocks().length; i++) {
                if (!task.succeeded(load.places()[i] / perChunk)) {
                    invalid.add(load.blocks()[i]);
                }
            }
            synchronized (this) {
                copies.remove(task);
                measure("load", task, start);
                for (Deque<Loaded> ofRank : loaded.values()) {
                    ofRank.add(new Loaded(load.requestId(), invalid, load.withinStep()));
                }
                notifyAll();
            }
            if (!invalid.isEmpty()) {
                log.warn(
                        "request {}: {} of {} blocks could not be loaded from memory",
                        load.requestId(),
                        invalid.size(),
                        load.blocks().length);
            }
            context.wake().run();
        });
    }

    /** Returns when the loads of these requests, of one step, are over. */
    void awaitLoaded(Rank rank, Set<String> requests) {
        synchronized (this) {
            // The loads have begun, and end at deadlines of their own.
            Deadline later = Deadline.after(context.ticker(), policy.copy().multipliedBy(2));
            if (!later.awaitUninterruptibly(this, () -> isLoaded(rank, requests))) {
                throw new IllegalStateException("loads of " + requests + " are not over");
            }
        }
    }

    private synchronized boolean isLoaded(Rank rank, Set<String> requests) {
        return loaded.getOrDefault(rank, new ArrayDeque<>()).stream()
                .map(Loaded::requestId)
                .toList()
                .containsAll(requests);
    }

    /** Starts a save. */
    void save(Save save) {
        int perChunk = store.format().blocksPerChunk();
        List<ValueRanges> ranges = ranges(false, (pool, from) -> {
            for (int i = 0; i < save.blocks().length; i++) {
                pool.add(from, i / perChunk, i % perChunk, save.blocks()[i]);
            }
        });
        long start = context.ticker().nanos();
        StoreTask task = start(save.keys(), () -> store.put(save.keys(), ranges, deadline()));
        synchronized (this) {
            saving.computeIfAbsent(save.requestId(), _ -> new HashSet<>()).add(task);
        }
        task.onQuiet(() -> {
            synchronized (this) {
                copies.remove(task);
                Set<StoreTask> ofRequest = saving.get(save.requestId());
                if (ofRequest != null && ofRequest.remove(task) && ofRequest.isEmpty()) {
                    saving.remove(save.requestId());
                }
                measure("store", task, start);
                saved.add(save.id());
            }
            context.wake().run();
        });
    }

    /** A save that will not be started. */
    synchronized void dropped(Save save) {
        saved.add(save.id());
    }

    /**
     * @param copiesToo whether pools count that have the same heads as another
     * @param filler adds a pool's ranges
     */
    private List<ValueRanges> ranges(boolean copiesToo, BiConsumer<PoolRanges, ValueRanges> filler) {
        List<PoolRanges> all;
        synchronized (this) {
            all = pools;
        }
        List<ValueRanges> lists = new ArrayList<>(all.size());
        for (PoolRanges pool : all) {
            if (copiesToo || !pool.copy()) {
                ValueRanges ranges = pool.ranges();
                filler.accept(pool, ranges);
                lists.add(ranges);
            }
        }
        return lists;
    }

    private StoreTask start(List<BlockHash> keys, Supplier<StoreTask> starter) {
        synchronized (this) {
            if (stopped) {
                return StoreTask.rejected(keys.size(), deadline());
            }
        }
        StoreTask task = starter.get();
        boolean cancel;
        synchronized (this) {
            copies.add(task);
            cancel = stopped;
        }
        if (cancel) {
            task.cancel();
        }
        return task;
    }

    private Deadline deadline() {
        return Deadline.after(context.ticker(), policy.copy());
    }

    @GuardedBy("this")
    private void measure(String what, StoreTask task, long start) {
        long bytes = task.succeededCount() * store.format().valueBytes();
        if (bytes > 0) {
            measurements.add(Measurement.count(PREFIX + what + "_bytes", bytes));
            measurements.add(
                    Measurement.count(PREFIX + what + "_time", (context.ticker().nanos() - start) / 1e9));
            measurements.add(Measurement.bytes(PREFIX + what + "_size", bytes));
        }
    }

    /** Returns when no save of these requests reads the pools any more. */
    void flush(Set<String> requests) {
        List<StoreTask> tasks = new ArrayList<>();
        synchronized (this) {
            for (String request : requests) {
                tasks.addAll(saving.getOrDefault(request, Set.of()));
            }
        }
        if (!tasks.isEmpty()) {
            tasks.forEach(StoreTask::cancel);
            awaitQuiet(tasks, "saves of " + requests);
        }
    }

    private void awaitQuiet(List<StoreTask> tasks, String what) {
        Deadline deadline = Deadline.after(context.ticker(), CLOSE_TIMEOUT);
        Object quiet = new Object();
        for (StoreTask task : tasks) {
            task.onQuiet(() -> {
                synchronized (quiet) {
                    quiet.notifyAll();
                }
            });
        }
        synchronized (quiet) {
            if (!deadline.awaitUninterruptibly(quiet, () -> tasks.stream().allMatch(StoreTask::isQuiet))) {
                throw new IllegalStateException(what + " still use the pool after " + CLOSE_TIMEOUT.toSeconds() + " s");
            }
        }
    }

    /** Loads that are over and not reported by this rank. */
    synchronized List<Loaded> takeLoaded(Rank rank) {
        Deque<Loaded> ofRank = loaded.getOrDefault(rank, new ArrayDeque<>());
        List<Loaded> taken = List.copyOf(ofRank);
        ofRank.clear();
        return taken;
    }

    /** Saves that are over. */
    synchronized List<Long> takeSaved() {
        List<Long> taken = List.copyOf(saved);
        saved.clear();
        return taken;
    }

    synchronized boolean isBusy() {
        return !copies.isEmpty() || !saved.isEmpty();
    }

    List<Measurement> takeMeasurements() {
        List<Measurement> taken = new ArrayList<>();
        synchronized (this) {
            taken.addAll(measurements);
            measurements.clear();
        }
        taken.addAll(store.takeMeasurements());
        return taken;
    }

    /** Ends all copies: when this returns none uses the pools. */
    void stop() {
        List<StoreTask> tasks;
        synchronized (this) {
            stopped = true;
            tasks = List.copyOf(copies);
        }
        tasks.forEach(StoreTask::cancel);
        awaitQuiet(tasks, "copies");
    }

    /** Closes the store with the last side. */
    void sideClosed() {
        synchronized (this) {
            if (--open != 0) {
                return;
            }
        }
        store.close();
    }
}
