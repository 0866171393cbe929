package baton.engine.local;

import baton.engine.Engine;
import baton.engine.EngineConfig;
import baton.engine.EngineListener;
import baton.engine.EngineStatus;
import baton.engine.EngineUnavailableException;
import baton.engine.FinishReason;
import baton.engine.GenerationEvent;
import baton.engine.GenerationRequest;
import baton.engine.ParallelConfig;
import baton.engine.SamplingParams;
import baton.engine.core.EngineCore;
import baton.engine.core.HandoverWarmUp;
import baton.engine.core.Request;
import baton.engine.model.Checkpoint;
import baton.engine.model.DTypeChoice;
import baton.engine.model.GenerationDefaults;
import baton.engine.model.ModelConfig;
import baton.engine.model.ModelRanks;
import baton.engine.model.ModelRunner;
import baton.engine.model.OperatorRate;
import baton.engine.model.TorchModels;
import baton.engine.sampling.Sampler;
import baton.engine.text.ChatTemplate;
import baton.engine.text.Tokenizer;
import baton.kv.BlockHasher;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.JsonFields;
import baton.kv.Ticker;
import baton.kv.connector.KvConnectors;
import baton.transfer.MappableMemory;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.OptionalLong;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * An engine in this process. One thread owns the {@link EngineCore}: it takes commands from a queue, does step after step while
 * there is work, and waits on the queue while there is none.
 */
public final class LocalEngine implements Engine {
    private static final Logger LOG = LoggerFactory.getLogger(LocalEngine.class);
    private static final long STOP_SECONDS = 60;
    /** Between looks at transfers while nothing is computed, for connectors that do not tell. Each takes time from who transfers. */
    private static final long LEAST_WAIT_NANOS = 500_000;

    private static final long MOST_WAIT_NANOS = 5_000_000;

    private sealed interface Command {
        record Submit(Live live, List<Request> sequences) implements Command {}

        record Abort(String id) implements Command {}

        record Refused(String id, JsonFields kvTransferParams) implements Command {}

        record ResetPrefixCache(CompletableFuture<Boolean> done) implements Command {}

        /** Redirects events to the listener. If that is the engine's own, requests that warm up are aborted first. */
        record Tell(EngineListener listener, CompletableFuture<Boolean> done) implements Command {}

        /** Look at what the connector has to report. */
        record Look() implements Command {}

        record Stop() implements Command {}
    }

    /** A request with the ids of its sequences that have not ended. */
    private static final class Live {
        private final String id;
        private final Set<String> left = new HashSet<>();
        private int longestOutput;

        Live(String id) {
            this.id = id;
        }

        String id() {
            return id;
        }

        Set<String> left() {
            return left;
        }
    }

    private final EngineConfig config;
    private final ModelConfig model;
    private final int maxModelLen;
    private final Tokenizer tokenizer;
    private final Optional<ChatTemplate> chatTemplate;
    private final GenerationDefaults generationDefaults;
    private final ModelRunner runner;
    private final EngineListener listener;
    private final RedirectedListener told;
    private final EngineCore core;
    private final Ticker ticker;

    private final LinkedBlockingQueue<Command> commands = new LinkedBlockingQueue<>();
    /** There is a {@link Command.Look} among the commands. */
    private final AtomicBoolean toLook = new AtomicBoolean();

    private final AtomicInteger pending = new AtomicInteger();
    /** Refused requests that the engine's thread has not heard of. */
    private final AtomicInteger refusals = new AtomicInteger();

    private final AtomicLong seeds = new AtomicLong();
    private final Thread thread;

    private volatile EngineStatus status;
    private volatile boolean closed;
    /** Requests only warm up. */
    private volatile boolean warmingUp;
    /** Somebody has called {@link #close}: nobody needs the tokenizer when the engine's thread has ended. */
    private volatile boolean stopping;

    private volatile @Nullable String failure;

    /** Requests with sequences left; the engine thread's. */
    private final Map<String, Live> liveById = new HashMap<>();

    /** Since when steps compute nothing; the engine thread's. */
    private OptionalLong idleSince = OptionalLong.empty();

