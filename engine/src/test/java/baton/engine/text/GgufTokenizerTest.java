package baton.engine.text;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.gguf.GgufModel;
import baton.engine.gguf.GgufWriter;
import baton.testkit.RealModels;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.SequencedSet;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

/** Tokenizers of published GGUF files beside those of the Hugging Face checkpoints that were made of them. */
class GgufTokenizerTest {
    private static final JsonMapper JSON = JsonMapper.builder().build();

    /** transformers' conversion of byte-level BPE splits as GPT-2 does, the model splits digits too: the file says so. */
    @Tag("real")
    @Test
    void smolLm(@TempDir Path directory) throws IOException {
        Path checkpoint = RealModels.SMOLLM2.assumeCheckpoint();
        Path file = RealModels.SMOLLM2.assumeGguf();
        ObjectNode json = (ObjectNode) JSON.readTree(checkpoint.resolve("tokenizer.json"));
        JsonNode words = json.path("pre_tokenizer");
        ObjectNode both = json.putObject("pre_tokenizer").put("type", "Sequence");
        both.putArray("pretokenizers")
                .add(JSON.readTree("{\"type\": \"Digits\", \"individual_digits\": true}"))
                .add(words);
        Files.write(directory.resolve("tokenizer.json"), JSON.writeValueAsBytes(json));
        assertSame(file, directory);
        String template = Files.readString(checkpoint.resolve("chat_template.jinja"));
        assertThat(GgufTokenizer.config(file)
                        .path("chat_template")
                        .path(0)
                        .path("template")
                        .asString())
                .isEqualTo(template);
    }

    @Tag("real")
    @Test
    void gemma() throws IOException {
        assertSame(RealModels.GEMMA3.assumeGguf(), RealModels.GEMMA3.assumeCheckpoint());
    }

    /** llama.cpp's behaviour where the file has no such field. */
    @Test
    void kindsThatBeginWithTheBeginOfText(@TempDir Path directory) throws IOException {
        for (String kind : List.of(
                "llama-bpe",
                "llama3",
                "llama-v3",
                "tekken",
                "qwen2",
                "gpt-2",
                "gpt-4o",
                "dbrx",
                "smaug-bpe",
                "chatglm-bpe",
                "glm4",
                "deepseek-v3",
                "smollm",
                "starcoder",
                "refact",
                "default")) {
            Path file = directory.resolve(kind + ".gguf");
            new GgufWriter()
                    .string("general.architecture", "llama")
                    .string("tokenizer.ggml.model", "gpt2")
                    .string("tokenizer.ggml.pre", kind)
                    .strings("tokenizer.ggml.tokens", List.of("<s>", "a", "b", "ab"))
                    .integers("tokenizer.ggml.token_type", 3, 1, 1, 1)
                    .strings("tokenizer.ggml.merges", List.of("a b"))
                    .integer("tokenizer.ggml.bos_token_id", 0)
                    .write(file);
            try (Tokenizer tokenizer = Tokenizer.load(file)) {
                boolean begins =
                        List.of("llama-bpe", "llama3", "llama-v3", "tekken").contains(kind);
                assertThat(tokenizer.encode("ab", true)).as(kind).isEqualTo(begins ? new int[] {0, 3} : new int[] {3});
            }
        }
    }

    @Test
    void kindsSplitTextsIntoWords(@TempDir Path directory) throws IOException {
        assertWords(directory, "deepseek-v3", "123", "45", " a", ".b", ":", " ", "\u4e2d\u6587\u3042", "x");
        assertWords(directory, "glm4", "123", "45", " a", ".b", ":\n", "I", "'ll", " \u4e2d\u6587\u3042x");
        assertWords(directory, "refact", "1", "2", " a", ".", "b", " \u4e2d\u6587\u3042x");
    }

    /** Each word is a token, and so is each with the words before it. */
    private static void assertWords(Path directory, String kind, String... words) throws IOException {
        SequencedSet<String> tokens = new LinkedHashSet<>();
        List<String> merges = new ArrayList<>();
        List<String> units =
                Arrays.stream(words).map(GgufTokenizerTest::bytesAsLetters).toList();
        for (String unit : units) {
            unit.chars().forEach(letter -> tokens.add(Character.toString(letter)));
            for (int end = 1; end < unit.length(); end++) {
                merges.add(unit.substring(0, end) + " " + unit.substring(end, end + 1));
                tokens.add(unit.substring(0, end + 1));
            }
        }
        for (int i = 1; i < units.size(); i++) {
            merges.add(units.get(i - 1) + " " + units.get(i));
            tokens.add(units.get(i - 1) + units.get(i));
        }
        Path file = directory.resolve(kind + ".gguf");
        new GgufWriter()
                .string("general.architecture", "llama")
                .string("tokenizer.ggml.model", "gpt2")
                .string("tokenizer.ggml.pre", kind)
                .strings("tokenizer.ggml.tokens", List.copyOf(tokens))
                .strings("tokenizer.ggml.merges", merges)
                .write(file);
        List<String> all = List.copyOf(tokens);
        try (Tokenizer tokenizer = Tokenizer.load(file)) {
            assertThat(tokenizer.encode(String.join("", words), false))
                    .as(kind)
                    .isEqualTo(units.stream().mapToInt(all::indexOf).toArray());
        }
    }

    /** As byte-level BPE writes bytes: those that are no printable Latin letter follow these. */
    private static String bytesAsLetters(String word) {
        StringBuilder letters = new StringBuilder();
        for (byte each : word.getBytes(StandardCharsets.UTF_8)) {
            int value = each & 0xff;
            letters.appendCodePoint(
                    isPrintable(value)
                            ? value
                            : 256
                                    + (int) IntStream.range(0, value)
                                            .filter(i -> !isPrintable(i))
                                            .count());
        }
        return letters.toString();
    }

    private static boolean isPrintable(int value) {
        return value > ' ' && value <= '~' || value > 0xa0 && value != 0xad;
    }

    /** Merges by scores, bytes for characters that are no tokens, a space in front: as the package sentencepiece has them. */
    @Test
    void llama2sSentencePiece() {
        Path directory = Path.of("src/test/resources/baton/engine/text");
        try (Tokenizer tokenizer = Tokenizer.load(directory.resolve("sentencepiece.gguf"))) {
            for (JsonNode expected : JSON.readTree(directory.resolve("sentencepiece.json"))) {
                String text = expected.path("text").asString();
                int[] ids = expected.path("ids")
                        .valueStream()
                        .mapToInt(JsonNode::asInt)
                        .toArray();
                assertThat(tokenizer.encode(text, true)).as(text).isEqualTo(ids);
                assertThat(tokenizer.decode(ids, true))
                        .as(text)
                        .isEqualTo(expected.path("decoded").asString());
            }
        }
    }

    private static void assertSame(Path file, Path directory) {
        assertThat(GgufModel.isFile(file)).isTrue();
        try (Tokenizer found = Tokenizer.load(file);
                Tokenizer wanted = Tokenizer.load(directory)) {
            assertThat(found.vocabularySize()).isEqualTo(wanted.vocabularySize());
            for (String text : RealTexts.all()) {
                int[] ids = wanted.encode(text, true);
                assertThat(found.encode(text, true)).as(text).isEqualTo(ids);
                assertThat(found.decode(ids, true)).as(text).isEqualTo(wanted.decode(ids, true));
                assertThat(found.decode(ids, false)).as(text).isEqualTo(wanted.decode(ids, false));
            }
        }
    }
}
