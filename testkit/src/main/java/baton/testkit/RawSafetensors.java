package baton.testkit;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/**
 * A safetensors file with one tensor, read and written straight from the format's description (eight bytes of length, JSON,
 * data) and without the code under test.
 *
 * @param header the JSON
 * @param data all bytes after the header
 */
public record RawSafetensors(JsonNode header, byte[] data) {
    public static RawSafetensors read(Path file) throws IOException {
        ByteBuffer bytes = ByteBuffer.wrap(Files.readAllBytes(file)).order(ByteOrder.LITTLE_ENDIAN);
        byte[] json = new byte[(int) bytes.getLong()];
        bytes.get(json);
        byte[] data = new byte[bytes.remaining()];
        bytes.get(data);
        return new RawSafetensors(JsonMapper.shared().readTree(json), data);
    }

    /** Writes a file as Python's {@code safetensors.torch.save_file({name: tensor})} does: without metadata. */
    public static void write(Path file, String name, String dtype, byte[] data, long... shape) throws IOException {
        StringBuilder dimensions = new StringBuilder();
        for (long size : shape) {
            dimensions.append(dimensions.isEmpty() ? "" : ",").append(size);
        }
        String json = "{\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[0,%d]}}"
                .formatted(name, dtype, dimensions, data.length);
        writeHeader(file, json + " ".repeat(Math.floorMod(-json.length(), 8)), data);
    }

    /** Writes any text as the header. */
    public static void writeHeader(Path file, String header, byte[] data) throws IOException {
        byte[] json = header.getBytes(StandardCharsets.UTF_8);
        ByteBuffer bytes = ByteBuffer.allocate(Long.BYTES + json.length + data.length)
                .order(ByteOrder.LITTLE_ENDIAN)
                .putLong(json.length)
                .put(json)
                .put(data);
        Files.write(file, bytes.array());
    }
}
