package baton.engine.core;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.engine.EngineConfig;
import baton.engine.EngineListener;
import baton.engine.FinishReason;
import baton.engine.SamplingParams;
import baton.engine.core.CoreHarness.Result;
import baton.engine.model.Checkpoint;
import baton.engine.model.CpuModels;
import baton.engine.model.Golden;
import baton.engine.model.ModelOptions;
import baton.engine.model.ModelRanks;
import baton.engine.model.ModelRunner;
import baton.engine.model.ModelRunner.LayerHooks;
import baton.engine.model.ModelRunner.SequenceSlice;
import baton.engine.model.Quantization;
import baton.engine.model.RandomCheckpoint;
import baton.kv.BlockHasher;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.KvCache;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.LoadFailurePolicy;
import baton.kv.VerifyKv;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.KvConnector;
import baton.kv.connector.KvMatch;
import baton.kv.connector.KvRequest;
import baton.kv.connector.Measurement;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.WorkerConnector;
import baton.kv.connector.WorkerReport;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.EnumMap;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Loaded keys and values that are not those of the prompt: which of them a real model finds by computing a part itself. */
class VerifiedLoadsTest {
    private static final Path MODEL = Path.of(System.getProperty("baton.root"), "models", "tiny-ledger");
    private static final int BLOCK = 16;
    private static final int PROMPT = 6 * BLOCK + 5;
    private static final int ANSWER = 6;
    private static final int PROMPTS = Integer.getInteger("tests.verified", 10);
    private static final int TURNS = Integer.getInteger("tests.turns", 1);

    /** Wrong contents of a prompt's blocks. A write of a half-written one stopped in the middle of a layer. */
    private enum Fault {
        REUSED,
        SWAPPED,
        SHIFTED,
        SAME_BEGINNING,
        SAME_TOKENS_AFTER_OTHERS,
        OTHER_WEIGHTS,
        HALF_WRITTEN,
        LAYERS_MISSING;

        /**
         * Wrong upper layers are all that there is to be found: the last tokens of a prompt without sense may not attend to them, or so little that
         * they differ by less than the bounds.
         */
        boolean mayBeMissed(VerifyKv verify, DType dtype) {
            return (this == HALF_WRITTEN && verify != VerifyKv.EACH_BLOCK)
                    || (this == SAME_TOKENS_AFTER_OTHERS && dtype != DType.F32);
        }
    }

    @TempDir
    Path directory;

    /** A model that computes prompts, as a prefill instance. */
    private record Donor(ModelRunner runner) implements AutoCloseable {
        static Donor of(Path model, DType dtype) throws IOException {
            try (Checkpoint checkpoint = Checkpoint.open(model)) {
                KvLayout layout = checkpoint.config().kvLayout(BLOCK, dtype);
                return new Donor(CpuModels.load(checkpoint, dtype, layout, 128, OptionalInt.of(1), 2048));
            }
        }

        /** The blocks of a prompt, in a type. */
        byte[][] blocks(int[] prompt, DType to) {
            int count = Math.ceilDiv(prompt.length, BLOCK);
            int[] table = IntStream.range(0, count).toArray();
            runner.forward(List.of(new SequenceSlice(prompt, 0, table, 1)), LayerHooks.NONE)
                    .close();
            KvCache cache = runner.cache();
            byte[][] blocks = new byte[count][];
            for (int block = 0; block < count; block++) {
                MemorySegment from = cache.block(block);
                int elements = (int) (from.byteSize() / cache.layout().dtype().bytes());
                blocks[block] = new byte[elements * to.bytes()];
                for (int i = 0; i < elements; i++) {
                    float value = cache.layout()
                            .dtype()
                            .get(from, (long) i * cache.layout().dtype().bytes());
                    to.set(MemorySegment.ofArray(blocks[block]), (long) i * to.bytes(), value);
                }
            }
            return blocks;
        }

        @Override
        public void close() {
            runner.close();
        }
    }

