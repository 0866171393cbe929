package baton.engine.model;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.within;

import baton.engine.kernel.Mxfp4Panels;
import baton.engine.model.ModelRunner.Comparison;
import baton.engine.model.ModelRunner.LayerHooks;
import baton.engine.model.ModelRunner.LoadedTokens;
import baton.engine.model.ModelRunner.SequenceSlice;
import baton.kv.DType;
import baton.kv.KvLayout;
import baton.kv.VerifyKv;
import baton.kv.safetensors.SafetensorsFile;
import baton.kv.safetensors.TensorInfo;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.net.URISyntaxException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.OptionalInt;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/**
 * Each family's results equal those of transformers in fp32 for the same small random checkpoint ({@code make_goldens.py} writes them),
 * however its tokens are cut into steps and blocks.
 */
class FamiliesTest {
    private static final int WHOLE = Integer.MAX_VALUE;
    private static final double BF16_ROUNDING = 0x1p-8;

    /** Norms, projections, rotation, attention, activation, product and the two sums. */
    private static final int ROUNDINGS_PER_LAYER = 12;

    /** @param logits of each step of the continuation */
    private record Expected(Golden golden, int maxModelLen, float[][] logits) {
        double margin(int step) {
            float[] sorted = logits[step].clone();
            Arrays.sort(sorted);
            return (double) sorted[sorted.length - 1] - sorted[sorted.length - 2];
        }
    }

    /** @param chunk most tokens of a sequence in a step, of all sequences {@code budget} */
    private record Cut(int chunk, int budget, int blockSize, boolean together) {}

    private static final List<Cut> CUTS = List.of(
            new Cut(WHOLE, WHOLE, 16, true),
            new Cut(WHOLE, WHOLE, 32, false),
            new Cut(13, 20, 16, true),
            new Cut(64, 100, 32, true),
            new Cut(1, 3, 16, true));

    /** All at once, and in chunks that end within blocks: positions and blocks are those of fp32. */
    private static final List<Cut> BF16_CUTS = List.of(CUTS.get(0), CUTS.get(2));

    static Stream<Path> checkpoints() throws IOException, URISyntaxException {
        Path root = Path.of(Objects.requireNonNull(FamiliesTest.class.getResource("goldens"))
                .toURI());
        try (Stream<Path> children = Files.list(root)) {
            return children.sorted().toList().stream();
        }
    }

    static Path checkpoint(String name) throws IOException, URISyntaxException {
        return checkpoints().filter(path -> path.endsWith(name)).findFirst().orElseThrow();
    }

    @ParameterizedTest
    @MethodSource("checkpoints")
    void logitsInFp32(Path directory) throws IOException {
        try (Checkpoint checkpoint = Checkpoint.open(directory)) {
            List<Expected> expected = read(directory, checkpoint.config());
            for (Cut cut : CUTS) {
                List<Replay.Sequence> replayed = replay(checkpoint, DType.F32, cut, expected);
                for (int i = 0; i < expected.size(); i++) {
                    Expected sequence = expected.get(i);
                    assertThat(replayed.get(i).chosen)
                            .as("%s of %s", cut, sequence.golden.name())
                            .containsExactlyElementsOf(IntStream.of(sequence.golden.output())
                                    .boxed()
                                    .toList());
                    for (int step = 0; step < sequence.logits.length; step++) {
                        assertThat(replayed.get(i).logits.get(step))
                                .as("%s of %s, step %d", cut, sequence.golden.name(), step)
                                .containsExactly(
                                        sequence.logits[step],
                                        within(resolution(
                                                checkpoint.config(), sequence.golden, sequence.logits[step])));
                    }
                }
            }
        }
    }

    @ParameterizedTest
    @MethodSource("checkpoints")
    void logitsInBf16(Path directory) throws IOException {
        try (Checkpoint checkpoint = Checkpoint.open(directory)) {
            List<Expected> expected = read(directory, checkpoint.config());
            for (Cut cut : BF16_CUTS) {
                List<Replay.Sequence> replayed = replay(checkpoint, DType.BF16, cut, expected);
                double squares = 0;
                double spread = 0;
                int count = 0;
                for (int i = 0; i < expected.size(); i++) {
                    for (int step = 0; step < expected.get(i).logits.length; step++) {
                        float[] exact = expected.get(i).logits[step];
                        float[] actual = replayed.get(i).logits.get(step);
                        for (int id = 0; id < exact.length; id++) {
                            squares += Math.pow(actual[id] - exact[id], 2);
                            spread += Math.pow(exact[id], 2);
                            count++;
                        }
                    }
                }
                double error = Math.sqrt(squares / count);
                double bound = ROUNDINGS_PER_LAYER * checkpoint.config().layers() * BF16_ROUNDING;
                assertThat(error).as("%s", cut).isLessThan(bound * Math.sqrt(spread / count));
                for (int i = 0; i < expected.size(); i++) {
                    for (int step = 0; step < expected.get(i).logits.length; step++) {
                        // A margin is a difference of two logits, each off by its own error: six standard deviations of
                        // that.
                        if (expected.get(i).margin(step) > 6 * Math.sqrt(2) * error) {
                            assertThat(replayed.get(i).chosen.get(step))
                                    .as(
                                            "%s of %s, step %d",
                                            cut, expected.get(i).golden.name(), step)
                                    .isEqualTo(expected.get(i).golden.output()[step]);
                        }
                    }
                }
            }
        }
    }

