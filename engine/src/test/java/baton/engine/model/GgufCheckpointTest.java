package baton.engine.model;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.engine.gguf.ConvertedCheckpoint;
import baton.engine.kernel.ParallelFor;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.safetensors.SafetensorsException;
import baton.testkit.RealModels;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.function.ObjIntConsumer;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.MethodSource;

/** A GGUF file is the checkpoint that it was made of. */
class GgufCheckpointTest {
    @TempDir
    Path directory;

    /** Families, and fields of which files have nothing or other values. */
    static List<Arguments> goldens() {
        String longFactors = "(\\d+\\.\\d)\\d{9,}";
        return List.of(
                Arguments.of("llama2", "", ""),
                Arguments.of("mistral", "", ""),
                Arguments.of("mixtral", "", ""),
                Arguments.of("qwen2-yarn", "", ""),
                Arguments.of("qwen2-moe", "", ""),
                Arguments.of("qwen3", "", ""),
                Arguments.of("qwen3-moe", "", ""),
                Arguments.of("gemma2", "", ""),
                Arguments.of("gemma3", "", ""),
                Arguments.of("phi3", "", ""),
                Arguments.of("phi3-short", longFactors, "$1"),
                Arguments.of("phi3-long", longFactors, "$1"),
                Arguments.of("gpt-oss", "", ""),
                Arguments.of("gpt-oss-bf16", "", ""),
                Arguments.of("glm4", "", ""),
                Arguments.of("granite", "", ""),
                Arguments.of(
                        "smollm3", "\"(no_rope_layers|layer_types)\": *\\[[^]]*],|\"use_sliding_window\": true,", ""),
                Arguments.of("olmo2", "", ""),
                Arguments.of("olmo3", "", ""),
                Arguments.of("starcoder2", "(?<=sliding_window\": )20", "null"),
                Arguments.of("nemotron", "", ""),
                Arguments.of("deepseek-v2", "(?<=mscale_all_dim\": )0.9", "0.707"),
                Arguments.of("deepseek-v2-lite", "", ""),
                Arguments.of("deepseek-v3", "", ""));
    }

    @ParameterizedTest
    @MethodSource("goldens")
    void eachFamilysShapeWeightsAndLogits(String golden, String edited, String by) throws IOException {
        Path original = edited(golden, edited, by);
        Path file = ConvertedCheckpoint.write(original, directory.resolve("model.gguf"));
        try (Checkpoint wanted = Checkpoint.open(original);
                Checkpoint found = Checkpoint.open(file)) {
            ModelConfig config = wanted.config();
            // Packed weights are made for bf16.
            DType dtype = golden.equals("gpt-oss") ? DType.BF16 : DType.F32;
            assertThat(found.config()).isEqualTo(renamed(config, "model", dtype, config.rmsNormEps()));
            assertSameWeights(wanted, found);
            float[] logits = logits(found);
            assertThat(logits).isEqualTo(logits(wanted));
            assertThat(logits).doesNotContain(Float.NaN).hasSize(config.vocabularySize());
        }
    }

    private Path edited(String golden, String pattern, String by) throws IOException {
        if (pattern.isEmpty()) {
            return golden(golden);
        }
        Path edited = Files.createDirectory(directory.resolve(golden));
        Files.copy(golden(golden).resolve("model.safetensors"), edited.resolve("model.safetensors"));
        String json = Files.readString(golden(golden).resolve("config.json"));
        assertThat(json).containsPattern(pattern);
        Files.writeString(edited.resolve("config.json"), json.replaceAll(pattern, by));
        return edited;
    }

    /** The logits of the last of some tokens that are more than a window. */
    private static float[] logits(Checkpoint checkpoint) throws IOException {
        ModelConfig config = checkpoint.config();
        int[] prompt = IntStream.range(0, 40)
                .map(i -> i * 37 % config.vocabularySize())
                .toArray();
        try (ModelRunner runner = CpuModels.load(
                checkpoint, DType.F32, config.kvLayout(16, DType.F32), 40, OptionalInt.of(1), config.maxPositions())) {
            Replay replay = new Replay(runner, true);
            List<Replay.Sequence> sequences =
                    replay.add(List.of(new Golden("", prompt, new int[1], new double[0], new int[0], new double[0])));
            replay.run(Integer.MAX_VALUE, Integer.MAX_VALUE);
            return sequences.getFirst().logits.getFirst();
        }
    }

