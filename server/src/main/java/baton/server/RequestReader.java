package baton.server;

import baton.engine.Engine;
import baton.engine.GenerationRequest;
import baton.engine.SamplingParams;
import baton.engine.text.ChatTemplate;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharsetDecoder;
import java.nio.charset.CoderResult;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Set;
import java.util.function.BiFunction;
import java.util.stream.Collectors;
import tools.jackson.core.JacksonException;
import tools.jackson.core.StreamReadConstraints;
import tools.jackson.core.StreamReadFeature;
import tools.jackson.core.TokenStreamLocation;
import tools.jackson.core.json.JsonFactory;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

/**
 * Turns request bodies into {@link ApiRequest}s: JSON, validation, chat template, tokenizer. Long prompts take time, so this runs
 * beside the event loop. Stateless; any thread.
 *
 * <p>Unknown fields are ignored. Those of {@link RequestFields} are ignored or refused.
 */
final class RequestReader {
    private static final int MAX_JSON_DEPTH = 128;
    private static final int COMPLETION_MAX_TOKENS = 16;

    /** Sequences of one request: a small body could ask for any number. */
    private static final int MAX_SEQUENCES = 16_384;

    private static final int MAX_STRINGS = 1024;
    private static final int MAX_STRING_CHARACTERS = 32 << 10;
    private static final int MAX_STOP_CHARACTERS = 8 << 20;
    private static final int MAX_PROMPT_LOGPROBS = 8 << 20;
    private static final int MAX_SALT_CHARACTERS = 4096;

    /** Memory for each token of a detokenized text. */
    private static final int BYTES_PER_DECODED = 64;

    private final ServerConfig config;
    private final Engine engine;
    private final Prompts prompts;
    private final JsonMapper mapper;

    RequestReader(ServerConfig config, Engine engine) {
        this.config = config;
        this.engine = engine;
        prompts = new Prompts(engine);
        mapper = JsonMapper.builder(JsonFactory.builder()
                        .enable(StreamReadFeature.STRICT_DUPLICATE_DETECTION)
                        .streamReadConstraints(StreamReadConstraints.builder()
                                .maxNestingDepth(MAX_JSON_DEPTH)
                                .maxStringLength(config.maxBodyBytes())
                                .build())
                        .build())
                .build();
    }

    /**
     * Parses a body.
     *
     * @throws ApiException if the body is not a JSON object, with the position of the error, or if there is no memory for its tree
     */
    JsonFields parse(byte[] body, Preparation preparation) {
        requireUtf8(body);
        preparation.reserve(treeBytes(body));
        JsonNode parsed;
        try {
            parsed = mapper.readTree(body);
        } catch (JacksonException e) {
            TokenStreamLocation location = e.getLocation();
            String where =
                    location == null ? "" : " at line " + location.getLineNr() + ", column " + location.getColumnNr();
            throw ApiException.badRequest("request body is not valid JSON" + where + ": " + e.getOriginalMessage());
        }
        if (parsed instanceof ObjectNode object) {
            return JsonFields.of("", object);
        }
        throw ApiException.badRequest(
                "request body must be a JSON object, is " + (body.length == 0 ? "empty" : Json.shown(parsed)));
    }

    /** Jackson would also accept UTF-16 and UTF-32, which {@link #treeBytes} cannot read. */
    private static void requireUtf8(byte[] body) {
        ByteBuffer in = ByteBuffer.wrap(body);
        CharBuffer out = CharBuffer.allocate(4096);
        CharsetDecoder decoder = StandardCharsets.UTF_8.newDecoder();
        CoderResult result = decoder.decode(in, out, true);
        while (result.isOverflow()) {
            out.clear();
            result = decoder.decode(in, out, true);
        }
        // No JSON begins with a zero in UTF-8, and in the other encodings each without a byte order mark has one.
        boolean zero = false;
        for (int i = 0; i < Math.min(4, body.length); i++) {
            zero |= body[i] == 0;
        }
        if (result.isError() || zero) {
            throw ApiException.badRequest(
                    "request body must be UTF-8, is not" + (zero ? "" : " at byte " + in.position()));
        }
    }

