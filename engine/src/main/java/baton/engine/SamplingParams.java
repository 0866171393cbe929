package baton.engine;

import baton.engine.model.GenerationDefaults;
import baton.engine.text.Tokenizer;
import baton.kv.ConfigException;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.OptionalLong;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.DoublePredicate;

/**
 * How to continue a prompt: the fields, defaults and limits of vLLM's {@code SamplingParams}.
 *
 * @param n sequences to generate, 1 to 16384
 * @param temperature in [0, 2]; 0 means greedy, and what lies between 0 and 0.01 becomes 0.01
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
 * @param minTokens tokens before which no end token is chosen
 * @param logprobs number of most probable tokens to report for each output token
 * @param promptLogprobs the same for each prompt token
 * @param logitBias added to the logits of these tokens; values beyond -100 and 100 become these
 * @param skipSpecialTokens whether special tokens are left out of the text
 * @param allowedTokenIds the only tokens that may be chosen, at least one; empty means all
 * @param badWords sequences of tokens, each of at least one, whose last token is not chosen when the output ends with the others
 */
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
        int minTokens,
        OptionalInt logprobs,
        OptionalInt promptLogprobs,
        Map<Integer, Double> logitBias,
        boolean skipSpecialTokens,
        Optional<Set<Integer>> allowedTokenIds,
        List<List<Integer>> badWords) {

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

    public static Builder builder() {
        return new Builder();
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

    /** Starts from vLLM's defaults. */
    public static final class Builder {
        private int n = 1;
        private double temperature = 1;
        private double topP = 1;
        private int topK;
        private double minP;
        private OptionalLong seed = OptionalLong.empty();
        private double presencePenalty;
        private double frequencyPenalty;
        private double repetitionPenalty = 1;
        private List<String> stop = List.of();
        private Set<Integer> stopTokenIds = Set.of();
        private boolean includeStopInOutput;
        private boolean ignoreEos;
        private OptionalInt maxTokens = OptionalInt.of(16);
        private OptionalInt mostTokens = OptionalInt.empty();
        private int minTokens;
        private OptionalInt logprobs = OptionalInt.empty();
        private OptionalInt promptLogprobs = OptionalInt.empty();
        private Map<Integer, Double> logitBias = Map.of();
        private boolean skipSpecialTokens = true;
        private Optional<Set<Integer>> allowedTokenIds = Optional.empty();
        private List<List<Integer>> badWords = List.of();

        private Builder() {}

        /** Puts the model's own suggestions in place. */
        public Builder defaults(GenerationDefaults defaults) {
            defaults.temperature().ifPresent(this::temperature);
            defaults.topP().ifPresent(this::topP);
            defaults.topK().ifPresent(this::topK);
            defaults.minP().ifPresent(this::minP);
            defaults.repetitionPenalty().ifPresent(this::repetitionPenalty);
            defaults.presencePenalty().ifPresent(this::presencePenalty);
            defaults.frequencyPenalty().ifPresent(this::frequencyPenalty);
            defaults.maxTokens().ifPresent(this::maxTokens);
            mostTokens = defaults.mostTokens();
            return this;
        }

        public Builder n(int value) {
            n = value;
            return this;
        }

        public Builder temperature(double value) {
            temperature = value;
            return this;
        }

        public Builder topP(double value) {
            topP = value;
            return this;
        }

        public Builder topK(int value) {
            topK = value;
            return this;
        }

        public Builder minP(double value) {
            minP = value;
            return this;
        }

        public Builder seed(long value) {
            seed = OptionalLong.of(value);
            return this;
        }

        public Builder presencePenalty(double value) {
            presencePenalty = value;
            return this;
        }

        public Builder frequencyPenalty(double value) {
            frequencyPenalty = value;
            return this;
        }

        public Builder repetitionPenalty(double value) {
            repetitionPenalty = value;
            return this;
        }

        public Builder stop(List<String> value) {
            stop = value;
            return this;
        }

        public Builder stopTokenIds(Set<Integer> value) {
            stopTokenIds = value;
            return this;
        }

        public Builder includeStopInOutput(boolean value) {
            includeStopInOutput = value;
            return this;
        }

        public Builder ignoreEos(boolean value) {
            ignoreEos = value;
            return this;
        }

        public Builder maxTokens(int value) {
            maxTokens = OptionalInt.of(value);
            return this;
        }

        /** No limit but the model's length. */
        public Builder unlimitedTokens() {
            maxTokens = OptionalInt.empty();
            return this;
        }

        public Builder minTokens(int value) {
            minTokens = value;
            return this;
        }

        public Builder logprobs(int value) {
            logprobs = OptionalInt.of(value);
            return this;
        }

        public Builder promptLogprobs(int value) {
            promptLogprobs = OptionalInt.of(value);
            return this;
        }

        public Builder logitBias(Map<Integer, Double> value) {
            logitBias = value;
            return this;
        }

        public Builder skipSpecialTokens(boolean value) {
            skipSpecialTokens = value;
            return this;
        }

        public Builder allowedTokenIds(Set<Integer> value) {
            allowedTokenIds = Optional.of(value);
            return this;
        }

        public Builder badWords(List<List<Integer>> value) {
            badWords = value;
            return this;
        }

        /**
         * The words as tokens, each as it is at the beginning of a text and as it is after a space. vLLM leaves the latter out
         * where it has another number of tokens, and so lets many words through.
         */
        public Builder badWords(List<String> words, Tokenizer tokenizer) {
            Set<List<Integer>> sequences = new LinkedHashSet<>();
            for (String word : words) {
                String stripped = word.stripLeading();
                sequences.add(tokens(stripped, tokenizer));
                sequences.add(tokens(stripped.isEmpty() ? stripped : " " + stripped, tokenizer));
            }
            return badWords(List.copyOf(sequences));
        }

        private static List<Integer> tokens(String text, Tokenizer tokenizer) {
            return Arrays.stream(tokenizer.encode(text, false)).boxed().toList();
        }

        /** @throws ConfigException if a value is out of range */
        public SamplingParams build() {
            return new SamplingParams(
                    n,
                    temperature,
                    topP,
                    topK,
                    minP,
                    seed,
                    presencePenalty,
                    frequencyPenalty,
                    repetitionPenalty,
                    stop,
                    stopTokenIds,
                    includeStopInOutput,
                    ignoreEos,
                    mostTokens.isEmpty()
                            ? maxTokens
                            : OptionalInt.of(Math.min(mostTokens.getAsInt(), maxTokens.orElse(Integer.MAX_VALUE))),
                    minTokens,
                    logprobs,
                    promptLogprobs,
                    logitBias,
                    skipSpecialTokens,
                    allowedTokenIds,
                    badWords);
        }
    }
}