    private LocalEngine(
            EngineConfig config,
            int maxModelLen,
            Checkpoint checkpoint,
            Tokenizer tokenizer,
            Optional<ChatTemplate> chatTemplate,
            ModelRanks ranks,
            EngineListener listener,
            Ticker ticker) {
        this.config = config;
        this.runner = ranks.first();
        this.model = runner.config();
        this.maxModelLen = maxModelLen;
        this.tokenizer = tokenizer;
        this.chatTemplate = chatTemplate;
        this.generationDefaults = checkpoint.generationDefaults();
        this.listener = listener;
        this.told = new RedirectedListener(listener);
        this.ticker = ticker;
        this.core = new EngineCore(
                config,
                ranks,
                Set.copyOf(checkpoint.eosTokenIds()),
                KvConnectors.find(config.kvTransfer()),
                told,
                ticker,
                this::wake);
        this.status = core.status(Optional.empty());
        this.thread = Thread.ofPlatform().name("engine").unstarted(this::run);
    }

    /**
     * Loads the checkpoint and starts.
     *
     * @throws ConfigException if the configuration or the checkpoint cannot work
     * @throws IOException if the checkpoint cannot be read
     */
    public static LocalEngine start(EngineConfig config, EngineListener listener) throws IOException {
        long start = System.nanoTime();
        // What is wrong is told before minutes are spent on loading.
        KvConnectors.check(
                config.kvTransfer(),
                config.parallel().tensorParallelSize() * config.parallel().pipelineParallelSize());
        TorchModels.require(config.device());
        try (Checkpoint checkpoint = Checkpoint.open(config.model())) {
            return start(config, listener, checkpoint, start);
        }
    }

    private static LocalEngine start(EngineConfig config, EngineListener listener, Checkpoint checkpoint, long start)
            throws IOException {
        ModelConfig model = checkpoint.config();
        int maxModelLen = config.maxModelLen().orElse(model.maxPositions());
        if (maxModelLen > model.maxPositions()) {
            throw new ConfigException(
                    "max_model_len",
                    "is " + maxModelLen + ", must be at most the model's max_position_embeddings, which is "
                            + model.maxPositions());
        }
        DTypeChoice dtypeChoice = DTypeChoice.here(config.dtype(), model, config.quantization());
        DType dtype = dtypeChoice.dtype();
        ParallelConfig parallel = config.parallel();
        int tensorSize = parallel.tensorParallelSize();
        int pipelineSize = parallel.pipelineParallelSize();
        DType cacheDtype = config.kvCacheDtype().orElse(dtype);
        long blockBytes = TorchModels.blockBytes(model, config.blockSize(), cacheDtype, tensorSize, pipelineSize);
        int blocks = numBlocks(config, blockBytes, maxModelLen);
        List<AutoCloseable> made = new ArrayList<>();
        try {
            Tokenizer tokenizer = Tokenizer.load(config.model());
            made.add(tokenizer);
            Optional<ChatTemplate> chatTemplate =
                    Optional.of(ChatTemplate.load(config.model())).filter(ChatTemplate::isPresent);
            ModelRanks ranks = TorchModels.load(
                    checkpoint,
                    dtype,
                    config.quantization(),
                    cacheDtype,
                    config.blockSize(),
                    blocks,
                    OptionalInt.of(parallel.threadsPerRank(config.threads())),
                    maxModelLen,
                    tensorSize,
                    pipelineSize,
                    config.kvTransfer().connector().isPresent()
                            && MappableMemory.whyNone().isEmpty());
            made.add(ranks);
            LocalEngine engine = new LocalEngine(
                    config, maxModelLen, checkpoint, tokenizer, chatTemplate, ranks, listener, Ticker.system());
            made.add(engine.core);
            listener.onStart(config, maxModelLen, dtype, blocks);
            engine.thread.start();
            LOG.info(
                    "Serving {} ({}, {} layers) in {}, quantization {}, tensor_parallel_size={} pipeline_parallel_size={}: {} KV blocks of {} tokens in {}, {} MiB, max_model_len={}; ready in {} ms",
                    model.name(),
                    ranks.first().fingerprint().digest().substring(0, 12),
                    model.layers(),
                    dtypeChoice.describe(),
                    config.quantization().label(),
                    tensorSize,
                    pipelineSize,
                    blocks,
                    config.blockSize(),
                    cacheDtype.torchName(),
                    (blocks * blockBytes) >> 20,
                    maxModelLen,
                    (System.nanoTime() - start) / 1_000_000);
            return engine;
        } catch (RuntimeException | IOException | Error e) {
            for (AutoCloseable each : made.reversed()) {
                closeAfter(e, each);
            }
            throw e;
        }
    }