    /** Loads blocks that a test gives for prompts. */
    private static final class Given implements KvConnector {
        /** The blocks by request. */
        final Map<String, byte[][]> blocks = new HashMap<>();
        /** Tokens of them that are loaded, within a step; 0 to load the whole prompt between steps. */
        int withinStep;

        boolean unverified = true;
        /** Whether loads within a step are reported as failed. */
        boolean failing;
        /** Requests of which the connector was notified that their load was wrong. */
        final List<String> wrongLoads = new ArrayList<>();

        private record Load(String request, int[] table, boolean async) {}

        private record Loads(List<Load> loads) implements ConnectorMetadata {}

        @Override
        public Set<String> names() {
            return Set.of("Given");
        }

        @Override
        public SchedulerConnector scheduler(ConnectorContext context) {
            return new SchedulerConnector() {
                private List<Load> loads = new ArrayList<>();

                @Override
                public KvMatch match(KvRequest request, int computedTokens) {
                    int tokens = (withinStep == 0 ? request.promptLength() : withinStep) - computedTokens;
                    return blocks.containsKey(request.id()) && tokens > 0
                            ? new KvMatch.Tokens(tokens, withinStep == 0)
                            : new KvMatch.None();
                }

                @Override
                public void onAllocated(KvRequest request, int[] table, int computedTokens, int externalTokens) {
                    if (externalTokens > 0) {
                        loads.add(new Load(request.id(), table, withinStep == 0));
                    }
                }

                @Override
                public void onWrongLoad(KvRequest request) {
                    wrongLoads.add(request.id());
                }

                @Override
                public ConnectorMetadata buildMetadata(ScheduledStep step) {
                    Loads metadata = new Loads(loads);
                    loads = new ArrayList<>();
                    return metadata;
                }

                @Override
                public void close() {}
            };
        }

        @Override
        public WorkerConnector worker(ConnectorContext context, Rank rank) {
            return new WorkerConnector() {
                private @Nullable KvCache cache;
                private final Set<String> received = new HashSet<>();
                private final Set<Integer> failed = new HashSet<>();

                @Override
                public void register(KvCache pool) {
                    cache = pool;
                }

                @Override
                public void startLoad(ConnectorMetadata metadata) {
                    for (Load load : ((Loads) metadata).loads()) {
                        byte[][] contents = Objects.requireNonNull(blocks.get(load.request()));
                        int end = withinStep == 0 ? contents.length : withinStep / BLOCK;
                        for (int i = 0; i < end; i++) {
                            Objects.requireNonNull(cache)
                                    .block(load.table()[i])
                                    .copyFrom(MemorySegment.ofArray(contents[i]));
                            if (failing) {
                                failed.add(load.table()[i]);
                            }
                        }
                        if (load.async()) {
                            received.add(load.request());
                        }
                    }
                }

                @Override
                public WorkerReport report(Set<String> finished) {
                    WorkerReport report = new WorkerReport(
                                    Set.of(), Set.copyOf(received), Set.copyOf(failed), List.of())
                            .withUnverified(unverified ? Set.copyOf(received) : Set.of());
                    received.clear();
                    failed.clear();
                    return report;
                }

                @Override
                public void close() {}
            };
        }
    }

    /** A decode instance. */
    private static final class Decoder implements AutoCloseable {
        final Given connector = new Given();
        final EngineCore core;
        final List<String> failures = new ArrayList<>();
        private final BlockHasher hasher = new BlockHasher(BLOCK);
        private int requests;
        private long now = 1;

        Decoder(DType dtype, VerifyKv verify, boolean caching) throws IOException {
            this(dtype, verify, caching, LoadFailurePolicy.FAIL);
        }

        Decoder(DType dtype, VerifyKv verify, boolean caching, LoadFailurePolicy policy) throws IOException {
            try (Checkpoint checkpoint = Checkpoint.open(MODEL)) {
                ModelRanks ranks = CpuModels.load(
                        checkpoint,
                        ModelOptions.oneRank(dtype, Quantization.NONE, BLOCK, 128, OptionalInt.of(1), 2048));
                core = new EngineCore(
                        EngineConfig.of(MODEL)
                                .blockSize(BLOCK)
                                .enablePrefixCaching(caching)
                                .kvTransfer(config(verify, policy))
                                .build(),
                        ranks.first(),
                        Set.of(1),
                        Optional.of(connector),
                        new EngineListener() {
                            @Override
                            public void onMeasurements(List<Measurement> measurements) {
                                measurements.stream()
                                        .filter(each -> each.name().equals("baton:kv_verify_failures"))
                                        .forEach(each ->
                                                failures.add(each.labels().get("check")));
                            }
                        },
                        () -> now++);
            }
        }

