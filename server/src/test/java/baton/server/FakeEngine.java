package baton.server;

import baton.engine.ConnectorCall;
import baton.engine.Engine;
import baton.engine.EngineConfig;
import baton.engine.EngineListener;
import baton.engine.EngineStatus;
import baton.engine.EngineUnavailableException;
import baton.engine.FinishReason;
import baton.engine.GenerationEvent;
import baton.engine.GenerationEvent.Finished;
import baton.engine.GenerationEvent.Usage;
import baton.engine.GenerationRequest;
import baton.engine.RequestTimes;
import baton.engine.SamplingParams;
import baton.engine.TokenLogprobs;
import baton.engine.model.ModelConfig;
import baton.engine.text.ChatTemplate;
import baton.engine.text.Tokenizer;
import baton.grammar.OutputFormat;
import baton.kv.DType;
import baton.kv.JsonFields;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;

/** An engine with tiny-ledger's tokenizer and chat template, and one thread on which a test's script makes the events of the model. */
final class FakeEngine implements Engine {
    static final int MAX_MODEL_LEN = 2048;
    static final int CACHED_TOKENS = 3;
    static final int TRANSFERRED_TOKENS = 2;
    static final Path MODEL = Path.of(System.getProperty("baton.root", "."), "models", "tiny-ledger")
            .normalize();

    /** May be replaced before requests. */
    volatile EngineConfig config = EngineConfig.of(MODEL).build();

    private final Tokenizer tokenizer = Tokenizer.load(MODEL);
    private final ChatTemplate chatTemplate = ChatTemplate.load(MODEL);
    private final ExecutorService thread = Executors.newSingleThreadExecutor(
            Thread.ofPlatform().name("fake-engine").factory());
    private final Map<String, Session> live = new ConcurrentHashMap<>();
    private final BlockingQueue<Session> submitted = new LinkedBlockingQueue<>();
    private final BlockingQueue<String> aborted = new LinkedBlockingQueue<>();
    private final BlockingQueue<String> abandoned = new LinkedBlockingQueue<>();
    private final BlockingQueue<JsonFields> refused = new LinkedBlockingQueue<>();
    private volatile Consumer<Session> script = session -> {};
    private volatile Optional<String> failure = Optional.empty();
    private volatile Optional<ConnectorCall> blocking = Optional.empty();
    private volatile Optional<RuntimeException> refusal = Optional.empty();
    private volatile Runnable whenTokenizerIsTaken = () -> {};
    private volatile boolean resets = true;
    private volatile Optional<JsonFields> ahead = Optional.empty();
    private final AtomicInteger accepted = new AtomicInteger();

    /** The script of each further request, run on the engine's thread. */
    void script(Consumer<Session> value) {
        script = value;
    }

    /** A script of the given pieces of text, each as one token, for every sequence. */
    void answers(String... pieces) {
        script(session -> {
            for (int index = 0; index < session.request.sampling().n(); index++) {
                for (String piece : pieces) {
                    session.output(index, piece);
                }
                session.finish(index, FinishReason.STOP);
            }
        });
    }

    void refuses(RuntimeException value) {
        refusesAfter(0, value);
    }

    /** Accepts so many more requests and refuses the rest. */
    void refusesAfter(int requests, RuntimeException value) {
        accepted.set(requests);
        refusal = Optional.of(value);
    }

    void fails(String why) {
        failure = Optional.of(why);
    }

    /** From now on it waits for this call, or for none. */
    void waitsFor(Optional<ConnectorCall> call) {
        blocking = call;
    }

    /** Runs at each request of the tokenizer, on the requesting thread. */
    void whenTokenizerIsTaken(Runnable value) {
        whenTokenizerIsTaken = value;
    }

    void resets(boolean value) {
        resets = value;
    }

    void tellsAhead(JsonFields params) {
        ahead = Optional.of(params);
    }

    Session nextSubmitted() throws InterruptedException {
        return next(submitted, "no request came");
    }

    String nextAborted() throws InterruptedException {
        return next(aborted, "no abort came");
    }

    String nextAbandoned() throws InterruptedException {
        return next(abandoned, "no request was abandoned");
    }

    /** {@code kv_transfer_params} of a request that is not submitted. */
    JsonFields nextRefused() throws InterruptedException {
        return next(refused, "no request was refused");
    }

    static <T> T next(BlockingQueue<T> coming, String lacking) throws InterruptedException {
        return Objects.requireNonNull(coming.poll(ServerFixture.SOON.toSeconds(), TimeUnit.SECONDS), lacking);
    }

    int abandonedCount() {
        return abandoned.size();
    }

