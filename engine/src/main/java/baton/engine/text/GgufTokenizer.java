package baton.engine.text;

import baton.engine.gguf.GgufFile;
import baton.engine.gguf.GgufModel;
import baton.kv.ConfigException;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import tools.jackson.core.JsonGenerator;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.NullNode;
import tools.jackson.databind.node.ObjectNode;

/** The tokenizer.json and tokenizer_config.json that a GGUF file was made of. */
final class GgufTokenizer {
    private static final String KEYS = "tokenizer.ggml.";
    private static final String TEMPLATE = "tokenizer.chat_template";
    private static final String SPACE = "\u2581";

    /** Merges are looked for at each place in a token. */
    private static final int MAX_PIECE_CHARACTERS = 256;

    /** The limit of merges of all pieces; the pieces of Gemma 3 make half a million. */
    private static final int MAX_MERGES = 1 << 22;

    private static final JsonMapper JSON = JsonMapper.builder().build();
    private static final JsonNodeFactory NODES = JsonNodeFactory.instance;

    private static final int UNKNOWN = 2;
    private static final int CONTROL = 3;
    private static final int USER_DEFINED = 4;
    private static final int UNUSED = 5;
    private static final int BYTE = 6;

    /** A type that no file has: a user-defined token of spaces, which are {@link #SPACE} in a text when tokens are looked for. */
    private static final int SPACES = 7;

    /** Tokens that users defined are found before others. */
    private static final double FIRST = 1e9;

    private static final Map<String, String> SPECIAL_TOKENS = Map.of(
            "bos_token", "bos_token_id",
            "eos_token", "eos_token_id",
            "unk_token", "unknown_token_id",
            "pad_token", "padding_token_id");

    private final GgufFile file;
    private final List<String> tokens;
    private final int[] types;

    private GgufTokenizer(GgufFile file) {
        this.file = file;
        tokens = file.strings(KEYS + "tokens").orElseThrow(() -> file.damaged(KEYS + "tokens", "is missing"));
        types = file.integers(KEYS + "token_type").orElseGet(() -> new int[tokens.size()]);
        requireLength("token_type", types.length);
    }

    /**
     * How a kind of {@code tokenizer.ggml.pre} splits a text into words.
     *
     * @param ignoresMerges a word that is a token is not merged of others
     * @param addsBos where the file does not say so
     */
    private record Splitting(ArrayNode steps, boolean ignoresMerges, boolean normalizes, boolean addsBos) {
        private Splitting(ArrayNode steps) {
            this(steps, false, false, false);
        }
    }

    /** A pair of tokens that make another. */
    private record Merge(String left, String right, double score) {}

    /** @throws ConfigException naming the key that is missing, malformed or unsupported */
    static byte[] tokenizer(Path path) throws IOException {
        try (GgufModel model = GgufModel.open(path)) {
            return new GgufTokenizer(model.metadata()).tokenizer();
        }
    }

    /** @throws ConfigException naming the key that is missing or malformed */
    static ObjectNode config(Path path) throws IOException {
        try (GgufModel model = GgufModel.open(path)) {
            return new GgufTokenizer(model.metadata()).config();
        }
    }

    private ObjectNode config() {
        ObjectNode json = NODES.objectNode();
        SPECIAL_TOKENS.forEach((name, key) -> special(key).ifPresent(token -> json.put(name, token)));
        Map<String, String> templates = new TreeMap<>();
        file.string(TEMPLATE).ifPresent(template -> templates.put("default", template));
        for (String name : file.strings(TEMPLATE + "s").orElse(List.of())) {
            file.string(TEMPLATE + "." + name).ifPresent(template -> templates.put(name, template));
        }
        if (!templates.isEmpty()) {
            ArrayNode all = json.putArray("chat_template");
            templates.forEach(
                    (name, template) -> all.addObject().put("name", name).put("template", template));
        }
        return json;
    }

    private byte[] tokenizer() {
        String model = file.string(KEYS + "model").orElseThrow(() -> file.damaged(KEYS + "model", "is missing"));
        return switch (model) {
            case "gpt2" -> byteLevel();
            case "llama" -> sentencePiece();
            default ->
                throw file.damaged(KEYS + "model", "unsupported value '%s'; allowed: gpt2, llama".formatted(model));
        };
    }

    private byte[] byteLevel() {
        Splitting splitting = splitting(file.string(KEYS + "pre").orElse("default"));
        List<String> pairs =
                file.strings(KEYS + "merges").orElseThrow(() -> file.damaged(KEYS + "merges", "is missing"));
        List<Merge> merges = new ArrayList<>();
        for (String pair : pairs) {
            int space = pair.indexOf(' ', 1);
            if (space < 0) {
                throw file.damaged(
                        KEYS + "merges[%d]".formatted(merges.size()),
                        "is '%s', must be two tokens with a space between them".formatted(pair));
            }
            merges.add(new Merge(pair.substring(0, space), pair.substring(space + 1), 0));
        }
        ObjectNode json = NODES.objectNode();
        json.set("normalizer", splitting.normalizes ? NODES.objectNode().put("type", "NFC") : NullNode.instance);
        json.putObject("pre_tokenizer").put("type", "Sequence").set("pretokenizers", splitting.steps);
        json.set("decoder", byteLevel(true));
        putAround(json, splitting.addsBos);
        ObjectNode model = NODES.objectNode().put("type", "BPE").put("ignore_merges", splitting.ignoresMerges);
        return write(json, model, merges);
    }