        static KvTransferConfig config(VerifyKv verify, LoadFailurePolicy policy) {
            return KvTransferConfig.builder("Given", KvRole.BOTH)
                    .loadFailurePolicy(policy)
                    .verifyKv(verify)
                    .build();
        }

        Result begin(int[] prompt, Optional<byte[][]> loaded) {
            String id = "r" + requests++;
            loaded.ifPresent(blocks -> connector.blocks.put(id, blocks));
            Result result = new Result(prompt);
            SamplingParams greedy = SamplingParams.builder()
                    .temperature(0)
                    .maxTokens(ANSWER)
                    .ignoreEos(true)
                    .build();
            core.add(new Request(
                    id,
                    prompt,
                    2048,
                    greedy,
                    hasher,
                    result,
                    SequenceOptions.builder().arrivalNanos(now).build()));
            return result;
        }

        void run() {
            while (core.hasWork()) {
                core.step();
                core.checkInvariants();
            }
        }

        List<Integer> answer(int[] prompt, Optional<byte[][]> loaded) {
            failures.clear();
            Result result = begin(prompt, loaded);
            run();
            assertThat(result.reason).contains(FinishReason.LENGTH);
            return result.tokens;
        }

        @Override
        public void close() {
            core.close();
        }
    }

    private static int[] prompt(Random random) {
        return prompt(random, PROMPT);
    }

    private static int[] prompt(Random random, int length) {
        int[] prompt = random.ints(length, 5, 2048).toArray();
        prompt[0] = 0;
        return prompt;
    }

    /** The weights of the model, of which a part is another's. */
    private Path otherWeights() throws IOException {
        Path other = directory.resolve("other");
        try (Checkpoint checkpoint = Checkpoint.open(MODEL)) {
            RandomCheckpoint.write(other, checkpoint.config(), 7);
        }
        return other;
    }

    private static byte[][] wrong(Fault fault, int[] prompt, Donor donor, Donor others, DType dtype, Random random) {
        byte[][] blocks = donor.blocks(prompt, dtype);
        int[] other = prompt(random);
        int at = 1 + random.nextInt(blocks.length - 2);
        switch (fault) {
            case REUSED -> blocks[at] = donor.blocks(other, dtype)[at];
            case SWAPPED -> {
                byte[] block = blocks[at];
                blocks[at] = blocks[at - 1];
                blocks[at - 1] = block;
            }
            case SHIFTED -> System.arraycopy(blocks.clone(), 0, blocks, 1, blocks.length - 1);
            case SAME_BEGINNING -> {
                System.arraycopy(prompt, 0, other, 0, at * BLOCK);
                return donor.blocks(other, dtype);
            }
            case SAME_TOKENS_AFTER_OTHERS -> {
                int[] before = prompt.clone();
                System.arraycopy(other, BLOCK, before, BLOCK, BLOCK);
                byte[][] with = donor.blocks(before, dtype);
                System.arraycopy(with, 2, blocks, 2, blocks.length - 2);
            }
            case OTHER_WEIGHTS -> {
                return others.blocks(prompt, dtype);
            }
            case HALF_WRITTEN -> {
                // Of any length, the last layer's last token at least is missing.
                int written = random.nextInt(blocks[at].length - blocks[at].length / (6 * BLOCK));
                System.arraycopy(
                        donor.blocks(other, dtype)[at], written, blocks[at], written, blocks[at].length - written);
            }
            case LAYERS_MISSING -> {
                // From the second layer on.
                int layer = blocks[0].length / 6;
                for (byte[] block : blocks) {
                    Arrays.fill(block, layer, block.length, (byte) 0);
                }
            }
        }
        return blocks;
    }

