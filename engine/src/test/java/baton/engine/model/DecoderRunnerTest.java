package baton.engine.model;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.assertj.core.api.Assertions.within;

import baton.engine.model.ModelConfig.LinearRopeScaling;
import baton.engine.model.ModelConfig.Llama3RopeScaling;
import baton.engine.model.ModelRunner.LayerHooks;
import baton.engine.model.ModelRunner.SequenceSlice;
import baton.engine.model.Recipe.Everything;
import baton.engine.model.Recipe.LayerAttention;
import baton.engine.model.Recipe.Part;
import baton.engine.model.Recipe.Rotation;
import baton.engine.model.Recipe.Window;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.KvFence;
import baton.kv.KvLayout;
import java.io.IOException;
import java.lang.foreign.ValueLayout;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Random;
import java.util.Set;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.api.parallel.Isolated;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** The runner against a plain forward pass on random models, and its conduct: memory, hooks, bad input. */
@Isolated("It measures the memory of the process.")
class DecoderRunnerTest {
    @TempDir
    Path directory;

    @ParameterizedTest(name = "{0} heads, {1} key/value heads of {2}, tied {3}, llama3 rope {4}")
    @CsvSource({
        "4, 1, 16, true, false",
        "6, 6, 8, false, false",
        "9, 3, 10, false, true",
        "5, 5, 16, true, true",
        "8, 2, 64, true, true"
    })
    void agreesWithAPlainForwardPass(int heads, int kvHeads, int headDim, boolean tied, boolean scaled)
            throws IOException {
        ModelConfig config = new ModelConfig(
                "random",
                97,
                60,
                88,
                3,
                heads,
                kvHeads,
                headDim,
                512,
                1e-5,
                10000,
                scaled ? Optional.of(new Llama3RopeScaling(8, 1, 4, 64)) : Optional.empty(),
                tied,
                DType.F32);
        assertAgreesWithAPlainForwardPass(config, 1, 1, 50, 1, 13, 60, 1, 1, 2);
    }

    /** Windows end in the middle of chunks, in single tokens, and after more positions than attention's kernels take at once. */
    @ParameterizedTest(name = "window of {0} in layers {1} of 3")
    @CsvSource({"1, 0 1 2", "20, 1", "600, 0 2"})
    void slidingWindowsAgreeWithAPlainForwardPass(int positions, String layers) throws IOException {
        List<Integer> windowed =
                Arrays.stream(layers.split(" ")).map(Integer::valueOf).toList();
        Rotation rotation = new Rotation(10000, Optional.of(new LinearRopeScaling(2)));
        List<LayerAttention> layerAttention = IntStream.range(0, 3)
                .mapToObj(layer -> new LayerAttention(
                        windowed.contains(layer) ? new Window(positions) : new Everything(), rotation))
                .toList();
        Recipe recipe = Recipe.usual(
                "Qwen3ForCausalLM",
                layerAttention,
                DecoderFamily.NORMED_HEADS,
                Set.of(Part.QUERIES, Part.KEYS, Part.VALUES, Part.OUTPUT));
        ModelConfig config = new ModelConfig("random", 97, 32, 48, 4, 2, 8, 2048, 1e-5, true, DType.F32, recipe);
        assertAgreesWithAPlainForwardPass(config, 1, 1, 50, 1, 700, 1, 1, 520, 2, 1);
        assertAgreesWithAPlainForwardPass(config, 1100, 1, 1, 30);
    }