    private static void closeAfter(Throwable failure, AutoCloseable resource) {
        try {
            resource.close();
        } catch (Exception e) {
            failure.addSuppressed(e);
        }
    }

    private static int numBlocks(EngineConfig config, long blockBytes, int maxModelLen) {
        int blocks = config.numBlocks()
                .orElseGet(() -> (int) Math.min(Integer.MAX_VALUE / 2, config.kvCacheBytes() / blockBytes));
        int least = Math.ceilDiv(maxModelLen, config.blockSize());
        if (blocks < least) {
            throw new ConfigException(
                    config.numBlocks().isPresent() ? "num_gpu_blocks_override" : "kv_cache_memory_bytes",
                    "gives %d KV blocks of %d bytes, but one request of max_model_len=%d needs %d; give at least %d bytes or lower max_model_len"
                            .formatted(blocks, blockBytes, maxModelLen, least, least * blockBytes));
        }
        return blocks;
    }

    @Override
    public EngineConfig config() {
        return config;
    }

    @Override
    public ModelConfig model() {
        return model;
    }

    @Override
    public int maxModelLen() {
        return maxModelLen;
    }

    @Override
    public Tokenizer tokenizer() {
        return tokenizer;
    }

    @Override
    public Optional<ChatTemplate> chatTemplate() {
        return chatTemplate;
    }

    @Override
    public Optional<JsonFields> advertisedKvTransferParams() {
        return core.advertisedKvTransferParams();
    }

    /** What the model itself suggests for sampling. */
    public GenerationDefaults generationDefaults() {
        return generationDefaults;
    }

    @Override
    public EngineStatus status() {
        EngineStatus latest = status;
        return new EngineStatus(
                latest.running(),
                latest.waiting(),
                latest.waitingForRemoteKv(),
                latest.lingering(),
                latest.totalBlocks(),
                latest.usedBlocks(),
                Optional.ofNullable(failure));
    }

    @Override
    public void submit(GenerationRequest request, Consumer<GenerationEvent> sink) {
        try {
            admit(request, sink);
        } catch (EngineUnavailableException e) {
            // It may be tried with another instance, which then wants what it refers to.
            throw e;
        } catch (RuntimeException e) {
            request.kvTransferParams().ifPresent(params -> refused(request.id(), params));
            throw e;
        }
    }

    @Override
    public void refused(String id, JsonFields kvTransferParams) {
        // The lease gives back what is not told.
        if (!closed && refusals.incrementAndGet() <= config.maxWaiting()) {
            commands.add(new Command.Refused(id, kvTransferParams));
        } else {
            refusals.decrementAndGet();
        }
    }

    private void admit(GenerationRequest request, Consumer<GenerationEvent> sink) {
        validate(request);
        SamplingParams sampling = request.sampling();
        if (pending.addAndGet(sampling.n()) > (long) config.maxNumSeqs() + config.maxWaiting()) {
            pending.addAndGet(-sampling.n());
            throw new EngineUnavailableException(
                    "Too many requests: max_waiting=" + config.maxWaiting() + " are waiting already; try again later");
        }
        Command.Submit command;
        try {
            command = sequences(request, sink);
        } catch (RuntimeException | Error e) {
            pending.addAndGet(-sampling.n());
            throw e;
        }
        commands.add(command);
        // Whatever is queued after the engine's thread has ended is taken back here; before, it is ended there.
        if (closed && commands.remove(command)) {
            pending.addAndGet(-sampling.n());
            throw new EngineUnavailableException(whyUnavailable());
        }
    }

