package baton.engine.gguf;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** Writes GGUF files of version 3. */
public final class GgufWriter {
    private static final int ALIGNMENT = 32;

    private final ByteArrayOutputStream pairs = new ByteArrayOutputStream();
    private final List<Tensor> tensors = new ArrayList<>();
    private int pairCount;

    private record Tensor(String name, GgufType type, List<Long> shape, byte[] bytes) {}

    public GgufWriter string(String key, String value) {
        return pair(key, 8, text(value));
    }

    public GgufWriter integer(String key, int value) {
        return pair(key, 4, numbers(Integer.BYTES).putInt(value).array());
    }

    public GgufWriter number(String key, double value) {
        return pair(key, 6, numbers(Float.BYTES).putFloat((float) value).array());
    }

    public GgufWriter bool(String key, boolean value) {
        return pair(key, 7, new byte[] {(byte) (value ? 1 : 0)});
    }

    public GgufWriter strings(String key, List<String> values) {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        values.forEach(value -> bytes.writeBytes(text(value)));
        return array(key, 8, values.size(), bytes.toByteArray());
    }

    public GgufWriter integers(String key, int... values) {
        byte[] bytes = new byte[Integer.BYTES * values.length];
        ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN).asIntBuffer().put(values);
        return array(key, 5, values.length, bytes);
    }

    public GgufWriter floats(String key, float... values) {
        byte[] bytes = new byte[Float.BYTES * values.length];
        ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer().put(values);
        return array(key, 6, values.length, bytes);
    }

    /** An array, with its elements as they are in files. */
    public GgufWriter array(String key, int type, long count, byte[] elements) {
        return pair(
                key,
                9,
                numbers(12 + elements.length)
                        .putInt(type)
                        .putLong(count)
                        .put(elements)
                        .array());
    }

    /** A value of any type, with its bytes as they are in files. */
    public GgufWriter pair(String key, int type, byte[] value) {
        pairs.writeBytes(text(key));
        pairs.writeBytes(numbers(Integer.BYTES).putInt(type).array());
        pairs.writeBytes(value);
        pairCount++;
        return this;
    }

    /** @param shape outermost first */
    public GgufWriter tensor(String name, GgufType type, List<Long> shape, byte[] bytes) {
        tensors.add(new Tensor(name, type, shape, bytes));
        return this;
    }

    /** Bytes of the header. */
    byte[] header() {
        ByteArrayOutputStream header = new ByteArrayOutputStream();
        header.writeBytes("GGUF".getBytes(StandardCharsets.US_ASCII));
        header.writeBytes(
                numbers(20).putInt(3).putLong(tensors.size()).putLong(pairCount).array());
        header.writeBytes(pairs.toByteArray());
        long offset = 0;
        for (Tensor tensor : tensors) {
            header.writeBytes(text(tensor.name));
            header.writeBytes(numbers(4).putInt(tensor.shape.size()).array());
            for (long size : tensor.shape.reversed()) {
                header.writeBytes(numbers(8).putLong(size).array());
            }
            header.writeBytes(
                    numbers(12).putInt(tensor.type.id()).putLong(offset).array());
            offset += padded(tensor.bytes.length);
        }
        return header.toByteArray();
    }

    /** Bytes of the file. */
    public byte[] bytes() {
        ByteArrayOutputStream file = new ByteArrayOutputStream();
        byte[] header = header();
        file.writeBytes(header);
        file.writeBytes(new byte[padded(header.length) - header.length]);
        for (Tensor tensor : tensors) {
            file.writeBytes(tensor.bytes);
            file.writeBytes(new byte[padded(tensor.bytes.length) - tensor.bytes.length]);
        }
        return file.toByteArray();
    }

    public void write(Path file) throws IOException {
        Files.write(file, bytes());
    }

    private static int padded(int length) {
        return Math.ceilDiv(length, ALIGNMENT) * ALIGNMENT;
    }

    private static byte[] text(String value) {
        byte[] bytes = value.getBytes(StandardCharsets.UTF_8);
        return numbers(Long.BYTES + bytes.length)
                .putLong(bytes.length)
                .put(bytes)
                .array();
    }

    private static ByteBuffer numbers(int bytes) {
        return ByteBuffer.allocate(bytes).order(ByteOrder.LITTLE_ENDIAN);
    }
}
