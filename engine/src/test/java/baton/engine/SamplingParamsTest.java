package baton.engine;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.OptionalLong;
import java.util.Set;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.Test;

class SamplingParamsTest {
    @Test
    void defaultsAreThoseOfVllm() {
        assertThat(SamplingParams.builder().build())
                .isEqualTo(new SamplingParams(
                        1,
                        1,
                        1,
                        0,
                        0,
                        OptionalLong.empty(),
                        0,
                        0,
                        1,
                        List.of(),
                        Set.of(),
                        false,
                        false,
                        OptionalInt.of(16),
                        OptionalInt.empty(),
                        0,
                        OptionalInt.empty(),
                        OptionalInt.empty(),
                        Map.of(),
                        true,
                        Set.of(),
                        Optional.empty(),
                        List.of(),
                        Optional.empty(),
                        Optional.empty()));
    }

    @Test
    void refusesValuesOutOfRange() {
        assertRefused(b -> b.n(0), "n: is 0, must be between 1 and 16384");
        assertRefused(b -> b.n(16385), "n: is 16385, must be between 1 and 16384");
        assertRefused(b -> b.temperature(-0.1), "temperature: is -0.1, must be in [0, 2]");
        assertRefused(b -> b.temperature(2.1), "temperature: is 2.1, must be in [0, 2]");
        assertRefused(b -> b.temperature(Double.NaN), "temperature: is NaN, must be in [0, 2]");
        assertRefused(b -> b.topP(0), "top_p: is 0, must be in (0, 1]");
        assertRefused(b -> b.topP(1.01), "top_p: is 1.01, must be in (0, 1]");
        assertRefused(b -> b.topK(-2), "top_k: is -2, must be -1 or 0 (all tokens) or positive");
        assertRefused(b -> b.minP(1.5), "min_p: is 1.5, must be in [0, 1]");
        assertRefused(b -> b.presencePenalty(2.5), "presence_penalty: is 2.5, must be in [-2, 2]");
        assertRefused(b -> b.frequencyPenalty(-3), "frequency_penalty: is -3, must be in [-2, 2]");
        assertRefused(b -> b.repetitionPenalty(0), "repetition_penalty: is 0, must be greater than 0 and finite");
        assertRefused(
                b -> b.repetitionPenalty(Double.POSITIVE_INFINITY),
                "repetition_penalty: is Infinity, must be greater than 0 and finite");
        assertRefused(b -> b.allowedTokenIds(Set.of()), "allowed_token_ids: is empty, must have at least one token");
        assertRefused(
                b -> b.badWords(List.of(List.of(1), List.of())), "bad_words: cannot contain a word without tokens");
        assertRefused(b -> b.maxTokens(0), "max_tokens: is 0, must be at least 1");
        assertRefused(b -> b.minTokens(-1), "min_tokens: is -1, must be at least 0");
        assertRefused(b -> b.minTokens(9).maxTokens(8), "min_tokens: is 9, must be at most max_tokens, which is 8");
        assertRefused(b -> b.logprobs(21), "logprobs: is 21, must be between 0 and 20");
        assertRefused(b -> b.promptLogprobs(-1), "prompt_logprobs: is -1, must be between 0 and 20");
        assertRefused(b -> b.stop(List.of("a", "")), "stop: cannot contain an empty string");
        assertRefused(b -> b.stop(List.of("a\uDE00")), "stop: cannot contain half of a surrogate pair");
        assertRefused(b -> b.logitBias(Map.of(1, Double.NaN)), "logit_bias: is NaN, must be numbers");
    }

    private static void assertRefused(UnaryOperator<SamplingParamsBuilder> change, String message) {
        assertThatThrownBy(() -> change.apply(SamplingParams.builder()).build())
                .isInstanceOf(ConfigException.class)
                .hasMessage(message);
    }

    @Test
    void bringsValuesIntoRangeAsVllmDoes() {
        assertThat(SamplingParams.builder().temperature(1e-7).build().temperature())
                .isEqualTo(0.01);
        assertThat(SamplingParams.builder().temperature(1e-7).build().greedy()).isFalse();
        assertThat(SamplingParams.builder().temperature(0).build().greedy()).isTrue();
        assertThat(SamplingParams.builder().seed(-1).build().seed()).isEmpty();
        assertThat(SamplingParams.builder().seed(-2).build().seed()).hasValue(-2);
        assertThat(SamplingParams.builder()
                        .logitBias(Map.of(5, 1000.0, 6, -101.0, 7, 1.5))
                        .build()
                        .logitBias())
                .isEqualTo(Map.of(5, 100.0, 6, -100.0, 7, 1.5));
    }

    @Test
    void pairsInStopStringsAreWhole() {
        assertThat(SamplingParams.builder()
                        .stop(List.of("\uD83D\uDE00"))
                        .build()
                        .stop())
                .containsExactly("\uD83D\uDE00");
    }
}
