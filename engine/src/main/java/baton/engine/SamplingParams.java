package baton.engine;

import baton.engine.model.GenerationDefaults;
import baton.engine.text.Tokenizer;
import baton.grammar.OutputFormat;
import baton.kv.ConfigException;
import baton.kv.GeneratedBuilder;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.OptionalLong;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.DoublePredicate;
import java.util.stream.Stream;

/**
 * How to continue a prompt: the fields, defaults and limits of vLLM's {@code SamplingParams}.
 *
 * @param n sequences to generate, 1 to 16384
 * @param temperature in [0, 2]; 0 means greedy; values between 0 and 0.01 become 0.01
 * @param topP probability mass to choose from, in (0, 1]
 * @param topK number of tokens to choose from; 0 or less means all
 * @param minP least probability relative to the best token's, in [0, 1]
 * @param seed makes the choices repeatable; -1 means none
 * @param presencePenalty in [-2, 2]
 * @param frequencyPenalty in [-2, 2]
 * @param repetitionPenalty greater than 0; 1 means none
 * @param stop strings that end the output, none empty
 * @param stopTokenIds tokens that end the output, besides the model's own
 * @param includeStopInOutput whether a stop string stays in the text
 * @param ignoreEos whether the model's end tokens are ordinary
 * @param maxTokens limit of the output; empty means up to the model's length
 * @param mostTokens limit of the model's makers, to which {@code maxTokens} is lowered
 * @param minTokens tokens before which no end token is chosen
 * @param logprobs number of most probable tokens to report for each output token
 * @param promptLogprobs the same for each prompt token
 * @param logitBias added to the logits of these tokens; values beyond -100 and 100 become these
 * @param skipSpecialTokens whether special tokens are left out of the text
 * @param shownSpecialTokens special tokens that are in the text nevertheless
 * @param allowedTokenIds the only tokens that may be chosen, at least one; empty means all
 * @param badWords sequences of at least one token; the last token of one is not chosen when the output ends with its others
 * @param thinkingBudget of the reasoning in the output; empty means any length
 * @param format of the output; tokens that would leave it are not chosen, and the output ends only where the format is complete
 */