    @Test
    void llama3sRotationIsFoundByItsFactors() throws IOException {
        Path original = edited("llama3", "(?<=: )64\\.0|(?<=embeddings\": )64", "8192");
        Path file = ConvertedCheckpoint.write(original, directory.resolve("model.gguf"));
        try (Checkpoint wanted = Checkpoint.open(original);
                Checkpoint found = Checkpoint.open(file)) {
            assertThat(wanted.config().recipe().rotations().getFirst().scaling())
                    .isPresent();
            assertThat(found.config().recipe()).isEqualTo(wanted.config().recipe());
        }
        ConvertedCheckpoint.write(golden("llama3"), file);
        assertThatThrownBy(() -> Checkpoint.open(file))
                .isInstanceOf(ConfigException.class)
                .hasMessage(file
                        + ": rope_freqs.weight: has other factors than Llama 3's, for 8192 positions with 1"
                        + " and 4 turns");
    }

    @Test
    void answersOfGptOssDoNotEndBetweenTheirChannels() throws IOException {
        Path file = ConvertedCheckpoint.write(golden("gpt-oss"), directory.resolve("model.gguf"));
        try (Checkpoint found = Checkpoint.open(file)) {
            assertThat(found.eosTokenIds(Optional.empty())).containsExactly(1, 2);
        }
    }

    @Test
    void damagedPartsAreNamed() throws IOException {
        assertRefused(
                "deepseek-v3",
                "deepseek2.expert_count",
                (file, at) -> file.putInt(at + 4, 11),
                ": blk.1.ffn_down_exps.weight: has the shape [12, 64, 32], must have 3 dimensions, the first one of"
                        + " expert_count=11");
        assertRefused(
                "deepseek-v3",
                "deepseek2.expert_gating_func",
                (file, at) -> file.putInt(at + 4, 4),
                ": deepseek2.expert_gating_func: is 4, must be 1 (softmax) or 2 (sigmoid)");
        assertRefused(
                "deepseek-v3",
                "blk.2.attn_v_b",
                (file, at) -> file.put(at - 1, (byte) 'c'),
                ": blk.2.attn_k_b.weight: is there, but no attn_v_b.weight");
        // The sizes stand behind the name's ending and their number.
        assertRefused(
                "deepseek-v3",
                "blk.2.attn_v_b.weight",
                (file, at) -> file.putLong(at + 4, 16).putLong(at + 12, 64),
                ": blk.2.attn_k_b.weight: has the shape [4, 64, 32], attn_v_b.weight [4, 64, 16]: must be"
                        + " [heads, kv_lora_rank, keys] and [heads, values, kv_lora_rank]");
        assertRefused(
                "granite",
                "granite.rope.scaling.finetuned",
                (file, at) -> file.put(at + 4, (byte) 0),
                ": granite.rope.scaling.finetuned: is false, must be true: layers rotate");
    }

    @Test
    void aTensorThatIsNamedLikeAGateButOfNoLayerMakesNoDenseLayer() throws IOException {
        byte[] name = "model.mlp.gate_proj.weight".getBytes(StandardCharsets.ISO_8859_1);
        Path file =
                damaged("qwen3-moe", "blk.0.ffn_gate_exps.weight", (bytes, at) -> bytes.put(at - name.length, name));
        assertThatThrownBy(() -> Checkpoint.open(file).close())
                .isInstanceOf(SafetensorsException.class)
                .hasMessage(file + ": weight 'model.layers.0.mlp.experts.0.gate_proj.weight' is missing");
    }

    /** @param damage by the place behind a name in the file */
    private void assertRefused(String golden, String name, ObjIntConsumer<ByteBuffer> damage, String message)
            throws IOException {
        Path file = damaged(golden, name, damage);
        assertThatThrownBy(() -> Checkpoint.open(file).close())
                .isInstanceOf(ConfigException.class)
                .hasMessage(file + message);
    }

