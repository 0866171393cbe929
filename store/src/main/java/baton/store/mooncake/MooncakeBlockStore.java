package baton.store.mooncake;

import baton.kv.BlockHash;
import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.kv.connector.Measurement;
import baton.store.BatchRanges;
import baton.store.BlockStore;
import baton.store.IoTasks;
import baton.store.IoThreads;
import baton.store.StoreEvent;
import baton.store.StoreFormat;
import baton.store.StoreTask;
import baton.store.SystemIoThreads;
import baton.store.ValueRanges;
import baton.store.remote.Breaker;
import baton.store.remote.Failure;
import baton.store.remote.StoreCounters;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.io.Closeable;
import java.lang.foreign.Arena;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Keeps values in a Mooncake store, each as one object for every share of its heads and layers ({@link ObjectLayout}), which is there when all
 * of them are. An object that does not verify is a miss, counted by its cause, and removed, for which readers' leases on it have to end first.
 *
 * <p>The store decides how much it keeps and which objects it evicts; there are no events of its evictions. While it is away, operations
 * are rejected at once; one tries again after a second.
 */
public final class MooncakeBlockStore implements BlockStore {
    private static final Logger log = LoggerFactory.getLogger(MooncakeBlockStore.class);
    /** The store's name in measurements and logs. */
    static final String NAME = "mooncake";

    private static final Duration CLOSE_TIMEOUT = Duration.ofSeconds(10);

    /** Tasks that wait for a thread. */
    private static final int QUEUED = 256;

    /** Calls of the library at once. */
    private static final int PARALLEL_CALLS = 4;

    /** The limit of values in a call that serves several. */
    private static final long MOST_BYTES_OF_CALL = 32L << 20;

    private final StoreFormat format;
    private final ObjectFormat objects;
    private final ObjectClient client;
    private final Options options;
    private final Ticker ticker;
    private final int keysPerCall;
    private final IoTasks readers;
    private final IoTasks writers;
    private final Breaker reads;
    private final Breaker writes;
    private final StoreCounters counters;
    private final KeyCall.Means means;
    private final Arena arena = Arena.ofShared();

    @GuardedBy("this")
    private final Deque<ObjectBuffers> stagings = new ArrayDeque<>();

    @GuardedBy("this")
    private final Set<Operation> operations = new HashSet<>();

    @GuardedBy("this")
    private boolean closed;

    /**
     * @param parallel calls for reading at once, and as many for writing
     * @param pause in which nothing is tried after the store has failed
     * @param lease for which a reader keeps others from removing an object: {@code default_kv_lease_ttl} of the master, and a little more
     */
    record Options(int parallel, Duration pause, Duration lease) {
        /** Options with so many calls at once. */
        static Options of(int parallel) {
            return new Options(parallel, Duration.ofSeconds(1), Duration.ofSeconds(11));
        }
    }

    private enum Kind {
        CONTAINS,
        GET,
        PUT
    }

    private MooncakeBlockStore(
            StoreFormat format,
            ObjectFormat objects,
            ObjectClient client,
            Options options,
            IoThreads threads,
            Ticker ticker) {
        this.format = format;
        this.objects = objects;
        this.client = client;
        this.options = options;
        this.ticker = ticker;
        keysPerCall = (int)
                Math.clamp(client.batch() / objects.shares(), 1, Math.max(1, MOST_BYTES_OF_CALL / format.valueBytes()));
        readers = new IoTasks(threads, options.parallel(), QUEUED);
        writers = new IoTasks(threads, options.parallel(), QUEUED);
        reads = new Breaker(ticker, options.pause());
        writes = new Breaker(ticker, options.pause());
        counters = new StoreCounters(NAME);
        means = new KeyCall.Means(
                client, objects, format.valueBytes(), counters, new DamagedKeys(), ticker, options.lease());
    }

    /**
     * Opens a store through its REST service. Returns at once: the service needs not be there.
     *
     * @throws baton.kv.ConfigException if values of this format are too large for it
     */
    public static MooncakeBlockStore open(StoreFormat format, MooncakeNames names, MooncakeRest rest, Ticker ticker) {
        return open(
                format,
                ObjectFormat.ofRest(format, names),
                new RestClient(rest.url(), rest.connectTimeout()),
                Options.of(rest.connections()),
                new SystemIoThreads(),
                ticker);
    }

