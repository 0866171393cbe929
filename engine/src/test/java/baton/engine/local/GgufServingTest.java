package baton.engine.local;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.ChatMessage;
import baton.engine.EngineConfig;
import baton.engine.SamplingParams;
import baton.engine.gguf.ConvertedCheckpoint;
import baton.engine.model.Checkpoint;
import baton.engine.text.ChatRequest;
import baton.engine.text.ChatTemplate;
import baton.engine.text.Tokenizer;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.safetensors.SafetensorsException;
import baton.testkit.RealModels;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import tools.jackson.databind.json.JsonMapper;

/** The embedded model as a GGUF file, whole and damaged. */
class GgufServingTest {
    private static final Path MODEL = LLMTest.MODEL;
    private static final String QUESTION = """
            Ledger of Larkhill, kept by Stefan.
            Elena works as a doctor.
            The code for the inner gate is 5500.

            What is the code for the inner gate?""";

    @TempDir
    Path directory;

    @Test
    void inF32ItAnswersAsTheCheckpointDoes() throws IOException {
        Path file = ConvertedCheckpoint.write(MODEL, directory.resolve("ledger.gguf"));
        List<int[]> prompts = IntStream.range(0, 4)
                .mapToObj(i -> LLMTest.prompt(i, 40 + 60 * i))
                .toList();
        for (DType dtype : List.of(DType.F32, DType.BF16)) {
            try (LLM wanted = llm(MODEL, dtype);
                    LLM found = llm(file, dtype)) {
                assertThat(answers(found, prompts)).isEqualTo(answers(wanted, prompts));
                assertThat(chat(found)).isEqualTo(chat(wanted)).isEqualTo("The code for the inner gate is 5500.");
            }
        }
    }

    @Test
    void inQ8ItAnswersTheQuestion() throws IOException {
        Path file = ConvertedCheckpoint.writeQ8(MODEL, directory.resolve("ledger.gguf"));
        try (LLM llm = LLM.load(file)) {
            assertThat(llm.engine().config().model()).isEqualTo(file);
            assertThat(chat(llm)).isEqualTo("The code for the inner gate is 5500.");
        }
    }

    /** The checkpoints hold the weights that the files are unpacked to. */
    @Tag("real")
    @ParameterizedTest
    @EnumSource
    void publishedFilesAnswerAsTheirCheckpointsDo(RealModels model) {
        String prompt = "The capital of France is";
        try (LLM wanted = llm(model.assumeCheckpoint(), DType.BF16);
                LLM found = llm(model.assumeGguf(), DType.BF16)) {
            String answer = found.generate(prompt, SamplingParams.greedy(24)).text();
            assertThat(answer)
                    .isEqualTo(
                            wanted.generate(prompt, SamplingParams.greedy(24)).text())
                    .isNotBlank();
        }
    }

    @Test
    void tokenizerAndChatTemplateAreTheModels() throws IOException {
        Path file = ConvertedCheckpoint.write(MODEL, directory.resolve("ledger.gguf"));
        try (Tokenizer wanted = Tokenizer.load(MODEL);
                Tokenizer found = Tokenizer.load(file)) {
            for (String text : List.of(QUESTION, "", " a  b\n\n\tc", "größer 123 日本語 🙂", "<|user|>x<|end|>")) {
                assertThat(found.encode(text, true)).as(text).isEqualTo(wanted.encode(text, true));
                assertThat(found.decode(found.encode(text, true), true)).isEqualTo(text.replaceAll("<.*?>", ""));
            }
            assertThat(found.vocabularySize()).isEqualTo(wanted.vocabularySize());
        }
        ChatRequest request = ChatRequest.of(List.copyOf(JsonMapper.builder()
                .build()
                .readTree("[{\"role\": \"user\", \"content\": \"Hello\"}]")
                .values()));
        assertThat(ChatTemplate.load(file).render(request))
                .isEqualTo(ChatTemplate.load(MODEL).render(request));
        assertThat(ChatTemplate.load(file).specialToken("eos_token"))
                .isEqualTo(ChatTemplate.load(MODEL).specialToken("eos_token"));
    }

