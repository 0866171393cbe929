package baton.server;

import baton.engine.Engine;
import baton.engine.GenerationRequest;
import baton.engine.SamplingParams;
import baton.engine.SamplingParamsBuilder;
import baton.engine.text.ChatTemplate;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.KvTransferConfig;
import baton.server.grpc.GenerateMessage;
import baton.server.output.CallGrammar;
import baton.server.output.OutputParser;
import baton.server.output.ReasoningFormat;
import baton.server.output.ToolFormat;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import tools.jackson.databind.JsonNode;

/**
 * Turns request bodies into {@link ApiRequest}s: validation, chat template, tokenizer. Long prompts take time, so this runs
 * beside the event loop. Stateless; any thread.
 *
 * <p>Unknown fields are ignored. Those of {@link RequestFields} are ignored or refused.
 */
final class RequestReader {
    private static final int COMPLETION_MAX_TOKENS = 16;

    /** Sequences of one request: a small body could ask for any number. */
    private static final int MAX_SEQUENCES = 16_384;

    private static final int MAX_SALT_CHARACTERS = 4096;

    /** Memory for each token of a detokenized text. */
    private static final int BYTES_PER_DECODED = 64;

    private final ServerConfig config;
    private final Engine engine;
    private final Prompts prompts;
    private final SamplingReader samplings;
    private final Optional<ToolFormat> toolFormat;
    private final Optional<ReasoningFormat> reasoningFormat;

    RequestReader(ServerConfig config, Engine engine) {
        this.config = config;
        this.engine = engine;
        prompts = new Prompts(config, engine);
        toolFormat = config.toolCallParser()
                .map(name -> name.equals("auto") ? ToolFormat.of(engine.chatTemplate()) : ToolFormat.named(name));
        reasoningFormat = config.reasoningParser().map(ReasoningFormat::named);
        samplings = new SamplingReader(config, engine, prompts, reasoningFormat);
    }

    /** The body's {@code request_id}. */
    Optional<String> requestId(JsonFields fields) {
        return fields.string("request_id");
    }

    ApiRequest completion(JsonFields fields, Preparation preparation) {
        return completion(fields, ApiRequest.Api.COMPLETION, OptionalInt.of(COMPLETION_MAX_TOKENS), preparation)
                .build();
    }

    /** Of the fields that {@link GenerateMessage} makes of a message. */
    ApiRequest inference(JsonFields fields, Preparation preparation) {
        try {
            for (String name : List.of("media", "lora_name")) {
                fields.value(name).ifPresent(value -> {
                    throw RequestFields.unsupported(name, value);
                });
            }
            boolean stream = fields.bool("stream").orElse(false);
            RequestFields.integer(fields, "n").filter(n -> n > 1 && !stream).ifPresent(n -> {
                throw ApiException.badField(
                        "n", "is " + n + ", must be 1: Generate answers with one sequence, GenerateStream with more");
            });
            return completion(fields, ApiRequest.Api.INFERENCE, OptionalInt.empty(), preparation)
                    .repeated(JsonFields.of(
                            "", fields.toJson().retain(GenerateMessage.SHOWS_PROMPT_IDS, GenerateMessage.SHOWS_TEXT)))
                    .build();
        } catch (ConfigException | ApiException e) {
            throw ApiException.of(e).at(GenerateMessage::origin);
        }
    }