    /**
     * Opens a store through its library, as a client that other clients may read from.
     *
     * @param vllm whether the objects are vLLM's, with {@link MooncakeNames#tensorShares} as {@code store_tp_size} and without Baton's
     *     header
     * @throws IllegalStateException if the store cannot be reached
     */
    public static MooncakeBlockStore open(
            StoreFormat format,
            MooncakeNames names,
            boolean vllm,
            StoreLibrary.Found library,
            MooncakeSetup setup,
            Ticker ticker) {
        ObjectFormat objects = vllm ? ObjectFormat.ofVllm(format, names) : ObjectFormat.ofBaton(format, names);
        return open(
                format,
                objects,
                NativeClient.open(library, setup, ticker),
                Options.of(PARALLEL_CALLS),
                new SystemIoThreads(),
                ticker);
    }

    /**
     * Gives a store memory of this process, and uses nothing of it.
     *
     * @return to be closed when the memory is wanted back
     * @throws IllegalStateException if the store cannot be reached, or does not take the memory
     */
    public static Closeable mount(StoreLibrary.Found library, MooncakeSetup setup, Ticker ticker) {
        return NativeClient.open(library, setup, ticker)::close;
    }

    /** Takes the client over: it is closed with the store. */
    static MooncakeBlockStore open(
            StoreFormat format,
            ObjectFormat objects,
            ObjectClient client,
            Options options,
            IoThreads threads,
            Ticker ticker) {
        try {
            objects.requireAtMost(client.mostBytes());
            return new MooncakeBlockStore(format, objects, client, options, threads, ticker);
        } catch (RuntimeException e) {
            client.close();
            throw e;
        }
    }

    @Override
    public String name() {
        return NAME;
    }

    @Override
    public StoreFormat format() {
        return format;
    }

    @Override
    public StoreTask contains(List<BlockHash> keys, Deadline deadline) {
        return start(Kind.CONTAINS, keys, new BatchRanges(List.of(), keys.size(), format.valueBytes()), deadline);
    }

    @Override
    public StoreTask get(List<BlockHash> keys, List<ValueRanges> to, Deadline deadline) {
        return start(Kind.GET, keys, new BatchRanges(to, keys.size(), format.valueBytes()), deadline);
    }

    /** @throws IllegalArgumentException if the ranges of a key are not a value */
    @Override
    public StoreTask put(List<BlockHash> keys, List<ValueRanges> from, Deadline deadline) {
        return start(Kind.PUT, keys, BatchRanges.ofValues(from, keys.size(), format.valueBytes()), deadline);
    }

    private StoreTask start(Kind kind, List<BlockHash> keys, BatchRanges ranges, Deadline deadline) {
        if (keys.isEmpty() || deadline.isOver()) {
            counters.failed(Failure.TIMEOUT, keys.size());
            return StoreTask.rejected(keys.size(), deadline);
        }
        Operation operation = new Operation(kind, new StoreTask(keys.size(), deadline), keys, ranges);
        Optional<Outcome> rejected = admit(operation);
        if (rejected.isPresent()) {
            counters.failed(rejected.get().failure(), keys.size());
            return StoreTask.rejected(keys.size(), deadline);
        }
        operation.start();
        return operation.task;
    }

    private synchronized Optional<Outcome> admit(Operation operation) {
        if (closed) {
            return Optional.of(Outcome.CLOSED);
        }
        if (!operation.breaker().admits()) {
            return Optional.of(Outcome.PAUSED);
        }
        operations.add(operation);
        return Optional.empty();
    }

    private synchronized void ended(Operation operation) {
        operations.remove(operation);
    }

    private ObjectBuffers staging() {
        synchronized (this) {
            ObjectBuffers free = stagings.pollFirst();
            if (free != null) {
                return free;
            }
        }
        ObjectBuffers made = new ObjectBuffers(
                objects, arena.allocate(format.valueBytes(), 64), arena.allocate(keysPerCall * objects.bytes(), 64));
        client.register(made.objects());
        return made;
    }

    private synchronized void giveBack(ObjectBuffers staging) {
        stagings.addFirst(staging);
    }

    /** A batch of keys, served by several threads, each of which takes the next few keys. */
    private final class Operation implements KeyCall.Batch {
        private final Kind kind;
        private final StoreTask task;
        private final List<BlockHash> keys;
        private final BatchRanges ranges;

        @GuardedBy("this")
        private int next;

        /** Threads that work on it, and one more until all of them have been asked for. */
        @GuardedBy("this")
        private int workers = 1;

