package baton.engine.gguf;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.engine.gguf.GgufFile.Tensor;
import baton.kv.ConfigException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/** A header is read, or refused by an error that names file, key or tensor, value, and the allowed values. */
class GgufFileTest {
    @TempDir
    Path directory;

    @Test
    void valuesAndTensorsAreRead() throws IOException {
        Path path = directory.resolve("a.gguf");
        byte[] bytes = new GgufWriter()
                .string("text", "größer")
                .integer("number", 7)
                .number("epsilon", 1e-5)
                .bool("switch", true)
                .strings("words", List.of("a", "", "☃"))
                .integers("numbers", 3, -1)
                .floats("scores", 0.5f, -2)
                .pair("wide", 10, little(8).putLong(1L << 40).array())
                .pair("small", 1, new byte[] {-1})
                .array("nested", 9, 1, little(16).putInt(5).putLong(1).putInt(4).array())
                .tensor(
                        "b",
                        GgufType.F32,
                        List.of(3L),
                        little(12).putFloat(1).putFloat(2).putFloat(3).array())
                .tensor("a", GgufType.Q8_0, List.of(2L, 32L), new byte[68])
                .bytes();
        Files.write(path, bytes);
        try (GgufFile file = GgufFile.open(path)) {
            assertThat(file.string("text")).contains("größer");
            assertThat(file.string("none")).isEmpty();
            assertThat(file.integer("number")).contains(7);
            assertThat(file.number("epsilon")).contains(1e-5);
            assertThat(file.bool("switch")).contains(true);
            assertThat(file.strings("words")).contains(List.of("a", "", "☃"));
            assertThat(file.integers("numbers").orElseThrow()).containsExactly(3, -1);
            assertThat(file.floats("scores").orElseThrow()).containsExactly(0.5f, -2);
            Tensor matrix = Objects.requireNonNull(file.tensors().get("a"));
            Tensor vector = Objects.requireNonNull(file.tensors().get("b"));
            assertThat(matrix.shape()).containsExactly(2L, 32L);
            assertThat(file.data(vector).byteSize()).isEqualTo(12);
            assertThat(vector.start() % 32).isZero();
            assertThatThrownBy(() -> file.integer("wide"))
                    .hasMessage(path + ": wide: is 1099511627776, must be from 0 to 2147483647");
            assertThatThrownBy(() -> file.integer("small"))
                    .hasMessage(path + ": small: is -1, must be from 0 to 2147483647");
            assertThatThrownBy(() -> file.integer("text"))
                    .hasMessage(path + ": text: must be a whole number, is STRING");
            assertThatThrownBy(() -> file.strings("numbers"))
                    .hasMessage(path + ": numbers: must be an array of strings, is an array of 2 INT32");
        }
        // Version 2 differs in nothing that is read here.
        bytes[4] = 2;
        Files.write(path, bytes);
        GgufFile.open(path).close();
    }

    static List<Arguments> hostile() {
        return List.of(
                refused(
                        file -> set(file, 0, 0x46464747),
                        "magic: is 0x46464747, must be 0x46554747: this is no GGUF file"),
                refused(file -> set(file, 4, 1), "version: is 1, must be 2 or 3, little-endian"),
                refused(file -> set(file, 4, 0x03000000), "version: is 50331648, must be 2 or 3, little-endian"),
                refused(file -> set(file, 12, -1), "tensor_count: has the length 18446744069414584321 at byte 8"),
                refused(file -> set(file, 20, -1), "metadata_kv_count: has the length 18446744069414584322 at byte 16"),
                refused(
                        file -> set(file, 16, 1 << 20),
                        "metadata_kv_count: has the length 1048576 at byte 16, must be at most"),
                // The first key's length, and that of its value: terabytes.
                refused(file -> set(file, 28, 1 << 10), "metadata_kv[0]: has the length 4398046511107 at byte 24"),
                refused(file -> set(file, 43, 1 << 10), "key: has the length 4398046511109 at byte 39"),
                refused(file -> set(file, 35, 77), "key: has a value of type 77, must be from 0 to 12"));
    }

    private static Arguments refused(UnaryOperator<byte[]> damage, String message) {
        return Arguments.of(damage, message);
    }

    @ParameterizedTest
    @MethodSource
    void hostile(UnaryOperator<byte[]> damage, String message) {
        GgufWriter writer = new GgufWriter()
                .string("key", "value")
                .integers("numbers", 1, 2)
                .tensor("a", GgufType.F32, List.of(8L), new byte[32]);
        assertRefused(damage.apply(writer.bytes()), message);
    }

