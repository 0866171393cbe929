package baton.engine.model;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.engine.SamplingParams;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.JsonFields;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Set;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Defaults of sampling and tokens that end, as vLLM 0.32's {@code get_diff_sampling_param} gives them for the same files and flags. */
class GenerationConfigTest {
    private static final ModelConfig CONFIG =
            new ModelConfig("small", 50, 16, 24, 2, 4, 2, 4, 128, 1e-5, 10000, Optional.empty(), true, DType.BF16);

    @TempDir
    Path root;

    private Path directory = Path.of("");

    @BeforeEach
    void write() throws IOException {
        directory = root.resolve("small");
        RandomCheckpoint.write(directory, CONFIG, 1);
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            quoteCharacter = '`',
            nullValues = "none",
            value = {
                "none | auto | {} | {}",
                "{} | auto | {} | {}",
                "{'do_sample': false, 'temperature': 0.6, 'top_p': 0.9, 'top_k': 50, 'repetition_penalty': 1.1, 'max_new_tokens': 7} | auto | {} | {temperature=0.6, top_p=0.9, top_k=50, repetition_penalty=1.1, max_new_tokens=7}",
                "{'do_sample': true, 'temperature': 1.0, 'top_k': 50, 'top_p': 1.0, 'repetition_penalty': 1.0, 'min_p': 0.05, 'presence_penalty': 0.5, 'frequency_penalty': -0.5} | auto | {} | {temperature=1.0, top_p=1.0, top_k=50, min_p=0.05, repetition_penalty=1.0, presence_penalty=0.5, frequency_penalty=-0.5}",
                "{'temperature': null, 'top_k': 0, 'eos_token_id': [1, 4], 'max_length': 20} | auto | {} | {top_k=0}",
                "{'temperature': 0.5} | auto | {'temperature': 0.7, 'max_new_tokens': 5, 'foo': 1} | {temperature=0.7, max_new_tokens=5}",
                "{'temperature': 0.5, 'top_k': 7} | auto | {'temperature': null} | {top_k=7}",
                "{'temperature': 0.5} | vllm | {} | {}",
                "{'temperature': 0.5} | vllm | {'top_k': 3} | {top_k=3}",
            })
    void defaults(String file, String source, String overrides, String expected) throws IOException {
        if (file != null) {
            write(directory, file);
        }
        assertThat(defaults(source, overrides).toString()).isEqualTo(expected);
    }

    @Test
    void anotherDirectorysFile() throws IOException {
        Path other = Files.createDirectory(root.resolve("other"));
        write(directory, "{'temperature': 0.5, 'eos_token_id': 3}");
        write(other, "{'temperature': 0.25, 'max_new_tokens': 9, 'eos_token_id': [7, 8]}");
        GenerationDefaults defaults = defaults(other.toString(), "{}");
        assertThat(defaults.toString()).isEqualTo("{temperature=0.25, max_new_tokens=9}");
        assertThat(sampled(defaults, 20))
                .as("another directory's limits every request")
                .isEqualTo(9);
        assertThat(sampled(defaults, 4)).isEqualTo(4);
        try (Checkpoint checkpoint = open(other.toString(), "{}")) {
            assertThat(checkpoint.eosTokenIds(Optional.empty())).containsExactly(7, 8);
        }
        Path none = root.resolve("none");
        assertThatThrownBy(() -> open(none.toString(), "{}"))
                .isInstanceOf(ConfigException.class)
                .hasMessage("generation_config: is '" + none
                        + "', must be auto, vllm, or a directory that has a generation_config.json");
    }

    @Test
    void onlyAnOverrideLimitsRequestsOfTheModelsOwnFile() throws IOException {
        write(directory, "{'max_new_tokens': 9}");
        assertThat(sampled(defaults("auto", "{}"), 20)).isEqualTo(20);
        assertThat(SamplingParams.apply(defaults("auto", "{}"), SamplingParams.builder())
                        .build()
                        .maxTokens())
                .hasValue(9);
        assertThat(sampled(defaults("auto", "{'max_new_tokens': 5}"), 20)).isEqualTo(5);
        assertThat(SamplingParams.apply(defaults("auto", "{'max_new_tokens': 5}"), SamplingParams.builder())
                        .maxTokens(OptionalInt.empty())
                        .build()
                        .maxTokens())
                .hasValue(5);
    }

    @Test
    void tokensThatEnd() throws IOException {
        String config = Files.readString(directory.resolve("config.json"));
        Files.writeString(directory.resolve("config.json"), config.replaceFirst("\\{", "{\"eos_token_id\": [5, 6],"));
        assertThat(ends("auto", Optional.of(9))).as("no file: config.json's").containsExactlyInAnyOrder(5, 6, 9);
        write(directory, "{'eos_token_id': [1, 4]}");
        assertThat(ends("auto", Optional.of(4))).containsExactlyInAnyOrder(1, 4);
        assertThat(ends("vllm", Optional.of(9))).as("not only the parameters'").containsExactlyInAnyOrder(1, 4, 9);
        write(directory, "{'eos_token_id': 3}");
        assertThat(ends("auto", Optional.empty())).containsExactlyInAnyOrder(3);
        write(directory, "{}");
        assertThat(ends("auto", Optional.of(9))).containsExactlyInAnyOrder(9);
        assertThat(ends("auto", Optional.empty()))
                .as("else no answer would end")
                .containsExactlyInAnyOrder(5, 6);
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            quoteCharacter = '`',
            value = {
                "{'temperature': 'hot'} | {} | generation_config.json.temperature: must be a number, is \"hot\"",
                "{'top_k': 2.5} | {} | generation_config.json.top_k: must be a whole number, is 2.5",
                "{'top_k': -2} | {} | generation_config.json.top_k: is -2, must be at least -1",
                "{'max_new_tokens': 0} | {} | generation_config.json.max_new_tokens: is 0, must be at least 1",
                "{'eos_token_id': 50} | {} | generation_config.json.eos_token_id: is 50, must be below config.json.vocab_size, which is 50",
                "{'eos_token_id': 'end'} | {} | generation_config.json.eos_token_id: must be a token id or a list of them, is \"end\"",
                "[] | {} | generation_config.json: must be a JSON object, is []",
                "{} | {'min_p': []} | override_generation_config.min_p: must be a number, is []",
            })
    void unusableFields(String file, String overrides, String message) throws IOException {
        write(directory, file);
        assertThatThrownBy(() -> open("auto", overrides))
                .isInstanceOf(ConfigException.class)
                .hasMessage(message);
    }

    private static int sampled(GenerationDefaults defaults, int asked) {
        return SamplingParams.apply(defaults, SamplingParams.builder())
                .maxTokens(asked)
                .build()
                .maxTokens()
                .orElseThrow();
    }

    private GenerationDefaults defaults(String source, String overrides) throws IOException {
        try (Checkpoint checkpoint = open(source, overrides)) {
            return checkpoint.generationDefaults();
        }
    }

    private Set<Integer> ends(String source, Optional<Integer> tokenizers) throws IOException {
        try (Checkpoint checkpoint = open(source, "{}")) {
            return checkpoint.eosTokenIds(tokenizers);
        }
    }

    private Checkpoint open(String source, String overrides) throws IOException {
        return Checkpoint.open(
                directory,
                new GenerationConfig(
                        source, JsonFields.parse(GenerationConfig.OVERRIDES, overrides.replace('\'', '"'))));
    }

    private static void write(Path directory, String json) throws IOException {
        Files.writeString(directory.resolve("generation_config.json"), json.replace('\'', '"'));
    }
}