    private Command.Submit sequences(GenerationRequest request, Consumer<GenerationEvent> sink) {
        SamplingParams sampling = request.sampling();
        // A warm-up must not shift the seeds of clients' requests.
        long seed = sampling.seed()
                .orElseGet(() -> warmingUp ? config.seed() : mix(config.seed(), seeds.getAndIncrement()));
        Live live = new Live(request.id());
        List<Request> sequences = IntStream.range(0, sampling.n())
                .mapToObj(index -> sequence(request, index, seed, live, sink))
                .toList();
        sequences.forEach(sequence -> live.left().add(sequence.id()));
        return new Command.Submit(live, sequences);
    }

    private String whyUnavailable() {
        String failed = failure;
        return failed == null ? "The engine is stopping" : "The engine has failed: " + failed;
    }

    private void validate(GenerationRequest request) {
        int[] prompt = request.prompt();
        if (closed) {
            throw new EngineUnavailableException(whyUnavailable());
        }
        if (prompt.length == 0) {
            throw new ConfigException("prompt", "is empty, must have at least one token");
        }
        if (prompt.length >= maxModelLen) {
            throw new ConfigException(
                    "prompt",
                    "has %d tokens, but this model's maximum context length is %d tokens, output included"
                            .formatted(prompt.length, maxModelLen));
        }
        for (int i = 0; i < prompt.length; i++) {
            checkToken("prompt[" + i + "]", prompt[i]);
        }
        Sampler.check(request.sampling(), model.vocabularySize(), core.eosTokens());
        long most = (long) config.maxNumSeqs() + config.maxWaiting();
        if (request.sampling().n() > most) {
            throw new ConfigException(
                    "n",
                    "is " + request.sampling().n() + ", must be at most " + most
                            + ": max_num_seqs and max_waiting together");
        }
    }

    private void checkToken(String field, int id) {
        if (id < 0 || id >= model.vocabularySize()) {
            throw new ConfigException(
                    field, "is token id " + id + ", must be between 0 and " + (model.vocabularySize() - 1));
        }
    }

    private Request sequence(
            GenerationRequest request, int index, long seed, Live live, Consumer<GenerationEvent> sink) {
        SamplingParams sampling = request.sampling();
        String id = sampling.n() == 1 ? request.id() : request.id() + "-" + index;
        SequenceOutput output = new SequenceOutput(
                index,
                sampling,
                tokenizer.detokenizer(request.prompt(), sampling.skipSpecialTokens()),
                sink,
                tokens -> ended(live, id, sampling.n(), tokens));
        BlockHasher hasher = new BlockHasher(runner.fingerprint(), config.blockSize());
        return Request.builder(id, request.prompt(), maxModelLen, sampling, hasher, output)
                .kvTransferParams(request.kvTransferParams())
                .cacheSalt(request.cacheSalt())
                .priority(request.priority())
                .seed(seed + index)
                .arrivalNanos(ticker.nanos())
                .warmsUp(warmingUp)
                .build();
    }

    @Override
    public void abort(String id) {
        commands.add(new Command.Abort(id));
    }

    @Override
    public boolean resetPrefixCache() {
        CompletableFuture<Boolean> done = new CompletableFuture<>();
        return isDone(new Command.ResetPrefixCache(done), done);
    }