    /** To be compared, entries of the first layer are computed without queries and without the layers above. */
    @ParameterizedTest
    @MethodSource("checkpoints")
    void entriesOfTheFirstLayerAloneAreThoseOfAForwardPass(Path directory) throws IOException {
        int[] tokens = IntStream.range(0, 45).map(i -> (7 * i + 3) % 64).toArray();
        int[] table = {2, 0, 1};
        SequenceSlice prompt = new SequenceSlice(tokens, 0, table, 0);
        SequenceSlice last = new SequenceSlice(Arrays.copyOfRange(tokens, 44, 45), 44, table, 1);
        try (Checkpoint checkpoint = Checkpoint.open(directory);
                ModelRunner runner = CpuModels.load(
                        checkpoint,
                        DType.F32,
                        checkpoint.config().kvLayout(16, DType.F32),
                        table.length,
                        OptionalInt.of(1),
                        64)) {
            runner.forward(List.of(prompt), LayerHooks.NONE).close();
            Comparison right = compared(runner, last, tokens);
            assertThat(right.wrong()).isEmpty();
            assertThat(right.firstLayer()).isLessThan(1e-6);
            int[] others = tokens.clone();
            others[20]++;
            assertThat(compared(runner, last, others).wrong().values())
                    .singleElement()
                    .satisfies(wrong -> assertThat(wrong.position()).isEqualTo(20));
        }
    }

    private static Comparison compared(ModelRunner runner, SequenceSlice slice, int[] loaded) {
        List<Comparison> comparisons = new ArrayList<>();
        runner.forward(List.of(slice), new LayerHooks() {
                    @Override
                    public Map<Integer, LoadedTokens> loaded() {
                        return Map.of(0, new LoadedTokens(loaded, 0, VerifyKv.FIRST_LAYER));
                    }

                    @Override
                    public void compared(Comparison comparison) {
                        comparisons.add(comparison);
                    }
                })
                .close();
        return comparisons.getFirst();
    }

    /** The checkpoints have the same shape, and experts in bf16 with other weights. */
    @Test
    void expertsInMxfp4StayPacked() throws Exception {
        long packed = weightBytes("gpt-oss");
        long unpacked = weightBytes("gpt-oss-bf16");
        long weights = 3L * 6 * 3 * 64 * 96;
        assertThat(unpacked - packed).isEqualTo((long) (weights * (2 - Mxfp4Panels.BYTES_OF_WEIGHT)));
    }

    private static long weightBytes(String name) throws Exception {
        try (ModelRanks ranks = inBf16(checkpoint(name))) {
            return ((DecoderRunner) ranks.first()).weightBytes();
        }
    }

    private static ModelRanks inBf16(Path directory) throws IOException {
        return ModelKernelsOf.load(directory, KernelChoice.Kind.AVX512_BF16, DType.BF16, Quantization.NONE);
    }

    /** Numbers that {@link Mxfp4Panels} do not have are so small that they count as zeros, which the panels have. */
    @Test
    void aGateMayBeUnpackedWhereItsExpertIsPacked(@TempDir Path directory) throws Exception {
        Path zeros = directory.resolve("zeros");
        Path small = directory.resolve("small");
        withSecondBlocksOfGates(zeros, "blocks");
        withSecondBlocksOfGates(small, "scales");
        try (ModelRanks packed = inBf16(zeros);
                ModelRanks mixed = inBf16(small)) {
            assertThat(((DecoderRunner) mixed.first()).weightBytes())
                    .isGreaterThan(((DecoderRunner) packed.first()).weightBytes());
            List<float[]> expected = logits(packed.first());
            List<float[]> actual = logits(mixed.first());
            for (int step = 0; step < expected.size(); step++) {
                assertThat(actual.get(step)).as("step %d", step).isEqualTo(expected.get(step));
            }
        }
    }

