package baton.engine.local;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.assertj.core.api.Assertions.within;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.engine.ChatMessage;
import baton.engine.Engine;
import baton.engine.EngineConfig;
import baton.engine.EngineConfigBuilder;
import baton.engine.EngineUnavailableException;
import baton.engine.FinishReason;
import baton.engine.GenerationEvent.Finished;
import baton.engine.GenerationEvent.Output;
import baton.engine.GenerationRequest;
import baton.engine.RequestOutput;
import baton.engine.SamplingParams;
import baton.engine.SamplingParamsBuilder;
import baton.engine.TokenLogprobs;
import baton.engine.model.GenerationConfig;
import baton.engine.model.ModelConfig;
import baton.engine.model.RandomCheckpoint;
import baton.engine.model.ResidentMemory;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.JsonFields;
import baton.memory.Processor;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import java.util.function.UnaryOperator;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.api.parallel.Isolated;

/** The offline API and the engine in this process, with the real tiny model in fp32. */
@Isolated("It measures the memory of the process.")
class LLMTest {
    static final Path MODEL = Path.of(System.getProperty("baton.root"), "models", "tiny-ledger");
    private static final String LEDGER = """
            Ledger of Larkhill, kept by Stefan.
            Elena works as a doctor.
            The home of Odile is in Rivermouth.
            The code for the inner gate is 5500.

            """;

    static EngineConfigBuilder config() {
        return EngineConfig.of(MODEL).dtype(DType.F32).threads(1).numBlocks(300);
    }

    private static LLM llm(UnaryOperator<EngineConfigBuilder> settings) {
        return new LLM(settings.apply(config()).build());
    }

    static int[] prompt(int seed, int length) {
        int[] prompt = new Random(seed).ints(length, 5, 2048).toArray();
        prompt[0] = 0;
        return prompt;
    }

    /** Prompts of which many begin with the tokens of others. */
    static List<int[]> promptsThatBeginAlike(Random random, int count) {
        List<int[]> beginnings =
                IntStream.range(0, 4).mapToObj(i -> prompt(i, 400)).toList();
        return IntStream.range(0, count)
                .mapToObj(i -> {
                    int[] beginning = beginnings.get(random.nextInt(beginnings.size()));
                    int[] end = prompt(1000 + i, 1 + random.nextInt(60));
                    return IntStream.concat(
                                    Arrays.stream(beginning, 0, 1 + random.nextInt(beginning.length)),
                                    Arrays.stream(end))
                            .toArray();
                })
                .toList();
    }

    /** Answers of an engine that has no connector. */
    static List<int[]> alone(List<int[]> prompts, SamplingParams sampling) {
        try (LLM llm = new LLM(config().build())) {
            return llm.generateTokens(prompts, sampling).stream()
                    .map(RequestOutput::tokens)
                    .toList();
        }
    }

    static void await(BooleanSupplier condition) {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(120);
        while (!condition.getAsBoolean()) {
            assertThat(System.nanoTime()).as("in time").isLessThan(deadline);
            LockSupport.parkNanos(100_000);
        }
    }

    private static SamplingParamsBuilder greedy(int tokens) {
        return SamplingParams.builder().temperature(0).maxTokens(tokens).ignoreEos(true);
    }

    @Test
    void answersALedgersQuestionAndTellsStories() {
        try (LLM llm = LLM.load(MODEL)) {
            RequestOutput answer = llm.chat(
                    List.of(ChatMessage.user(LEDGER + "What is the code for the inner gate?")),
                    SamplingParams.greedy(32));
            assertThat(answer.text()).isEqualTo("The code for the inner gate is 5500.");
            assertThat(answer.completions().getFirst().reason()).isEqualTo(FinishReason.STOP);
        }
        // The story's words are too close to each other for bf16.
        try (LLM llm = llm(config -> config.dtype(DType.F32))) {
            assertThat(llm.generate("Once upon a time", SamplingParams.greedy(32))
                            .text())
                    .contains("there lived a");
        }
    }

    /** The tokenizer is another model's; nothing else shows that its ids mean something else. */
    @Test
    void aVocabularyLargerThanTheEmbeddingIsRefused(@TempDir Path directory) throws IOException {
        RandomCheckpoint.write(
                directory,
                new ModelConfig("small", 1999, 16, 24, 2, 4, 2, 4, 128, 1e-5, 10000, Optional.empty(), true, DType.F32),
                1);
        Files.copy(MODEL.resolve("tokenizer.json"), directory.resolve("tokenizer.json"));
        assertThatThrownBy(() -> LLM.load(directory))
                .isInstanceOf(ConfigException.class)
                .hasMessage("tokenizer.json.model.vocab: has token ids up to 2047,"
                        + " must have them below config.json.vocab_size, which is 1999");
    }

