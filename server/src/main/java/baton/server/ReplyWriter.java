package baton.server;

import baton.engine.GenerationEvent.Finished;
import baton.engine.GenerationEvent.Usage;
import baton.engine.TokenLogprobs;
import baton.engine.text.Tokenizer;
import baton.kv.JsonFields;
import io.vertx.core.buffer.Buffer;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import tools.jackson.core.JsonGenerator;

/**
 * The shapes of answers: OpenAI's objects with vLLM's additional fields. Fields that OpenAI calls nullable are written as
 * {@code null}; vLLM's own are left out unless they were asked for. For one thread.
 */
final class ReplyWriter {
    /** What JSON, which has no infinity, says of a token that cannot be chosen; as vLLM does. */
    private static final float LEAST_LOGPROB = -9999f;

    private final Json json = new Json();
    private final Tokenizer tokenizer;

    ReplyWriter(Tokenizer tokenizer) {
        this.tokenizer = tokenizer;
    }

    /**
     * What all answers to one request begin with.
     *
     * @param created seconds since 1970
     */
    record Head(ApiRequest call, String id, long created) {}

    /**
     * Output of one choice: all of it, or what a chunk adds.
     *
     * @param index the choice
     * @param firstInStream whether nothing of this choice was sent before
     * @param textOffset where {@code text} begins in the choice's whole text, in characters
     * @param promptLogprobs of the choice's prompt; empty unless they are part of this output
     * @param finished the end, if it has come
     */
    record Output(
            int index,
            boolean firstInStream,
            int textOffset,
            String text,
            int[] ids,
            List<TokenLogprobs> logprobs,
            Optional<List<TokenLogprobs>> promptLogprobs,
            Optional<Finished> finished) {}

    Json json() {
        return json;
    }

    Buffer error(ApiException error) {
        return json.document(out -> error(out, error));
    }

    Buffer errorEvent(ApiException error) {
        return json.event(out -> error(out, error));
    }

    /** The whole answer of a request that is not streamed. */
    Buffer reply(Head head, List<Output> outputs, Usage usage, Optional<JsonFields> kvTransferParams) {
        ApiRequest call = head.call();
        return json.document(out -> {
            begin(out, head, call.api().object());
            out.writeArrayPropertyStart("choices");
            for (Output output : outputs) {
                switch (call.api()) {
                    case COMPLETION -> completionChoice(out, call, output);
                    case CHAT -> chatChoice(out, call, output);
                }
            }
            out.writeEndArray();
            out.writeNullProperty("service_tier");
            out.writeNullProperty("system_fingerprint");
            usage(out, usage);
            if (call.api() == ApiRequest.Api.CHAT) {
                Output first = outputs.getFirst();
                first.promptLogprobs().ifPresent(logprobs -> promptLogprobs(out, logprobs));
                if (call.returnTokenIds()) {
                    ids(out, "prompt_token_ids", call.prompts().getFirst().ids());
                }
            }
            out.writeName("kv_transfer_params");
            kvTransferParams.ifPresentOrElse(params -> out.writeTree(params.toJson()), out::writeNull);
            out.writeEndObject();
        });
    }

    /**
     * One event of a stream: what was added to one choice, or, without output, what ends the stream.
     *
     * @param usage if the event has it
     * @param kvTransferParams in the stream's last event, where there are any
     */
    Buffer chunk(Head head, Optional<Output> output, Optional<Usage> usage, Optional<JsonFields> kvTransferParams) {
        ApiRequest call = head.call();
        return json.event(out -> {
            begin(out, head, call.api().chunkObject());
            out.writeArrayPropertyStart("choices");
            output.ifPresent(added -> {
                switch (call.api()) {
                    case COMPLETION -> completionChoice(out, call, added);
                    case CHAT -> chatDelta(out, call, added);
                }
            });
            out.writeEndArray();
            usage.ifPresent(tokens -> usage(out, tokens));
            kvTransferParams.ifPresent(params -> {
                out.writeName("kv_transfer_params");
                out.writeTree(params.toJson());
            });
            out.writeEndObject();
        });
    }

    private static void begin(JsonGenerator out, Head head, String object) {
        out.writeStartObject();
        out.writeStringProperty("id", head.id());
        out.writeStringProperty("object", object);
        out.writeNumberProperty("created", head.created());
        out.writeStringProperty("model", head.call().model());
    }