    /** @param most tokens of the output of a request that does not say how many; empty for as many as fit the model */
    private ApiRequestBuilder completion(
            JsonFields fields, ApiRequest.Api api, OptionalInt most, Preparation preparation) {
        String model = model(fields);
        RequestFields.refuseUnsupported(fields);
        SamplingParamsBuilder builder = samplings.read(fields);
        boolean echo = fields.bool("echo").orElse(false);
        Optional<Integer> maxTokens = RequestFields.integer(fields, "max_tokens");
        // With an echo, zero tokens ask for the prompt's log probabilities.
        boolean generates = !(echo && maxTokens.equals(Optional.of(0)));
        maxTokens = generates ? maxTokens : Optional.of(1);
        maxTokens.map(OptionalInt::of).orElse(most).ifPresent(builder::maxTokens);
        cutPrefillLeg(fields, builder);
        OptionalInt logprobs =
                RequestFields.integer(fields, "logprobs").map(OptionalInt::of).orElse(OptionalInt.empty());
        logprobs.ifPresent(builder::logprobs);
        boolean stream = fields.bool("stream").orElse(false);
        SamplingReader.readPromptLogprobs(fields, builder, stream);
        if (echo) {
            logprobs.ifPresent(builder::promptLogprobs);
        }
        int n = builder.build().n();
        Optional<Integer> bestOf =
                isSglangPrefillLeg(fields) ? Optional.empty() : RequestFields.integer(fields, "best_of");
        bestOf.filter(best -> best != n).ifPresent(best -> {
            if (best < n) {
                throw new ConfigException("best_of", "is " + best + ", must be at least n, which is " + n);
            }
            if (stream) {
                throw new ConfigException("best_of", "is " + best + ", must equal n, which is " + n + ", in a stream");
            }
            builder.n(best).logprobs(logprobs.orElse(0));
        });
        SamplingParams sampling = builder.build();

        Optional<JsonFields> kvTransferParams = RequestFields.kvTransferParams(fields);
        boolean addSpecialTokens = fields.bool("add_special_tokens").orElse(true);
        SamplingReader.requireFewStops(sampling, requireFewSequences(fields, sampling.n()));
        FormatReader.prepare(fields, engine, sampling, preparation);
        Optional<Continuation> continuation = continuation(fields, sampling, logprobs, preparation);
        Optional<Prompts.Kept> kept = kept(fields, maxTokens.orElse(most.orElse(1)));
        List<ApiRequest.Prompt> read = new ArrayList<>();
        for (int[] whole : prompts.read(
                fields,
                kvTransferParams,
                (field, text) -> prompts.encode(field, text, addSpecialTokens, kept, preparation))) {
            preparation.check();
            int[] ids = Prompts.truncated(whole, kept);
            prompts.requireFits(ids, maxTokens, "max_tokens");
            read.add(new ApiRequest.Prompt(
                    ids, echo ? engine.tokenizer().decode(ids, true) : "", prefilled(fields, sampling, continuation)));
        }
        SamplingReader.requireFewPromptLogprobs(sampling, read);
        Optional<Continuation> continued = continued(fields, sampling, continuation, read.size());
        return request(fields, api, model)
                .prompts(read)
                .sampling(continued
                        .map(each -> SamplingParamsBuilder.builder(sampling)
                                .promptLogprobs(
                                        stream && each.hasAll(read.size() * sampling.n())
                                                ? OptionalInt.empty()
                                                : sampling.promptLogprobs())
                                .build())
                        .orElse(sampling))
                .continuation(continued)
                .n(n)
                .logprobs(logprobs)
                .echo(echo)
                .generates(generates)
                .role(config.responseRole());
    }

    /** Only a whole answer that another instance began has log probabilities of the tokens before. */
    private Optional<Continuation> continuation(
            JsonFields fields, SamplingParams sampling, OptionalInt logprobs, Preparation preparation) {
        boolean isRest = isPrefillLeg(fields, sampling) || fields.bool("stream").orElse(false);
        return Continuation.read(fields, prompts, isRest ? OptionalInt.empty() : logprobs, preparation);
    }

    /** Output that the prefill leg of a continued answer computes after the prompt, so that the decode leg can load it. */
    private static int[] prefilled(JsonFields fields, SamplingParams sampling, Optional<Continuation> continuation) {
        return continuation
                .filter(_ -> isPrefillLeg(fields, sampling))
                .orElse(Continuation.NONE)
                .output(0)
                .ids();
    }

