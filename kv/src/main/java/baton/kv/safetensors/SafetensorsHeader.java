package baton.kv.safetensors;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import tools.jackson.core.JacksonException;
import tools.jackson.core.StreamReadConstraints;
import tools.jackson.core.StreamReadFeature;
import tools.jackson.core.json.JsonFactory;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/**
 * The header of a safetensors file: eight bytes of little-endian length, that many bytes of JSON, then the tensors' bytes.
 * The JSON maps each name to {@code {"dtype", "shape", "data_offsets": [begin, end]}} and {@code __metadata__} to a map of
 * strings (https://huggingface.co/docs/safetensors, "Format"). Parsing is bounded and checks every size against the others
 * and against the file: each byte of the data belongs to one tensor.
 *
 * @param metadata the file's {@code __metadata__}
 * @param tensors the file's tensors by name, in the header's order
 * @param dataStart offset in the file of the first tensor's first byte
 */
public record SafetensorsHeader(Map<String, String> metadata, Map<String, TensorInfo> tensors, long dataStart) {
    private static final int MAX_HEADER_BYTES = 100_000_000;
    private static final JsonMapper MAPPER = JsonMapper.builder(JsonFactory.builder()
                    .enable(StreamReadFeature.STRICT_DUPLICATE_DETECTION)
                    .streamReadConstraints(StreamReadConstraints.builder()
                            .maxDocumentLength(MAX_HEADER_BYTES)
                            .maxNestingDepth(4)
                            .build())
                    .build())
            .build();

    /**
     * Reads the header of an open file.
     *
     * @param file the file's name in errors
     * @throws SafetensorsException if the file is malformed or shorter than its tensors
     */
    public static SafetensorsHeader read(FileChannel channel, String file) throws IOException {
        long size = channel.size();
        ByteBuffer length = ByteBuffer.allocate(Long.BYTES).order(ByteOrder.LITTLE_ENDIAN);
        readFully(channel, length, 0, file);
        long headerBytes = length.flip().getLong();
        if (headerBytes < 2 || headerBytes > MAX_HEADER_BYTES || headerBytes > size - Long.BYTES) {
            throw new SafetensorsException(
                    "%s: header length %d does not fit a file of %d bytes".formatted(file, headerBytes, size));
        }
        ByteBuffer header = ByteBuffer.allocate((int) headerBytes);
        readFully(channel, header, Long.BYTES, file);
        return parse(header.array(), size - Long.BYTES - headerBytes, file);
    }

    /** The bytes of a file up to its first tensor. Tensors follow in the order of {@code tensors}, without gaps. */
    public static ByteBuffer encode(Map<String, String> metadata, Map<String, TensorInfo> tensors) {
        ObjectNode root = JsonNodeFactory.instance.objectNode();
        if (!metadata.isEmpty()) {
            ObjectNode node = root.putObject("__metadata__");
            metadata.forEach(node::put);
        }
        tensors.forEach((name, info) -> {
            ObjectNode node = root.putObject(name);
            node.put("dtype", info.dtype());
            ArrayNode shape = node.putArray("shape");
            info.shape().forEach(shape::add);
            node.putArray("data_offsets").add(info.begin()).add(info.end());
        });
        byte[] json = MAPPER.writeValueAsBytes(root);
        // Padding keeps the data aligned to eight bytes, as the reference implementation does.
        int padded = Math.ceilDiv(json.length, Long.BYTES) * Long.BYTES;
        ByteBuffer header = ByteBuffer.allocate(Long.BYTES + padded)
                .order(ByteOrder.LITTLE_ENDIAN)
                .putLong(padded)
                .put(json);
        while (header.hasRemaining()) {
            header.put((byte) ' ');
        }
        return header.flip();
    }