    /** An upper bound of the memory of a JSON text and the copies of its tree. */
    private static long treeBytes(byte[] json) {
        long bytes = 5L * json.length;
        boolean inString = false;
        for (int i = 0; i < json.length; i++) {
            switch (json[i]) {
                case '"' -> inString = !inString;
                case '\\' -> i += inString ? 1 : 0;
                case ',' -> bytes += inString ? 0 : 48;
                case ':' -> bytes += inString ? 0 : 256;
                case '[', '{' -> bytes += inString ? 0 : 512;
                default -> {}
            }
        }
        return bytes;
    }

    /** The body's {@code request_id}. */
    Optional<String> requestId(JsonFields fields) {
        return fields.string("request_id");
    }

    ApiRequest completion(JsonFields fields, Preparation preparation) {
        String model = model(fields);
        RequestFields.refuseUnsupported(fields);
        SamplingParams.Builder builder = sampling(fields);
        boolean echo = fields.bool("echo").orElse(false);
        Optional<Integer> maxTokens = integer(fields, "max_tokens");
        // With an echo, zero tokens ask for the prompt's log probabilities.
        boolean generates = !(echo && maxTokens.equals(Optional.of(0)));
        maxTokens = generates ? maxTokens : Optional.of(1);
        builder.maxTokens(maxTokens.orElse(COMPLETION_MAX_TOKENS));
        OptionalInt logprobs = toOptionalInt(integer(fields, "logprobs"));
        logprobs.ifPresent(builder::logprobs);
        boolean stream = fields.bool("stream").orElse(false);
        readPromptLogprobs(fields, builder, stream);
        if (echo) {
            logprobs.ifPresent(builder::promptLogprobs);
        }
        int n = builder.build().n();
        integer(fields, "best_of").filter(best -> best != n).ifPresent(best -> {
            if (best < n) {
                throw new ConfigException("best_of", "is " + best + ", must be at least n, which is " + n);
            }
            if (stream) {
                throw new ConfigException("best_of", "is " + best + ", must equal n, which is " + n + ", in a stream");
            }
            builder.n(best).logprobs(logprobs.orElse(0));
        });
        SamplingParams sampling = builder.build();

        Optional<JsonFields> kvTransferParams = fields.object("kv_transfer_params");
        boolean addSpecialTokens = fields.bool("add_special_tokens").orElse(true);
        requireFewStops(sampling, requireFewSequences(fields, sampling.n()));
        Optional<Prompts.Kept> kept = kept(fields, maxTokens.orElse(COMPLETION_MAX_TOKENS));
        List<ApiRequest.Prompt> read = new ArrayList<>();
        for (int[] whole : prompts(
                fields,
                kvTransferParams,
                (field, text) -> prompts.encode(field, text, addSpecialTokens, kept, preparation))) {
            preparation.check();
            int[] ids = Prompts.truncated(whole, kept);
            prompts.requireFits(ids, maxTokens, "max_tokens");
            read.add(new ApiRequest.Prompt(ids, echo ? engine.tokenizer().decode(ids, true) : ""));
        }
        requireFewPromptLogprobs(sampling, read);
        return request(
                fields,
                ApiRequest.Api.COMPLETION,
                model,
                read,
                sampling,
                n,
                logprobs,
                echo,
                generates,
                config.responseRole());
    }