    @Test
    void defaultsThatNoRequestMayHaveAreRefused() {
        for (String json : List.of("{\"temperature\": 3}", "{\"repetition_penalty\": 0}", "{\"top_p\": 0}")) {
            JsonFields overrides = JsonFields.parse(GenerationConfig.OVERRIDES, json);
            assertThatThrownBy(() -> llm(config -> config.generation(new GenerationConfig("auto", overrides))))
                    .isInstanceOf(ConfigException.class)
                    .hasMessageMatching("override_generation_config\\.[a-z_]+: is [0-9]+, must be .*");
        }
    }

    /** A penalty of the model's file changes the answer to a request without penalties, and the file's limit ends it. */
    @Test
    void defaultsOfTheModelAreInForce() {
        JsonFields overrides =
                JsonFields.parse(GenerationConfig.OVERRIDES, "{\"repetition_penalty\": 2.0, \"max_new_tokens\": 24}");
        try (LLM plain = llm(UnaryOperator.identity());
                LLM tuned = llm(config -> config.generation(new GenerationConfig("auto", overrides)))) {
            String usual = plain.generate(
                            "Once upon a time",
                            plain.defaultSampling().temperature(0).maxTokens(24).build())
                    .text();
            RequestOutput changed = tuned.generate(
                    "Once upon a time",
                    tuned.defaultSampling().temperature(0).maxTokens(400).build());
            assertThat(changed.text()).isNotEqualTo(usual);
            assertThat(changed.tokens().length).isLessThanOrEqualTo(24);
        }
    }

    @Test
    void seedsDecideWhateverElseRuns() {
        SamplingParams three = SamplingParams.builder()
                .n(3)
                .seed(7)
                .temperature(1.5)
                .maxTokens(12)
                .build();
        try (LLM llm = llm(UnaryOperator.identity())) {
            List<String> alone = texts(llm.generate("Once upon a time", three));
            List<RequestOutput> together =
                    llm.generate(List.of("The copper lantern", "Once upon a time", "Once upon a time", "Mira"), three);
            assertThat(texts(together.get(1))).isEqualTo(alone);
            assertThat(texts(together.get(2))).isEqualTo(alone);
            assertThat(alone).doesNotHaveDuplicates();
        }
    }

    /** In bf16 at a high temperature the least difference of a logit would choose another token sooner or later. */
    @Test
    void seededAnswersAreTheSameColdAndCached() {
        assumeTrue(
                Processor.current().has("avx2", "fma"),
                "the processor lacks one of avx2, fma, and LibTorch's operators round by the size of the batch");
        List<int[]> prompts =
                IntStream.range(0, 10).mapToObj(i -> prompt(i, 60 + 15 * i)).toList();
        SamplingParams sampling = SamplingParams.builder()
                .seed(5)
                .temperature(2)
                .maxTokens(30)
                .ignoreEos(true)
                .build();
        try (LLM llm = llm(config -> config.dtype(DType.BF16))) {
            List<RequestOutput> cold = llm.generateTokens(prompts, sampling);
            for (int i = 0; i < prompts.size(); i++) {
                RequestOutput cached =
                        llm.generateTokens(List.of(prompts.get(i)), sampling).getFirst();
                assertThat(cached.cachedTokens()).isPositive();
                assertThat(cached.tokens())
                        .as("prompt %d", i)
                        .isEqualTo(cold.get(i).tokens());
            }
        }
    }

    private static List<String> texts(RequestOutput output) {
        return output.completions().stream().map(RequestOutput.Completion::text).toList();
    }