    /** The golden gpt-oss, where the second block of the first row of each gate of the first layer has zeros as its numbers or as its exponent. */
    private static void withSecondBlocksOfGates(Path directory, String part) throws Exception {
        Files.createDirectory(directory);
        Path golden = checkpoint("gpt-oss");
        Files.copy(golden.resolve("config.json"), directory.resolve("config.json"));
        byte[] bytes = Files.readAllBytes(golden.resolve("model.safetensors"));
        ByteBuffer buffer = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN);
        try (SafetensorsFile file = SafetensorsFile.open(golden.resolve("model.safetensors"))) {
            TensorInfo tensor = file.info("model.layers.0.mlp.experts.gate_up_proj_" + part);
            int experts = 6;
            int start = Math.toIntExact(Long.BYTES + buffer.getLong(0) + tensor.begin());
            int block = part.equals("blocks") ? 16 : 1;
            for (int expert = 0; expert < experts; expert++) {
                int at = start + expert * Math.toIntExact(tensor.bytes() / experts) + block;
                Arrays.fill(bytes, at, at + block, (byte) 0);
            }
        }
        Files.write(directory.resolve("model.safetensors"), bytes);
    }

    /** The logits of a prompt, and of some tokens one by one. */
    private static List<float[]> logits(ModelRunner runner) {
        Replay replay = new Replay(runner, true);
        int[] prompt = IntStream.range(0, 40).toArray();
        List<Replay.Sequence> sequences = replay.add(
                List.of(new Golden("", prompt, new int[] {3, 1, 2}, new double[0], new int[0], new double[0])));
        replay.run(WHOLE, WHOLE);
        return sequences.getFirst().logits;
    }

    /** Keys by short factors are none for a model that uses the long ones. */
    @Test
    void factorsOfLongRopeArePartOfTheFingerprint() throws Exception {
        try (Checkpoint checkpoint = Checkpoint.open(checkpoint("phi3-long"))) {
            assertThat(checkpoint.config().defaultPositions()).isEqualTo(64);
            assertThat(checkpoint.config().maxPositions()).isEqualTo(256);
            assertThat(digest(checkpoint, 64)).isEqualTo(digest(checkpoint, 10));
            assertThat(digest(checkpoint, 65))
                    .isEqualTo(digest(checkpoint, 256))
                    .isNotEqualTo(digest(checkpoint, 64));
        }
    }

    private static String digest(Checkpoint checkpoint, int maxPositions) throws IOException {
        KvLayout layout = checkpoint.config().kvLayout(16, DType.F32);
        try (ModelRunner runner = CpuModels.load(checkpoint, DType.F32, layout, 1, OptionalInt.of(1), maxPositions)) {
            return runner.fingerprint().digest();
        }
    }

    /**
     * The tolerance between two fp32 computations: a rounding for each term of the longest sums, which are over positions and over
     * the feed-forward layer's width, relative to the greatest logit.
     */
    private static float resolution(ModelConfig config, Golden golden, float[] logits) {
        float greatest = 0;
        for (float logit : logits) {
            greatest = Math.max(greatest, Math.abs(logit));
        }
        int terms = golden.prompt().length + golden.output().length + config.intermediateSize();
        return terms * Math.ulp(1f) * greatest;
    }

    private static List<Replay.Sequence> replay(Checkpoint checkpoint, DType dtype, Cut cut, List<Expected> expected)
            throws IOException {
        List<Replay.Sequence> sequences = new ArrayList<>();
        ModelConfig config = checkpoint.config();
        try (ModelRunner runner = CpuModels.load(
                checkpoint,
                dtype,
                config.kvLayout(cut.blockSize, dtype),
                40,
                OptionalInt.of(1),
                expected.getFirst().maxModelLen)) {
            List<Golden> goldens = expected.stream().map(Expected::golden).toList();
            for (List<Golden> batch : cut.together
                    ? List.of(goldens)
                    : goldens.stream().map(List::of).toList()) {
                // Slots never written may hold anything.
                runner.cache().host().fill((byte) 0xff);
                Replay replay = new Replay(runner, true);
                sequences.addAll(replay.add(batch));
                replay.run(cut.chunk, cut.budget);
            }
        }
        return sequences;
    }

    private static List<Expected> read(Path directory, ModelConfig config) throws IOException {
        JsonNode root = JsonMapper.builder().build().readTree(Files.readString(directory.resolve("golden.json")));
        int maxModelLen = root.path("max_model_len").asInt(config.defaultPositions());
        List<Expected> expected = new ArrayList<>();
        try (SafetensorsFile file = SafetensorsFile.open(directory.resolve("golden.safetensors"))) {
            for (JsonNode prompt : root.get("prompts").values()) {
                String name = prompt.get("name").asString();
                int[] output = Golden.ints(prompt.get("output_ids"));
                MemorySegment data = file.data(name);
                float[] all = data.toArray(ValueLayout.JAVA_FLOAT_UNALIGNED);
                int width = all.length / output.length;
                float[][] logits = new float[output.length][];
                Arrays.setAll(logits, step -> Arrays.copyOfRange(all, step * width, (step + 1) * width));
                expected.add(new Expected(
                        new Golden(
                                name,
                                Golden.ints(prompt.get("prompt_ids")),
                                output,
                                new double[0],
                                new int[0],
                                new double[0]),
                        maxModelLen,
                        logits));
            }
        }
        return expected;
    }
}