        /** Why the keys that are left are not tried. */
        @GuardedBy("this")
        private @Nullable Outcome given;

        Operation(Kind kind, StoreTask task, List<BlockHash> keys, BatchRanges ranges) {
            this.kind = kind;
            this.task = task;
            this.keys = List.copyOf(keys);
            this.ranges = ranges;
        }

        Breaker breaker() {
            return kind == Kind.PUT ? writes : reads;
        }

        void start() {
            IoTasks threads = kind == Kind.PUT ? writers : readers;
            int wanted = Math.min(options.parallel(), Math.ceilDiv(keys.size(), keysPerCall));
            for (int i = 0; i < wanted; i++) {
                synchronized (this) {
                    workers++;
                }
                boolean accepted = threads.submit(new IoTasks.Task() {
                    @Override
                    public void run() {
                        try {
                            work();
                        } finally {
                            workerEnded();
                        }
                    }

                    @Override
                    public boolean isOverdue() {
                        return task.deadline().isOver();
                    }
                });
                if (!accepted) {
                    giveUp(i == 0 ? Optional.of(Outcome.QUEUE_FULL) : Optional.empty());
                    workerEnded();
                    break;
                }
            }
            workerEnded();
        }

        private synchronized void giveUp(Optional<Outcome> cause) {
            if (given == null && cause.isPresent()) {
                given = cause.get();
            }
        }

        private synchronized int take() {
            int from = next;
            if (given != null || from >= keys.size() || task.isDone()) {
                return -1;
            }
            next += keysPerCall;
            return from;
        }

        private void work() {
            ObjectBuffers staging;
            try {
                staging = staging();
            } catch (OutOfMemoryError | IllegalStateException e) {
                log.warn("no memory for objects of {}: {}", name(), e.getMessage());
                giveUp(Optional.of(Outcome.OUT_OF_MEMORY));
                return;
            }
            try {
                for (int from = take(); from >= 0; from = take()) {
                    KeyCall call = new KeyCall(means, this, from, Math.min(keys.size(), from + keysPerCall), staging);
                    switch (kind) {
                        case CONTAINS -> call.contains();
                        case GET -> call.get();
                        case PUT -> call.put();
                    }
                }
            } finally {
                giveBack(staging);
            }
        }

        private void workerEnded() {
            int left;
            Outcome why;
            synchronized (this) {
                if (--workers > 0) {
                    return;
                }
                left = Math.max(0, keys.size() - next);
                why = given;
            }
            if (left > 0) {
                if (why != null) {
                    counters.failed(why.failure(), left);
                } else if (task.deadline().isOver()) {
                    counters.failed(Failure.TIMEOUT, left);
                }
            }
            ended(this);
            task.end();
        }

        @Override
        public BlockHash key(int index) {
            return keys.get(index);
        }

        @Override
        public BatchRanges ranges() {
            return ranges;
        }

        @Override
        public Deadline deadline() {
            return task.deadline();
        }

        @Override
        public void succeeded(int index) {
            answered();
            task.succeed(index);
        }

        @Override
        public void answered() {
            breaker().succeeded();
        }

        @Override
        public void failed(Outcome cause) {
            counters.failed(cause.failure(), 1);
            if (cause.isOfStore()) {
                giveUp(Optional.of(cause));
                reads.refused();
                writes.refused();
            } else if (kind == Kind.PUT && !cause.isOfValue() && cause != Outcome.LEASED) {
                writes.refused();
            }
        }
    }

    @Override
    public List<StoreEvent> takeEvents() {
        return counters.takeEvents();
    }

    @Override
    public boolean hasReadUnverified() {
        return counters.hasUnverified();
    }

    @Override
    public List<Measurement> takeMeasurements() {
        return counters.takeCounts();
    }

    @Override
    public void close() {
        List<Operation> last;
        synchronized (this) {
            if (closed) {
                return;
            }
            closed = true;
            last = List.copyOf(operations);
        }
        last.forEach(operation -> operation.task.cancel());
        client.stop();
        boolean readersIdle = readers.awaitIdle(Deadline.after(ticker, CLOSE_TIMEOUT));
        boolean writersIdle = writers.awaitIdle(Deadline.after(ticker, CLOSE_TIMEOUT));
        if (readersIdle && writersIdle) {
            client.close();
            arena.close();
        } else {
            log.warn("{}: calls hang; their memory is not given back", name());
        }
    }
}