@GeneratedBuilder
public record SamplingParams(
        int n,
        double temperature,
        double topP,
        int topK,
        double minP,
        OptionalLong seed,
        double presencePenalty,
        double frequencyPenalty,
        double repetitionPenalty,
        List<String> stop,
        Set<Integer> stopTokenIds,
        boolean includeStopInOutput,
        boolean ignoreEos,
        OptionalInt maxTokens,
        OptionalInt mostTokens,
        int minTokens,
        OptionalInt logprobs,
        OptionalInt promptLogprobs,
        Map<Integer, Double> logitBias,
        boolean skipSpecialTokens,
        Set<Integer> shownSpecialTokens,
        Optional<Set<Integer>> allowedTokenIds,
        List<List<Integer>> badWords,
        Optional<ThinkingBudget> thinkingBudget,
        Optional<OutputFormat> format) {

    /** Most {@code logprobs} a request may ask for. */
    public static final int MAX_LOGPROBS = 20;

    private static final double LEAST_TEMPERATURE = 0.01;
    private static final double MAX_LOGIT_BIAS = 100;

    public SamplingParams {
        require("n", n, value -> value >= 1 && value <= 16384, "between 1 and 16384");
        require("temperature", temperature, value -> value >= 0 && value <= 2, "in [0, 2]");
        require("top_p", topP, value -> value > 0 && value <= 1, "in (0, 1]");
        require("top_k", topK, value -> value >= -1, "-1 or 0 (all tokens) or positive");
        require("min_p", minP, value -> value >= 0 && value <= 1, "in [0, 1]");
        require("presence_penalty", presencePenalty, value -> Math.abs(value) <= 2, "in [-2, 2]");
        require("frequency_penalty", frequencyPenalty, value -> Math.abs(value) <= 2, "in [-2, 2]");
        require(
                "repetition_penalty",
                repetitionPenalty,
                value -> value > 0 && Double.isFinite(value),
                "greater than 0 and finite");
        if (mostTokens.isPresent()) {
            maxTokens = OptionalInt.of(Math.min(mostTokens.getAsInt(), maxTokens.orElse(Integer.MAX_VALUE)));
        }
        maxTokens.ifPresent(max -> require("max_tokens", max, value -> value >= 1, "at least 1"));
        require("min_tokens", minTokens, value -> value >= 0, "at least 0");
        if (maxTokens.isPresent() && minTokens > maxTokens.getAsInt()) {
            throw new ConfigException(
                    "min_tokens", "is " + minTokens + ", must be at most max_tokens, which is " + maxTokens.getAsInt());
        }
        logprobs.ifPresent(count -> require(
                "logprobs", count, value -> value >= 0 && value <= MAX_LOGPROBS, "between 0 and " + MAX_LOGPROBS));
        promptLogprobs.ifPresent(count -> require(
                "prompt_logprobs",
                count,
                value -> value >= 0 && value <= MAX_LOGPROBS,
                "between 0 and " + MAX_LOGPROBS));
        if (stop.stream().anyMatch(String::isEmpty)) {
            throw new ConfigException("stop", "cannot contain an empty string");
        }
        if (stop.stream().flatMapToInt(String::codePoints).anyMatch(SamplingParams::unpairedSurrogate)) {
            throw new ConfigException("stop", "cannot contain half of a surrogate pair");
        }
        logitBias.values().forEach(bias -> require("logit_bias", bias, value -> !Double.isNaN(value), "numbers"));
        if (allowedTokenIds.filter(Set::isEmpty).isPresent()) {
            throw new ConfigException("allowed_token_ids", "is empty, must have at least one token");
        }
        if (badWords.stream().anyMatch(List::isEmpty)) {
            throw new ConfigException("bad_words", "cannot contain a word without tokens");
        }
        if (temperature > 0) {
            temperature = Math.max(temperature, LEAST_TEMPERATURE);
        }
        if (seed.isPresent() && seed.getAsLong() == -1) {
            seed = OptionalLong.empty();
        }
        stop = List.copyOf(stop);
        stopTokenIds = Set.copyOf(stopTokenIds);
        shownSpecialTokens = Set.copyOf(shownSpecialTokens);
        logitBias = new TreeMap<>(logitBias);
        logitBias.replaceAll((id, bias) -> Math.clamp(bias, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS));
        logitBias = Collections.unmodifiableMap(logitBias);
        allowedTokenIds = allowedTokenIds.map(Set::copyOf);
        badWords = badWords.stream().map(List::copyOf).toList();
    }

    /** True if the most probable token is always taken. */
    public boolean greedy() {
        return temperature == 0;
    }

    /** Starts from vLLM's defaults. */
    public static SamplingParamsBuilder builder() {
        return SamplingParamsBuilder.builder()
                .n(1)
                .temperature(1)
                .topP(1)
                .repetitionPenalty(1)
                .stop(List.of())
                .stopTokenIds(Set.of())
                .maxTokens(16)
                .logitBias(Map.of())
                .skipSpecialTokens(true)
                .shownSpecialTokens(Set.of())
                .badWords(List.of());
    }

    /** Temperature 0 and this many tokens at most. */
    public static SamplingParams greedy(int maxTokens) {
        return builder().temperature(0).maxTokens(maxTokens).build();
    }

    private static boolean unpairedSurrogate(int codePoint) {
        return codePoint >= Character.MIN_SURROGATE && codePoint <= Character.MAX_SURROGATE;
    }

    private static void require(String field, double value, DoublePredicate valid, String wanted) {
        if (!valid.test(value)) {
            String shown = Double.isFinite(value) && value == Math.rint(value)
                    ? Long.toString((long) value)
                    : Double.toString(value);
            throw new ConfigException(field, "is " + shown + ", must be " + wanted);
        }
    }

    /** Puts the suggestions of the model's makers in place. */
    public static SamplingParamsBuilder apply(GenerationDefaults defaults, SamplingParamsBuilder builder) {
        defaults.temperature().ifPresent(builder::temperature);
        defaults.topP().ifPresent(builder::topP);
        defaults.topK().ifPresent(builder::topK);
        defaults.minP().ifPresent(builder::minP);
        defaults.repetitionPenalty().ifPresent(builder::repetitionPenalty);
        defaults.presencePenalty().ifPresent(builder::presencePenalty);
        defaults.frequencyPenalty().ifPresent(builder::frequencyPenalty);
        defaults.maxTokens().ifPresent(builder::maxTokens);
        return builder.mostTokens(defaults.mostTokens());
    }

    /**
     * Bad words as tokens, each as it is at the beginning of a text and as it is after a space. vLLM leaves the latter out
     * where it has another number of tokens, and so lets many words through.
     */
    public static List<List<Integer>> badWords(List<String> words, Tokenizer tokenizer) {
        return words.stream()
                .map(String::stripLeading)
                .flatMap(word -> Stream.of(word, word.isEmpty() ? word : " " + word))
                .map(word ->
                        Arrays.stream(tokenizer.encode(word, false)).boxed().toList())
                .distinct()
                .toList();
    }
}
