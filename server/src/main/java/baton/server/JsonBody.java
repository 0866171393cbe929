package baton.server;

import baton.kv.JsonFields;
import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharsetDecoder;
import java.nio.charset.CoderResult;
import java.nio.charset.StandardCharsets;
import tools.jackson.core.JacksonException;
import tools.jackson.core.StreamReadConstraints;
import tools.jackson.core.StreamReadFeature;
import tools.jackson.core.TokenStreamLocation;
import tools.jackson.core.json.JsonFactory;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

/** Parses the JSON of request bodies. Any thread. */
final class JsonBody {
    private static final int MAX_JSON_DEPTH = 128;

    private final JsonMapper mapper;

    JsonBody(ServerConfig config) {
        mapper = JsonMapper.builder(JsonFactory.builder()
                        .enable(StreamReadFeature.STRICT_DUPLICATE_DETECTION)
                        .streamReadConstraints(StreamReadConstraints.builder()
                                .maxNestingDepth(MAX_JSON_DEPTH)
                                .maxStringLength(config.maxBodyBytes())
                                .build())
                        .build())
                .build();
    }

    /**
     * Parses a body.
     *
     * @throws ApiException if the body is not a JSON object, with the position of the error, or if there is no memory for its tree
     */
    JsonFields parse(byte[] body, Preparation preparation) {
        requireUtf8(body);
        preparation.reserve(treeBytes(body));
        JsonNode parsed;
        try {
            parsed = mapper.readTree(body);
        } catch (JacksonException e) {
            TokenStreamLocation location = e.getLocation();
            String where =
                    location == null ? "" : " at line " + location.getLineNr() + ", column " + location.getColumnNr();
            throw ApiException.badRequest("request body is not valid JSON" + where + ": " + e.getOriginalMessage());
        }
        if (parsed instanceof ObjectNode object) {
            return JsonFields.of("", object);
        }
        throw ApiException.badRequest(
                "request body must be a JSON object, is " + (body.length == 0 ? "empty" : Json.shown(parsed)));
    }

    /** Jackson would also accept UTF-16 and UTF-32, which {@link #treeBytes} cannot read. */
    private static void requireUtf8(byte[] body) {
        ByteBuffer in = ByteBuffer.wrap(body);
        CharBuffer out = CharBuffer.allocate(4096);
        CharsetDecoder decoder = StandardCharsets.UTF_8.newDecoder();
        CoderResult result = decoder.decode(in, out, true);
        while (result.isOverflow()) {
            out.clear();
            result = decoder.decode(in, out, true);
        }
        // No JSON begins with a zero in UTF-8, and in the other encodings each without a byte order mark has one.
        boolean zero = false;
        for (int i = 0; i < Math.min(4, body.length); i++) {
            zero |= body[i] == 0;
        }
        if (result.isError() || zero) {
            throw ApiException.badRequest(
                    "request body must be UTF-8, is not" + (zero ? "" : " at byte " + in.position()));
        }
    }

    /** An upper bound of the memory of a JSON text and the copies of its tree. */
    private static long treeBytes(byte[] json) {
        long bytes = 5L * json.length;
        boolean inString = false;
        for (int i = 0; i < json.length; i++) {
            switch (json[i]) {
                case '"' -> inString = !inString;
                case '\\' -> i += inString ? 1 : 0;
                case ',' -> bytes += inString ? 0 : 48;
                case ':' -> bytes += inString ? 0 : 256;
                case '[', '{' -> bytes += inString ? 0 : 512;
                default -> {}
            }
        }
        return bytes;
    }
}
