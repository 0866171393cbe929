package baton.engine.text;

import baton.kv.ConfigException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.stream.Collectors;
import tools.jackson.databind.JsonNode;

/**
 * The tokens of a {@code tokenizer.json} and the bytes each stands for.
 *
 * <p>Byte-level BPE (GPT-2's scheme) spells a token in an alphabet of 256 printable characters, one a byte; a token with any
 * other character (an added one) is its own UTF-8. SentencePiece vocabularies write a space as U+2581 and a byte
 * that has no token of its own as {@code <0xHH>}.
 *
 * @param stripsLeadingSpace whether decoding takes one space off the very beginning of a text
 * @param ownSize one more than the greatest id of a token that is not an added one
 */
record Vocabulary(
        Form form, boolean stripsLeadingSpace, Map<String, Integer> ids, byte[][] bytes, int ownSize, BitSet special) {
    private static final byte[] NO_BYTES = {};

    /** How decoding works. */
    enum Form {
        /** A text is its tokens' bytes, one after the other. */
        BYTES,
        /** Only the library can decode. */
        OPAQUE
    }

    private enum Spelling {
        BYTE_LEVEL,
        SENTENCE_PIECE,
        PLAIN
    }

    /** @throws ConfigException naming {@code file} if a part is missing */
    static Vocabulary read(String file, JsonNode root) {
        Map<String, Integer> ids = new HashMap<>();
        JsonNode tokens = root.path("model").path("vocab");
        if (tokens.isObject()) {
            Map<Integer, String> texts = new HashMap<>();
            tokens.properties().forEach(entry -> {
                int id = id(file, entry.getValue());
                ids.put(entry.getKey(), id);
                String other = texts.put(id, entry.getKey());
                if (other != null) {
                    throw new ConfigException(
                            file, "model.vocab has id %d for '%s' and for '%s'".formatted(id, other, entry.getKey()));
                }
            });
        } else if (tokens.isArray()) {
            // Unigram: an array of [token, score], the place being the id.
            int place = 0;
            for (JsonNode token : tokens) {
                ids.put(token.path(0).asString(""), place++);
            }
        } else {
            throw new ConfigException(file, "model.vocab must be an object or an array, is " + tokens.getNodeType());
        }
        int ownSize = size(ids);
        BitSet special = new BitSet();
        for (JsonNode token : root.path("added_tokens")) {
            int id = id(file, token.path("id"));
            ids.put(token.path("content").asString(""), id);
            special.set(id, token.path("special").asBoolean(false));
        }

        List<JsonNode> steps = decoderSteps(root.path("decoder"));
        List<String> types =
                steps.stream().map(step -> step.path("type").asString("")).toList();
        boolean strips = types.size() == 4;
        Spelling spelling = Spelling.PLAIN;
        if (types.equals(List.of("ByteLevel"))) {
            spelling = Spelling.BYTE_LEVEL;
        } else if (types.size() >= 3
                && types.subList(0, 3).equals(List.of("Replace", "ByteFallback", "Fuse"))
                && isSpaceReplacement(steps.getFirst())
                && (types.size() == 3 || (strips && isLeadingSpaceStrip(steps.getLast())))) {
            spelling = Spelling.SENTENCE_PIECE;
        }

        byte[][] bytes = new byte[size(ids)][];
        Map<Integer, Byte> alphabet = byteLevelAlphabet();
        for (Map.Entry<String, Integer> entry : ids.entrySet()) {
            bytes[entry.getValue()] = bytes(entry.getKey(), spelling, alphabet);
        }
        for (JsonNode token : root.path("added_tokens")) {
            // An added token may take the id of one of the model's, and then speaks for it.
            bytes[token.path("id").asInt()] = bytes(token.path("content").asString(""), spelling, alphabet);
        }
        Form form = spelling == Spelling.PLAIN ? Form.OPAQUE : Form.BYTES;
        return new Vocabulary(
                form, spelling == Spelling.SENTENCE_PIECE && strips, Map.copyOf(ids), bytes, ownSize, special);
    }

    private static int size(Map<String, Integer> ids) {
        return ids.values().stream().mapToInt(id -> id + 1).max().orElse(0);
    }

    int size() {
        return bytes.length;
    }

    /** Most bytes of a token. */
    int longest() {
        return Arrays.stream(bytes)
                .filter(Objects::nonNull)
                .mapToInt(token -> token.length)
                .max()
                .orElse(0);
    }

    /** Whether each byte is a token, so that any text has one. */
    boolean hasEveryByte() {
        BitSet found = new BitSet();
        for (byte[] token : bytes) {
            if (token != null && token.length == 1) {
                found.set(token[0] & 0xff);
            }
        }
        return found.cardinality() == 256;
    }

    Optional<Integer> id(String token) {
        return Optional.ofNullable(ids.get(token));
    }

    /** The bytes of a token; callers must not change them. */
    byte[] bytes(int id) {
        byte[] own = id >= 0 && id < bytes.length ? bytes[id] : null;
        return own == null ? NO_BYTES : own;
    }

    /** Ids of the special tokens below {@code size}, by their contents. */
    Map<String, Integer> specialTokens(int size) {
        return ids.entrySet().stream()
                .filter(token -> token.getValue() < size && isSpecial(token.getValue()))
                .collect(Collectors.toUnmodifiableMap(Map.Entry::getKey, Map.Entry::getValue));
    }

    boolean isSpecial(int id) {
        return id >= 0 && special.get(id);
    }

    private static int id(String file, JsonNode node) {
        // The bound keeps a damaged file from asking for a table of gigabytes.
        if (!node.isInt() || node.asInt() < 0 || node.asInt() > 1 << 24) {
            throw new ConfigException(file, "a token's id must be a number from 0 to 2^24, is " + node);
        }
        return node.asInt();
    }

    private static List<JsonNode> decoderSteps(JsonNode decoder) {
        if (!decoder.path("type").asString("").equals("Sequence")) {
            return decoder.isObject() ? List.of(decoder) : List.of();
        }
        List<JsonNode> steps = new ArrayList<>();
        for (JsonNode step : decoder.path("decoders")) {
            steps.addAll(decoderSteps(step));
        }
        return steps;
    }

    private static boolean isSpaceReplacement(JsonNode step) {
        return step.path("pattern").path("String").asString("").equals("\u2581")
                && step.path("content").asString("").equals(" ");
    }

    private static boolean isLeadingSpaceStrip(JsonNode step) {
        return step.path("type").asString("").equals("Strip")
                && step.path("content").asString("").equals(" ")
                && step.path("start").asInt(0) == 1
                && step.path("stop").asInt(0) == 0;
    }

    private static byte[] bytes(String token, Spelling spelling, Map<Integer, Byte> alphabet) {
        return switch (spelling) {
            case PLAIN -> token.getBytes(StandardCharsets.UTF_8);
            case BYTE_LEVEL -> {
                int[] points = token.codePoints().toArray();
                byte[] spelled = new byte[points.length];
                for (int i = 0; i < points.length; i++) {
                    Byte value = alphabet.get(points[i]);
                    if (value == null) {
                        yield token.getBytes(StandardCharsets.UTF_8);
                    }
                    spelled[i] = value;
                }
                yield spelled;
            }
            case SENTENCE_PIECE ->
                token.matches("<0x[0-9a-fA-F]{2}>")
                        ? new byte[] {(byte) Integer.parseInt(token, 3, 5, 16)}
                        : token.replace('\u2581', ' ').getBytes(StandardCharsets.UTF_8);
        };
    }

    /** GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 and on, in order. */
    private static Map<Integer, Byte> byteLevelAlphabet() {
        Map<Integer, Byte> alphabet = new HashMap<>();
        int next = 0x100;
        for (int value = 0; value < 256; value++) {
            boolean printable = (value >= '!' && value <= '~') || (value >= 0xA1 && value <= 0xFF && value != 0xAD);
            alphabet.put(printable ? value : next++, (byte) value);
        }
        return alphabet;
    }
}