    /** In bf16 the blocks come from a model that computes in fp32, which rounds at other places. */
    @Tag("thorough")
    @ParameterizedTest
    @CsvSource({
        "F32, 0, AUTO",
        "BF16, 0, AUTO",
        "F32, 96, FIRST_LAYER",
        "F32, 0, EACH_BLOCK",
        "BF16, 0, EACH_BLOCK",
        "F32, 96, EACH_BLOCK"
    })
    void wrongKvThatChangesAnAnswerIsFoundAndThePromptComputed(DType dtype, int withinStep, VerifyKv verify)
            throws IOException {
        Random random = new Random(11);
        Map<Fault, Integer> changed = new TreeMap<>();
        Map<Fault, Integer> found = new TreeMap<>();
        Map<Fault, Integer> both = new TreeMap<>();
        try (Donor donor = Donor.of(MODEL, DType.F32);
                Donor others = Donor.of(otherWeights(), DType.F32);
                Decoder trusting = new Decoder(dtype, VerifyKv.OFF, false);
                Decoder verifying = new Decoder(dtype, verify, false)) {
            trusting.connector.withinStep = withinStep;
            verifying.connector.withinStep = withinStep;
            for (int i = 0; i < PROMPTS; i++) {
                int[] prompt = prompt(random);
                List<Integer> right = trusting.answer(prompt, Optional.empty());
                byte[][] blocks = donor.blocks(prompt, dtype);
                List<Integer> loaded = trusting.answer(prompt, Optional.of(blocks));
                List<Integer> compared = verifying.answer(prompt, Optional.of(blocks));
                assertThat(verifying.failures).as("false alarms").isEmpty();
                if (dtype == DType.F32) {
                    assertThat(compared).isEqualTo(loaded);
                }
                for (Fault fault : Fault.values()) {
                    byte[][] wrong = wrong(fault, prompt, donor, others, dtype, random);
                    boolean changes =
                            !trusting.answer(prompt, Optional.of(wrong)).equals(loaded);
                    List<Integer> answer = verifying.answer(prompt, Optional.of(wrong));
                    changed.merge(fault, changes ? 1 : 0, Integer::sum);
                    found.merge(fault, verifying.failures.size(), Integer::sum);
                    both.merge(fault, changes ? verifying.failures.size() : 0, Integer::sum);
                    if ((changes && !fault.mayBeMissed(verify, dtype)) || !verifying.failures.isEmpty()) {
                        assertThat(answer).as("%s of prompt %d", fault, i).isEqualTo(right);
                        assertThat(verifying.failures)
                                .as("%s of prompt %d", fault, i)
                                .hasSize(1);
                    }
                }
            }
        }
        System.out.printf(
                "%s, withinStep=%d, %s, %d prompts: answers changed %s, found %s, of which changed %s%n",
                dtype, withinStep, verify, PROMPTS, changed, found, both);
        assertThat(changed.values().stream().mapToInt(Integer::intValue).sum())
                .as("answers of %d that wrong blocks change: %s, found: %s", PROMPTS, changed, found)
                .isGreaterThan(PROMPTS);
    }