    @Test
    void limitsAndStops() {
        try (LLM llm = llm(UnaryOperator.identity())) {
            String start = "Once upon a time there was a baker named Mira";
            String whole = llm.generate(start, greedy(32).build()).text();
            // From within one word to within another: the border of a token lies in between.
            int at = whole.indexOf("Copperton") + 6;
            String stop = whole.substring(at, at + 9);
            RequestOutput without =
                    llm.generate(start, greedy(32).stop(List.of(stop)).build());
            assertThat(without.text()).isEqualTo(whole.substring(0, whole.indexOf(stop)));
            assertThat(without.completions().getFirst().stopReason()).contains(stop);
            RequestOutput with = llm.generate(
                    start,
                    greedy(32).stop(List.of(stop)).includeStopInOutput(true).build());
            assertThat(with.text()).isEqualTo(whole.substring(0, whole.indexOf(stop) + stop.length()));
            // The stop string ends with the fifth token, or whichever it is: with so many tokens as a minimum it
            // passes.
            int tokens = without.tokens().length;
            RequestOutput later = llm.generate(
                    start, greedy(32).stop(List.of(stop)).minTokens(tokens).build());
            assertThat(later.tokens()).hasSize(32);
            assertThat(llm.generate(start, greedy(1).build()).tokens()).hasSize(1);

            String question = "<|user|>Good morning<|end|><|assistant|>";
            RequestOutput ended = llm.generate(question, SamplingParams.greedy(64));
            assertThat(ended.completions().getFirst().reason()).isEqualTo(FinishReason.STOP);
            int least = ended.tokens().length + 5;
            RequestOutput longer = llm.generate(
                    question,
                    SamplingParams.builder()
                            .temperature(0)
                            .maxTokens(64)
                            .minTokens(least)
                            .build());
            assertThat(longer.tokens().length).isGreaterThanOrEqualTo(least);
            assertThat(llm.generate(question, greedy(64).build()).tokens()).hasSize(64);

            RequestOutput full = llm.generateTokens(
                            List.of(prompt(1, 2046)), greedy(64).build())
                    .getFirst();
            assertThat(full.tokens()).hasSize(2);
            assertThat(full.completions().getFirst().reason()).isEqualTo(FinishReason.LENGTH);
            assertThatThrownBy(() -> llm.generateTokens(
                            List.of(prompt(1, 2048)), greedy(1).build()))
                    .isInstanceOf(ConfigException.class)
                    .hasMessageContaining("2048");
        }
    }

    @Test
    void logprobsHaveTheirShapesAndDoNotDependOnChunks() {
        SamplingParams sampling = greedy(4).logprobs(3).promptLogprobs(2).build();
        int[] prompt = prompt(3, 150);
        try (LLM whole = llm(UnaryOperator.identity());
                LLM chunked = llm(config -> config.maxNumSeqs(4).maxNumBatchedTokens(37))) {
            RequestOutput a = whole.generateTokens(List.of(prompt), sampling).getFirst();
            RequestOutput b = chunked.generateTokens(List.of(prompt), sampling).getFirst();
            assertThat(a.promptLogprobs()).hasSize(149);
            assertThat(b.promptLogprobs()).hasSize(149);
            assertThat(a.completions().getFirst().logprobs()).hasSize(4);
            assertThat(b.tokens()).isEqualTo(a.tokens());
            for (int i = 0; i < 149; i++) {
                TokenLogprobs one = a.promptLogprobs().get(i);
                TokenLogprobs other = b.promptLogprobs().get(i);
                assertThat(one.id()).isEqualTo(prompt[i + 1]).isEqualTo(other.id());
                assertThat(one.top()).hasSize(2);
                assertThat(other.logprob()).as("token %d", i).isCloseTo(one.logprob(), within(1e-3f));
            }
        }
    }

    @Test
    void howRequestsAreBatchedCachedAndPreemptedChangesNothing() {
        Random random = new Random(11);
        List<int[]> prompts = new ArrayList<>();
        for (int i = 0; i < 40; i++) {
            prompts.add(i % 4 == 3 ? prompts.get(i - 1) : prompt(i, 1 + random.nextInt(i % 5 == 0 ? 300 : 60)));
        }
        SamplingParams sampling = greedy(24).build();
        List<int[]> alone = new ArrayList<>();
        try (LLM llm = llm(config -> config.enablePrefixCaching(false))) {
            for (int[] prompt : prompts) {
                alone.add(
                        llm.generateTokens(List.of(prompt), sampling).getFirst().tokens());
            }
        }
        List<UnaryOperator<EngineConfigBuilder>> ways = List.of(
                UnaryOperator.identity(),
                config -> config.enablePrefixCaching(false),
                config -> config.maxNumSeqs(16).maxNumBatchedTokens(50),
                config -> config.maxModelLen(400).numBlocks(32).maxNumSeqs(40));
        for (int way = 0; way < ways.size(); way++) {
            try (LLM llm = llm(ways.get(way))) {
                List<RequestOutput> together = llm.generateTokens(prompts, sampling);
                for (int i = 0; i < prompts.size(); i++) {
                    assertThat(together.get(i).tokens())
                            .as("way %d request %d", way, i)
                            .isEqualTo(alone.get(i));
                }
                await(() -> llm.engine().status().usedBlocks() == 0);
            }
        }
    }

