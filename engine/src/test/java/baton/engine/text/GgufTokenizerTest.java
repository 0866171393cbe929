package baton.engine.text;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.gguf.GgufModel;
import baton.engine.gguf.GgufWriter;
import baton.testkit.RealModels;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
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