    /** Whole choices and parts of a stream look the same. */
    private void completionChoice(JsonGenerator out, ApiRequest call, Output output) {
        ApiRequest.Prompt prompt = call.prompts().get(output.index() / call.n());
        boolean echoed = call.echo() && output.firstInStream();
        out.writeStartObject();
        out.writeNumberProperty("index", output.index());
        out.writeStringProperty("text", echoed ? prompt.text() + output.text() : output.text());
        if (call.logprobs().isEmpty() || (output.logprobs().isEmpty() && !echoed)) {
            out.writeNullProperty("logprobs");
        } else {
            completionLogprobs(out, call, output, prompt, echoed);
        }
        finish(out, output);
        if (call.returnTokenIds()) {
            if (output.firstInStream()) {
                ids(out, "prompt_token_ids", prompt.ids());
            }
            ids(out, "token_ids", output.ids());
        }
        if (!call.echo()) {
            output.promptLogprobs().ifPresent(logprobs -> promptLogprobs(out, logprobs));
        }
        out.writeEndObject();
    }

    private void chatChoice(JsonGenerator out, ApiRequest call, Output output) {
        out.writeStartObject();
        out.writeNumberProperty("index", output.index());
        out.writeObjectPropertyStart("message");
        out.writeStringProperty("role", call.role());
        out.writeStringProperty("content", call.prompts().getFirst().text() + output.text());
        out.writeNullProperty("refusal");
        out.writeEndObject();
        chatLogprobs(out, call, output);
        finish(out, output);
        if (call.returnTokenIds()) {
            ids(out, "token_ids", output.ids());
        }
        out.writeEndObject();
    }

    /** The role comes with the first delta of a choice, before its content. */
    private void chatDelta(JsonGenerator out, ApiRequest call, Output output) {
        out.writeStartObject();
        out.writeNumberProperty("index", output.index());
        out.writeObjectPropertyStart("delta");
        if (output.firstInStream()) {
            out.writeStringProperty("role", call.role());
        }
        out.writeStringProperty(
                "content", output.firstInStream() ? call.prompts().getFirst().text() + output.text() : output.text());
        out.writeEndObject();
        chatLogprobs(out, call, output);
        finish(out, output);
        if (call.returnTokenIds()) {
            if (output.firstInStream()) {
                ids(out, "prompt_token_ids", call.prompts().getFirst().ids());
            }
            ids(out, "token_ids", output.ids());
        }
        out.writeEndObject();
    }

    private static void finish(JsonGenerator out, Output output) {
        out.writeName("finish_reason");
        output.finished().ifPresentOrElse(end -> out.writeString(end.reason().wireName()), out::writeNull);
        out.writeName("stop_reason");
        switch (output.finished().flatMap(Finished::stopReason).orElse("")) {
            case Number id -> out.writeNumber(id.longValue());
            case String stop when !stop.isEmpty() -> out.writeString(stop);
            case Object _ -> out.writeNull();
        }
    }

    /** OpenAI's old form: parallel arrays. Of equal texts among a token's alternatives the most probable is shown. */
    private void completionLogprobs(
            JsonGenerator out, ApiRequest call, Output output, ApiRequest.Prompt prompt, boolean echoed) {
        List<TokenLogprobs> ofPrompt = echoed ? output.promptLogprobs().orElse(List.of()) : List.of();
        out.writeObjectPropertyStart("logprobs");
        out.writeArrayPropertyStart("text_offset");
        int offset = output.textOffset();
        if (echoed) {
            out.writeNumber(offset);
            offset += characters(token(call, prompt.ids()[0]));
            offset = offsets(out, call, offset, ofPrompt);
        }
        offsets(out, call, offset, output.logprobs());
        out.writeEndArray();
        out.writeArrayPropertyStart("token_logprobs");
        if (echoed) {
            out.writeNull();
        }
        ofPrompt.forEach(token -> out.writeNumber(finite(token.logprob())));
        output.logprobs().forEach(token -> out.writeNumber(finite(token.logprob())));
        out.writeEndArray();
        out.writeArrayPropertyStart("tokens");
        if (echoed) {
            out.writeString(token(call, prompt.ids()[0]));
        }
        ofPrompt.forEach(token -> out.writeString(token(call, token.id())));
        output.logprobs().forEach(token -> out.writeString(token(call, token.id())));
        out.writeEndArray();
        out.writeArrayPropertyStart("top_logprobs");
        if (echoed) {
            out.writeNull();
        }
        ofPrompt.forEach(token -> alternatives(out, call, token));
        output.logprobs().forEach(token -> alternatives(out, call, token));
        out.writeEndArray();
        out.writeEndObject();
    }

    private int offsets(JsonGenerator out, ApiRequest call, int start, List<TokenLogprobs> tokens) {
        int offset = start;
        for (TokenLogprobs token : tokens) {
            out.writeNumber(offset);
            offset += characters(token(call, token.id()));
        }
        return offset;
    }

