package baton.kv.safetensors;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

class SafetensorsFileTest {
    @TempDir
    Path directory;

    @Test
    void writtenTensorsAreRead() throws IOException {
        Path file = directory.resolve("a.safetensors");
        SafetensorsWriter.write(
                file,
                Map.of("model", "m"),
                List.of(
                        tensor("floats", "F32", List.of(2L, 3L), 24),
                        tensor("none", "BF16", List.of(0L, 4L), 0),
                        tensor("bytes", "U8", List.of(5L), 5)));
        try (SafetensorsFile read = SafetensorsFile.open(file)) {
            assertThat(read.metadata()).containsExactly(Map.entry("model", "m"));
            assertThat(read.names()).containsExactly("floats", "none", "bytes");
            assertThat(read.info("floats").shape()).containsExactly(2L, 3L);
            assertThat(read.data("floats").toArray(ValueLayout.JAVA_BYTE)).isEqualTo(counted(24));
            assertThat(read.data("none").byteSize()).isZero();
            assertThat(read.data("bytes").toArray(ValueLayout.JAVA_BYTE)).isEqualTo(counted(5));
            assertThat(read.data("bytes").isReadOnly()).isTrue();
            assertThatThrownBy(() -> read.data("missing"))
                    .isInstanceOf(SafetensorsException.class)
                    .hasMessage(file + ": has no tensor 'missing'");
        }
    }

    @Test
    void theBytesOfAFile() throws IOException {
        Path file = directory.resolve("a.safetensors");
        SafetensorsWriter.write(file, Map.of(), List.of(tensor("a", "U8", List.of(2L), 2)));
        String json = "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}";
        String padded = json + " ".repeat(-json.length() & 7);
        byte[] bytes = Files.readAllBytes(file);
        assertThat(bytes[0]).isEqualTo((byte) padded.length());
        assertThat(new String(bytes, 8, padded.length(), StandardCharsets.UTF_8))
                .isEqualTo(padded);
        assertThat(bytes).hasSize(8 + padded.length() + 2).endsWith(0, 1);
    }

    @Test
    void aFileCutOffAnywhereIsRefusedByName() throws IOException {
        Path whole = directory.resolve("whole");
        SafetensorsWriter.write(whole, Map.of("k", "v"), List.of(tensor("a", "F32", List.of(3L), 12)));
        byte[] bytes = Files.readAllBytes(whole);
        Path cut = directory.resolve("cut");
        for (int length = 0; length < bytes.length; length++) {
            Files.write(cut, java.util.Arrays.copyOf(bytes, length));
            assertThatThrownBy(() -> SafetensorsFile.open(cut).close())
                    .as("cut to %d bytes", length)
                    .isInstanceOf(SafetensorsException.class)
                    .hasMessageStartingWith(cut.toString());
        }
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            quoteCharacter = '`',
            value = {
                "{'a': {'dtype': 'U8', 'shape': [2], 'data_offsets': [0, 2]}, 'b': {'dtype': 'U8', 'shape': [2], 'data_offsets': [1, 3]}} | 3 | b.data_offsets [1, 3] must begin where the tensor before ends, at 2",
                "{'a': {'dtype': 'U8', 'shape': [2], 'data_offsets': [0, 2]}, 'b': {'dtype': 'U8', 'shape': [2], 'data_offsets': [0, 2]}} | 2 | data_offsets [0, 2] must begin where the tensor before ends, at 2",
                "{'a': {'dtype': 'U8', 'shape': [2], 'data_offsets': [1, 3]}} | 3 | a.data_offsets [1, 3] must begin where the tensor before ends, at 0",
                "{'a': {'dtype': 'U8', 'shape': [2], 'data_offsets': [0, 2]}} | 3 | has 3 bytes of data, of which the tensors are only 2",
                "{'a': {'dtype': 'U8', 'shape': [2], 'data_offsets': [0, 2]}} | 1 | a: data_offsets [0, 2] do not fit 1 bytes of data",
                "{'a': {'dtype': 'U8', 'shape': [2], 'data_offsets': [0, 3]}} | 3 | a: shape [2] of U8 is not 3 bytes",
                "{'a': {'dtype': 'U8', 'shape': [2], 'data_offsets': [2, 0]}} | 3 | a: data_offsets [2, 0] do not fit 3 bytes",
                "{'a': {'dtype': 'U8', 'shape': [4294967296, 4294967296], 'data_offsets': [0, 0]}} | 0 | a: shape [4294967296, 4294967296] of U8 is not 0 bytes",
                "{'a': {'dtype': 'U8', 'shape': [-1], 'data_offsets': [0, 0]}} | 0 | a.shape: must hold whole numbers, holds -1",
                "{'a': {'dtype': 'U9', 'shape': [0], 'data_offsets': [0, 0]}} | 0 | a: unknown dtype 'U9'",
                "{'a': {'dtype': 'U8', 'shape': [0], 'data_offsets': [0, 0]}, 'a': {'dtype': 'I8', 'shape': [0], 'data_offsets': [0, 0]}} | 0 | header is not JSON: Duplicate Object property",
                "{'a': 7} | 0 | a: unknown dtype ''",
                "{'__metadata__': {'a': 7}} | 0 | __metadata__.a: must be a string, is 7",
                "{'__metadata__': []} | 0 | __metadata__ must be a map of strings",
                "[] | 0 | header is not a JSON object",
                "{} {} | 0 | header is not JSON",
            })
    void headersThatLie(String header, int dataBytes, String message) throws IOException {
        byte[] json = header.replace('\'', '"').getBytes(StandardCharsets.UTF_8);
        Path file = directory.resolve("lies");
        Files.write(
                file,
                ByteBuffer.allocate(8 + json.length + dataBytes)
                        .order(ByteOrder.LITTLE_ENDIAN)
                        .putLong(json.length)
                        .put(json)
                        .array());
        assertThatThrownBy(() -> SafetensorsFile.open(file).close())
                .isInstanceOf(SafetensorsException.class)
                .hasMessageStartingWith(file.toString())
                .hasMessageContaining(message);
    }

    @ParameterizedTest
    @ValueSource(longs = {-1, 0, 1, 100, Long.MAX_VALUE, Long.MIN_VALUE, 1L << 32})
    void headersOfALengthThatLies(long length) throws IOException {
        Path file = directory.resolve("lies");
        Files.write(
                file,
                ByteBuffer.allocate(40)
                        .order(ByteOrder.LITTLE_ENDIAN)
                        .putLong(length)
                        .array());
        assertThatThrownBy(() -> SafetensorsFile.open(file).close())
                .isInstanceOf(SafetensorsException.class)
                .hasMessage("%s: header length %d does not fit a file of 40 bytes".formatted(file, length));
    }

    @Test
    void aSourceOfAnotherSizeIsRefused() {
        assertThatThrownBy(() -> SafetensorsWriter.write(
                        directory.resolve("a"), Map.of(), List.of(tensor("a", "F32", List.of(3L), 8))))
                .isInstanceOf(IllegalArgumentException.class)
                .hasMessageContaining("tensor a: source gave 8 bytes, shape [3] of F32 is 12 bytes");
    }

    private static SafetensorsWriter.Tensor tensor(String name, String dtype, List<Long> shape, int bytes) {
        return new SafetensorsWriter.Tensor(name, dtype, shape, () -> MemorySegment.ofArray(counted(bytes)));
    }

    private static byte[] counted(int length) {
        byte[] bytes = new byte[length];
        for (int i = 0; i < length; i++) {
            bytes[i] = (byte) i;
        }
        return bytes;
    }
}
