package baton.engine.local;

import baton.engine.Engine;
import baton.engine.EngineConfig;
import baton.engine.EngineListener;
import baton.engine.EngineStatus;
import baton.engine.EngineUnavailableException;
import baton.engine.GenerationEvent;
import baton.engine.GenerationRequest;
import baton.engine.ParallelConfig;
import baton.engine.SamplingParams;
import baton.engine.backend.ModelBackend;
import baton.engine.backend.ModelBackends;
import baton.engine.core.HandoverWarmUp;
import baton.engine.core.Request;
import baton.engine.core.SequenceOptions;
import baton.engine.local.EngineThread.LiveRequest;
import baton.engine.model.Checkpoint;
import baton.engine.model.DTypeChoice;
import baton.engine.model.GenerationConfig;
import baton.engine.model.GenerationDefaults;
import baton.engine.model.ModelConfig;
import baton.engine.model.ModelOptions;
import baton.engine.model.ModelRanks;
import baton.engine.model.ModelRunner;
import baton.engine.sampling.Sampler;
import baton.engine.text.ChatTemplate;
import baton.engine.text.Tokenizer;
import baton.grammar.automaton.TokenGrammar;
import baton.kv.BlockHasher;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.JsonFields;
import baton.kv.KvGroups;
import baton.kv.Ticker;
import baton.kv.connector.KvConnector;
import baton.kv.connector.KvConnectors;
import baton.memory.MappableMemory;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;
import java.util.function.Supplier;
import java.util.stream.IntStream;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** An engine in this process: loads a model, checks requests and passes them to its {@link EngineThread}. */
public final class LocalEngine implements Engine {
    private static final Logger LOG = LoggerFactory.getLogger(LocalEngine.class);

    private final EngineConfig config;
    private final ModelConfig model;
    private final int maxModelLen;
    private final Tokenizer tokenizer;
    private final Optional<ChatTemplate> chatTemplate;
    private final GenerationDefaults generationDefaults;
    private final ModelRunner runner;
    private final EngineThread thread;
    private final CompiledFormats formats;

    /** Sequences that have been admitted and have not ended. */
    private final AtomicInteger pending = new AtomicInteger();

    private final AtomicLong seeds = new AtomicLong();
    /** Requests only warm up. */
    private volatile boolean warmingUp;

    private LocalEngine(
            EngineConfig config,
            int maxModelLen,
            Tokenizer tokenizer,
            Optional<ChatTemplate> chatTemplate,
            GenerationDefaults generationDefaults,
            ModelRunner runner,
            EngineThread thread) {
        this.config = config;
        this.model = runner.config();
        this.maxModelLen = maxModelLen;
        this.tokenizer = tokenizer;
        this.chatTemplate = chatTemplate;
        this.generationDefaults = generationDefaults;
        this.runner = runner;
        this.thread = thread;
        this.formats =
                new CompiledFormats(() -> tokenizer.grammarVocabulary(model.vocabularySize(), thread.eosTokens()));
    }

    /**
     * Loads the checkpoint and starts.
     *
     * @throws ConfigException if the configuration or the checkpoint cannot work
     * @throws IOException if the checkpoint cannot be read
     */
    public static LocalEngine start(EngineConfig config, EngineListener listener) throws IOException {
        return start(config, listener, () -> ModelBackends.on(config.device()));
    }

    /**
     * Starts with a backend that need not be on the class path.
     *
     * @param backend asked for when the configuration of the connector is checked
     * @throws ConfigException if the configuration or the checkpoint cannot work
     * @throws IOException if the checkpoint cannot be read
     */
    public static LocalEngine start(EngineConfig config, EngineListener listener, Supplier<ModelBackend> backend)
            throws IOException {
        Ticker ticker = Ticker.system();
        long start = ticker.nanos();
        // A wrong setting is reported before minutes are spent on loading.
        KvConnectors.check(
                config.kvTransfer(),
                config.parallel().tensorParallelSize() * config.parallel().pipelineParallelSize());
        boolean hybrid = hybrid(config);
        ModelBackend found = backend.get();
        try (Checkpoint checkpoint = Checkpoint.open(config.model(), config.generation())) {
            ParallelConfig parallel = config.parallel();
            ModelBackend computing = ModelBackends.computing(
                    found,
                    config.device(),
                    checkpoint.config(),
                    config.quantization(),
                    parallel.tensorParallelSize() * parallel.pipelineParallelSize());
            return start(config, listener, computing, checkpoint, hybrid, ticker, start);
        }
    }

