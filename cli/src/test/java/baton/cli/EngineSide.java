package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.EngineConfig;
import baton.engine.EngineConfigBuilder;
import baton.engine.EngineListener;
import baton.engine.GenerationRequest;
import baton.engine.ParallelConfig;
import baton.engine.RequestOutput;
import baton.engine.SamplingParams;
import baton.engine.backend.ModelBackend;
import baton.engine.backend.ModelBackends;
import baton.engine.local.GenerationCollector;
import baton.engine.local.LocalEngine;
import baton.engine.model.Device;
import baton.kv.DType;
import baton.kv.JsonFields;
import baton.kv.connector.Measurement;
import baton.testkit.Await;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/** An engine in this process with the real tiny model, and its measurements. */
final class EngineSide implements AutoCloseable {
    static final int BLOCK = 16;
    static final int ANSWER_TOKENS = 6;
    static final SamplingParams ANSWER = SamplingParams.builder()
            .temperature(0)
            .maxTokens(ANSWER_TOKENS)
            .ignoreEos(true)
            .build();

    private static final int SECONDS = 300;
    /** Lengths of the first prompts, whatever the seed. */
    private static final int[] BORDERS = {1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1};

    final LocalEngine engine;
    final AtomicLong scheduledTokens = new AtomicLong();
    final AtomicLong generatedTokens = new AtomicLong();
    private final Map<String, Double> sums = new ConcurrentHashMap<>();

    /** A prompt, and the answer of an engine alone. */
    record Asked(int[] prompt, int[] answer) {}

    /** Makes a prompt that differs from those before, or continues or repeats one of them. */
    interface Prompts {
        int[] next(Random random, List<Asked> before);
    }

    EngineSide(EngineConfig config) throws IOException {
        this(config, ModelBackends.on(Device.CPU));
    }

    EngineSide(EngineConfig config, ModelBackend backend) throws IOException {
        engine = LocalEngine.start(
                config,
                new EngineListener() {
                    @Override
                    public void onStep(StepStats stats) {
                        scheduledTokens.addAndGet(stats.scheduledTokens());
                        generatedTokens.addAndGet(stats.generatedTokens());
                    }

                    @Override
                    public void onMeasurements(List<Measurement> measurements) {
                        measurements.forEach(each -> sums.merge(each.name(), each.value(), Double::sum));
                    }
                },
                () -> backend);
    }

    /** Sums in another order differ too much in bf16 where ranks share a model. */
    static EngineConfigBuilder config(int blockSize, int ranks, int stages) {
        return EngineConfig.of(Instances.MODEL)
                .dtype(DType.F32)
                .threads(1)
                .maxModelLen(1024)
                .blockSize(blockSize)
                .numBlocks(600 * BLOCK / blockSize)
                .parallel(
                        ranks * stages == 1
                                ? ParallelConfig.SINGLE
                                : new ParallelConfig(ranks, stages, ParallelConfig.SINGLE.cpuBinding()));
    }

    /**
     * Prompts that are asked at once, with the answers of an engine alone. The first have lengths around a block's borders.
     *
     * @param firstWave prompts of the first wave; later ones have up to {@code mostAtOnce}
     */
    static List<List<Asked>> askOneAlone(int count, long seed, int firstWave, int mostAtOnce, Prompts prompts)
            throws Exception {
        Random random = new Random(seed);
        List<List<Asked>> waves = new ArrayList<>();
        List<Asked> before = new ArrayList<>();
        try (EngineSide alone =
                new EngineSide(config(BLOCK, 1, 1).enablePrefixCaching(false).build())) {
            while (before.size() < count) {
                int size = before.isEmpty() ? firstWave : 1 + random.nextInt(mostAtOnce);
                List<int[]> wave = new ArrayList<>();
                List<Future<RequestOutput>> answers = new ArrayList<>();
                for (int i = before.size(); i < Math.min(count, before.size() + size); i++) {
                    wave.add(i < BORDERS.length ? Ledgers.prompt(BORDERS[i], i) : prompts.next(random, before));
                    answers.add(alone.ask("alone-" + i, wave.getLast(), ANSWER, Optional.empty()));
                }
                List<Asked> asked = new ArrayList<>();
                for (int[] prompt : wave) {
                    asked.add(new Asked(prompt, tokens(answers.get(asked.size()))));
                }
                waves.add(asked);
                before.addAll(asked);
            }
        }
        return waves;
    }

    /** Prompts of any length, of which some begin alike, so that a part is in the prefix cache. */
    static int[] anyOrAlike(Random random, List<Asked> before) {
        return Ledgers.prompt(1 + random.nextInt(300), random.nextBoolean() ? 7 : random.nextInt(1_000_000));
    }

    Future<RequestOutput> ask(String id, int[] prompt, SamplingParams sampling, Optional<JsonFields> params) {
        GenerationRequest request = new GenerationRequest(id, prompt, sampling, params, Optional.empty(), 0);
        GenerationCollector collector = new GenerationCollector(request);
        engine.submit(request, collector);
        return collector.result();
    }

    static int[] tokens(Future<RequestOutput> output) throws Exception {
        return tokens(output.get(SECONDS, TimeUnit.SECONDS));
    }

    private static int[] tokens(RequestOutput output) {
        assertThat(output.completions().getFirst().error()).isEmpty();
        return output.tokens();
    }

    /** Checks the answer to a prompt that was handed over: its tokens, and that no token but the last was computed. */
    static RequestOutput check(Future<RequestOutput> answer, Asked asked, String what) throws Exception {
        RequestOutput output = answer.get(SECONDS, TimeUnit.SECONDS);
        assertThat(tokens(output)).as(what).isEqualTo(asked.answer());
        assertThat(asked.prompt().length - output.cachedTokens())
                .as("computed of %s", what)
                .isLessThanOrEqualTo(1);
        return output;
    }

    double sum(String name) {
        return sums.getOrDefault(name, 0.0);
    }

    void assertNone(String... measurements) {
        for (String trouble : measurements) {
            assertThat(sum(trouble)).as(trouble).isZero();
        }
    }

    void awaitRest() throws Exception {
        Await.until(
                Instances.DEADLINE,
                () -> "blocks still in use: " + engine.status(),
                () -> engine.status().usedBlocks() == 0);
    }

    @Override
    public void close() {
        engine.close();
    }
}