    private Path damaged(String golden, String name, ObjIntConsumer<ByteBuffer> damage) throws IOException {
        Path file = ConvertedCheckpoint.write(golden(golden), directory.resolve("model.gguf"));
        byte[] bytes = Files.readAllBytes(file);
        int at = new String(bytes, StandardCharsets.ISO_8859_1).indexOf(name);
        assertThat(at).isPositive();
        damage.accept(ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN), at + name.length());
        return Files.write(file, bytes);
    }

    @Test
    void severalFilesAreOneModel() throws IOException {
        Path original = golden("qwen3");
        Path first = ConvertedCheckpoint.writeSplit(original, directory, "model", 3);
        try (Checkpoint wanted = Checkpoint.open(original);
                Checkpoint found = Checkpoint.open(first)) {
            assertThat(found.config().name()).isEqualTo("model");
            assertSameWeights(wanted, found);
        }
        Path second = directory.resolve("model-00002-of-00003.gguf");
        assertThatThrownBy(() -> Checkpoint.open(second))
                .isInstanceOf(ConfigException.class)
                .hasMessage(second + ": split.count: is 3, so the model is the file NAME-00001-of-00003.gguf");
        Path third = directory.resolve("model-00003-of-00003.gguf");
        Files.copy(second, third, StandardCopyOption.REPLACE_EXISTING);
        assertThatThrownBy(() -> Checkpoint.open(first)).hasMessage(third + ": split.no: is 1, must be 2");
        Files.delete(third);
        assertThatThrownBy(() -> Checkpoint.open(first))
                .hasMessage(first + ": split.count: is 3, but there is no file " + third);
    }

    /** The checkpoints hold the unpacked weights of the files in bf16, and the epsilon as a float. */
    @Tag("real")
    @ParameterizedTest
    @EnumSource
    void publishedFiles(RealModels model) throws IOException {
        try (Checkpoint wanted = Checkpoint.open(model.assumeCheckpoint());
                Checkpoint found = Checkpoint.open(model.assumeGguf())) {
            ModelConfig config = found.config();
            assertThat((float) config.rmsNormEps())
                    .isEqualTo((float) wanted.config().rmsNormEps());
            assertThat(renamed(config, "", DType.BF16, 1)).isEqualTo(renamed(wanted.config(), "", DType.BF16, 1));
            assertThat(config.dtype()).isEqualTo(DType.BF16);
            assertThat(found.eosTokenIds(Optional.empty())).containsAll(wanted.eosTokenIds(Optional.empty()));
            for (String name : Checkpoint.tensorShapes(config).keySet()) {
                try (Arena arena = Arena.ofConfined()) {
                    assertThat(found.matrix(name, DType.BF16, ParallelFor.alone(), arena)
                                    .memory()
                                    .mismatch(wanted.data(name)))
                            .as(name)
                            .isEqualTo(-1);
                }
            }
        }
    }

    private static Path golden(String name) {
        return Path.of(System.getProperty("baton.root"), "engine/src/test/resources/baton/engine/model/goldens", name);
    }

    private static ModelConfig renamed(ModelConfig config, String name, DType dtype, double eps) {
        return new ModelConfig(
                name,
                config.vocabularySize(),
                config.hiddenSize(),
                config.intermediateSize(),
                config.heads(),
                config.kvHeads(),
                config.headDim(),
                config.maxPositions(),
                eps,
                config.tiedEmbeddings(),
                dtype,
                config.recipe());
    }

    private static void assertSameWeights(Checkpoint wanted, Checkpoint found) throws IOException {
        try (Arena arena = Arena.ofConfined()) {
            for (String name : Checkpoint.tensorShapes(wanted.config()).keySet()) {
                float[] values = values(found, name, arena);
                float[] expected = values(wanted, name, arena);
                assertThat(values).as(name).hasSameSizeAs(expected);
                float most = 0;
                for (int i = 0; i < values.length; i++) {
                    most = Math.max(most, Math.abs(values[i] - expected[i]));
                }
                // A norm's 1 is added and taken off in fp32. `max` of a NaN is a NaN.
                assertThat(most).as(name).isLessThanOrEqualTo(1e-7f);
            }
        }
    }

    private static float[] values(Checkpoint checkpoint, String name, Arena arena) throws IOException {
        Matrix matrix = checkpoint.matrix(name, DType.F32, ParallelFor.alone(), arena);
        float[] all = new float[matrix.rows() * matrix.columns()];
        RowBuffer row = new RowBuffer(matrix.columns());
        for (int i = 0; i < matrix.rows(); i++) {
            row.load(matrix, i, 0, matrix.columns());
            System.arraycopy(row.values(), 0, all, i * matrix.columns(), matrix.columns());
        }
        return all;
    }
}