    /** @param lengths of the slices that the tokens come in */
    private void assertAgreesWithAPlainForwardPass(ModelConfig config, int... lengths) throws IOException {
        RandomCheckpoint.write(directory, config, 3);
        Random random = new Random(5);
        int[] tokens = random.ints(IntStream.of(lengths).sum(), 0, 97).toArray();
        try (Checkpoint checkpoint = Checkpoint.open(directory)) {
            assertThat(checkpoint.config())
                    .usingRecursiveComparison()
                    .ignoringFields("name")
                    .isEqualTo(config);
            double[][] expected = new PlainDecoder(checkpoint).logits(tokens);
            List<float[]> computed = logits(checkpoint, DType.F32, tokens, lengths, 2048);
            List<float[]> ends = logits(checkpoint, DType.F32, tokens, lengths, 2);
            List<float[]> coarse = logits(checkpoint, DType.BF16, tokens, lengths, 2048);
            double error = 0;
            double spread = 0;
            for (int t = 0; t < tokens.length; t++) {
                for (int id = 0; id < 97; id++) {
                    assertThat((double) computed.get(t)[id])
                            .as("position %d id %d", t, id)
                            .isCloseTo(expected[t][id], within(2e-5));
                    if (ends.get(t).length > 0) {
                        assertThat((double) ends.get(t)[id])
                                .as("position %d id %d, the ends of slices alone", t, id)
                                .isCloseTo(expected[t][id], within(2e-5));
                    }
                    error += Math.pow(coarse.get(t)[id] - expected[t][id], 2);
                    spread += Math.pow(expected[t][id], 2);
                }
            }
            // Some twenty roundings in a layer, those of the weights included, of at most 2^-8 each.
            assertThat(Math.sqrt(error / spread)).as("bf16").isLessThan(20 * config.layers() * 0x1p-8);
        }
    }

    /** @param most of how many tokens at the end of each slice at most; empty for the other tokens */
    private static List<float[]> logits(Checkpoint checkpoint, DType dtype, int[] tokens, int[] lengths, int most)
            throws IOException {
        int blocks = Math.ceilDiv(tokens.length, 4);
        int[] table = IntStream.range(0, blocks).map(i -> 2 * (blocks - i) - 1).toArray();
        int[] other = IntStream.range(0, blocks).map(i -> 2 * i).toArray();
        List<float[]> computed = new ArrayList<>();
        try (ModelRunner runner = CpuModels.load(
                checkpoint, dtype, checkpoint.config().kvLayout(4, dtype), 2 * blocks, OptionalInt.of(1), 2048)) {
            // Slots never written may hold anything.
            runner.cache().host().fill((byte) 0xff);
            int at = 0;
            for (int length : lengths) {
                int wanted = Math.min(length, most);
                SequenceSlice slice = new SequenceSlice(Arrays.copyOfRange(tokens, at, at + length), at, table, wanted);
                // A second sequence, a few tokens behind, shares each batch.
                int behind = Math.max(0, at - 5);
                List<SequenceSlice> slices = behind == 0
                        ? List.of(slice)
                        : List.of(new SequenceSlice(Arrays.copyOf(tokens, behind), 0, other, 0), slice);
                try (Logits logits = runner.forward(slices, LayerHooks.NONE)) {
                    assertThat(logits.rows()).isEqualTo(wanted);
                    computed.addAll(Collections.nCopies(length - wanted, new float[0]));
                    for (int row = 0; row < wanted; row++) {
                        computed.add(logits.row(row).toArray(ValueLayout.JAVA_FLOAT));
                    }
                }
                at += length;
            }
        }
        return computed;
    }

    @ParameterizedTest
    @CsvSource({"NONE, 400", "INT8, 100"})
    void manyForwardsLeaveNoMemoryBehind(Quantization quantization, int forwards) throws Exception {
        try (ModelRunner runner = tiny(DType.BF16, quantization, 400)) {
            Random random = new Random(11);
            // Leaking one [T, hidden] tensor in each forward, or in each product of int8, would be 4 MiB in every
            // round.
            ResidentMemory.assertStaysFlat(2L << 20, () -> {
                for (int i = 0; i < forwards; i++) {
                    randomForward(runner, random);
                }
            });
        }
    }

    @Test
    void hooksAreCalledAroundEachLayerAndSeeItsKeys() throws IOException {
        try (ModelRunner runner = tiny(DType.BF16, 4)) {
            List<String> calls = new ArrayList<>();
            LayerHooks hooks = new LayerHooks() {
                @Override
                public KvFence beforeLayer(int layer) {
                    calls.add("before " + layer + " " + written(layer));
                    return KvFence.PASSED;
                }

                @Override
                public void afterLayer(int layer, KvFence computed) {
                    computed.await();
                    calls.add("after " + layer + " " + written(layer));
                }

                private boolean written(int layer) {
                    return runner.cache()
                                    .layer(2, layer)
                                    .mismatch(runner.cache().layer(3, layer))
                            >= 0;
                }
            };
            runner.forward(List.of(new SequenceSlice(new int[] {0, 7}, 0, new int[] {2}, 0)), hooks)
                    .close();
            assertThat(calls)
                    .containsExactlyElementsOf(IntStream.range(0, 6)
                            .boxed()
                            .flatMap(layer -> java.util.stream.Stream.of(
                                    "before " + layer + " false", "after " + layer + " true"))
                            .toList());
        }
    }