    ApiRequest chat(JsonFields fields, Preparation preparation) {
        String model = model(fields);
        RequestFields.refuseUnsupported(fields);
        refuseToolChoice(fields);
        SamplingParams.Builder builder = sampling(fields);
        String maxTokensField =
                fields.value("max_completion_tokens").isPresent() ? "max_completion_tokens" : "max_tokens";
        Optional<Integer> maxTokens = integer(fields, maxTokensField);
        maxTokens.ifPresent(builder::maxTokens);
        OptionalInt logprobs = chatLogprobs(fields);
        logprobs.ifPresent(builder::logprobs);
        readPromptLogprobs(fields, builder, fields.bool("stream").orElse(false));
        SamplingParams sampling = builder.build();
        requireFewStops(sampling, requireFewSequences(fields, sampling.n()));

        Optional<Prompts.Kept> kept = kept(fields, maxTokens.orElse(1));
        ChatPrompt chat = chatPrompt(fields, preparation);
        Optional<JsonFields> kvTransferParams = fields.object("kv_transfer_params");
        int[] whole = handedOverPrompt(kvTransferParams)
                .orElseGet(() -> prompts.encode(
                        "messages",
                        chat.text(),
                        fields.bool("add_special_tokens").orElse(false),
                        kept,
                        preparation));
        int[] ids = Prompts.truncated(whole, kept);
        prompts.requireFits(ids, maxTokens, maxTokensField);
        boolean echo = fields.bool("echo").orElse(false);
        return request(
                fields,
                ApiRequest.Api.CHAT,
                model,
                List.of(new ApiRequest.Prompt(ids, echo ? chat.continued() : "")),
                sampling,
                sampling.n(),
                logprobs,
                false,
                true,
                chat.responseRole());
    }

    private Optional<Prompts.Kept> kept(JsonFields fields, int maxTokens) {
        return prompts.kept(integer(fields, "truncate_prompt_tokens"), fields.string("truncation_side"), maxTokens);
    }

    private ChatPrompt chatPrompt(JsonFields fields, Preparation preparation) {
        Optional<ChatTemplate> template = engine.chatTemplate();
        for (JsonFields from :
                List.of(fields, fields.object("chat_template_kwargs").orElse(JsonFields.empty("")))) {
            Optional<String> own = from.string("chat_template");
            if (own.isPresent() && !config.trustRequestChatTemplate()) {
                throw ApiException.badField(
                        from.field("chat_template"),
                        "is a program that this server runs only with --trust-request-chat-template");
            }
            if (own.isPresent() && !own.get().isEmpty()) {
                preparation.reserve(ChatTemplate.MAX_REQUESTED_BYTES);
                template = template.map(model -> model.with(own.get()));
                break;
            }
        }
        return ChatPrompt.read(fields, template, config.responseRole(), preparation::check);
    }

    /** The ids of {@code prompt} or {@code messages} of a {@code /tokenize} request. */
    int[] tokenize(JsonFields fields, Preparation preparation) {
        model(fields);
        RequestFields.refuseUnsupported(fields);
        Optional<JsonNode> prompt = fields.value("prompt");
        if (prompt.isPresent() == fields.value("messages").isPresent()) {
            throw ApiException.badRequest("one of prompt and messages must be given");
        }
        if (prompt.isPresent()) {
            String text = string("prompt", prompt.get());
            return prompts.list(
                    "prompt", text, fields.bool("add_special_tokens").orElse(true), preparation);
        }
        String text = chatPrompt(fields, preparation).text();
        return prompts.list("messages", text, fields.bool("add_special_tokens").orElse(false), preparation);
    }

    /** The text of {@code tokens} of a {@code /detokenize} request. */
    String detokenize(JsonFields fields, Preparation preparation) {
        model(fields);
        JsonNode tokens = fields.value("tokens")
                .orElseThrow(() -> ApiException.badField("tokens", "is missing, must be an array of token ids"));
        if (tokens.size() > prompts.mostListed()) {
            throw ApiException.badField(
                    "tokens", "has " + tokens.size() + " tokens, must have at most " + prompts.mostListed());
        }
        preparation.reserve((long) tokens.size() * BYTES_PER_DECODED);
        return engine.tokenizer().decode(tokenIds("tokens", tokens), false);
    }

