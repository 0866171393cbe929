package baton.engine.text;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.engine.gguf.GgufModel;
import baton.engine.gguf.GgufWriter;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

/**
 * Tokenizers of published GGUF files beside those of the Hugging Face checkpoints that were made of them, in the directory that {@code
 * BATON_REAL_MODELS} names.
 */
class GgufTokenizerTest {
    private static final JsonMapper JSON = JsonMapper.builder().build();

    private static final List<String> TEXTS = List.of(
            "",
            " ",
            "a",
            " a  b   c    d",
            "Hello, world! It's the 'quoted' don't-we'll.",
            "line\nline\r\n\n\n  indented\n\ttabs\t\tand trailing   ",
            "def f(x):\n    return {\"a\": x ** 2, 'b': [1.5, -3]}  # comment\n",
            "Größe, naïve café, Ångström, İstanbul, ﬁ ligature",
            "Съешь же ещё этих мягких французских булок",
            "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία",
            "日本語のテキストと漢字、カタカナ。中文字符，标点！한국어 텍스트",
            "نص عربي مع تشكيل: السَّلَامُ عَلَيْكُمْ ‏עברית‎",
            "हिन्दी में पाठ ภาษาไทย",
            "🙂👍🏽👨‍👩‍👧‍👦🇩🇪 ☃ ∑∫√ →",
            "a\u0301 e\u0301 \u200b zero\u200dwidth \ufeff bom \u00a0 nbsp \u2581 \u2028",
            "\u0000\u0001\u007f\u0085 controls",
            "<bos><eos><start_of_turn>user\n<|im_start|><|im_end|><unused5> [multimodal] <0x41>",
            "x".repeat(300),
            "\n".repeat(40) + " ".repeat(40) + "\t".repeat(20));

    /** transformers' conversion of byte-level BPE splits as GPT-2 does, the model splits digits too: the file says so. */
    @Test
    void smolLm(@TempDir Path directory) throws IOException {
        Path models = models();
        ObjectNode json = (ObjectNode) JSON.readTree(models.resolve("smollm2-135m/tokenizer.json"));
        JsonNode words = json.path("pre_tokenizer");
        ObjectNode both = json.putObject("pre_tokenizer").put("type", "Sequence");
        both.putArray("pretokenizers")
                .add(JSON.readTree("{\"type\": \"Digits\", \"individual_digits\": true}"))
                .add(words);
        Files.write(directory.resolve("tokenizer.json"), JSON.writeValueAsBytes(json));
        assertSame(models.resolve("SmolLM2-135M-Instruct.Q4_1.gguf"), directory);
        String template = Files.readString(models.resolve("smollm2-135m/chat_template.jinja"));
        assertThat(GgufTokenizer.config(models.resolve("SmolLM2-135M-Instruct.Q4_1.gguf"))
                        .path("chat_template")
                        .path(0)
                        .path("template")
                        .asString())
                .isEqualTo(template);
    }

    @Test
    void gemma() throws IOException {
        Path models = models();
        assertSame(models.resolve("gemma-3-270m.Q4_K_M.gguf"), models.resolve("gemma3-270m"));
    }

    /** As llama.cpp does where the file does not say so. */
    @Test
    void kindsThatBeginWithTheBeginOfText(@TempDir Path directory) throws IOException {
        for (String kind : List.of(
                "llama-bpe", "llama3", "llama-v3", "tekken", "qwen2", "gpt-2", "gpt-4o", "dbrx", "smollm", "default")) {
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

    private static void assertSame(Path file, Path directory) {
        assertThat(GgufModel.isFile(file)).isTrue();
        List<String> texts = new ArrayList<>(TEXTS);
        Random random = new Random(5);
        for (int i = 0; i < 5000; i++) {
            texts.add(random(random));
        }
        try (Tokenizer found = Tokenizer.load(file);
                Tokenizer wanted = Tokenizer.load(directory)) {
            assertThat(found.vocabularySize()).isEqualTo(wanted.vocabularySize());
            for (String text : texts) {
                int[] ids = wanted.encode(text, true);
                assertThat(found.encode(text, true)).as(text).isEqualTo(ids);
                assertThat(found.decode(ids, true)).as(text).isEqualTo(wanted.decode(ids, true));
                assertThat(found.decode(ids, false)).as(text).isEqualTo(wanted.decode(ids, false));
            }
        }
    }

    /** Parts of the texts above with characters of any script between them. */
    private static String random(Random random) {
        StringBuilder text = new StringBuilder();
        for (int parts = 1 + random.nextInt(6); parts > 0; parts--) {
            String from = TEXTS.get(random.nextInt(TEXTS.size()));
            int first = random.nextInt(from.length() + 1);
            text.append(from, first, first + random.nextInt(from.length() - first + 1));
            int point = random.nextInt(random.nextBoolean() ? 0x3100 : 0x20000);
            if (Character.isDefined(point) && (point < 0xD800 || point > 0xDFFF)) {
                text.appendCodePoint(point);
            }
        }
        return text.toString();
    }

    private static Path models() {
        String models = System.getenv("BATON_REAL_MODELS");
        assumeTrue(models != null, "BATON_REAL_MODELS names no directory with published models");
        return Path.of(models);
    }
}