    /** Each block in turn has some layers of another prompt's. The answers depend on a line of the prompt. */
    @Tag("thorough")
    @ParameterizedTest
    @CsvSource({"F32", "BF16"})
    void aHalfWrittenBlockThatChangesAnAnswerIsFound(DType dtype) throws IOException {
        Random random = new Random(Long.getLong("tests.seed", 12));
        int blocks = 0;
        int changed = 0;
        int found = 0;
        try (Donor donor = Donor.of(MODEL, DType.F32);
                Decoder trusting = new Decoder(dtype, VerifyKv.OFF, false);
                Decoder verifying = new Decoder(dtype, VerifyKv.AUTO, false)) {
            int[] text = Golden.all().stream()
                    .map(Golden::prompt)
                    .max(Comparator.comparingInt(prompt -> prompt.length))
                    .orElseThrow();
            for (Golden golden : Golden.all()) {
                int[] prompt = golden.prompt();
                if (prompt.length < 80 || prompt.length > 420) {
                    continue;
                }
                byte[][] right = donor.blocks(prompt, dtype);
                byte[][] old = donor.blocks(Arrays.copyOfRange(text, 7, 7 + prompt.length), dtype);
                List<Integer> answer = trusting.answer(prompt, Optional.of(right));
                verifying.answer(prompt, Optional.of(right));
                assertThat(verifying.failures).as(golden.name()).isEmpty();
                for (int at = 0; at < right.length; at++, blocks++) {
                    byte[][] wrong = right.clone();
                    wrong[at] = old[at].clone();
                    System.arraycopy(right[at], 0, wrong[at], 0, random.nextInt(wrong[at].length));
                    if (!trusting.answer(prompt, Optional.of(wrong)).equals(answer)) {
                        changed++;
                        verifying.answer(prompt, Optional.of(wrong));
                        found += verifying.failures.size();
                    }
                }
            }
        }
        System.out.printf(
                "%s: of %d half-written blocks %d change an answer, %d found%n", dtype, blocks, changed, found);
        assertThat(changed).isGreaterThan(5);
        assertThat(found).isGreaterThanOrEqualTo(dtype == DType.F32 ? changed : changed - changed / 10);
    }

    @Test
    void aLoadThatFailsWithinAStepIsNoDeviation() throws IOException {
        int[] prompt = prompt(new Random(6));
        int blockBytes;
        try (Checkpoint checkpoint = Checkpoint.open(MODEL)) {
            blockBytes = (int) checkpoint.config().kvLayout(BLOCK, DType.F32).blockBytes();
        }
        try (Decoder decoder = new Decoder(DType.F32, VerifyKv.FULL, false, LoadFailurePolicy.RECOMPUTE)) {
            List<Integer> right = decoder.answer(prompt, Optional.empty());
            decoder.connector.withinStep = 6 * BLOCK;
            byte[][] noise = new byte[6][blockBytes];
            assertThat(decoder.answer(prompt, Optional.of(noise))).isEqualTo(right);
            assertThat(decoder.failures).containsExactly("full");
            decoder.connector.failing = true;
            assertThat(decoder.answer(prompt, Optional.of(noise))).isEqualTo(right);
            assertThat(decoder.failures).isEmpty();
        }
    }

    @ParameterizedTest
    @CsvSource({"LAST, last", "FULL, full", "EACH_BLOCK, last", "FIRST_LAYER, last", "OFF, ''"})
    void eachLevelFindsWrongKvInItsPart(VerifyKv verify, String check) throws IOException {
        Random random = new Random(5);
        int[] prompt = prompt(random);
        try (Donor donor = Donor.of(MODEL, DType.F32);
                Decoder decoder = new Decoder(DType.F32, verify, true)) {
            byte[][] blocks = donor.blocks(prompt, DType.F32);
            List<Integer> right = decoder.answer(prompt, Optional.empty());
            assertThat(decoder.core.resetPrefixCache()).isTrue();
            assertThat(decoder.answer(prompt, Optional.of(blocks))).isEqualTo(right);
            assertThat(decoder.failures).isEmpty();
            assertThat(decoder.core.resetPrefixCache()).isTrue();
            byte[][] wrong = wrong(Fault.SAME_TOKENS_AFTER_OTHERS, prompt, donor, donor, DType.F32, random);
            List<Integer> answer = decoder.answer(prompt, Optional.of(wrong));
            if (!check.isEmpty()) {
                assertThat(answer).isEqualTo(right);
            }
            assertThat(decoder.failures).isEqualTo(check.isEmpty() ? List.of() : List.of(check));
        }
    }