    private ApiRequest request(
            JsonFields fields,
            ApiRequest.Api api,
            String model,
            List<ApiRequest.Prompt> prompts,
            SamplingParams sampling,
            int n,
            OptionalInt logprobs,
            boolean echo,
            boolean generates,
            String role) {
        RequestFields.checkIgnored(fields);
        boolean stream = fields.bool("stream").orElse(false);
        Optional<JsonFields> options = fields.object("stream_options");
        if (options.isPresent() && !stream) {
            throw ApiException.badField("stream_options", "is only allowed when stream is true");
        }
        Optional<String> cacheSalt = fields.string("cache_salt");
        if (cacheSalt.filter(String::isEmpty).isPresent()) {
            throw ApiException.badField("cache_salt", "is empty, must be a non-empty string");
        }
        if (cacheSalt.filter(salt -> salt.length() > MAX_SALT_CHARACTERS).isPresent()) {
            throw ApiException.badField(
                    "cache_salt",
                    "has " + cacheSalt.get().length() + " characters, must have at most " + MAX_SALT_CHARACTERS);
        }
        if (cacheSalt.filter(salt -> !GenerationRequest.isText(salt)).isPresent()) {
            throw ApiException.badField("cache_salt", "has half of a surrogate pair, must be valid Unicode");
        }
        int streamInterval = fields.integerAtLeast("stream_interval", 1).orElse(1);
        boolean includeUsage = options.flatMap(o -> o.bool("include_usage")).orElse(false);
        boolean continuousUsage =
                options.flatMap(o -> o.bool("continuous_usage_stats")).orElse(false);
        return new ApiRequest(
                api,
                model,
                prompts,
                sampling,
                n,
                logprobs,
                stream,
                streamInterval,
                includeUsage,
                includeUsage && continuousUsage,
                echo,
                generates,
                fields.value("prompt_logprobs").isPresent(),
                fields.bool("return_token_ids").orElse(false),
                fields.bool("return_tokens_as_token_ids").orElse(false),
                role,
                fields.object("kv_transfer_params").flatMap(RequestReader::forConnector),
                cacheSalt,
                integer(fields, "priority").orElse(0));
    }

    private String model(JsonFields fields) {
        String model = fields.string("model").orElse(config.servedModelNames().getFirst());
        if (!config.servedModelNames().contains(model)) {
            throw unknownModel(config, model);
        }
        return model;
    }

    static ApiException unknownModel(ServerConfig config, String model) {
        return ApiException.notFound(
                "model '" + Json.shortened(model) + "' does not exist; this server has "
                        + config.servedModelNames().stream()
                                .map(name -> "'" + name + "'")
                                .collect(Collectors.joining(", ")),
                Optional.of("model"));
    }

    private static void refuseToolChoice(JsonFields fields) {
        fields.value("tool_choice").ifPresent(choice -> {
            boolean allowed = choice.isString()
                    && (choice.asString().equals("none") || choice.asString().equals("auto"));
            if (!allowed) {
                throw ApiException.badField(
                        "tool_choice",
                        "is " + Json.shown(choice)
                                + ", must be none or auto: tools are shown to the model, calls stay part of its text");
            }
        });
    }