    @Test
    void tensorsThatTheFileCannotHave() {
        assertRefused(
                new GgufWriter()
                        .tensor("a", GgufType.F32, List.of(1L << 40, 1L << 40), new byte[32])
                        .bytes(),
                "a: has the shape [1099511627776, 1099511627776], which no file can hold");
        assertRefused(
                new GgufWriter()
                        .tensor("a", GgufType.F32, List.of(1L << 40), new byte[32])
                        .bytes(),
                "a: has 4398046511104 bytes at offset 0 of the data, which begins at 64: beyond the file's 96 bytes");
        assertRefused(
                new GgufWriter()
                        .tensor("a", GgufType.F32, List.of(0L), new byte[32])
                        .bytes(),
                "a: has the shape [0], must have sizes of at least 1");
        assertRefused(
                new GgufWriter()
                        .tensor("a", GgufType.F32, List.of(-4L), new byte[32])
                        .bytes(),
                "a: has the shape [-4], must have sizes of at least 1");
        assertRefused(
                new GgufWriter()
                        .tensor("a", GgufType.Q4_K, List.of(32L), new byte[32])
                        .bytes(),
                "a: has rows of 32 elements, Q4_K has blocks of 256");
        assertRefused(
                new GgufWriter()
                        .tensor("a", GgufType.F32, List.of(1L, 1L, 1L, 1L, 1L), new byte[32])
                        .bytes(),
                "a: has 5 dimensions, must have 1 to 4");
        assertRefused(
                new GgufWriter()
                        .tensor("a", GgufType.F32, List.of(1L), new byte[32])
                        .tensor("a", GgufType.F32, List.of(1L), new byte[32])
                        .bytes(),
                "a: is there twice");
        assertRefused(
                new GgufWriter()
                        .tensor("a", GgufType.F32, List.of(9L), new byte[32])
                        .tensor("b", GgufType.F32, List.of(1L), new byte[32])
                        .bytes(),
                "b: overlaps the tensor 'a'");
        assertRefused(
                new GgufWriter().integer("general.alignment", 0).bytes(),
                "general.alignment: is 0, must be a power of two");
        byte[] other = new GgufWriter()
                .tensor("a", GgufType.F32, List.of(1L), new byte[32])
                .bytes();
        // Behind the counts, the name, the number of dimensions and one size.
        int type = 24 + 9 + 4 + 8;
        assertRefused(
                set(other.clone(), type, 10),
                "a: has the type 10, which is not supported; supported: F32 (0), F16 (1),");
        assertRefused(
                set(other.clone(), type + 4, 4),
                "a: has the offset 4, must be a multiple of general.alignment, which is 32");
    }

    @Test
    void arraysInArraysEnd() {
        byte[] inner = new byte[0];
        for (int depth = 0; depth < 1000; depth++) {
            inner = little(12 + inner.length).putInt(9).putLong(1).put(inner).array();
        }
        assertRefused(
                new GgufWriter().array("deep", 9, 1, inner).bytes(), "deep: has arrays in arrays, more than 4 deep");
        assertRefused(
                new GgufWriter().array("wide", 9, 1L << 40, inner).bytes(),
                "wide: has the length 1099511627776 at byte");
        assertRefused(
                new GgufWriter().array("long", 6, 1L << 60, new byte[8]).bytes(),
                "long: has the length 1152921504606846976 at byte");
        assertRefused(new GgufWriter().string("key", "a").string("key", "b").bytes(), "key: is there twice");
    }

    /** Each value is decoded when it is asked for, and no larger than a model can need. */
    @Test
    void valuesThatNoModelHas() throws IOException {
        Path path = directory.resolve("a.gguf");
        new GgufWriter()
                .string("long", "x".repeat((16 << 20) + 1))
                .strings("many", List.of("x".repeat(16 << 20), "x".repeat(16 << 20), "x"))
                .integers("wide", new int[(1 << 20) + 1])
                .pair(
                        "text",
                        8,
                        little(10).putLong(2).put((byte) 'a').put((byte) 0xff).array())
                .write(path);
        try (GgufFile file = GgufFile.open(path)) {
            assertThatThrownBy(() -> file.string("long"))
                    .hasMessage(path + ": long: has 16777217 bytes, must have at most 16777216");
            assertThatThrownBy(() -> file.strings("many"))
                    .hasMessage(path + ": many: has strings of more than 33554432 bytes");
            assertThatThrownBy(() -> file.integers("wide"))
                    .hasMessage(path + ": wide: has 1048577 elements, must have at most 1048576");
            assertThatThrownBy(() -> file.string("text"))
                    .isInstanceOf(ConfigException.class)
                    .hasMessage(path + ": text: is not UTF-8 text");
        }
    }

    @Test
    void aHeaderCutOffAnywhereIsRefused() throws IOException {
        byte[] header = new GgufWriter()
                .string("key", "value")
                .strings("words", List.of("a", "b"))
                .integers("numbers", 1, 2)
                .tensor("a", GgufType.F32, List.of(8L), new byte[32])
                .header();
        for (int length = 0; length <= header.length; length++) {
            assertRefused(Arrays.copyOf(header, length), "");
        }
    }

    private void assertRefused(byte[] bytes, String message) {
        Path path = directory.resolve("hostile.gguf");
        assertThatThrownBy(() -> {
                    Files.write(path, bytes);
                    GgufFile.open(path).close();
                })
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith(path + ": " + message);
    }

    private static byte[] set(byte[] file, int at, int value) {
        ByteBuffer.wrap(file).order(ByteOrder.LITTLE_ENDIAN).putInt(at, value);
        return file;
    }

    private static ByteBuffer little(int bytes) {
        return ByteBuffer.allocate(bytes).order(ByteOrder.LITTLE_ENDIAN);
    }
}