    /** Whichever byte of the header is another, the file is a model or is refused: nothing else happens. */
    @Test
    void damagedFilesAreRefusedByOneKindOfError() throws IOException {
        Path small = directory.resolve("small.gguf");
        Path golden = Path.of(
                System.getProperty("baton.root"), "engine/src/test/resources/baton/engine/model/goldens/mistral");
        Path withTokenizer = directory.resolve("mistral");
        Files.createDirectories(withTokenizer);
        for (String name : List.of("config.json", "model.safetensors")) {
            Files.copy(golden.resolve(name), withTokenizer.resolve(name));
        }
        Files.writeString(withTokenizer.resolve("tokenizer.json"), """
                {"added_tokens": [{"id": 0, "content": "<s>"}, {"id": 1, "content": "</s>"}],
                 "model": {"vocab": {"a": 2, "b": 3, "ab": 4, "abab": 5}, "merges": ["a b", "ab ab"]}}""");
        Files.writeString(
                withTokenizer.resolve("tokenizer_config.json"),
                "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"pad_token\": \"</s>\", \"chat_template\": \"{{"
                        + " bos_token }}\"}");
        ConvertedCheckpoint.write(withTokenizer, small);
        open(small);
        byte[] whole = Files.readAllBytes(small);
        int header = ConvertedCheckpoint.headerBytes(withTokenizer);
        Random random = new Random(1);
        int refused = 0;
        int damaged = 0;
        try (FileChannel channel = FileChannel.open(small, StandardOpenOption.WRITE)) {
            for (int at = 0; at < header; at += 1 + random.nextInt(5)) {
                int flip = random.nextBoolean() ? 0xff : 1 << random.nextInt(8);
                channel.write(ByteBuffer.wrap(new byte[] {(byte) (whole[at] ^ flip)}), at);
                refused += open(small) ? 0 : 1;
                damaged++;
                channel.write(ByteBuffer.wrap(whole, at, 1), at);
            }
        }
        assertThat(refused).isGreaterThan(damaged / 3);
        Path cut = directory.resolve("cut.gguf");
        for (int i = 0; i < 100; i++) {
            Files.write(cut, Arrays.copyOf(whole, random.nextInt(whole.length)));
            assertThat(open(cut)).isFalse();
        }
    }

    /** Whether it is a model; fails on errors of other kinds. */
    private static boolean open(Path file) throws IOException {
        boolean isModel = true;
        try {
            Checkpoint.open(file).close();
        } catch (ConfigException | SafetensorsException e) {
            isModel = false;
            assertThat(e).hasMessageContaining(file.getFileName().toString());
        }
        try {
            Tokenizer.load(file).close();
            ChatTemplate.load(file);
        } catch (ConfigException e) {
            isModel = false;
        }
        return isModel;
    }

    /** Tokens and their probabilities. */
    private static List<String> answers(LLM llm, List<int[]> prompts) {
        SamplingParams sampling = SamplingParams.builder()
                .temperature(0)
                .maxTokens(24)
                .ignoreEos(true)
                .logprobs(3)
                .build();
        return llm.generateTokens(prompts, sampling).stream()
                .map(answer -> Arrays.toString(answer.tokens())
                        + answer.completions().getFirst().logprobs())
                .toList();
    }

    private static LLM llm(Path model, DType dtype) {
        return new LLM(EngineConfig.of(model)
                .dtype(dtype)
                .threads(1)
                .maxModelLen(1024)
                .numBlocks(300)
                .build());
    }

    private static String chat(LLM llm) {
        return llm.chat(List.of(ChatMessage.user(QUESTION)), SamplingParams.greedy(32))
                .text();
    }
}
