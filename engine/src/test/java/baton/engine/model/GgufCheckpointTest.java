package baton.engine.model;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.engine.gguf.ConvertedCheckpoint;
import baton.engine.kernel.ParallelFor;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.testkit.RealModels;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Optional;
import org.assertj.core.data.Offset;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/** A GGUF file is the checkpoint that it was made of. */
class GgufCheckpointTest {
    @TempDir
    Path directory;

    @ParameterizedTest
    @ValueSource(strings = {"llama2", "mistral", "qwen2-yarn", "qwen3", "gemma2", "gemma3", "phi3"})
    void eachFamilysShapeAndWeights(String golden) throws IOException {
        Path original = golden(golden);
        Path file = ConvertedCheckpoint.write(original, directory.resolve("model.gguf"));
        try (Checkpoint wanted = Checkpoint.open(original);
                Checkpoint found = Checkpoint.open(file)) {
            assertThat(found.config())
                    .isEqualTo(renamed(
                            wanted.config(), "model", DType.F32, wanted.config().rmsNormEps()));
            assertSameWeights(wanted, found);
        }
    }

    @Test
    void llama3sRotationIsFoundByItsFactors() throws IOException {
        Path original = Files.createDirectory(directory.resolve("llama3"));
        Files.copy(golden("llama3").resolve("model.safetensors"), original.resolve("model.safetensors"));
        String json = Files.readString(golden("llama3").resolve("config.json"));
        Files.writeString(
                original.resolve("config.json"),
                json.replace(": 64.0", ": 8192").replace("embeddings\": 64", "embeddings\": 8192"));
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
                assertThat(values(found, name, arena))
                        .as(name)
                        // A norm's 1 is added and taken off in fp32.
                        .containsExactly(values(wanted, name, arena), Offset.offset(1e-7f));
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
