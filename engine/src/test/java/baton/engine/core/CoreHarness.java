package baton.engine.core;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.EngineConfig;
import baton.engine.EngineConfigBuilder;
import baton.engine.EngineListener;
import baton.engine.EngineListener.RequestStats;
import baton.engine.FinishReason;
import baton.engine.SamplingParams;
import baton.engine.sampling.SequenceSampler.Sampled;
import baton.kv.BlockHasher;
import baton.kv.JsonFields;
import baton.kv.KvEvent;
import baton.kv.KvGroups;
import baton.kv.connector.KvConnector;
import baton.kv.connector.Measurement;
import java.lang.foreign.Arena;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import java.util.function.UnaryOperator;
import java.util.stream.IntStream;

/** An engine core over the oracle, stepped by hand; checks every invariant after every step. */
final class CoreHarness implements AutoCloseable {
    static final int EOS = 0;

    final OracleRunner runner;
    final EngineCore core;
    final Map<String, Result> results = new LinkedHashMap<>();
    final Map<String, Double> measured = new HashMap<>();
    final List<KvEvent> events = new ArrayList<>();
    final List<EngineListener.StepStats> steps = new ArrayList<>();
    /** Whether the connector is meant to throw; else an assertion within it would be lost. */
    boolean connectorFails;

    private final BlockHasher hasher;
    private final int blocks;
    private final int maxLength;
    private final KvGroups groups;
    private long now = 1;

    CoreHarness(
            int blocks, int blockSize, UnaryOperator<EngineConfigBuilder> settings, Optional<KvConnector> connector) {
        this(blocks, blockSize, blocks * blockSize, KvGroups.one(OracleRunner.LAYERS), settings, connector);
    }

    CoreHarness(
            int blocks,
            int blockSize,
            int maxLength,
            KvGroups groups,
            UnaryOperator<EngineConfigBuilder> settings,
            Optional<KvConnector> connector) {
        this.blocks = blocks;
        this.groups = groups;
        this.runner = new OracleRunner(Arena.ofShared(), blocks, blockSize, false, groups);
        this.maxLength = maxLength;
        this.hasher = new BlockHasher(blockSize);
        EngineConfig config = settings.apply(EngineConfig.of(Path.of("oracle")).blockSize(blockSize))
                .build();
        EngineListener listener = new EngineListener() {
            @Override
            public void onMeasurements(List<Measurement> measurements) {
                measurements.forEach(m -> measured.merge(m.name(), m.value(), Double::sum));
            }

            @Override
            public void onKvEvents(List<KvEvent> changes) {
                events.addAll(changes);
            }

            @Override
            public void onStep(StepStats stats) {
                steps.add(stats);
            }
        };
        core = new EngineCore(config, runner, Set.of(EOS), connector, listener, () -> now++);
    }

    /** The result of a request. */
    static final class Result implements RequestListener {
        final int[] prompt;
        final List<Integer> tokens = new ArrayList<>();
        Optional<FinishReason> reason = Optional.empty();
        Optional<RequestStats> stats = Optional.empty();
        Optional<String> error = Optional.empty();
        Optional<JsonFields> params = Optional.empty();
        Optional<Object> stopReason = Optional.empty();

        Result(int[] prompt) {
            this.prompt = prompt;
        }

        @Override
        public Optional<String> onToken(Sampled token, boolean ends) {
            assertThat(reason).isEmpty();
            tokens.add(token.id());
            return Optional.empty();
        }

        @Override
        public void onFinished(
                FinishReason finishReason,
                Optional<Object> why,
                RequestStats requestStats,
                Optional<JsonFields> kvTransferParams,
                Optional<String> failure) {
            assertThat(reason).as("ends once").isEmpty();
            reason = Optional.of(finishReason);
            stopReason = why;
            stats = Optional.of(requestStats);
            params = kvTransferParams;
            error = failure;
        }
    }

    Result add(String id, int[] prompt, int maxTokens) {
        return add(id, prompt, greedy(maxTokens), 0);
    }

    private Result add(String id, int[] prompt, SamplingParams sampling, SequenceOptionsBuilder options) {
        Result result = new Result(prompt);
        results.put(id, result);
        core.add(new Request(
                id,
                prompt,
                maxLength,
                sampling,
                hasher,
                result,
                options.arrivalNanos(now).build()));
        return result;
    }