    int submittedCount() {
        return submitted.size();
    }

    int liveCount() {
        return live.size();
    }

    @Override
    public EngineConfig config() {
        return config;
    }

    @Override
    public ModelConfig model() {
        return new ModelConfig(
                "tiny-ledger", 2048, 256, 704, 6, 8, 4, 32, 2048, 1e-5, 1e4, Optional.empty(), true, DType.BF16);
    }

    @Override
    public int maxModelLen() {
        return MAX_MODEL_LEN;
    }

    @Override
    public Tokenizer tokenizer() {
        whenTokenizerIsTaken.run();
        return tokenizer;
    }

    @Override
    public Optional<ChatTemplate> chatTemplate() {
        return Optional.of(chatTemplate);
    }

    @Override
    public Optional<JsonFields> advertisedKvTransferParams() {
        return ahead;
    }

    @Override
    public void prepare(SamplingParams sampling) {
        sampling.format().ifPresent(OutputFormat::source);
    }

    @Override
    public long drawSeed() {
        return 7;
    }

    @Override
    public void submit(GenerationRequest request, Consumer<GenerationEvent> sink) {
        if (refusal.isPresent() && accepted.getAndDecrement() <= 0) {
            throw refusal.get();
        }
        Session session = new Session(request, sink);
        if (live.putIfAbsent(request.id(), session) != null) {
            throw new EngineUnavailableException("id=" + request.id() + " is live already");
        }
        submitted.add(session);
        thread.execute(() -> script.accept(session));
    }

    @Override
    public void refused(String id, JsonFields kvTransferParams) {
        refused.add(kvTransferParams);
    }

    @Override
    public void abandon(String id) {
        abandoned.add(id);
        abort(id);
    }

    @Override
    public void abort(String id) {
        aborted.add(id);
        Optional.ofNullable(live.get(id)).ifPresent(session -> thread.execute(session::finishAllAborted));
    }

    @Override
    public boolean resetPrefixCache() {
        return resets;
    }

    @Override
    public WarmUp warmUp(EngineListener meanwhile) {
        return new WarmUp() {
            @Override
            public int warmUpHandovers(Duration atMost) {
                return 0;
            }

            @Override
            public void close() {}
        };
    }

    @Override
    public EngineStatus status() {
        return new EngineStatus(live.size(), 2, 0, 1, 0, 0, 64, 16, false, failure, blocking);
    }

    @Override
    public void close() {
        thread.shutdownNow();
        tokenizer.close();
    }

    /** One request. Its methods may be called from any thread; events are sent from the engine's thread. */
    final class Session {
        final GenerationRequest request;
        private final Consumer<GenerationEvent> sink;
        private final Set<Integer> finished = new HashSet<>();
        private final Map<Integer, Integer> outputs = new ConcurrentHashMap<>();
        private Optional<JsonFields> kvTransferParams = Optional.empty();
        private volatile RequestTimes times = RequestTimes.NONE;

        Session(GenerationRequest request, Consumer<GenerationEvent> sink) {
            this.request = request;
            this.sink = sink;
        }

        void output(int index, String text) {
            output(index, new int[] {100 + outputs.getOrDefault(index, 0)}, text, List.of());
        }

        void output(int index, int[] ids, String text, List<TokenLogprobs> logprobs) {
            outputs.merge(index, ids.length, Integer::sum);
            sink.accept(new GenerationEvent.Output(index, ids, text, logprobs));
        }

        void promptLogprobs(List<TokenLogprobs> logprobs) {
            sink.accept(new GenerationEvent.PromptLogprobs(0, logprobs));
        }

        void took(RequestTimes measured) {
            times = measured;
        }

        void handsOver(JsonFields params) {
            kvTransferParams = Optional.of(params);
        }

        void finish(int index, FinishReason reason) {
            finish(index, reason, Optional.empty(), Optional.empty());
        }

        synchronized void finish(int index, FinishReason reason, Optional<Object> stopReason, Optional<String> error) {
            if (!finished.add(index)) {
                return;
            }
            if (finished.size() == request.sampling().n()) {
                live.remove(request.id());
            }
            sink.accept(new Finished(
                    index,
                    reason,
                    stopReason,
                    new Usage(
                            request.prompt().length, CACHED_TOKENS, TRANSFERRED_TOKENS, outputs.getOrDefault(index, 0)),
                    kvTransferParams,
                    error,
                    times));
        }

        private void finishAllAborted() {
            for (int index = 0; index < request.sampling().n(); index++) {
                finish(index, FinishReason.ABORT);
            }
        }
    }
}
