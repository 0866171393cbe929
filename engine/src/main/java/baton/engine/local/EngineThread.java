package baton.engine.local;

import baton.engine.EngineConfig;
import baton.engine.EngineListener;
import baton.engine.EngineStatus;
import baton.engine.EngineStatusBuilder;
import baton.engine.FinishReason;
import baton.engine.core.EngineCore;
import baton.engine.core.Request;
import baton.engine.model.ModelRanks;
import baton.engine.model.ModelRunner;
import baton.engine.model.OperatorRate;
import baton.kv.Deadline;
import baton.kv.JsonFields;
import baton.kv.Ticker;
import baton.kv.connector.KvConnectors;
import java.time.Duration;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The thread that owns an {@link EngineCore}: it takes commands from a queue, does step after step while there is work, and waits on
 * the queue while there is none. Methods are for any thread unless they say otherwise.
 */
final class EngineThread {
    private static final Logger LOG = LoggerFactory.getLogger(EngineThread.class);
    private static final long STOP_SECONDS = 60;
    /** The longest that an engine that ends waits for values on their way to a store. */
    private static final Duration STORE_TIMEOUT = Duration.ofSeconds(5);

    /** Time between steps while only transfers are awaited, for connectors that do not wake the engine. Each step slows transfers. */
    private static final long LEAST_WAIT_NANOS = 500_000;

    private static final long MOST_WAIT_NANOS = 5_000_000;

    private sealed interface Command {
        record Submit(LiveRequest request, List<Request> sequences) implements Command {}

        /** @param answerLost whether the answer is lost */
        record Abort(String id, boolean answerLost) implements Command {}

        record Refused(String id, JsonFields kvTransferParams) implements Command {}

        record ResetPrefixCache(CompletableFuture<Boolean> done) implements Command {}

        /** Redirects events to the listener. If that is the engine's own, requests that warm up are aborted first. */
        record Redirect(EngineListener listener, CompletableFuture<Boolean> done) implements Command {}

        /** The connector has something to report, or a message of a peer, perhaps to an engine that has nothing to do. */
        record Wake() implements Command {}

        record Stop() implements Command {}
    }

    /** A request with the ids of its sequences that have not ended; used by the engine's thread once it is submitted. */
    static final class LiveRequest {
        private final String id;
        private final Set<String> left = new HashSet<>();
        private int longestOutput;

        LiveRequest(String id) {
            this.id = id;
        }

        void add(Request sequence) {
            left.add(sequence.id());
        }
    }

    private final EngineListener listener;
    private final RedirectedListener redirected;
    private final ModelRunner runner;
    private final int maxRefusals;
    private final Ticker ticker;
    private final Runnable afterStop;
    private final EngineCore core;
    private final Optional<ConnectorWatch> watch;
    private final Thread thread;

    private final LinkedBlockingQueue<Command> commands = new LinkedBlockingQueue<>();
    /** There is a {@link Command.Wake} among the commands. */
    private final AtomicBoolean wakeQueued = new AtomicBoolean();
    /** {@link Command.Refused} among the commands. */
    private final AtomicInteger refusals = new AtomicInteger();

    private volatile EngineStatus status;
    private volatile boolean closed;
    /** {@link #close} was called, so that this thread may run {@link #afterStop} when it has ended. */
    private volatile boolean stopping;

    private volatile @Nullable String failure;

    /** Requests with sequences left; the engine's thread owns it. */
    private final Map<String, LiveRequest> liveById = new HashMap<>();

    /** The connector has asked for a step since the last one; the engine's thread owns it. */
    private boolean woken;

    /** Since when steps compute nothing; the engine's thread owns it. */
    private OptionalLong idleSince = OptionalLong.empty();

    /**
     * @param eosTokens ids that end a text
     * @param afterStop run, perhaps more than once, when the thread has ended after {@link #close}
     * @throws RuntimeException if the connector cannot work; the ranks are the caller's to close then
     */
    EngineThread(
            EngineConfig config,
            ModelRanks ranks,
            Set<Integer> eosTokens,
            EngineListener listener,
            Ticker ticker,
            Runnable afterStop) {
        this.listener = listener;
        this.redirected = new RedirectedListener(listener);
        this.runner = ranks.first();
        this.maxRefusals = config.maxWaiting();
        this.ticker = ticker;
        this.afterStop = afterStop;
        this.core = new EngineCore(
                config, ranks, eosTokens, KvConnectors.find(config.kvTransfer()), redirected, ticker, this::wake);
        this.watch = config.kvTransfer()
                .connector()
                .map(name -> new ConnectorWatch(name, core::longestConnectorCall, ConnectorWatch.LONG));
        this.status = core.status(Optional.empty());
        this.thread = Thread.ofPlatform().name("engine").unstarted(this::run);
    }