    @Test
    void endsEveryRequestThatIsAbortedRefusedOrCannotDeliver() throws Exception {
        try (LLM llm = llm(UnaryOperator.identity())) {
            Engine engine = llm.engine();
            GenerationRequest slow =
                    new GenerationRequest("a", prompt(1, 30), greedy(1500).n(2).build());
            GenerationCollector first = new GenerationCollector(slow);
            CompletableFuture<Boolean> started = new CompletableFuture<>();
            engine.submit(slow, event -> {
                started.complete(true);
                first.accept(event);
            });
            started.get(120, TimeUnit.SECONDS);
            engine.abort("nobody");
            // Its id, and the id of one of its sequences, are taken.
            for (String id : List.of("a", "a-1")) {
                GenerationRequest same =
                        new GenerationRequest(id, prompt(2, 5), greedy(2).build());
                GenerationCollector second = new GenerationCollector(same);
                engine.submit(same, second);
                RequestOutput refused = second.result().get(120, TimeUnit.SECONDS);
                assertThat(refused.completions().getFirst().error().orElseThrow())
                        .contains("'" + id + "' is in use");
            }
            engine.abort("a");
            RequestOutput aborted = first.result().get(120, TimeUnit.SECONDS);
            assertThat(aborted.completions()).allMatch(each -> each.reason() == FinishReason.ABORT);

            CompletableFuture<Finished> end = new CompletableFuture<>();
            engine.submit(
                    new GenerationRequest("throws", prompt(1, 30), greedy(100).build()), event -> {
                        if (event instanceof Finished finished) {
                            end.complete(finished);
                        }
                        throw new IllegalStateException("sink");
                    });
            assertThat(end.get(120, TimeUnit.SECONDS).reason()).isEqualTo(FinishReason.ERROR);
            assertThat(llm.generate("Mira", greedy(3).build()).tokens()).hasSize(3);
            await(() -> engine.status().usedBlocks() == 0);
        }
    }

    @Test
    void closingFromASinkEndsEverything() throws Exception {
        LLM llm = llm(UnaryOperator.identity());
        GenerationRequest request =
                new GenerationRequest("a", prompt(1, 30), greedy(1500).build());
        GenerationCollector collector = new GenerationCollector(request);
        llm.engine().submit(request, event -> {
            collector.accept(event);
            if (event instanceof Output) {
                llm.close();
            }
        });
        assertThat(collector
                        .result()
                        .get(120, TimeUnit.SECONDS)
                        .completions()
                        .getFirst()
                        .reason())
                .isEqualTo(FinishReason.ABORT);
        assertThatThrownBy(() -> llm.generate("x", greedy(1).build())).isInstanceOf(EngineUnavailableException.class);
        llm.close();
        assertThatThrownBy(() -> llm.engine().tokenizer().encode("x", false)).hasMessageContaining("closed");
    }

    /** 40 KiB a request would be a leak. */
    @Test
    void memoryStaysFlat() throws Exception {
        int count = 200;
        AtomicInteger asked = new AtomicInteger();
        try (LLM llm = llm(config -> config.maxNumSeqs(16))) {
            ResidentMemory.assertStaysFlat(count * (40L << 10), () -> {
                int from = asked.getAndAdd(count);
                requests(llm, from, from + count);
            });
            await(() -> llm.engine().status().usedBlocks() == 0);
        }
    }

    private static void requests(LLM llm, int from, int to) throws Exception {
        List<GenerationCollector> all = new ArrayList<>();
        for (int i = from; i < to; i++) {
            GenerationRequest request = new GenerationRequest(
                    "m" + i, prompt(i, 8 + i % 40), greedy(1 + i % 6).build());
            GenerationCollector collector = new GenerationCollector(request);
            int kind = i % 10;
            llm.engine()
                    .submit(
                            request,
                            kind == 1
                                    ? event -> {
                                        collector.accept(event);
                                        throw new IllegalStateException("sink");
                                    }
                                    : collector);
            if (kind == 2) {
                llm.engine().abort("m" + i);
            }
            all.add(collector);
        }
        for (GenerationCollector collector : all) {
            assertThat(collector.result().get(60, TimeUnit.SECONDS).completions())
                    .hasSize(1);
        }
    }

    @Test
    void offlineTakesMorePromptsThanMayWait() {
        try (LLM llm = llm(config -> config.maxNumSeqs(2).maxWaiting(1))) {
            List<int[]> prompts =
                    IntStream.range(0, 9).mapToObj(i -> prompt(i, 4)).toList();
            assertThat(llm.generateTokens(prompts, greedy(2).build()))
                    .extracting(output -> Arrays.toString(output.prompt()))
                    .isEqualTo(prompts.stream().map(Arrays::toString).toList());
        }
    }
}