    private SamplingParams.Builder sampling(JsonFields fields) {
        SamplingParams.Builder builder = SamplingParams.builder().unlimitedTokens();
        config.samplingDefaults().accept(builder);
        integer(fields, "n").ifPresent(builder::n);
        fields.number("temperature").ifPresent(builder::temperature);
        fields.number("top_p").ifPresent(builder::topP);
        integer(fields, "top_k").ifPresent(builder::topK);
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
        fields.value("stop").ifPresent(value -> builder.stop(fewStrings("stop", stringOrStrings("stop", value))));
        fields.value("stop_token_ids").ifPresent(value -> {
            Set<Integer> ids = new HashSet<>();
            for (int id : tokenIds("stop_token_ids", value)) {
                ids.add(id);
            }
            builder.stopTokenIds(ids);
        });
        fields.bool("include_stop_str_in_output").ifPresent(builder::includeStopInOutput);
        fields.bool("ignore_eos").ifPresent(builder::ignoreEos);
        integer(fields, "min_tokens").ifPresent(builder::minTokens);
        fields.object("logit_bias").ifPresent(bias -> builder.logitBias(logitBias(bias)));
        fields.bool("skip_special_tokens").ifPresent(builder::skipSpecialTokens);
        fields.value("allowed_token_ids")
                .ifPresent(value -> builder.allowedTokenIds(Arrays.stream(tokenIds("allowed_token_ids", value))
                        .boxed()
                        .collect(Collectors.toSet())));
        fields.value("bad_words").ifPresent(value -> {
            if (!value.isArray()) {
                throw ApiException.badField("bad_words", "must be an array of strings, is " + Json.shown(value));
            }
            builder.badWords(fewStrings("bad_words", stringOrStrings("bad_words", value)), engine.tokenizer());
        });
        return builder;
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
            requireInVocabulary(fields.field(name), id);
            fields.number(name).ifPresent(value -> {
                if (!(Math.abs(value) <= 100)) {
                    throw ApiException.badField(fields.field(name), "is " + value + ", must be in [-100, 100]");
                }
                bias.put(id, value);
            });
        }
        return bias;
    }

    private static void readPromptLogprobs(JsonFields fields, SamplingParams.Builder builder, boolean stream) {
        integer(fields, "prompt_logprobs").ifPresent(count -> {
            if (stream) {
                throw ApiException.badField("prompt_logprobs", "is not available when stream is true");
            }
            builder.promptLogprobs(count);
        });
    }

    private static OptionalInt chatLogprobs(JsonFields fields) {
        Optional<Integer> top = integer(fields, "top_logprobs");
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

    private List<int[]> prompts(
            JsonFields fields, Optional<JsonFields> kvTransferParams, BiFunction<String, String, int[]> encode) {
        Optional<int[]> handedOver = handedOverPrompt(kvTransferParams);
        if (handedOver.isPresent()) {
            return List.of(handedOver.get());
        }
        String wanted = "must be a string, an array of strings, an array of token ids or an array of such arrays";
        JsonNode prompt =
                fields.value("prompt").orElseThrow(() -> ApiException.badField("prompt", "is missing, " + wanted));
        if (prompt.isString()) {
            return List.of(encode.apply("prompt", string("prompt", prompt)));
        }
        if (!prompt.isArray() || prompt.isEmpty()) {
            throw ApiException.badField("prompt", wanted + ", is " + Json.shown(prompt));
        }
        if (prompt.get(0).isIntegralNumber()) {
            return List.of(Prompts.requireNotEmpty("prompt", tokenIds("prompt", prompt)));
        }
        List<int[]> prompts = new ArrayList<>();
        for (JsonNode element : prompt) {
            String name = "prompt[" + prompts.size() + "]";
            if (element.isString() && prompt.get(0).isString()) {
                prompts.add(encode.apply(name, string(name, element)));
            } else if (element.isArray() && prompt.get(0).isArray()) {
                prompts.add(Prompts.requireNotEmpty(name, tokenIds(name, element)));
            } else {
                throw ApiException.badField(
                        name,
                        "must be " + (prompt.get(0).isString() ? "a string" : "an array of token ids") + ", is "
                                + Json.shown(element));
            }
        }
        return prompts;
    }

    /** Checked before memory is allocated per sequence; also limits sequences to those that the engine can hold at once. */
    private int requireFewSequences(JsonFields fields, int n) {
        long most = Math.min(
                MAX_SEQUENCES,
                (long) engine.config().maxNumSeqs() + engine.config().maxWaiting());
        int prompts = fields.value("prompt")
                .filter(prompt -> prompt.isArray() && !prompt.path(0).isNumber())
                .map(JsonNode::size)
                .orElse(1);
        if ((long) prompts * n > most) {
            String own = fields.value("best_of").isPresent() ? "best_of" : "n";
            throw prompts == 1
                    ? ApiException.badField(own, "is " + n + ", a request may have at most " + most + " sequences")
                    : ApiException.badField(
                            "prompt",
                            "has " + prompts + " prompts with " + own + "=" + n + ", a request may have at most " + most
                                    + " sequences");
        }
        return prompts * n;
    }

    /** The prompt's token ids from a prefill instance, so that the decode instance need not tokenize. */
    private Optional<int[]> handedOverPrompt(Optional<JsonFields> kvTransferParams) {
        if (!config.kvPromptTokenIds()) {
            return Optional.empty();
        }
        return kvTransferParams.flatMap(params -> params.value("prompt_token_ids")
                .map(value -> Prompts.requireNotEmpty(
                        params.field("prompt_token_ids"), tokenIds(params.field("prompt_token_ids"), value))));
    }

    /** The ids are not the connector's; empty if nothing else is there. */
    private static Optional<JsonFields> forConnector(JsonFields kvTransferParams) {
        if (!kvTransferParams.names().contains("prompt_token_ids")) {
            return Optional.of(kvTransferParams);
        }
        ObjectNode others = kvTransferParams.toJson();
        others.remove("prompt_token_ids");
        return others.isEmpty() ? Optional.empty() : Optional.of(JsonFields.of("kv_transfer_params", others));
    }

    private int[] tokenIds(String field, JsonNode array) {
        if (!array.isArray()) {
            throw ApiException.badField(field, "must be an array of token ids, is " + Json.shown(array));
        }
        int[] ids = new int[array.size()];
        for (int i = 0; i < ids.length; i++) {
            JsonNode element = array.get(i);
            if (!element.isIntegralNumber() || !element.canConvertToInt()) {
                throw ApiException.badField(field + "[" + i + "]", "must be a token id, is " + Json.shown(element));
            }
            ids[i] = element.asInt();
            requireInVocabulary(field + "[" + i + "]", ids[i]);
        }
        return ids;
    }

    private void requireInVocabulary(String field, int id) {
        int size = engine.model().vocabularySize();
        if (id < 0 || id >= size) {
            throw ApiException.badField(
                    field, "token id " + id + " is not in the vocabulary, must be between 0 and " + (size - 1));
        }
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
    private static void requireFewStops(SamplingParams sampling, int sequences) {
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
    private static void requireFewPromptLogprobs(SamplingParams sampling, List<ApiRequest.Prompt> prompts) {
        long tokens = prompts.stream().mapToLong(prompt -> prompt.ids().length).sum();
        if (sampling.promptLogprobs().isPresent()
                && tokens * (sampling.promptLogprobs().getAsInt() + 1) > MAX_PROMPT_LOGPROBS) {
            throw ApiException.badField(
                    "prompt_logprobs",
                    "is " + sampling.promptLogprobs().getAsInt() + " for prompts of " + tokens
                            + " tokens together, a request may have " + MAX_PROMPT_LOGPROBS + " log probabilities");
        }
    }

    private static List<String> stringOrStrings(String field, JsonNode value) {
        if (value.isString()) {
            return List.of(value.asString());
        }
        if (!value.isArray()) {
            throw ApiException.badField(field, "must be a string or an array of strings, is " + Json.shown(value));
        }
        List<String> strings = new ArrayList<>();
        for (JsonNode element : value) {
            strings.add(string(field + "[" + strings.size() + "]", element));
        }
        return strings;
    }

    private static String string(String field, JsonNode value) {
        if (!value.isString()) {
            throw ApiException.badField(field, "must be a string, is " + Json.shown(value));
        }
        return value.asString();
    }

    private static Optional<Integer> integer(JsonFields fields, String name) {
        return fields.integer(name).map(value -> {
            if (value != value.intValue()) {
                throw ApiException.badField(fields.field(name), "is " + value + ", must fit 32 bits");
            }
            return value.intValue();
        });
    }

    private static OptionalInt toOptionalInt(Optional<Integer> value) {
        return value.isPresent() ? OptionalInt.of(value.get()) : OptionalInt.empty();
    }
}