    /** Whether layers with a sliding window keep only the blocks that it reaches. */
    private static boolean hybrid(EngineConfig config) {
        Optional<KvConnector> connector = KvConnectors.find(config.kvTransfer());
        boolean possible = connector.isEmpty() || connector.get().takesGroups(config.kvTransfer());
        boolean disabled = config.disableHybridKvCacheManager().orElse(!possible);
        if (!disabled && !possible) {
            throw new ConfigException(
                    "disable_hybrid_kv_cache_manager",
                    "is false, but with its settings kv_connector %s takes blocks of all layers only; leave it out"
                            .formatted(config.kvTransfer().connector().orElseThrow()));
        }
        return !disabled;
    }

    private static LocalEngine start(
            EngineConfig config,
            EngineListener listener,
            ModelBackend backend,
            Checkpoint checkpoint,
            boolean hybrid,
            Ticker ticker,
            long start)
            throws IOException {
        ModelConfig model = checkpoint.config();
        checkDefaults(config.generation(), checkpoint.generationDefaults());
        int maxModelLen = config.maxModelLen().orElse(model.defaultPositions());
        if (maxModelLen > model.maxPositions()) {
            throw new ConfigException(
                    "max_model_len",
                    "is " + maxModelLen + ", must be at most the model's max_position_embeddings, which is "
                            + model.maxPositions());
        }
        DTypeChoice dtypeChoice = backend.dtype(config.dtype(), model, config.quantization());
        DType dtype = dtypeChoice.dtype();
        ParallelConfig parallel = config.parallel();
        int tensorSize = parallel.tensorParallelSize();
        int pipelineSize = parallel.pipelineParallelSize();
        DType cacheDtype = config.kvCacheDtype().orElse(dtype);
        long blockBytes = backend.blockBytes(model, config.blockSize(), cacheDtype, tensorSize, pipelineSize, hybrid);
        KvGroups groups = model.kvGroups(hybrid);
        int blocks = numBlocks(config, blockBytes, groups, maxModelLen, backend.memoryBytes());
        List<AutoCloseable> made = new ArrayList<>();
        try {
            Tokenizer tokenizer = Tokenizer.load(config.model());
            made.add(tokenizer);
            checkVocabulary(tokenizer, model);
            ChatTemplate template = ChatTemplate.load(config.model());
            Optional<ChatTemplate> chatTemplate = Optional.of(template).filter(ChatTemplate::isPresent);
            Set<Integer> eosTokens =
                    checkpoint.eosTokenIds(template.specialToken("eos_token").flatMap(tokenizer::id));
            ModelRanks ranks = backend.load(
                    checkpoint,
                    new ModelOptions(
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
                                    && MappableMemory.whyNone().isEmpty(),
                            hybrid));
            made.add(ranks);
            EngineThread thread = new EngineThread(config, ranks, eosTokens, listener, ticker, tokenizer::close);
            made.add(thread::abandon);
            LocalEngine engine = new LocalEngine(
                    config,
                    maxModelLen,
                    tokenizer,
                    chatTemplate,
                    checkpoint.generationDefaults(),
                    ranks.first(),
                    thread);
            listener.onStart(config, maxModelLen, dtype, blocks);
            thread.start();
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
                    (ticker.nanos() - start) / 1_000_000);
            return engine;
        } catch (RuntimeException | IOException | Error e) {
            for (AutoCloseable each : made.reversed()) {
                closeAfter(e, each);
            }
            throw e;
        }
    }

    private static void checkDefaults(GenerationConfig generation, GenerationDefaults defaults) {
        try {
            SamplingParams _ =
                    SamplingParams.apply(defaults, SamplingParams.builder()).build();
        } catch (ConfigException e) {
            throw generation.refusal(e);
        }
        if (!defaults.equals(GenerationDefaults.NONE)) {
            LOG.info("Requests that do not say otherwise are sampled by {} of {}", defaults, generation.describe());
        }
    }

    /**
     * Refuses a tokenizer with a larger vocabulary than the embedding: it is another model's. Tokens that were added later may lie beyond
     * the embedding: the checks of prompts refuse these.
     */
    private static void checkVocabulary(Tokenizer tokenizer, ModelConfig model) {
        if (tokenizer.ownVocabularySize() > model.vocabularySize()) {
            throw new ConfigException(
                    "tokenizer.json.model.vocab",
                    "has token ids up to %d, must have them below config.json.vocab_size, which is %d"
                            .formatted(tokenizer.ownVocabularySize() - 1, model.vocabularySize()));
        }
        if (tokenizer.vocabularySize() > model.vocabularySize()) {
            LOG.warn(
                    "tokenizer.json has added tokens with ids up to {}, beyond config.json.vocab_size, which is {}: prompts that have them are refused",
                    tokenizer.vocabularySize() - 1,
                    model.vocabularySize());
        }
    }

    private static void closeAfter(Throwable failure, AutoCloseable resource) {
        try {
            resource.close();
        } catch (Exception e) {
            failure.addSuppressed(e);
        }
    }

    private static int numBlocks(EngineConfig config, long blockBytes, KvGroups groups, int maxModelLen, long memory) {
        int blocks = config.numBlocks()
                .orElseGet(() -> (int) Math.min(Integer.MAX_VALUE / 2, config.kvCacheBytes() / blockBytes));
        String field = config.numBlocks().isPresent() ? "num_gpu_blocks_override" : "kv_cache_memory_bytes";
        // Where memory can be shared the system promises more than it has, and ends the process that uses it.
        if (blocks > memory / blockBytes) {
            throw new ConfigException(
                    field,
                    "gives %d KV blocks of %d bytes, %d MiB together, but there are only %d MiB of memory for this process; give less"
                            .formatted(blocks, blockBytes, (blocks * blockBytes) >> 20, memory >> 20));
        }
        int least = groups.blocksFor(maxModelLen, config.maxTokensOfRequest(), config.blockSize());
        if (blocks < least) {
            throw new ConfigException(
                    field,
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
        return thread.advertisedKvTransferParams();
    }

    /** Defaults of sampling from the model's files. */
    public GenerationDefaults generationDefaults() {
        return generationDefaults;
    }

    @Override
    public EngineStatus status() {
        return thread.status();
    }

    @Override
    public void prepare(SamplingParams sampling) {
        sampling.format().ifPresent(format -> {
            formats.prepare(format);
            Sampler.checkBeginning(sampling, formats.get(format), model.vocabularySize(), thread.eosTokens());
        });
    }

    @Override
    public void submit(GenerationRequest request, Consumer<GenerationEvent> sink) {
        try {
            admit(request, sink);
        } catch (EngineUnavailableException e) {
            // The request may be tried with another instance, which then needs the blocks that it refers to.
            throw e;
        } catch (RuntimeException e) {
            request.kvTransferParams().ifPresent(params -> refused(request.id(), params));
            throw e;
        }
    }

    @Override
    public void refused(String id, JsonFields kvTransferParams) {
        thread.refused(id, kvTransferParams);
    }

    private void admit(GenerationRequest request, Consumer<GenerationEvent> sink) {
        validate(request);
        SamplingParams sampling = request.sampling();
        if (pending.addAndGet(sampling.n()) > (long) config.maxNumSeqs() + config.maxWaiting()) {
            pending.addAndGet(-sampling.n());
            throw new EngineUnavailableException(
                    "Too many requests: max_waiting=" + config.maxWaiting() + " are waiting already; try again later");
        }
        boolean queued = false;
        try {
            queued = submitSequences(request, sink);
        } finally {
            if (!queued) {
                pending.addAndGet(-sampling.n());
            }
        }
        if (!queued) {
            throw new EngineUnavailableException(thread.whyUnavailable());
        }
    }

    @Override
    public long drawSeed() {
        // A warm-up must not shift the seeds of clients' requests.
        return warmingUp ? config.seed() : mix(config.seed(), seeds.getAndIncrement());
    }

    private boolean submitSequences(GenerationRequest request, Consumer<GenerationEvent> sink) {
        SamplingParams sampling = request.sampling();
        long seed = sampling.seed().orElseGet(this::drawSeed);
        Optional<TokenGrammar> format = sampling.format().map(formats::get);
        LiveRequest live = new LiveRequest(request.id());
        List<Request> sequences = IntStream.range(0, sampling.n())
                .mapToObj(index -> sequence(request, format, index, seed, live, sink))
                .toList();
        sequences.forEach(live::add);
        return thread.submit(live, sequences);
    }

    private void validate(GenerationRequest request) {
        int[] prompt = request.prompt();
        if (thread.isClosed()) {
            throw new EngineUnavailableException(thread.whyUnavailable());
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
        Sampler.check(request.sampling(), model.vocabularySize(), thread.eosTokens());
        int mostOutput =
                Math.min(request.sampling().maxTokens().orElse(Integer.MAX_VALUE), maxModelLen - prompt.length);
        for (int[] generated : request.generated()) {
            if (generated.length > mostOutput) {
                throw new ConfigException(
                        "generated",
                        "has %d tokens, but the output may have %d".formatted(generated.length, mostOutput));
            }
            for (int i = 0; i < generated.length; i++) {
                checkToken("generated[" + i + "]", generated[i]);
            }
        }
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
            GenerationRequest request,
            Optional<TokenGrammar> format,
            int index,
            long seed,
            LiveRequest live,
            Consumer<GenerationEvent> sink) {
        SamplingParams sampling = request.sampling();
        String id = sampling.n() == 1 ? request.id() : request.id() + "-" + index;
        SequenceOutput output = new SequenceOutput(
                index,
                sampling,
                tokenizer.detokenizer(request.prompt(), sampling.skipSpecialTokens(), sampling.shownSpecialTokens()),
                sink,
                tokens -> {
                    pending.decrementAndGet();
                    thread.ended(live, id, sampling.n(), tokens);
                });
        BlockHasher hasher = config.hashing().hasher(config.blockSize());
        return new Request(
                id,
                request.prompt(),
                maxModelLen,
                sampling,
                hasher,
                output,
                SequenceOptions.builder()
                        .generated(
                                request.generated().isEmpty()
                                        ? new int[0]
                                        : request.generated().get(index))
                        .format(format)
                        .kvTransferParams(request.kvTransferParams())
                        .cacheSalt(request.cacheSalt())
                        .priority(request.priority())
                        .cacheHitThreshold(request.cacheHitThreshold())
                        .first(request.first())
                        .seed(seed + index)
                        .arrivalNanos(thread.ticker().nanos())
                        .warmsUp(warmingUp)
                        .build());
    }

    @Override
    public void abort(String id) {
        thread.abort(id, false);
    }

    @Override
    public void abandon(String id) {
        thread.abort(id, true);
    }

    @Override
    public boolean resetPrefixCache() {
        return thread.resetPrefixCache();
    }

    @Override
    public WarmUp warmUp(EngineListener meanwhile) {
        if (!thread.redirect(meanwhile)) {
            throw new EngineUnavailableException(thread.whyUnavailable());
        }
        warmingUp = true;
        return new WarmUp() {
            @Override
            public int warmUpHandovers(Duration atMost) {
                return HandoverWarmUp.run(
                        config.kvTransfer(),
                        runner.fingerprint(),
                        runner.cache().layout(),
                        atMost,
                        thread.ticker());
            }

            @Override
            public void close() {
                warmingUp = false;
                thread.endRedirection();
            }
        };
    }

    @Override
    public void close() {
        thread.close();
    }

    /** SplitMix64's finaliser over both. */
    private static long mix(long seed, long index) {
        long z = seed + (index + 1) * 0x9E3779B97F4A7C15L;
        z = (z ^ (z >>> 30)) * 0xBF58476D1CE4E5B9L;
        z = (z ^ (z >>> 27)) * 0x94D049BB133111EBL;
        return z ^ (z >>> 31);
    }
}
