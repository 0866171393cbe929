package baton.kv.safetensors;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class SafetensorsFileTest {
    @TempDir
    Path directory;

    @Test
    void whatIsWrittenIsRead() throws IOException {
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
