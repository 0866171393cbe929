package baton.server;

import baton.engine.Engine;
import baton.engine.SamplingParams;
import baton.engine.SamplingParamsBuilder;
import baton.engine.ThinkingBudget;
import baton.kv.JsonFields;
import baton.server.output.ReasoningFormat;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Set;
import java.util.stream.Collectors;
import tools.jackson.databind.JsonNode;

/** Reads the sampling parameters of requests, and limits those that need memory. Stateless; any thread. */
record SamplingReader(ServerConfig config, Engine engine, Prompts prompts, Optional<ReasoningFormat> reasoning) {
    private static final int MAX_STRINGS = 1024;
    private static final int MAX_STRING_CHARACTERS = 32 << 10;
    private static final int MAX_STOP_CHARACTERS = 8 << 20;
    private static final int MAX_PROMPT_LOGPROBS = 8 << 20;

    /** The parameters that completions and chats share. */
    SamplingParamsBuilder read(JsonFields fields) {
        SamplingParamsBuilder builder = SamplingParams.builder().maxTokens(OptionalInt.empty());
        config.samplingDefaults().accept(builder);
        RequestFields.integer(fields, "n").ifPresent(builder::n);
        fields.number("temperature").ifPresent(builder::temperature);
        fields.number("top_p").ifPresent(builder::topP);
        RequestFields.integer(fields, "top_k").ifPresent(builder::topK);
        fields.number("min_p").ifPresent(builder::minP);
        fields.value("seed").ifPresent(value -> {
            // A seed may need more bits than a double holds exactly.
            if (value.isIntegralNumber()) {
                if (!value.canConvertToLong()) {
                    throw ApiException.badField("seed", "must be a whole number of 64 bits, is " + Json.shown(value));
                }
                builder.seed(value.asLong());
            } else {
                fields.integer("seed").ifPresent(builder::seed);
            }
        });
        fields.number("presence_penalty").ifPresent(builder::presencePenalty);
        fields.number("frequency_penalty").ifPresent(builder::frequencyPenalty);
        fields.number("repetition_penalty").ifPresent(builder::repetitionPenalty);
        fields.value("stop").ifPresent(value -> builder.stop(fewStrings("stop", RequestFields.strings("stop", value))));
        fields.value("stop_token_ids").ifPresent(value -> {
            Set<Integer> ids = new HashSet<>();
            for (int id : prompts.tokenIds("stop_token_ids", value)) {
                ids.add(id);
            }
            builder.stopTokenIds(ids);
        });
        fields.bool("include_stop_str_in_output").ifPresent(builder::includeStopInOutput);
        fields.bool("ignore_eos").ifPresent(builder::ignoreEos);
        RequestFields.integer(fields, "min_tokens").ifPresent(builder::minTokens);
        fields.object("logit_bias").ifPresent(bias -> builder.logitBias(logitBias(bias)));
        fields.bool("skip_special_tokens").ifPresent(builder::skipSpecialTokens);
        fields.value("allowed_token_ids")
                .ifPresent(value -> builder.allowedTokenIds(Arrays.stream(prompts.tokenIds("allowed_token_ids", value))
                        .boxed()
                        .collect(Collectors.toSet())));
        fields.value("bad_words").ifPresent(value -> {
            if (!value.isArray()) {
                throw ApiException.badField("bad_words", "must be an array of strings, is " + Json.shown(value));
            }
            builder.badWords(SamplingParams.badWords(
                    fewStrings("bad_words", RequestFields.strings("bad_words", value)), engine.tokenizer()));
        });
        fields.value("bad_words_token_ids").ifPresent(value -> builder.badWords(badWords(value)));
        thinkingBudget(fields).ifPresent(builder::thinkingBudget);
        FormatReader.read(fields).ifPresent(builder::format);
        return builder;
    }

    /** Words as token ids, which only requests by gRPC have. */
    private List<List<Integer>> badWords(JsonNode words) {
        List<List<Integer>> read = new ArrayList<>();
        for (JsonNode word : words) {
            if (read.size() == MAX_STRINGS) {
                throw ApiException.badField(
                        "bad_words_token_ids", "has " + words.size() + " words, must have at most " + MAX_STRINGS);
            }
            read.add(Arrays.stream(prompts.tokenIds("bad_words_token_ids[" + read.size() + "]", word))
                    .boxed()
                    .toList());
        }
        return read;
    }