    /** The continuation of the answer; a prefill leg begins one. */
    private static Optional<Continuation> continued(
            JsonFields fields, SamplingParams sampling, Optional<Continuation> continuation, int prompts) {
        continuation.ifPresent(continued -> continued.check(
                prompts,
                sampling.n(),
                RequestFields.kvTransferParams(fields)
                        .flatMap(Prompts::forConnector)
                        .isPresent()));
        return continuation.filter(_ -> !isPrefillLeg(fields, sampling));
    }

    /** Whether it is a continued answer's prefill leg, which has no {@code kv_transfer_params} where blocks are found by their content. */
    private static boolean isPrefillLeg(JsonFields fields, SamplingParams sampling) {
        return SamplingReader.isPrefillLeg(fields)
                || (sampling.maxTokens().equals(OptionalInt.of(1))
                        && !fields.bool("stream").orElse(false));
    }

    ApiRequest chat(JsonFields fields, Preparation preparation) {
        return chat(fields, ApiRequest.Api.CHAT, preparation).build();
    }

    ApiRequest responses(JsonFields fields, Preparation preparation) {
        try {
            return chat(ResponsesRequest.asChat(fields), ApiRequest.Api.RESPONSES, preparation)
                    .repeated(ResponsesRequest.repeated(fields))
                    .includeUsage(true)
                    .build();
        } catch (ConfigException | ApiException e) {
            throw ApiException.of(e).at(ResponsesRequest::origin);
        }
    }

    /** SGLang's routers send the same request to both legs; that of a prefill instance makes one token. */
    private void cutPrefillLeg(JsonFields fields, SamplingParamsBuilder builder) {
        if (isSglangPrefillLeg(fields)) {
            builder.maxTokens(1).minTokens(0).n(1);
        }
    }

    private boolean isSglangPrefillLeg(JsonFields fields) {
        KvTransferConfig transfer = engine.config().kvTransfer();
        return fields.value(RequestFields.BOOTSTRAP_ROOM).isPresent()
                && transfer.isProducer()
                && !transfer.isConsumer();
    }

    private ApiRequestBuilder chat(JsonFields fields, ApiRequest.Api api, Preparation preparation) {
        String model = model(fields);
        RequestFields.refuseUnsupported(fields);
        ToolUse use = ToolUse.read(fields, toolFormat);
        SamplingParamsBuilder builder = samplings.read(fields);
        String maxTokensField =
                fields.value("max_completion_tokens").isPresent() ? "max_completion_tokens" : "max_tokens";
        Optional<Integer> maxTokens = RequestFields.integer(fields, maxTokensField);
        maxTokens.ifPresent(builder::maxTokens);
        cutPrefillLeg(fields, builder);
        OptionalInt logprobs = SamplingReader.chatLogprobs(fields);
        logprobs.ifPresent(builder::logprobs);
        SamplingReader.readPromptLogprobs(fields, builder, fields.bool("stream").orElse(false));
        SamplingParams sampling = builder.build();
        SamplingReader.requireFewStops(sampling, requireFewSequences(fields, sampling.n()));

        Optional<Prompts.Kept> kept = kept(fields, maxTokens.orElse(1));
        ChatPrompt chat = chatPrompt(fields, preparation);
        Optional<JsonFields> kvTransferParams = RequestFields.kvTransferParams(fields);
        int[] whole = prompts.handedOver(kvTransferParams)
                .orElseGet(() -> prompts.encode(
                        "messages",
                        chat.text(),
                        fields.bool("add_special_tokens").orElse(false),
                        kept,
                        preparation));
        int[] ids = Prompts.truncated(whole, kept);
        prompts.requireFits(ids, maxTokens, maxTokensField);
        boolean echo = fields.bool("echo").orElse(false);
        Optional<ReasoningUse> reasoning =
                reasoningFormat.map(format -> ReasoningUse.read(fields, format, ids, engine.tokenizer()));
        boolean showsReasoning = fields.bool("include_reasoning").orElse(true) || reasoning.isEmpty();
        reasoning.ifPresent(thoughts -> thoughts.answer(builder));
        Supplier<OutputParser> parser = parser(use, fields, builder, preparation);
        reasoning.ifPresent(thoughts -> thoughts.apply(builder));
        SamplingParams complete = builder.build();
        FormatReader.prepare(fields, engine, complete, preparation);
        OptionalInt shownLogprobs = showsReasoning ? logprobs : OptionalInt.empty();
        Optional<Continuation> continuation = continuation(fields, sampling, shownLogprobs, preparation);
        return request(fields, api, model)
                .prompts(List.of(new ApiRequest.Prompt(
                        ids, echo ? chat.continued() : "", prefilled(fields, sampling, continuation))))
                .sampling(complete)
                .continuation(continued(fields, sampling, continuation, 1))
                .n(sampling.n())
                .logprobs(shownLogprobs)
                .role(chat.responseRole())
                .parser(reasoning
                        .map(thoughts -> thoughts.parser(
                                parser, showsReasoning, !use.tools().isEmpty()))
                        .orElse(parser))
                .namesTool(use.named())
                .reasons(reasoning.isPresent())
                .showsReasoning(showsReasoning);
    }