    /** A token as log probabilities show it. */
    private String token(ApiRequest call, int id) {
        return call.tokensAsIds() ? "token_id:" + id : tokenizer.token(id);
    }

    /** The most probable tokens and, if it is not among them, the chosen one. */
    private void alternatives(JsonGenerator out, ApiRequest call, TokenLogprobs token) {
        Map<String, Float> byText = new LinkedHashMap<>();
        token.top().stream()
                .limit(call.logprobs().orElse(0))
                .forEach(candidate -> byText.putIfAbsent(token(call, candidate.id()), candidate.logprob()));
        byText.putIfAbsent(token(call, token.id()), token.logprob());
        out.writeStartObject();
        byText.forEach((text, logprob) -> out.writeNumberProperty(text, finite(logprob)));
        out.writeEndObject();
    }

    private void chatLogprobs(JsonGenerator out, ApiRequest call, Output output) {
        if (call.logprobs().isEmpty() || output.logprobs().isEmpty()) {
            out.writeNullProperty("logprobs");
            return;
        }
        out.writeObjectPropertyStart("logprobs");
        out.writeArrayPropertyStart("content");
        for (TokenLogprobs token : output.logprobs()) {
            out.writeStartObject();
            chatToken(out, call, token.id(), token.logprob());
            out.writeArrayPropertyStart("top_logprobs");
            token.top().stream().limit(call.logprobs().getAsInt()).forEach(candidate -> {
                out.writeStartObject();
                chatToken(out, call, candidate.id(), candidate.logprob());
                out.writeEndObject();
            });
            out.writeEndArray();
            out.writeEndObject();
        }
        out.writeEndArray();
        out.writeEndObject();
    }

    private void chatToken(JsonGenerator out, ApiRequest call, int id, float logprob) {
        out.writeStringProperty("token", token(call, id));
        out.writeNumberProperty("logprob", finite(logprob));
        out.writeArrayPropertyStart("bytes");
        for (byte value : tokenizer.tokenBytes(id)) {
            out.writeNumber(value & 0xff);
        }
        out.writeEndArray();
    }

    /** vLLM's form: for each prompt token, the first being null, an object by token id. */
    private void promptLogprobs(JsonGenerator out, List<TokenLogprobs> logprobs) {
        out.writeArrayPropertyStart("prompt_logprobs");
        out.writeNull();
        for (TokenLogprobs token : logprobs) {
            out.writeStartObject();
            promptToken(out, token.id(), token.logprob(), token.rank());
            int rank = 0;
            for (TokenLogprobs.Candidate candidate : token.top()) {
                rank++;
                if (candidate.id() != token.id()) {
                    promptToken(out, candidate.id(), candidate.logprob(), rank);
                }
            }
            out.writeEndObject();
        }
        out.writeEndArray();
    }

    private void promptToken(JsonGenerator out, int id, float logprob, int rank) {
        out.writeObjectPropertyStart(Integer.toString(id));
        out.writeNumberProperty("logprob", finite(logprob));
        out.writeNumberProperty("rank", rank);
        out.writeStringProperty("decoded_token", tokenizer.token(id));
        out.writeEndObject();
    }

    private static void usage(JsonGenerator out, Usage usage) {
        out.writeObjectPropertyStart("usage");
        out.writeNumberProperty("prompt_tokens", usage.promptTokens());
        out.writeNumberProperty("total_tokens", usage.promptTokens() + usage.outputTokens());
        out.writeNumberProperty("completion_tokens", usage.outputTokens());
        out.writeObjectPropertyStart("prompt_tokens_details");
        out.writeNumberProperty("cached_tokens", usage.cachedTokens());
        out.writeEndObject();
        out.writeEndObject();
    }

    private static void error(JsonGenerator out, ApiException error) {
        out.writeStartObject();
        out.writeObjectPropertyStart("error");
        out.writeStringProperty("message", error.message());
        out.writeStringProperty("type", error.type());
        out.writeName("param");
        error.param().ifPresentOrElse(out::writeString, out::writeNull);
        out.writeNumberProperty("code", error.status());
        out.writeEndObject();
        out.writeEndObject();
    }

    private static void ids(JsonGenerator out, String name, int[] ids) {
        out.writeName(name);
        out.writeArray(ids, 0, ids.length);
    }

    /** As Python counts them. */
    static int characters(String text) {
        return text.codePointCount(0, text.length());
    }

    private static float finite(float logprob) {
        return Math.max(logprob, LEAST_LOGPROB);
    }
}