    void start() {
        thread.start();
        watch.ifPresent(ConnectorWatch::start);
    }

    /** Closes the core of a thread that has not been started. */
    void abandon() {
        core.close();
    }

    /** See {@link EngineCore#advertisedKvTransferParams}. */
    Optional<JsonFields> advertisedKvTransferParams() {
        return core.advertisedKvTransferParams();
    }

    /** Ids that end a text. */
    Set<Integer> eosTokens() {
        return core.eosTokens();
    }

    Ticker ticker() {
        return ticker;
    }

    EngineStatus status() {
        return EngineStatusBuilder.builder(status)
                .failure(Optional.ofNullable(failure))
                .blocking(watch.flatMap(ConnectorWatch::blocking))
                .build();
    }

    /** True if no more requests are taken. */
    boolean isClosed() {
        return closed;
    }

    /** Why no more requests are taken. */
    String whyUnavailable() {
        String failed = failure;
        return failed == null ? "The engine is stopping" : "The engine has failed: " + failed;
    }

    /** Queues a request's sequences. False, and they are not queued, if no more requests are taken. */
    boolean submit(LiveRequest request, List<Request> sequences) {
        Command command = new Command.Submit(request, sequences);
        commands.add(command);
        // A command that is queued after the engine's thread has ended is taken back here; before, it is ended there.
        return !(closed && commands.remove(command));
    }

    /** Passes on that a request was rejected; see {@link EngineCore#refused}. Dropped if very many such commands wait already. */
    void refused(String id, JsonFields kvTransferParams) {
        // Without the message the lease's expiry releases the blocks.
        if (!closed && refusals.incrementAndGet() <= maxRefusals) {
            commands.add(new Command.Refused(id, kvTransferParams));
        } else {
            refusals.decrementAndGet();
        }
    }

    /** @param answerLost whether the answer is lost */
    void abort(String id, boolean answerLost) {
        commands.add(new Command.Abort(id, answerLost));
    }

    boolean resetPrefixCache() {
        CompletableFuture<Boolean> done = new CompletableFuture<>();
        return isDone(new Command.ResetPrefixCache(done), done);
    }

    /** Redirects events to another listener; false if the engine's thread did not do so in time. */
    boolean redirect(EngineListener meanwhile) {
        CompletableFuture<Boolean> done = new CompletableFuture<>();
        return isDone(new Command.Redirect(meanwhile, done), done);
    }

    /** Aborts all requests and redirects events to the engine's own listener. */
    void endRedirection() {
        redirect(listener);
    }