    private static SafetensorsHeader parse(byte[] json, long dataBytes, String file) throws SafetensorsException {
        JsonNode root;
        try {
            root = MAPPER.readTree(json);
        } catch (JacksonException e) {
            throw new SafetensorsException(file + ": header is not JSON: " + e.getOriginalMessage(), e);
        }
        if (!(root instanceof ObjectNode object)) {
            throw new SafetensorsException(file + ": header is not a JSON object");
        }
        Map<String, String> metadata = new LinkedHashMap<>();
        Map<String, TensorInfo> tensors = new LinkedHashMap<>();
        JsonNode described = object.path("__metadata__");
        if (!described.isObject() && !described.isMissingNode() && !described.isNull()) {
            throw new SafetensorsException(
                    file + ": __metadata__ must be a map of strings, is " + described.getNodeType());
        }
        for (Map.Entry<String, JsonNode> entry : object.properties()) {
            if (entry.getKey().equals("__metadata__")) {
                for (Map.Entry<String, JsonNode> item : entry.getValue().properties()) {
                    if (!item.getValue().isString()) {
                        throw new SafetensorsException(
                                file + ": __metadata__." + item.getKey() + ": must be a string, is " + item.getValue());
                    }
                    metadata.put(item.getKey(), item.getValue().asString());
                }
            } else {
                tensors.put(entry.getKey(), tensor(entry.getValue(), dataBytes, file + ": " + entry.getKey()));
            }
        }
        checkGapless(tensors, dataBytes, file);
        return new SafetensorsHeader(
                Map.copyOf(metadata), java.util.Collections.unmodifiableMap(tensors), Long.BYTES + (long) json.length);
    }

    /** Bytes of two tensors, or of none, are a mistake or a deception, and the reference implementation refuses them too. */
    private static void checkGapless(Map<String, TensorInfo> tensors, long dataBytes, String file)
            throws SafetensorsException {
        List<Map.Entry<String, TensorInfo>> inOrder = new ArrayList<>(tensors.entrySet());
        inOrder.sort(Comparator.comparingLong((Map.Entry<String, TensorInfo> entry) ->
                        entry.getValue().begin())
                .thenComparingLong(entry -> entry.getValue().end()));
        long at = 0;
        for (Map.Entry<String, TensorInfo> entry : inOrder) {
            TensorInfo info = entry.getValue();
            if (info.begin() != at) {
                throw new SafetensorsException(
                        "%s: %s.data_offsets [%d, %d] must begin where the tensor before ends, at %d"
                                .formatted(file, entry.getKey(), info.begin(), info.end(), at));
            }
            at = info.end();
        }
        if (at != dataBytes) {
            throw new SafetensorsException(
                    "%s: has %d bytes of data, of which the tensors are only %d".formatted(file, dataBytes, at));
        }
    }

    private static TensorInfo tensor(JsonNode node, long dataBytes, String where) throws SafetensorsException {
        String dtype = node.path("dtype").asString("");
        int elementBytes = TensorInfo.elementBytes(dtype);
        if (elementBytes == 0) {
            throw new SafetensorsException(where + ": unknown dtype '" + dtype + "'");
        }
        List<Long> shape = longs(node.path("shape"), where + ".shape");
        List<Long> offsets = longs(node.path("data_offsets"), where + ".data_offsets");
        if (offsets.size() != 2 || offsets.get(0) > offsets.get(1) || offsets.get(1) > dataBytes) {
            throw new SafetensorsException("%s: data_offsets %s do not fit %d bytes of data; the file may be truncated"
                    .formatted(where, offsets, dataBytes));
        }
        TensorInfo info = new TensorInfo(dtype, shape, offsets.get(0), offsets.get(1));
        boolean consistent;
        try {
            consistent = Math.multiplyExact(info.elements(), elementBytes) == info.bytes();
        } catch (ArithmeticException e) {
            consistent = false;
        }
        if (!consistent) {
            throw new SafetensorsException(
                    "%s: shape %s of %s is not %d bytes".formatted(where, shape, dtype, info.bytes()));
        }
        return info;
    }

    private static List<Long> longs(JsonNode node, String where) throws SafetensorsException {
        List<Long> values = new ArrayList<>();
        if (!node.isArray()) {
            throw new SafetensorsException(where + ": must be an array");
        }
        for (JsonNode value : node) {
            if (!value.isIntegralNumber() || !value.canConvertToLong() || value.asLong() < 0) {
                throw new SafetensorsException(where + ": must hold whole numbers, holds " + value);
            }
            values.add(value.asLong());
        }
        return values;
    }

    private static void readFully(FileChannel channel, ByteBuffer into, long at, String file) throws IOException {
        while (into.hasRemaining()) {
            int read = channel.read(into, at + into.position());
            if (read < 0) {
                throw new SafetensorsException(
                        "%s: ends after %d bytes, inside its header".formatted(file, channel.size()));
            }
        }
    }
}
