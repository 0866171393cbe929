package baton.router.body;

import baton.kv.ConfigException;
import io.vertx.core.buffer.Buffer;
import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Set;
import tools.jackson.core.JacksonException;
import tools.jackson.core.JsonParser;
import tools.jackson.core.JsonToken;
import tools.jackson.core.ObjectReadContext;
import tools.jackson.core.StreamReadFeature;
import tools.jackson.core.json.JsonFactory;

/**
 * A JSON object as received, with the place of each top-level field. Fields are taken out, replaced and added as
 * text, so that whatever is not edited stays byte for byte: long integers, floats, escapes and unknown fields.
 */
public final class JsonObjectText {
    private static final JsonFactory FACTORY = JsonFactory.builder()
            .enable(StreamReadFeature.STRICT_DUPLICATE_DETECTION)
            .build();
    private static final byte[] NULL = "null".getBytes(StandardCharsets.US_ASCII);

    /** Offsets into the text: of the name's opening quote, of the value, and behind the value. */
    private record Field(String name, int start, int valueStart, int end) {}

    private final byte[] text;
    private final List<Field> fields;

    private JsonObjectText(byte[] text, List<Field> fields) {
        this.text = text;
        this.fields = fields;
    }

    /**
     * Checks the whole text, and keeps it without a copy.
     *
     * @param what the text's name in errors
     * @throws ConfigException if it is not one JSON object in UTF-8, or an object in it has a key twice
     */
    public static JsonObjectText parse(String what, byte[] text) {
        try (JsonParser parser = FACTORY.createParser(ObjectReadContext.empty(), text)) {
            JsonToken token = parser.nextToken();
            if (token != JsonToken.START_OBJECT) {
                throw new ConfigException(what, token == null ? "is empty" : "must be a JSON object");
            }
            List<Field> fields = new ArrayList<>();
            token = parser.nextToken();
            while (token == JsonToken.PROPERTY_NAME) {
                String name = parser.currentName();
                int start = offset(what, parser);
                parser.nextToken();
                int valueStart = offset(what, parser);
                parser.skipChildren();
                token = parser.nextToken();
                fields.add(new Field(name, start, valueStart, endBefore(text, offset(what, parser))));
            }
            if (parser.nextToken() != null) {
                throw new ConfigException(what, "has text after the JSON object");
            }
            return new JsonObjectText(text, List.copyOf(fields));
        } catch (JacksonException e) {
            throw new ConfigException(what, "not valid JSON: " + e.getOriginalMessage(), e);
        }
    }

    /** The text as it was received. */
    public Buffer text() {
        return Buffer.buffer(text);
    }

    /** The text of a field's value unless it is absent or null. */
    public Optional<byte[]> value(String name) {
        return nonNull(name).map(field -> Arrays.copyOfRange(text, field.valueStart, field.end));
    }

    /** Bytes of the whole text. */
    public int length() {
        return text.length;
    }

    /** Bytes of the text of a field's value; empty where {@link #value} is. */
    public OptionalInt valueBytes(String name) {
        return nonNull(name).stream()
                .mapToInt(field -> field.end - field.valueStart)
                .findFirst();
    }

    /** Whether there is a field of that name, null or not. */
    public boolean has(String name) {
        return field(name).isPresent();
    }

    /** Whether there is a field of that name that is not null. */
    public boolean hasNonNull(String name) {
        return nonNull(name).isPresent();
    }

    /** Whether a field's value is an array. */
    public boolean isArray(String name) {
        return nonNull(name).filter(field -> text[field.valueStart] == '[').isPresent();
    }

    /** Whether a field's value is a text, or an array that begins with one. */
    public boolean isText(String name) {
        Optional<Field> field = nonNull(name);
        if (field.isEmpty()) {
            return false;
        }
        int at = field.get().valueStart;
        if (text[at] == '[') {
            do {
                at++;
            } while (text[at] <= ' ');
        }
        return text[at] == '"';
    }

    private Optional<Field> field(String name) {
        for (Field field : fields) {
            if (field.name.equals(name)) {
                return Optional.of(field);
            }
        }
        return Optional.empty();
    }

    private Optional<Field> nonNull(String name) {
        return field(name).filter(field -> !Arrays.equals(text, field.valueStart, field.end, NULL, 0, NULL.length));
    }

    /** Starts an edited copy. */
    public Edit edit() {
        return new Edit();
    }

    /** Changes to a copy of the text. */
    public final class Edit {
        private final Map<String, byte[]> replaced = new LinkedHashMap<>();
        private Set<String> dropped = Set.of();

        /** Replaces a field's value, or adds the field at the end. */
        public Edit set(String name, byte[] json) {
            replaced.put(name, json);
            return this;
        }

        public Edit set(String name, String json) {
            return set(name, json.getBytes(StandardCharsets.UTF_8));
        }

        public Edit setIfPresent(String name, String json) {
            return has(name) ? set(name, json) : this;
        }

        public Edit drop(String... names) {
            dropped = Set.of(names);
            return this;
        }

        /** The text of {@link #object}. */
        public Buffer build() {
            return object().text();
        }

        /** The edited object. Values that were set are not checked. */
        public JsonObjectText object() {
            ByteArrayOutputStream out = new ByteArrayOutputStream(text.length + 256);
            List<Field> placed = new ArrayList<>(fields.size() + replaced.size());
            Map<String, byte[]> toAdd = new LinkedHashMap<>(replaced);
            for (Field field : fields) {
                if (dropped.contains(field.name)) {
                    continue;
                }
                int start = begin(out);
                byte[] replacement = toAdd.remove(field.name);
                int copied = replacement == null ? field.end : field.valueStart;
                out.write(text, field.start, copied - field.start);
                if (replacement != null) {
                    out.writeBytes(replacement);
                }
                placed.add(new Field(field.name, start, start + field.valueStart - field.start, out.size()));
            }
            toAdd.forEach((name, json) -> {
                int start = begin(out);
                out.writeBytes(('"' + name + "\":").getBytes(StandardCharsets.UTF_8));
                int valueStart = out.size();
                out.writeBytes(json);
                placed.add(new Field(name, start, valueStart, out.size()));
            });
            if (placed.isEmpty()) {
                out.write('{');
            }
            out.write('}');
            return new JsonObjectText(out.toByteArray(), placed);
        }

        private static int begin(ByteArrayOutputStream out) {
            out.write(out.size() == 0 ? '{' : ',');
            return out.size();
        }
    }

    private static int offset(String what, JsonParser parser) {
        long offset = parser.currentTokenLocation().getByteOffset();
        if (offset < 0) {
            throw new ConfigException(what, "must be UTF-8");
        }
        return (int) offset;
    }

    /** Where the value ends that stands before the token at {@code next}: only white space and a comma lie between. */
    private static int endBefore(byte[] text, int next) {
        int end = next;
        while (text[end - 1] == ',' || text[end - 1] == ' ' || (text[end - 1] >= '\t' && text[end - 1] <= '\r')) {
            end--;
        }
        return end;
    }
}
