package baton.server;

import io.vertx.core.buffer.Buffer;
import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.function.Consumer;
import tools.jackson.core.JsonGenerator;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/** Writes JSON, and SSE events of JSON, through one reused buffer. For one thread. */
final class Json {
    static final Buffer DONE = Buffer.buffer("data: [DONE]\n\n");

    static final JsonMapper MAPPER = JsonMapper.builder().build();
    private static final byte[] DATA = "data: ".getBytes(StandardCharsets.US_ASCII);
    private static final byte[] END_OF_EVENT = "\n\n".getBytes(StandardCharsets.US_ASCII);
    private static final int KEPT_BYTES = 1 << 20;
    private static final int MAX_SHOWN = 80;

    private Bytes bytes = new Bytes();

    /** A document. */
    Buffer document(Consumer<JsonGenerator> content) {
        return write(content, false);
    }

    /** A server-sent event that carries a document. */
    Buffer event(Consumer<JsonGenerator> content) {
        return write(content, true);
    }

    private Buffer write(Consumer<JsonGenerator> content, boolean event) {
        bytes.reset();
        if (event) {
            bytes.writeBytes(DATA);
        }
        try (JsonGenerator json = MAPPER.createGenerator(bytes)) {
            content.accept(json);
        }
        if (event) {
            bytes.writeBytes(END_OF_EVENT);
        }
        Buffer result = bytes.toBuffer();
        if (bytes.capacity() > KEPT_BYTES) {
            bytes = new Bytes();
        }
        return result;
    }

    /** A value in error messages. */
    static String shown(JsonNode value) {
        return shortened(value.toString());
    }

    static String shortened(String text) {
        return text.length() <= MAX_SHOWN ? text : text.substring(0, MAX_SHOWN - 3) + "...";
    }

    /** Copies its content once. */
    private static final class Bytes extends ByteArrayOutputStream {
        Bytes() {
            super(4096);
        }

        Buffer toBuffer() {
            return Buffer.buffer(count).appendBytes(buf, 0, count);
        }

        int capacity() {
            return buf.length;
        }
    }
}
