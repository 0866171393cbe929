package baton.engine.model;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.JsonFields;
import baton.kv.safetensors.PackedTensorFile;
import baton.kv.safetensors.SafetensorsFile;
import baton.kv.safetensors.SafetensorsWriter;
import baton.kv.safetensors.SafetensorsWriter.Tensor;
import baton.kv.safetensors.TensorFile;
import java.lang.foreign.MemorySegment;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Forms of scales; {@link FamiliesTest} has whole models with weights in fp8. */
class Fp8WeightsTest {
    private static final Path PUBLISHED = Path.of("src/test/resources/baton/engine/model/published");

    @TempDir
    Path directory;

    /** The matrix has the numbers 1 to 15 in 3 rows. */
    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            nullValues = "scalar",
            value = {
                "fp8 | scalar | 0.5 | 0.5 1 1.5 2 2.5 3 3.5 4 4.5 5 5.5 6 6.5 7 7.5",
                "fp8 | 1 | 2 | 2 4 6 8 10 12 14 16 18 20 22 24 26 28 30",
                "channel | 3 1 | 1 0.5 4 | 1 2 3 4 5 3 3.5 4 4.5 5 44 48 52 56 60",
                "2 3 | 2 2 | 1 0.5 4 2 | 1 2 3 2 2.5 6 7 8 4.5 5 44 48 52 28 30",
                "9 3 | 1 2 | 1 0.5 | 1 2 3 2 2.5 6 7 8 4.5 5 11 12 13 7 7.5",
            })
    void weightsAreNumbersTimesTheirScales(String form, String shape, String scales, String weights) throws Exception {
        Fp8Weights fp8 = switch (form) {
            case "fp8" -> of("{'quant_method': 'fp8', 'activation_scheme': 'static'}");
            case "channel" ->
                of(
                        "{'quant_method': 'compressed-tensors', 'config_groups': {'all': {'weights': {'strategy': 'channel', 'num_bits': 8}}}}");
            default -> of("{'quant_method': 'fp8', 'weight_block_size': [%s]}".formatted(form.replace(' ', ',')));
        };
        float[] numbers = floats("1 2 3 4 5 6 7 8 9 10 11 12 13 14 15");
        Path path = directory.resolve("model.safetensors");
        SafetensorsWriter.write(
                path,
                Map.of(),
                List.of(
                        tensor("a.weight", DType.F8_E4M3, List.of(3L, 5L), numbers),
                        tensor(
                                "a." + fp8.scales(),
                                DType.BF16,
                                Stream.of(Optional.ofNullable(shape).orElse("").split(" "))
                                        .filter(size -> !size.isEmpty())
                                        .map(Long::valueOf)
                                        .toList(),
                                floats(scales)),
                        tensor("a.input_scale", DType.F32, List.of(), 7)));
        try (SafetensorsFile file = SafetensorsFile.open(path)) {
            Map<String, TensorFile> files = new HashMap<>();
            file.names().forEach(name -> files.put(name, file));
            fp8.unpack(directory, files);
            assertThat(files).containsOnlyKeys("a.weight");
            PackedTensorFile unpacked = (PackedTensorFile) Objects.requireNonNull(files.get("a.weight"));
            List<Float> all = new ArrayList<>();
            for (int row = 0; row < 3; row++) {
                float[] to = new float[5];
                unpacked.rows("a.weight").read(row, to);
                for (float each : to) {
                    all.add(each);
                }
            }
            assertThat(all).containsExactly(box(floats(weights)));
        }
    }

    @Test
    void formsOfPublishedModels() throws Exception {
        assertThat(published("deepseek-v3")).isEqualTo(new Fp8Weights("weight_scale_inv", 128, 128));
        assertThat(published("llama-3.1-8b-fp8")).isEqualTo(new Fp8Weights("weight_scale", 0, 0));
        assertThat(published("deepseek-v3").describe())
                .isEqualTo("fp8 (e4m3) with a scale for each block of 128 rows and 128 columns");
    }

    @ParameterizedTest
    @ValueSource(strings = {"{'a': 1, 'b': 2}", "[1]", "[1, 0]", "[1, 'x']", "'ab'"})
    void aBlockSizeOfAnotherFormIsRefused(String size) {
        assertThatThrownBy(() -> of("{'quant_method': 'fp8', 'weight_block_size': %s}".formatted(size)))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith("config.json.quantization_config.weight_block_size: is ")
                .hasMessageEndingWith(", must be [rows, columns] of a block");
    }

    private static Fp8Weights published(String name) throws Exception {
        return Fp8Weights.of(JsonFields.parse("config.json", Files.readString(PUBLISHED.resolve(name + ".json"))));
    }

    private static Fp8Weights of(String quantization) {
        return Fp8Weights.of(JsonFields.parse(
                "config.json",
                "{'quantization_config': %s}".formatted(quantization).replace('\'', '"')));
    }

    private static float[] floats(String text) {
        String[] parts = text.split(" ");
        float[] floats = new float[parts.length];
        for (int i = 0; i < parts.length; i++) {
            floats[i] = Float.parseFloat(parts[i]);
        }
        return floats;
    }

    private static Float[] box(float[] floats) {
        Float[] boxed = new Float[floats.length];
        Arrays.setAll(boxed, i -> floats[i]);
        return boxed;
    }

    private static Tensor tensor(String name, DType type, List<Long> shape, float... elements) {
        byte[] bytes = new byte[elements.length * type.bytes()];
        for (int i = 0; i < elements.length; i++) {
            type.set(MemorySegment.ofArray(bytes), (long) i * type.bytes(), elements[i]);
        }
        return new Tensor(name, type.safetensorsName(), shape, () -> MemorySegment.ofArray(bytes));
    }
}
