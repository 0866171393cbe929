package baton.server;

import baton.engine.SamplingParams;
import baton.grammar.OutputFormat;
import baton.kv.JsonFields;
import io.vertx.core.buffer.Buffer;
import java.util.List;
import java.util.Optional;
import java.util.TreeSet;
import tools.jackson.core.JsonGenerator;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/**
 * The answer of {@code /v1/completions/render} and {@code /v1/chat/completions/render}: a {@code GenerateRequest} of vLLM 0.33 for each
 * prompt, of completions in an array.
 *
 * @param id base of the requests' ids
 * @param fields of the request
 * @param maxModelLen tokens that prompt and output may have together
 */
record RenderedRequest(ApiRequest request, String id, JsonFields fields, int maxModelLen) {
    private static final JsonNodeFactory NODES = JsonNodeFactory.instance;
    private static final SamplingParams DEFAULTS = SamplingParams.builder().build();
    private static final int DEFAULT_MAX_TOKENS = 16;

    /** Memory for each token. */
    private static final int BYTES_PER_ID = 32;

    /** Memory for each byte beside the tokens: a growing buffer has room for up to twice its content. */
    private static final int BYTES_PER_BYTE = 2;

    /** Memory for the answer, in which each prompt has the other fields again. */
    long bytes() {
        long ids = request.prompts().stream()
                .mapToLong(prompt -> prompt.ids().length)
                .sum();
        int others = new Json().document(out -> prompt(out, 0, new int[0])).length();
        return ids * BYTES_PER_ID + (long) request.prompts().size() * others * BYTES_PER_BYTE;
    }

    /** The answer's document. The answer's document. To be called beside the event loop, as prompts may be long. */
    Buffer document() {
        return new Json().document(out -> {
            if (request.api() == ApiRequest.Api.CHAT) {
                prompt(out, 0, request.prompts().getFirst().ids());
                return;
            }
            out.writeStartArray();
            for (int index = 0; index < request.prompts().size(); index++) {
                prompt(out, index, request.prompts().get(index).ids());
            }
            out.writeEndArray();
        });
    }

    private void prompt(JsonGenerator out, int index, int[] ids) {
        out.writeStartObject();
        out.writeStringProperty(
                "request_id", request.api().idPrefix() + id + (request.prompts().size() == 1 ? "" : "-" + index));
        out.writeName("token_ids");
        out.writeArray(ids, 0, ids.length);
        List.of("token_offsets", "features").forEach(out::writeNullProperty);
        out.writeName("sampling_params");
        out.writeTree(samplingParams(ids.length));
        out.writeStringProperty("model", request.model());
        out.writeBooleanProperty("stream", request.stream());
        for (String name : List.of("stream_options", "cache_salt")) {
            out.writeName(name);
            out.writeTree(fields.value(name).orElse(NODES.nullNode()));
        }
        out.writeNumberProperty("priority", request.priority());
        out.writeName("kv_transfer_params");
        out.writeTree(
                request.kvTransferParams().<JsonNode>map(JsonFields::toJson).orElse(NODES.nullNode()));
        out.writeNullProperty("ec_transfer_params");
        out.writeEndObject();
    }

    /** The sampling parameters that are not vLLM's defaults, under vLLM's names. */
    private ObjectNode samplingParams(int promptTokens) {
        SamplingParams sampling = request.sampling();
        ObjectNode params = NODES.objectNode();
        put(params, "n", request.n(), DEFAULTS.n());
        put(params, "presence_penalty", sampling.presencePenalty(), DEFAULTS.presencePenalty());
        put(params, "frequency_penalty", sampling.frequencyPenalty(), DEFAULTS.frequencyPenalty());
        put(params, "repetition_penalty", sampling.repetitionPenalty(), DEFAULTS.repetitionPenalty());
        put(params, "temperature", sampling.temperature(), DEFAULTS.temperature());
        put(params, "top_p", sampling.topP(), DEFAULTS.topP());
        put(params, "top_k", sampling.topK(), DEFAULTS.topK());
        put(params, "min_p", sampling.minP(), DEFAULTS.minP());
        sampling.seed().ifPresent(seed -> params.put("seed", seed));
        put(params, "stop", sampling.stop(), DEFAULTS.stop());
        put(params, "stop_token_ids", sampling.stopTokenIds(), DEFAULTS.stopTokenIds());
        put(params, "ignore_eos", sampling.ignoreEos(), DEFAULTS.ignoreEos());
        int most = maxModelLen - promptTokens;
        put(params, "max_tokens", Math.min(most, sampling.maxTokens().orElse(most)), DEFAULT_MAX_TOKENS);
        put(params, "min_tokens", sampling.minTokens(), DEFAULTS.minTokens());
        request.logprobs().ifPresent(count -> params.put("logprobs", count));
        sampling.promptLogprobs().ifPresent(count -> params.put("prompt_logprobs", count));
        put(params, "skip_special_tokens", sampling.skipSpecialTokens(), DEFAULTS.skipSpecialTokens());
        put(params, "include_stop_str_in_output", sampling.includeStopInOutput(), DEFAULTS.includeStopInOutput());
        put(params, "logit_bias", sampling.logitBias(), DEFAULTS.logitBias());
        sampling.allowedTokenIds()
                .ifPresent(ids -> params.set("allowed_token_ids", Json.MAPPER.valueToTree(new TreeSet<>(ids))));
        for (String name : List.of("bad_words", "thinking_token_budget")) {
            fields.value(name).ifPresent(value -> params.set(name, value));
        }
        fields.value("structured_outputs")
                .or(() -> sampling.format().flatMap(RenderedRequest::structuredOutputs))
                .ifPresent(format -> params.set("structured_outputs", format));
        return params;
    }

    private static void put(ObjectNode params, String name, Object value, Object vllmDefault) {
        if (!value.equals(vllmDefault)) {
            params.set(name, Json.MAPPER.valueToTree(value));
        }
    }

    /** Empty for the grammar of tool calls, which no field of vLLM's has. */
    private static Optional<JsonNode> structuredOutputs(OutputFormat format) {
        ObjectNode outputs = NODES.objectNode();
        switch (format) {
            case OutputFormat.JsonObject _ -> outputs.put("json_object", true);
            case OutputFormat.JsonSchema json -> outputs.put("json", json.schema());
            case OutputFormat.Regex(String pattern) -> outputs.put("regex", pattern);
            case OutputFormat.Choices(List<String> choices) -> outputs.set("choice", Json.MAPPER.valueToTree(choices));
            case OutputFormat.GrammarText(String text) -> outputs.put("grammar", text);
            case OutputFormat.StructuralTag(String json) -> outputs.put("structural_tag", json);
            case OutputFormat.Rules _, OutputFormat.Keyed _, OutputFormat.After _ -> {
                return Optional.empty();
            }
        }
        return Optional.of(outputs);
    }
}