    /** A second request of the same prompt comes while the first one's blocks are there and not compared. */
    @Test
    void wrongBlocksAreNotShared() throws IOException {
        Random random = new Random(3);
        int[] prompt = prompt(random);
        try (Donor donor = Donor.of(MODEL, DType.F32);
                Decoder decoder = new Decoder(DType.F32, VerifyKv.AUTO, true)) {
            List<Integer> right = decoder.answer(prompt, Optional.empty());
            assertThat(decoder.core.resetPrefixCache()).isTrue();
            byte[][] wrong = wrong(Fault.REUSED, prompt, donor, donor, DType.F32, random);
            Result first = decoder.begin(prompt, Optional.of(wrong));
            decoder.core.step();
            Result second = decoder.begin(prompt, Optional.empty());
            decoder.run();
            assertThat(first.tokens).isEqualTo(right);
            assertThat(second.tokens).isEqualTo(right);
            assertThat(decoder.failures).containsExactly("first_layer");
            assertThat(decoder.connector.wrongLoads).containsExactly("r1");
        }
    }

    @Test
    void loadsWithDigestsAreNotComparedUnlessThatIsAskedFor() throws IOException {
        Random random = new Random(4);
        int[] prompt = prompt(random);
        try (Donor donor = Donor.of(MODEL, DType.F32)) {
            for (VerifyKv verify : List.of(VerifyKv.AUTO, VerifyKv.FIRST_LAYER)) {
                try (Decoder decoder = new Decoder(DType.F32, verify, false)) {
                    decoder.connector.unverified = false;
                    decoder.answer(prompt, Optional.of(wrong(Fault.SWAPPED, prompt, donor, donor, DType.F32, random)));
                    assertThat(decoder.failures).hasSize(verify == VerifyKv.AUTO ? 0 : 1);
                }
            }
        }
    }

    @Test
    void aModelThatCannotCompareIsRefusedUnlessNothingIsAskedFor() {
        new CoreHarness(
                        8,
                        4,
                        config -> config.kvTransfer(Decoder.config(VerifyKv.AUTO, LoadFailurePolicy.FAIL)),
                        Optional.empty())
                .close();
        assertThatThrownBy(() -> new CoreHarness(
                        8,
                        4,
                        config -> config.kvTransfer(Decoder.config(VerifyKv.LAST, LoadFailurePolicy.FAIL)),
                        Optional.empty()))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("verify_kv: is last");
    }

    /**
     * No level has a false alarm on a long prompt, and their processor times. As a measurement it needs {@code -Dtests.turns=10 -Dbaton.test.heap=-Xmx2g}:
     * the levels take turns until the JVM has optimised the code that they share, and other runs of tests have no optimising compiler.
     */
    @Tag("thorough")
    @ParameterizedTest
    @CsvSource({"F32", "BF16"})
    void costOfComparing(DType dtype) throws IOException {
        Random random = new Random(6);
        int[] prompt = prompt(random, 1800);
        ThreadMXBean threads = ManagementFactory.getThreadMXBean();
        Map<VerifyKv, Double> milliseconds = new EnumMap<>(VerifyKv.class);
        double computed = Double.MAX_VALUE;
        try (Donor donor = Donor.of(MODEL, DType.F32)) {
            byte[][] blocks = donor.blocks(prompt, dtype);
            for (int turn = 0; turn < TURNS; turn++) {
                for (VerifyKv verify :
                        List.of(VerifyKv.OFF, VerifyKv.LAST, VerifyKv.FIRST_LAYER, VerifyKv.EACH_BLOCK)) {
                    try (Decoder decoder = new Decoder(dtype, verify, false)) {
                        for (int i = 0; i < 10; i++) {
                            long start = threads.getCurrentThreadCpuTime();
                            decoder.answer(prompt, Optional.of(blocks));
                            double loaded = (threads.getCurrentThreadCpuTime() - start) / 1e6;
                            milliseconds.merge(verify, loaded, Math::min);
                            assertThat(decoder.failures).isEmpty();
                        }
                        long start = threads.getCurrentThreadCpuTime();
                        decoder.answer(prompt, Optional.empty());
                        computed = Math.min(computed, (threads.getCurrentThreadCpuTime() - start) / 1e6);
                    }
                }
            }
        }
        System.out.printf(
                "%s: a prompt of %d tokens and %d of an answer: %.1f ms if computed, if loaded and compared %s%n",
                dtype, prompt.length, ANSWER, computed, milliseconds);
    }
}
