package baton.engine.local;

import baton.engine.ChatMessage;
import baton.engine.Engine;
import baton.engine.EngineConfig;
import baton.engine.EngineConfigBuilder;
import baton.engine.EngineListener;
import baton.engine.EngineUnavailableException;
import baton.engine.GenerationRequest;
import baton.engine.RequestOutput;
import baton.engine.SamplingParams;
import baton.engine.SamplingParamsBuilder;
import baton.engine.text.ChatRequest;
import baton.engine.text.ChatTemplate;
import baton.kv.ConfigException;
import baton.kv.KvTransferConfig;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Offline use, as vLLM's {@code LLM}: load a model, continue prompts, many at once.
 *
 * {@snippet :
 * try (LLM llm = LLM.load(Path.of("models/tiny-ledger"))) {
 *     System.out.println(llm.generate("Once upon a time", SamplingParams.greedy(32)).text());
 * }
 * }
 *
 * <p>With a {@link KvTransferConfig} in its {@link EngineConfig} it loads prompts' KV caches from other instances or saves them for these.
 * May be used by several threads.
 */
public final class LLM implements AutoCloseable {
    private final LocalEngine engine;
    private final AtomicLong requests = new AtomicLong();

    /**
     * Loads the model and starts its engine.
     *
     * @throws ConfigException if the configuration or the checkpoint cannot work
     * @throws UncheckedIOException if the checkpoint cannot be read
     */
    public LLM(EngineConfig config) {
        try {
            engine = LocalEngine.start(unlimitedQueue(config), EngineListener.NONE);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** The caller of {@link #generate} holds all prompts in memory anyway, so none is rejected for their number. */
    private static EngineConfig unlimitedQueue(EngineConfig config) {
        return EngineConfigBuilder.builder(config).maxWaiting(Integer.MAX_VALUE).build();
    }

    /** A model with the defaults. */
    public static LLM load(Path model) {
        return new LLM(EngineConfig.of(model).build());
    }

    /** The engine underneath, for operations that this class does not offer. */
    public Engine engine() {
        return engine;
    }

    /** Starts from the defaults of the checkpoint's generation_config.json. */
    public SamplingParamsBuilder defaultSampling() {
        return SamplingParams.apply(engine.generationDefaults(), SamplingParams.builder());
    }

    /** Continues one prompt. */
    public RequestOutput generate(String prompt, SamplingParams sampling) {
        return generate(List.of(prompt), sampling).getFirst();
    }

    /**
     * Continues all prompts, batched, and returns when all have ended; results are in the order of the prompts.
     *
     * @throws ConfigException if a prompt cannot be served as it is; the other prompts are then aborted
     */
    public List<RequestOutput> generate(List<String> prompts, SamplingParams sampling) {
        return generateTokens(
                prompts.stream().map(prompt -> encode(prompt, true)).toList(), sampling);
    }

    /**
     * Continues a prompt with a value of a type, as {@link JsonType} describes it. The model is not told of the type: the prompt should.
     *
     * @throws ConfigException if the type has no JSON schema, or the prompt cannot be served as it is
     * @throws IllegalStateException if the output ended before the value was complete, as by {@code max_tokens}
     */
    public <T> T generate(String prompt, Class<T> type, SamplingParams sampling) {
        JsonType<T> json = JsonType.of(type);
        return json.value(
                generate(prompt, json.sampling(sampling)).completions().getFirst());
    }

    /** Continues prompts given as token ids. */
    public List<RequestOutput> generateTokens(List<int[]> prompts, SamplingParams sampling) {
        List<GenerationCollector> collectors = new ArrayList<>(prompts.size());
        try {
            for (int[] prompt : prompts) {
                GenerationRequest request =
                        new GenerationRequest(Long.toString(requests.getAndIncrement()), prompt, sampling);
                GenerationCollector collector = new GenerationCollector(request);
                engine.submit(request, collector);
                collectors.add(collector);
            }
        } catch (RuntimeException e) {
            collectors.forEach(collector -> engine.abort(collector.id()));
            throw e;
        }
        return collectors.stream().map(GenerationCollector::join).toList();
    }

    /** A tokenizer that is closed means an engine that is, or is about to be. */
    private int[] encode(String text, boolean addSpecialTokens) {
        try {
            return engine.tokenizer().encode(text, addSpecialTokens);
        } catch (IllegalStateException e) {
            throw new EngineUnavailableException("The engine is closed: " + e.getMessage());
        }
    }

    /**
     * Answers a conversation.
     *
     * @throws ConfigException if the model has no chat template
     */
    public RequestOutput chat(List<ChatMessage> messages, SamplingParams sampling) {
        ChatTemplate template = engine.chatTemplate()
                .orElseThrow(() -> new ConfigException(
                        "chat_template", "the model has none; use generate, or a checkpoint with a chat template"));
        String prompt = template.render(
                ChatRequest.of(messages.stream().map(ChatMessage::toJson).toList()));
        // The template writes the model's own opening tokens.
        return generateTokens(List.of(encode(prompt, false)), sampling).getFirst();
    }

    /** Answers a conversation with a value of a type, as {@link #generate(String, Class, SamplingParams)}. */
    public <T> T chat(List<ChatMessage> messages, Class<T> type, SamplingParams sampling) {
        JsonType<T> json = JsonType.of(type);
        return json.value(chat(messages, json.sampling(sampling)).completions().getFirst());
    }

    @Override
    public void close() {
        engine.close();
    }
}