    private Optional<ThinkingBudget> thinkingBudget(JsonFields fields) {
        String name = "thinking_token_budget";
        return RequestFields.integer(fields, name)
                .filter(tokens -> tokens != -1)
                .map(tokens -> {
                    if (tokens < 0) {
                        throw ApiException.badField(name, "is " + tokens + ", must be at least 0, or -1 for no limit");
                    }
                    return reasoning
                            .flatMap(format -> format.budget(tokens, engine.tokenizer()))
                            .orElseThrow(() -> ApiException.badField(
                                    name, "is " + tokens + ", which needs --reasoning-parser deepseek_r1 or qwen3"));
                });
    }

    /** Whether the request is a prefill leg, which computes the tokens that the decode leg lacks. */
    static boolean isPrefillLeg(JsonFields fields) {
        return fields.object("kv_transfer_params")
                .flatMap(params -> params.value("do_remote_decode"))
                .filter(value -> value.isBoolean() && value.asBoolean())
                .isPresent();
    }

    private Map<Integer, Double> logitBias(JsonFields fields) {
        Map<Integer, Double> bias = new HashMap<>();
        for (String name : fields.names()) {
            int id;
            try {
                id = Integer.parseInt(name);
            } catch (NumberFormatException e) {
                throw ApiException.badField(fields.field(name), "must have a token id as its name");
            }
            prompts.requireInVocabulary(fields.field(name), id);
            fields.number(name).ifPresent(value -> {
                if (!(Math.abs(value) <= 100)) {
                    throw ApiException.badField(fields.field(name), "is " + value + ", must be in [-100, 100]");
                }
                bias.put(id, value);
            });
        }
        return bias;
    }

    static void readPromptLogprobs(JsonFields fields, SamplingParamsBuilder builder, boolean stream) {
        RequestFields.integer(fields, "prompt_logprobs").ifPresent(count -> {
            if (stream) {
                throw ApiException.badField("prompt_logprobs", "is not available when stream is true");
            }
            builder.promptLogprobs(count);
        });
    }

    static OptionalInt chatLogprobs(JsonFields fields) {
        Optional<Integer> top = RequestFields.integer(fields, "top_logprobs");
        if (!fields.bool("logprobs").orElse(false)) {
            if (top.filter(count -> count != 0).isPresent()) {
                throw ApiException.badField("top_logprobs", "is " + top.get() + ", which needs logprobs to be true");
            }
            return OptionalInt.empty();
        }
        int count = top.orElse(0);
        if (count < 0 || count > SamplingParams.MAX_LOGPROBS) {
            throw ApiException.badField(
                    "top_logprobs", "is " + count + ", must be between 0 and " + SamplingParams.MAX_LOGPROBS);
        }
        return OptionalInt.of(count);
    }

    /** Limits strings with which each token of each sequence is compared. */
    private static List<String> fewStrings(String field, List<String> strings) {
        long characters = strings.stream().mapToLong(String::length).sum();
        if (strings.size() > MAX_STRINGS || characters > MAX_STRING_CHARACTERS) {
            throw ApiException.badField(
                    field,
                    "has " + strings.size() + " strings of " + characters + " characters, must have at most "
                            + MAX_STRINGS + " of " + MAX_STRING_CHARACTERS + " together");
        }
        return strings;
    }

    /** Limits stop strings: each sequence has a table for each. */
    static void requireFewStops(SamplingParams sampling, int sequences) {
        long characters =
                sampling.stop().stream().mapToLong(stop -> stop.length() + 16).sum();
        if (characters * sequences > MAX_STOP_CHARACTERS) {
            throw ApiException.badField(
                    "stop",
                    "has " + sampling.stop().size() + " strings for " + sequences
                            + " sequences, must have fewer or shorter ones for so many");
        }
    }

    /** Limits prompt log probabilities, which are held until the answer is complete. */
    static void requireFewPromptLogprobs(SamplingParams sampling, List<ApiRequest.Prompt> prompts) {
        long tokens = prompts.stream().mapToLong(prompt -> prompt.ids().length).sum();
        if (sampling.promptLogprobs().isPresent()
                && tokens * (sampling.promptLogprobs().getAsInt() + 1) > MAX_PROMPT_LOGPROBS) {
            throw ApiException.badField(
                    "prompt_logprobs",
                    "is " + sampling.promptLogprobs().getAsInt() + " for prompts of " + tokens
                            + " tokens together, a request may have " + MAX_PROMPT_LOGPROBS + " log probabilities");
        }
    }
}