    private Splitting splitting(String kind) {
        return switch (kind) {
            case "llama-bpe", "llama3", "llama-v3" -> new Splitting(words(TextCuts.LLAMA3), true, false, true);
            case "dbrx", "smaug-bpe", "chatglm-bpe" -> new Splitting(words(TextCuts.LLAMA3));
            case "glm4" -> new Splitting(words(TextCuts.LLAMA3), true, false, false);
            case "qwen2", "deepseek-r1-qwen" -> new Splitting(words(TextCuts.QWEN2), false, true, false);
            case "gpt-4o" -> new Splitting(words(TextCuts.O200K));
            case "tekken" -> new Splitting(words(TextCuts.TEKKEN), true, false, true);
            case "gpt-2" -> new Splitting(NODES.arrayNode().add(byteLevel(true)));
            case "deepseek-v3" -> {
                ArrayNode steps = NODES.arrayNode();
                steps.add(split("\\p{N}{1,3}"));
                steps.add(split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"));
                steps.add(split(
                        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
                                + "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"));
                yield new Splitting(steps.add(byteLevel(false)));
            }
            case "smollm", "starcoder", "refact" -> {
                ArrayNode steps = NODES.arrayNode();
                steps.addObject().put("type", "Digits").put("individual_digits", true);
                yield new Splitting(steps.add(byteLevel(true)));
            }
            case "default" -> {
                ArrayNode steps = NODES.arrayNode();
                steps.add(split("[\\p{P}\\$\\+<=>\\^~\\|]+"));
                steps.add(split(TextCuts.GPT2));
                steps.add(split("\\p{N}+"));
                steps.add(split("[0-9][0-9][0-9]"));
                yield new Splitting(steps.add(byteLevel(false)));
            }
            default ->
                throw file.damaged(
                        KEYS + "pre",
                        "unsupported value '%s'; allowed: chatglm-bpe, dbrx, deepseek-v3, default, glm4, gpt-2, gpt-4o, llama-bpe, qwen2, refact, smaug-bpe, smollm, starcoder, tekken"
                                .formatted(kind));
        };
    }

    private static ArrayNode words(String pattern) {
        return NODES.arrayNode().add(split(pattern)).add(byteLevel(false));
    }

    private static ObjectNode split(String pattern) {
        ObjectNode step = NODES.objectNode().put("type", "Split");
        step.putObject("pattern").put("Regex", pattern);
        return step.put("behavior", "Isolated").put("invert", false);
    }

    private static ObjectNode byteLevel(boolean splits) {
        return NODES.objectNode()
                .put("type", "ByteLevel")
                .put("add_prefix_space", false)
                .put("trim_offsets", false)
                .put("use_regex", splits);
    }

    private byte[] sentencePiece() {
        for (int id = 0; id < types.length; id++) {
            String token = tokens.get(id);
            if (types[id] == USER_DEFINED && token.chars().allMatch(c -> c == ' ')) {
                tokens.set(id, token.replace(" ", SPACE));
                types[id] = SPACES;
            }
        }
        boolean prefixed = file.bool(KEYS + "add_space_prefix").orElse(true);
        ObjectNode json = NODES.objectNode();
        ArrayNode normalizers =
                json.putObject("normalizer").put("type", "Sequence").putArray("normalizers");
        if (prefixed) {
            normalizers.addObject().put("type", "Prepend").put("prepend", SPACE);
        }
        normalizers.add(replacement(" ", SPACE));
        ArrayNode decoders = json.putObject("decoder").put("type", "Sequence").putArray("decoders");
        decoders.add(replacement(SPACE, " "));
        decoders.addObject().put("type", "ByteFallback");
        decoders.addObject().put("type", "Fuse");
        if (prefixed) {
            decoders.addObject()
                    .put("type", "Strip")
                    .put("content", " ")
                    .put("start", 1)
                    .put("stop", 0);
        }
        putAround(json, true);
        ObjectNode model = NODES.objectNode()
                .put("type", "BPE")
                .put("fuse_unk", true)
                .put("byte_fallback", true)
                .put("ignore_merges", false);
        special("unknown_token_id").ifPresent(token -> model.put("unk_token", token));
        return write(json, model, pieceMerges());
    }

    private static ObjectNode replacement(String text, String by) {
        ObjectNode step = NODES.objectNode().put("type", "Replace");
        step.putObject("pattern").put("String", text);
        return step.put("content", by);
    }

    /** SentencePiece merges the pair that makes the token with the best score: each token has a merge for each two tokens that it consists of. */
    private List<Merge> pieceMerges() {
        float[] scores = file.floats(KEYS + "scores").orElseThrow(() -> file.damaged(KEYS + "scores", "is missing"));
        requireLength("scores", scores.length);
        Map<String, Double> pieces = new LinkedHashMap<>();
        for (int id = 0; id < scores.length; id++) {
            int type = types[id];
            String piece = tokens.get(id);
            if (piece.length() > MAX_PIECE_CHARACTERS) {
                throw file.damaged(
                        KEYS + "tokens[%d]".formatted(id),
                        "has %d characters, must have at most %d".formatted(piece.length(), MAX_PIECE_CHARACTERS));
            }
            if (type != UNKNOWN && type != CONTROL && type != UNUSED && type != BYTE) {
                pieces.putIfAbsent(piece, type == USER_DEFINED || type == SPACES ? FIRST - id : scores[id]);
            }
        }
        List<Merge> merges = new ArrayList<>();
        pieces.forEach((piece, score) -> {
            for (int at = 1; at < piece.length(); at++) {
                String left = piece.substring(0, at);
                String right = piece.substring(at);
                if (pieces.containsKey(left) && pieces.containsKey(right)) {
                    if (merges.size() == MAX_MERGES) {
                        throw file.damaged(KEYS + "tokens", "makes more than %d merges".formatted(MAX_MERGES));
                    }
                    merges.add(new Merge(left, right, score));
                }
            }
        });
        merges.sort(Comparator.comparingDouble(Merge::score)
                .thenComparingInt(merge -> merge.left.length())
                .thenComparingInt(merge -> merge.right.length())
                .reversed());
        return merges;
    }

    /** @param addsBos where the file does not say so */
    private void putAround(ObjectNode json, boolean addsBos) {
        Optional<String> bos = special("bos_token_id")
                .filter(_ -> file.bool(KEYS + "add_bos_token").orElse(addsBos));
        Optional<String> eos = special("eos_token_id")
                .filter(_ -> file.bool(KEYS + "add_eos_token").orElse(false));
        ObjectNode around = json.putObject("post_processor").put("type", "TemplateProcessing");
        ArrayNode single = around.putArray("single");
        ArrayNode pair = around.putArray("pair");
        ObjectNode specials = around.putObject("special_tokens");
        for (String part : List.of("A", "B")) {
            int type = part.equals("A") ? 0 : 1;
            ArrayNode text = NODES.arrayNode();
            bos.ifPresent(token -> addSpecial(text, token, type));
            text.addObject().putObject("Sequence").put("id", part).put("type_id", type);
            eos.ifPresent(token -> addSpecial(text, token, type));
            pair.addAll(text);
            if (type == 0) {
                single.addAll(text);
            }
        }
        for (Optional<String> token : List.of(bos, eos)) {
            token.ifPresent(content -> {
                ObjectNode special = specials.putObject(content).put("id", content);
                special.putArray("ids").add(tokens.indexOf(content));
                special.putArray("tokens").add(content);
            });
        }
    }

    private static void addSpecial(ArrayNode text, String token, int type) {
        text.addObject().putObject("SpecialToken").put("id", token).put("type_id", type);
    }

    private byte[] write(ObjectNode parts, ObjectNode model, List<Merge> merges) {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        Map<String, Integer> ids = new LinkedHashMap<>();
        for (int id = 0; id < tokens.size(); id++) {
            ids.putIfAbsent(tokens.get(id), id);
        }
        try (JsonGenerator json = JSON.createGenerator(bytes)) {
            json.writeStartObject();
            json.writeStringProperty("version", "1.0");
            json.writeArrayPropertyStart("added_tokens");
            ids.forEach((token, id) -> {
                int type = types[id];
                if (type == UNKNOWN || type == CONTROL || type == USER_DEFINED) {
                    json.writeTree(NODES.objectNode()
                            .put("id", id)
                            .put("content", token)
                            .put("single_word", false)
                            .put("lstrip", false)
                            .put("rstrip", false)
                            .put("normalized", false)
                            .put("special", type != USER_DEFINED));
                }
            });
            json.writeEndArray();
            parts.properties().forEach(part -> {
                json.writeName(part.getKey());
                json.writeTree(part.getValue());
            });
            json.writeObjectPropertyStart("model");
            model.properties().forEach(part -> {
                json.writeName(part.getKey());
                json.writeTree(part.getValue());
            });
            json.writeObjectPropertyStart("vocab");
            ids.forEach(json::writeNumberProperty);
            json.writeEndObject();
            json.writeArrayPropertyStart("merges");
            for (Merge merge : merges) {
                json.writeStartArray();
                json.writeString(merge.left);
                json.writeString(merge.right);
                json.writeEndArray();
            }
            json.writeEndArray();
            json.writeEndObject();
            json.writeEndObject();
        }
        return bytes.toByteArray();
    }

    private Optional<String> special(String key) {
        return file.integer(KEYS + key).map(id -> {
            if (id >= tokens.size()) {
                throw file.damaged(
                        KEYS + key, "is %d, but tokenizer.ggml.tokens has only %d".formatted(id, tokens.size()));
            }
            return tokens.get(id);
        });
    }

    private void requireLength(String key, int length) {
        if (length != tokens.size()) {
            throw file.damaged(
                    KEYS + key, "has %d elements, but tokenizer.ggml.tokens has %d".formatted(length, tokens.size()));
        }
    }
}