    @Test
    void slicesThatDoNotFitAreNamed() throws IOException {
        try (ModelRunner runner = tiny(DType.F32, 4)) {
            assertRefused(runner, new SequenceSlice(new int[] {2048}, 0, new int[] {0}, 1), "slices[0]: token id 2048");
            assertRefused(runner, new SequenceSlice(new int[] {1}, 16, new int[] {0}, 1), "blockTable has 1 blocks");
            assertRefused(runner, new SequenceSlice(new int[] {1}, 0, new int[] {4}, 1), "blockTable[0]=4");
            assertRefused(runner, new SequenceSlice(new int[] {1}, 2048, new int[200], 1), "start=2048");
            assertRefused(runner, new SequenceSlice(new int[] {1}, 0, new int[] {0}, 2), "logits=2 of tokens=1");
        }
    }

    @Test
    void settingsThatDoNotFitAreNamed() throws IOException {
        try (Checkpoint checkpoint = Checkpoint.open(Golden.TINY_LEDGER)) {
            ModelOptions halves = new ModelOptions(
                    DType.F32, Quantization.NONE, DType.F16, 16, 4, OptionalInt.of(1), 64, 1, 1, false, false);
            assertThatThrownBy(() ->
                            CpuModels.load(checkpoint, new KernelChoice(KernelChoice.Kind.LIBTORCH, List.of()), halves))
                    .isInstanceOf(ConfigException.class)
                    .hasMessage("kv_cache_dtype: is 'float16', which LibTorch's operators do not read, must be auto,"
                            + " bfloat16 or float32");
            assertThatThrownBy(() -> CpuModels.load(
                            checkpoint, DType.BF16, new KvLayout(6, 4, 16, 16, DType.BF16), 4, OptionalInt.of(1), 64))
                    .isInstanceOf(ConfigException.class)
                    .hasMessageContaining("head_dim=16 block_size=16 dtype=bfloat16, the model needs");
            assertThatThrownBy(() -> Quantization.parse("quantization", "int4"))
                    .isInstanceOf(ConfigException.class)
                    .hasMessage("quantization: unsupported value 'int4'; allowed: none, int8");
        }
    }

    private static void assertRefused(ModelRunner runner, SequenceSlice slice, String message) {
        assertThatThrownBy(() -> runner.forward(List.of(slice), LayerHooks.NONE))
                .isInstanceOf(IllegalArgumentException.class)
                .hasMessageContaining(message);
    }

    private static void randomForward(ModelRunner runner, Random random) {
        List<SequenceSlice> slices = new ArrayList<>();
        for (int i = random.nextInt(1, 4); i > 0; i--) {
            int length = random.nextBoolean() ? 1 : random.nextInt(1, 40);
            int start = random.nextBoolean() ? 0 : random.nextInt(200);
            int[] table = random.ints(16, 0, 400).toArray();
            slices.add(new SequenceSlice(random.ints(length, 0, 2048).toArray(), start, table, 1));
        }
        runner.forward(slices, LayerHooks.NONE).close();
    }

    private static ModelRunner tiny(DType dtype, int blocks) throws IOException {
        return tiny(dtype, Quantization.NONE, blocks);
    }

    private static ModelRunner tiny(DType dtype, Quantization quantization, int blocks) throws IOException {
        try (Checkpoint checkpoint = Checkpoint.open(Golden.TINY_LEDGER)) {
            return CpuModels.load(
                    checkpoint,
                    dtype,
                    quantization,
                    checkpoint.config().kvLayout(16, dtype),
                    blocks,
                    OptionalInt.of(1),
                    2048);
        }
    }
}