    /** Queues a command and waits for its result; false if there is none in time. */
    private boolean isDone(Command command, CompletableFuture<Boolean> done) {
        commands.add(command);
        try {
            return !closed && done.get(STOP_SECONDS, TimeUnit.SECONDS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            return false;
        } catch (ExecutionException | TimeoutException e) {
            LOG.warn("{} is not done", command, e);
            return false;
        }
    }

    /** Stops the thread, which ends all requests, and waits for its end. */
    void close() {
        stopping = true;
        closed = true;
        commands.add(new Command.Stop());
        if (Thread.currentThread().equals(thread)) {
            // Called from a sink: the thread goes on to its end and cleans up there.
            return;
        }
        try {
            if (!thread.join(Duration.ofSeconds(STOP_SECONDS))) {
                LOG.error("The engine did not stop within {} s; its memory is not released", STOP_SECONDS);
                return;
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            return;
        }
        afterStop.run();
    }

    /** One sequence of a request has ended; on the engine's thread. */
    void ended(LiveRequest request, String sequenceId, int n, int outputTokens) {
        request.left.remove(sequenceId);
        request.longestOutput = Math.max(request.longestOutput, outputTokens);
        if (request.left.isEmpty()) {
            liveById.remove(request.id, request);
            redirected.onAllFinished(n, request.longestOutput);
        }
    }

    private void wake() {
        if (wakeQueued.compareAndSet(false, true)) {
            commands.add(new Command.Wake());
        }
    }

    private void run() {
        try {
            boolean running = true;
            while (running) {
                Command command = nextCommand();
                while (command != null && running) {
                    running = execute(command);
                    command = commands.poll();
                }
            }
        } catch (InterruptedException e) {
            failure = "interrupted";
        } catch (RuntimeException | Error e) {
            failure = e.toString();
            LOG.error("The engine failed and takes no more requests", e);
        } finally {
            endEverything();
        }
    }

    /** The next command, or null after a step. Waits only while there is nothing to compute. */
    private @Nullable Command nextCommand() throws InterruptedException {
        Command command = commands.poll();
        if (command != null) {
            return command;
        }
        if (!core.hasWork() && !woken) {
            // The values that were on their way to a store have arrived without a step.
            status = core.status(Optional.empty());
            // Without a deadline: nothing remote is awaited, only the next command; close() queues one.
            return commands.take();
        }
        woken = false;
        boolean computed = core.step();
        status = core.status(Optional.empty());
        if (computed) {
            idleSince = OptionalLong.empty();
            return null;
        }
        // Only transfers are awaited. A connector that does not wake the engine is asked again after a fraction of the
        // time that has passed: little work, and little delay.
        long now = ticker.nanos();
        if (idleSince.isEmpty()) {
            idleSince = OptionalLong.of(now);
        }
        long wait = Math.clamp((now - idleSince.getAsLong()) / 8, LEAST_WAIT_NANOS, MOST_WAIT_NANOS);
        return commands.poll(wait, TimeUnit.NANOSECONDS);
    }

    /** False if the thread is to end. */
    private boolean execute(Command command) {
        if (!(command instanceof Command.Wake)) {
            idleSince = OptionalLong.empty();
        }
        switch (command) {
            case Command.Submit(LiveRequest request, List<Request> sequences) -> submitToCore(request, sequences);
            case Command.Abort(String id, boolean answerLost) -> {
                LiveRequest request = liveById.get(id);
                if (request != null) {
                    abort(request);
                }
                if (answerLost) {
                    core.answerLost(id);
                }
            }
            case Command.Refused(String id, JsonFields kvTransferParams) -> {
                refusals.decrementAndGet();
                core.refused(id, kvTransferParams);
            }
            case Command.ResetPrefixCache(CompletableFuture<Boolean> done) -> done.complete(core.resetPrefixCache());
            case Command.Redirect(EngineListener to, CompletableFuture<Boolean> done) -> {
                if (to.equals(listener)) {
                    List.copyOf(liveById.values()).forEach(this::abort);
                }
                redirected.tell(to);
                if (to.equals(listener)) {
                    warnOfSlowOperators();
                }
                // The caller reads the status as soon as this is done.
                status = core.status(Optional.empty());
                done.complete(true);
            }
            case Command.Wake() -> {
                wakeQueued.set(false);
                woken = true;
            }
            case Command.Stop() -> {
                return false;
            }
        }
        status = core.status(Optional.empty());
        return true;
    }

    private void submitToCore(LiveRequest request, List<Request> sequences) {
        Optional<String> used =
                sequences.stream().map(Request::id).filter(core::knows).findFirst();
        if (used.isPresent() || liveById.containsKey(request.id)) {
            for (Request sequence : sequences) {
                sequence.refuse("request id '" + used.orElse(request.id) + "' is in use");
            }
        } else {
            liveById.put(request.id, request);
            sequences.forEach(core::add);
        }
    }

    private void abort(LiveRequest request) {
        List.copyOf(request.left).forEach(core::abort);
    }

    private void warnOfSlowOperators() {
        List<OperatorRate> slow =
                runner.operatorRates().stream().filter(OperatorRate::isSlow).toList();
        if (!slow.isEmpty()) {
            LOG.warn(
                    "slow kernels: {}; kernels: {}",
                    slow.stream().map(OperatorRate::describe).collect(Collectors.joining("; ")),
                    String.join("; ", runner.kernels()));
        }
    }

    private void finishStoring() {
        Deadline deadline = Deadline.after(ticker, STORE_TIMEOUT);
        try {
            while (core.isStoring() && !deadline.isOver()) {
                if (!core.step()) {
                    LockSupport.parkNanos(LEAST_WAIT_NANOS);
                }
            }
        } catch (RuntimeException | Error e) {
            LOG.error("Storing computed blocks failed", e);
        }
    }

    private void endEverything() {
        String why = failure;
        closed = true;
        try {
            core.endAll(why == null ? FinishReason.ABORT : FinishReason.ERROR, "The engine has failed: " + why);
        } catch (RuntimeException e) {
            LOG.error("Ending the engine's requests failed", e);
        }
        if (why == null) {
            finishStoring();
        }
        status = core.status(Optional.empty());
        for (Command command = commands.poll(); command != null; command = commands.poll()) {
            switch (command) {
                case Command.Submit(LiveRequest _, List<Request> sequences) ->
                    sequences.forEach(sequence -> sequence.refuse(whyUnavailable()));
                case Command.ResetPrefixCache(CompletableFuture<Boolean> done) -> done.complete(false);
                case Command.Redirect(EngineListener _, CompletableFuture<Boolean> done) -> done.complete(false);
                case Command.Abort _, Command.Refused _, Command.Wake _, Command.Stop _ -> {}
            }
        }
        try {
            core.close();
        } finally {
            watch.ifPresent(ConnectorWatch::close);
            if (stopping) {
                afterStop.run();
            }
        }
    }
}