    /** Divides the text of each sequence, in which the marks of calls are to be. */
    private Supplier<OutputParser> parser(
            ToolUse use, JsonFields fields, SamplingParamsBuilder builder, Preparation preparation) {
        if (use.tools().isEmpty() || toolFormat.isEmpty()) {
            return OutputParser::plain;
        }
        ToolFormat format = toolFormat.get();
        builder.shownSpecialTokens(format.marks().stream()
                .flatMap(mark -> engine.tokenizer().id(mark).stream())
                .collect(Collectors.toSet()));
        SamplingParams content = builder.build();
        FormatReader.prepare(fields, engine, content, preparation);
        CallGrammar.of(
                        format,
                        use.tools(),
                        use.required(),
                        use.parallel(),
                        engine.tokenizer()::isSpecial,
                        content.format())
                .ifPresent(builder::format);
        return () -> use.parallel()
                ? format.parser(use.tools())
                : format.parser(use.tools()).firstCallOnly();
    }

    private Optional<Prompts.Kept> kept(JsonFields fields, int maxTokens) {
        return prompts.kept(
                RequestFields.integer(fields, "truncate_prompt_tokens"), fields.string("truncation_side"), maxTokens);
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
            String text = RequestFields.string("prompt", prompt.get());
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
        return engine.tokenizer().decode(prompts.tokenIds("tokens", tokens), false);
    }

    /** The parts that all families have in common. */
    private ApiRequestBuilder request(JsonFields fields, ApiRequest.Api api, String model) {
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
        boolean includeUsage = options.flatMap(o -> o.bool("include_usage")).orElse(false);
        boolean continuousUsage =
                options.flatMap(o -> o.bool("continuous_usage_stats")).orElse(false);
        return ApiRequestBuilder.builder().api(api).model(model).generates(true).parser(OutputParser::plain).stream(
                        stream)
                .streamInterval(fields.integerAtLeast("stream_interval", 1).orElse(1))
                .includeUsage(includeUsage)
                .continuousUsage(includeUsage && continuousUsage)
                .showPromptLogprobs(fields.value("prompt_logprobs").isPresent())
                .returnTokenIds(fields.bool("return_token_ids").orElse(false))
                .tokensAsIds(fields.bool("return_tokens_as_token_ids").orElse(false))
                .kvTransferParams(RequestFields.kvTransferParams(fields).flatMap(Prompts::forConnector))
                .cacheSalt(cacheSalt)
                .priority(RequestFields.integer(fields, "priority").orElse(0))
                .cacheHitThreshold(cacheHitThreshold(fields))
                .continuation(Optional.empty())
                .repeated(JsonFields.empty(""));
    }

    /** A prefill leg and a continued answer compute the tokens that caches lack. */
    private double cacheHitThreshold(JsonFields fields) {
        double share = fields.number("cache_hit_threshold").orElse(config.cacheHitThreshold());
        GenerationRequest.requireShare(share);
        return SamplingReader.isPrefillLeg(fields)
                        || fields.value(Continuation.FIELD).isPresent()
                ? 0
                : share;
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
}