    Result add(String id, int[] prompt, int maxTokens, Optional<String> cacheSalt) {
        return add(id, prompt, greedy(maxTokens), SequenceOptions.builder().cacheSalt(cacheSalt));
    }

    static SamplingParams greedy(int maxTokens) {
        return SamplingParams.builder()
                .temperature(0)
                .maxTokens(maxTokens)
                .ignoreEos(true)
                .build();
    }

    Result add(String id, int[] prompt, SamplingParams sampling, int priority) {
        return add(id, prompt, sampling, SequenceOptions.builder().priority(priority));
    }

    Result addWithThreshold(String id, int[] prompt, int maxTokens, double threshold) {
        return add(id, prompt, greedy(maxTokens), SequenceOptions.builder().cacheHitThreshold(threshold));
    }

    /** A request of which another instance has generated the beginning of the output. */
    Result addContinued(String id, int[] prompt, int[] generated, SamplingParams sampling) {
        return add(
                id,
                prompt,
                sampling,
                SequenceOptions.builder().generated(generated).first(true));
    }

    /** A request that only warms up. */
    Result addWarmUp(String id, int[] prompt, int maxTokens) {
        return add(id, prompt, greedy(maxTokens), SequenceOptions.builder().warmsUp(true));
    }

    Result result(String id) {
        return Objects.requireNonNull(results.get(id), id);
    }

    boolean step() {
        boolean computed = core.step();
        core.checkInvariants();
        return computed;
    }

    /** Steps until nothing is left to do. */
    void run() {
        for (int i = 0; core.hasWork(); i++) {
            step();
            assertThat(i).as("steps").isLessThan(100_000);
        }
    }

    /**
     * Random arrivals and aborts of 25 requests. Each ends, with the oracle's output.
     *
     * @param longestPrompt tokens
     * @param longest tokens of a prompt and its answer
     */
    void runRandomLoad(Random random, int longestPrompt, int longest, String seed) {
        List<Integer> limits = new ArrayList<>();
        for (int i = 0; i < 25; i++) {
            int length = 1 + random.nextInt(longestPrompt);
            int limit = 1 + random.nextInt(Math.min(20, longest - length));
            limits.add(limit);
            add("r" + i, Arrays.copyOf(prompt(random.nextInt(2), longest), length), limit);
            for (int left = random.nextInt(4); left > 0; left--) {
                step();
            }
            if (random.nextInt(8) == 0) {
                core.abort("r" + random.nextInt(i + 1));
                core.checkInvariants();
            }
        }
        run();
        for (int i = 0; i < limits.size(); i++) {
            Result result = result("r" + i);
            assertThat(result.reason).as(seed).isPresent();
            assertThat(result.tokens)
                    .as("%s request %d", seed, i)
                    .isEqualTo(expected(result.prompt, result.tokens.size(), groups));
            if (result.reason.get() == FinishReason.LENGTH) {
                assertThat(result.tokens).hasSize(limits.get(i));
            }
        }
    }

    /** Lets time pass. */
    void pass(Duration time) {
        now += time.toNanos();
    }

    int used() {
        return core.status(Optional.empty()).usedBlocks();
    }

    int tokensComputed() {
        return runner.computed.stream().mapToInt(slice -> slice.tokens().length).sum();
    }

    /** The oracle's output without any cache. */
    static List<Integer> expected(int[] prompt, int count) {
        return expected(prompt, count, KvGroups.one(OracleRunner.LAYERS));
    }

    static List<Integer> expected(int[] prompt, int count, KvGroups groups) {
        int[] tokens = prompt;
        List<Integer> output = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            int next = OracleRunner.next(tokens, groups);
            output.add(next);
            tokens = Arrays.copyOf(tokens, tokens.length + 1);
            tokens[tokens.length - 1] = next;
        }
        return output;
    }

    static int[] prompt(int seed, int length) {
        return IntStream.range(0, length)
                .map(i -> Math.floorMod((i + seed) * 7919 + seed * 31, OracleRunner.VOCABULARY))
                .toArray();
    }

    @Override
    public void close() {
        assertThat(used()).as("blocks in use at the end of " + blocks).isZero();
        if (!connectorFails) {
            assertThat(measured).doesNotContainKey("baton:kv_connector_failures");
        }
        core.close();
    }
}