    @Override
    public WarmUp warmUp(EngineListener meanwhile) {
        CompletableFuture<Boolean> begun = new CompletableFuture<>();
        if (!isDone(new Command.Tell(meanwhile, begun), begun)) {
            throw new EngineUnavailableException(whyUnavailable());
        }
        warmingUp = true;
        return new WarmUp() {
            @Override
            public int warmUpHandovers(Duration atMost) {
                return HandoverWarmUp.run(
                        config.kvTransfer(),
                        runner.fingerprint(),
                        runner.cache().layout(),
                        atMost);
            }

            @Override
            public void close() {
                warmingUp = false;
                CompletableFuture<Boolean> ended = new CompletableFuture<>();
                isDone(new Command.Tell(listener, ended), ended);
            }
        };
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

    /** Has the engine's thread obey, and waits for what it says; false if it does not in time. */
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

    @Override
    public void close() {
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
        tokenizer.close();
    }

    private void wake() {
        if (toLook.compareAndSet(false, true)) {
            commands.add(new Command.Look());
        }
    }

    private void run() {
        try {
            boolean running = true;
            while (running) {
                Command command = nextCommand();
                while (command != null && running) {
                    running = obey(command);
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
        if (!core.hasWork()) {
            return commands.take();
        }
        boolean computed = core.step();
        status = core.status(Optional.empty());
        if (computed) {
            idleSince = OptionalLong.empty();
            return null;
        }
        // Only transfers are awaited. Whoever does not tell when they are over is looked at again after a part of the
        // time that
        // has passed: little work, and late by little.
        long now = ticker.nanos();
        if (idleSince.isEmpty()) {
            idleSince = OptionalLong.of(now);
        }
        long wait = Math.clamp((now - idleSince.getAsLong()) / 8, LEAST_WAIT_NANOS, MOST_WAIT_NANOS);
        return commands.poll(wait, TimeUnit.NANOSECONDS);
    }

    private boolean obey(Command command) {
        if (!(command instanceof Command.Look)) {
            idleSince = OptionalLong.empty();
        }
        switch (command) {
            case Command.Submit(Live live, List<Request> sequences) -> {
                Optional<String> used =
                        sequences.stream().map(Request::id).filter(core::knows).findFirst();
                if (used.isPresent() || liveById.containsKey(live.id())) {
                    for (Request sequence : sequences) {
                        sequence.refuse("request id '" + used.orElse(live.id()) + "' is in use");
                    }
                } else {
                    liveById.put(live.id(), live);
                    sequences.forEach(core::add);
                }
            }
            case Command.Abort(String id) -> {
                Live live = liveById.get(id);
                if (live != null) {
                    List.copyOf(live.left()).forEach(core::abort);
                }
            }
            case Command.Refused(String id, JsonFields kvTransferParams) -> {
                refusals.decrementAndGet();
                core.refused(id, kvTransferParams);
            }
            case Command.ResetPrefixCache(CompletableFuture<Boolean> done) -> done.complete(core.resetPrefixCache());
            case Command.Tell(EngineListener meant, CompletableFuture<Boolean> done) -> {
                if (meant.equals(listener)) {
                    List.copyOf(liveById.values())
                            .forEach(live -> List.copyOf(live.left()).forEach(core::abort));
                }
                told.tell(meant);
                if (meant.equals(listener)) {
                    warnOfSlowOperators();
                }
                // The caller reads the status as soon as this is done.
                status = core.status(Optional.empty());
                done.complete(true);
            }
            case Command.Look() -> toLook.set(false);
            case Command.Stop() -> {
                return false;
            }
        }
        status = core.status(Optional.empty());
        return true;
    }

    private void endEverything() {
        String why = failure;
        closed = true;
        try {
            core.endAll(why == null ? FinishReason.ABORT : FinishReason.ERROR, "The engine has failed: " + why);
        } catch (RuntimeException e) {
            LOG.error("Ending the engine's requests failed", e);
        }
        status = core.status(Optional.empty());
        for (Command command = commands.poll(); command != null; command = commands.poll()) {
            switch (command) {
                case Command.Submit(Live _, List<Request> sequences) ->
                    sequences.forEach(sequence -> sequence.refuse(whyUnavailable()));
                case Command.ResetPrefixCache(CompletableFuture<Boolean> done) -> done.complete(false);
                case Command.Tell(EngineListener _, CompletableFuture<Boolean> done) -> done.complete(false);
                case Command.Abort _, Command.Refused _, Command.Look _, Command.Stop _ -> {}
            }
        }
        try {
            core.close();
        } finally {
            if (stopping) {
                tokenizer.close();
            }
        }
    }

    private void ended(Live live, String sequenceId, int n, int outputTokens) {
        pending.decrementAndGet();
        live.left().remove(sequenceId);
        live.longestOutput = Math.max(live.longestOutput, outputTokens);
        if (live.left().isEmpty()) {
            liveById.remove(live.id(), live);
            told.onAllFinished(n, live.longestOutput);
        }
    }

    /** SplitMix64's finaliser over both. */
    private static long mix(long seed, long index) {
        long z = seed + (index + 1) * 0x9E3779B97F4A7C15L;
        z = (z ^ (z >>> 30)) * 0xBF58476D1CE4E5B9L;
        z = (z ^ (z >>> 27)) * 0x94D049BB133111EBL;
        return z ^ (z >>> 31);
    }
}
