package baton.server;

import baton.engine.FinishReason;
import baton.engine.GenerationEvent.Finished;
import baton.engine.GenerationEvent.Usage;
import baton.engine.TokenLogprobs;
import baton.engine.text.Tokenizer;
import baton.kv.JsonFields;
import baton.server.output.OutputPieces;
import io.vertx.core.buffer.Buffer;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import tools.jackson.core.JsonGenerator;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.util.TokenBuffer;

/**
 * Writes answers: OpenAI's objects with vLLM's additional fields. OpenAI's nullable fields are written as {@code null}; vLLM's
 * fields are left out unless requested. For one thread.
 */
final class ReplyWriter {
    /** Stands for minus infinity, which JSON does not have; as in vLLM. */
    private static final float LEAST_LOGPROB = -9999f;

    private final Json json = new Json();
    private final Tokenizer tokenizer;

    ReplyWriter(Tokenizer tokenizer) {
        this.tokenizer = tokenizer;
    }

    /**
     * The common fields of all answers to one request.
     *
     * @param requestId in {@code X-Request-Id}
     * @param created seconds since 1970
     */
    record Head(ApiRequest request, String requestId, String id, long created) {}

    /**
     * Output of one choice: all of it, or the part in a chunk.
     *
     * @param index the choice
     * @param firstInStream whether nothing of this choice was sent before
     * @param textOffset characters of the tokens with log probabilities that were sent before
     * @param promptLogprobs of the choice's prompt; empty unless they are part of this output
     * @param called whether the choice ends with calls of tools, if it stops
     * @param finished the end, if reached
     */
    record Output(
            int index,
            boolean firstInStream,
            int textOffset,
            OutputPieces pieces,
            int[] ids,
            List<TokenLogprobs> logprobs,
            Optional<List<TokenLogprobs>> promptLogprobs,
            boolean called,
            Optional<Finished> finished) {
        String text() {
            return pieces.content();
        }
    }

    /**
     * The tokens of an answer.
     *
     * @param reasoning those of reasoning; empty if it is not looked for
     */
    record Tokens(Usage usage, OptionalInt reasoning) {}

    Json json() {
        return json;
    }

    Buffer error(ApiException error) {
        return json.document(out -> error(out, error));
    }

    /** The form of completions and chats. */
    AnswerForm answer(Head head) {
        return new AnswerForm() {
            @Override
            public Buffer part(Output output, Optional<Tokens> usage, Optional<JsonFields> kvTransferParams) {
                return chunk(head, Optional.of(output), usage, kvTransferParams);
            }

            @Override
            public Buffer last(Tokens usage, Optional<JsonFields> kvTransferParams) {
                return chunk(head, Optional.empty(), Optional.of(usage), Optional.empty());
            }

            @Override
            public Buffer done() {
                return Json.DONE;
            }

            @Override
            public Buffer whole(List<Output> outputs, Tokens usage, Optional<JsonFields> kvTransferParams) {
                return reply(head, outputs, usage, kvTransferParams);
            }

            @Override
            public Buffer failure(ApiException error) {
                return json.event(out -> error(out, error));
            }
        };
    }

    private Buffer reply(Head head, List<Output> outputs, Tokens usage, Optional<JsonFields> kvTransferParams) {
        ApiRequest request = head.request();
        return json.document(out -> {
            begin(out, head, request.api().object());
            out.writeArrayPropertyStart("choices");
            for (Output output : outputs) {
                if (request.api() == ApiRequest.Api.COMPLETION) {
                    completionChoice(out, request, output);
                } else {
                    chatChoice(out, request, output);
                }
            }
            out.writeEndArray();
            out.writeNullProperty("service_tier");
            out.writeNullProperty("system_fingerprint");
            usage(out, usage);
            if (request.api() == ApiRequest.Api.CHAT) {
                Output first = outputs.getFirst();
                first.promptLogprobs().ifPresent(logprobs -> promptLogprobs(out, logprobs));
                if (request.returnTokenIds()) {
                    ids(out, "prompt_token_ids", request.prompts().getFirst().ids());
                }
            }
            out.writeName("kv_transfer_params");
            kvTransferParams.ifPresentOrElse(params -> out.writeTree(params.toJson()), out::writeNull);
            out.writeEndObject();
        });
    }

    /**
     * One event of a stream: output of one choice, or, without output, the end of the stream.
     *
     * @param usage if the event has it
     * @param kvTransferParams of a choice that ends with this event, if any
     */
    private Buffer chunk(
            Head head, Optional<Output> output, Optional<Tokens> usage, Optional<JsonFields> kvTransferParams) {
        ApiRequest request = head.request();
        return json.event(out -> {
            begin(out, head, request.api().chunkObject());
            out.writeArrayPropertyStart("choices");
            output.ifPresent(added -> {
                if (request.api() == ApiRequest.Api.COMPLETION) {
                    completionChoice(out, request, added);
                } else {
                    chatDelta(out, request, added);
                }
            });
            out.writeEndArray();
            if (request.api() == ApiRequest.Api.CHAT
                    && request.returnTokenIds()
                    && output.filter(Output::firstInStream).isPresent()) {
                ids(out, "prompt_token_ids", request.prompts().getFirst().ids());
            }
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
        out.writeStringProperty("model", head.request().model());
    }

    /** Whole choices and parts of a stream look the same. */
    private void completionChoice(JsonGenerator out, ApiRequest request, Output output) {
        ApiRequest.Prompt prompt = request.prompts().get(output.index() / request.n());
        boolean echoed = request.echo() && output.firstInStream();
        out.writeStartObject();
        out.writeNumberProperty("index", output.index());
        out.writeStringProperty("text", echoed ? prompt.text() + output.text() : output.text());
        if (request.logprobs().isEmpty() || (output.logprobs().isEmpty() && !echoed)) {
            out.writeNullProperty("logprobs");
        } else {
            completionLogprobs(out, request, output, prompt, echoed);
        }
        finish(out, output);
        if (request.returnTokenIds()) {
            if (output.firstInStream()) {
                ids(out, "prompt_token_ids", prompt.ids());
            }
            ids(out, "token_ids", output.ids());
        }
        if (!request.echo()) {
            output.promptLogprobs().ifPresent(logprobs -> promptLogprobs(out, logprobs));
        }
        out.writeEndObject();
    }

    private void chatChoice(JsonGenerator out, ApiRequest request, Output output) {
        out.writeStartObject();
        out.writeNumberProperty("index", output.index());
        out.writeObjectPropertyStart("message");
        out.writeStringProperty("role", request.role());
        String content = request.prompts().getFirst().text() + output.text();
        List<OutputPieces.Call> calls = output.pieces().calls();
        Optional<String> reasoning = output.pieces().reasoning();
        if (content.isEmpty() && (!calls.isEmpty() || reasoning.isPresent())) {
            out.writeNullProperty("content");
        } else {
            out.writeStringProperty("content", content);
        }
        out.writeNullProperty("refusal");
        reasoning.ifPresent(text -> out.writeStringProperty("reasoning", text));
        calls(out, calls, false);
        out.writeEndObject();
        chatLogprobs(out, request, output);
        finish(out, output);
        if (request.returnTokenIds() && request.showsReasoning()) {
            ids(out, "token_ids", output.ids());
        }
        out.writeEndObject();
    }

    /** The role comes with the first delta of a choice, before its content. */
    private void chatDelta(JsonGenerator out, ApiRequest request, Output output) {
        out.writeStartObject();
        out.writeNumberProperty("index", output.index());
        out.writeObjectPropertyStart("delta");
        if (output.firstInStream()) {
            out.writeStringProperty("role", request.role());
        }
        String content = output.firstInStream() ? request.prompts().getFirst().text() + output.text() : output.text();
        List<OutputPieces.Call> calls = output.pieces().calls();
        Optional<String> reasoning = output.pieces().reasoning();
        reasoning.ifPresent(text -> out.writeStringProperty("reasoning", text));
        if (!content.isEmpty() || (calls.isEmpty() && reasoning.isEmpty())) {
            out.writeStringProperty("content", content);
        }
        calls(out, calls, true);
        out.writeEndObject();
        chatLogprobs(out, request, output);
        finish(out, output);
        if (request.returnTokenIds() && request.showsReasoning()) {
            ids(out, "token_ids", output.ids());
        }
        out.writeEndObject();
    }

    /** Calls, or in a stream their beginnings and further parts. */
    private static void calls(JsonGenerator out, List<OutputPieces.Call> calls, boolean stream) {
        if (calls.isEmpty()) {
            return;
        }
        out.writeArrayPropertyStart("tool_calls");
        for (OutputPieces.Call call : calls) {
            out.writeStartObject();
            if (stream) {
                out.writeNumberProperty("index", call.index());
            }
            call.begin().ifPresent(begin -> {
                out.writeStringProperty("id", begin.id());
                out.writeStringProperty("type", "function");
            });
            out.writeObjectPropertyStart("function");
            call.begin().ifPresent(begin -> out.writeStringProperty("name", begin.name()));
            out.writeStringProperty("arguments", call.arguments());
            out.writeEndObject();
            out.writeEndObject();
        }
        out.writeEndArray();
    }

    private static void finish(JsonGenerator out, Output output) {
        out.writeName("finish_reason");
        output.finished()
                .ifPresentOrElse(
                        end -> out.writeString(
                                output.called() && end.reason() == FinishReason.STOP
                                        ? "tool_calls"
                                        : end.reason().wireName()),
                        out::writeNull);
        out.writeName("stop_reason");
        switch (output.finished().flatMap(Finished::stopReason).orElse("")) {
            case Number id -> out.writeNumber(id.longValue());
            case String stop when !stop.isEmpty() -> out.writeString(stop);
            case Object _ -> out.writeNull();
        }
    }

    /** OpenAI's old form: parallel arrays. Of equal texts among a token's alternatives the most probable is shown. */
    private void completionLogprobs(
            JsonGenerator out, ApiRequest request, Output output, ApiRequest.Prompt prompt, boolean echoed) {
        List<TokenLogprobs> ofPrompt = echoed ? output.promptLogprobs().orElse(List.of()) : List.of();
        out.writeObjectPropertyStart("logprobs");
        out.writeArrayPropertyStart("text_offset");
        int offset = output.textOffset();
        if (echoed) {
            out.writeNumber(offset);
            offset += characters(token(request, prompt.ids()[0]));
            offset = offsets(out, request, offset, ofPrompt);
        }
        offsets(out, request, offset, output.logprobs());
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
            out.writeString(token(request, prompt.ids()[0]));
        }
        ofPrompt.forEach(token -> out.writeString(token(request, token.id())));
        output.logprobs().forEach(token -> out.writeString(token(request, token.id())));
        out.writeEndArray();
        out.writeArrayPropertyStart("top_logprobs");
        if (echoed) {
            out.writeNull();
        }
        ofPrompt.forEach(token -> alternatives(out, request, token));
        output.logprobs().forEach(token -> alternatives(out, request, token));
        out.writeEndArray();
        out.writeEndObject();
    }

    private int offsets(JsonGenerator out, ApiRequest request, int start, List<TokenLogprobs> tokens) {
        int offset = start;
        for (TokenLogprobs token : tokens) {
            out.writeNumber(offset);
            offset += characters(token(request, token.id()));
        }
        return offset;
    }

    /** Characters of the tokens for which {@link #completionLogprobs} writes an offset, which may be other than those of the text. */
    int characters(ApiRequest request, Output output) {
        if (request.logprobs().isEmpty()) {
            return 0;
        }
        int length = 0;
        if (request.echo() && output.firstInStream()) {
            for (int id : request.prompts().get(output.index() / request.n()).ids()) {
                length += characters(token(request, id));
            }
        }
        for (TokenLogprobs token : output.logprobs()) {
            length += characters(token(request, token.id()));
        }
        return length;
    }

    /** A token as log probabilities show it. */
    private String token(ApiRequest request, int id) {
        return request.tokensAsIds() ? "token_id:" + id : tokenizer.token(id);
    }

    /** The most probable tokens and, if it is not among them, the chosen one. */
    private void alternatives(JsonGenerator out, ApiRequest request, TokenLogprobs token) {
        Map<String, Float> byText = new LinkedHashMap<>();
        token.top().stream()
                .limit(request.logprobs().orElse(0))
                .forEach(candidate -> byText.putIfAbsent(token(request, candidate.id()), candidate.logprob()));
        byText.putIfAbsent(token(request, token.id()), token.logprob());
        out.writeStartObject();
        byText.forEach((text, logprob) -> out.writeNumberProperty(text, finite(logprob)));
        out.writeEndObject();
    }

    private void chatLogprobs(JsonGenerator out, ApiRequest request, Output output) {
        if (request.logprobs().isEmpty() || output.logprobs().isEmpty()) {
            out.writeNullProperty("logprobs");
            return;
        }
        out.writeObjectPropertyStart("logprobs");
        out.writeName("content");
        chatTokens(out, request, output.logprobs());
        out.writeEndObject();
    }

    /** The tokens' log probabilities as a tree. */
    ArrayNode chatTokens(ApiRequest request, List<TokenLogprobs> tokens) {
        if (tokens.isEmpty()) {
            return Json.MAPPER.createArrayNode();
        }
        TokenBuffer buffer = TokenBuffer.forGeneration();
        chatTokens(buffer, request, tokens);
        return Json.MAPPER.readTree(buffer).asArray();
    }

    private void chatTokens(JsonGenerator out, ApiRequest request, List<TokenLogprobs> tokens) {
        out.writeStartArray();
        for (TokenLogprobs token : tokens) {
            out.writeStartObject();
            chatToken(out, request, token.id(), token.logprob());
            out.writeArrayPropertyStart("top_logprobs");
            token.top().stream().limit(request.logprobs().getAsInt()).forEach(candidate -> {
                out.writeStartObject();
                chatToken(out, request, candidate.id(), candidate.logprob());
                out.writeEndObject();
            });
            out.writeEndArray();
            out.writeEndObject();
        }
        out.writeEndArray();
    }

    private void chatToken(JsonGenerator out, ApiRequest request, int id, float logprob) {
        out.writeStringProperty("token", token(request, id));
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

    private static void usage(JsonGenerator out, Tokens tokens) {
        Usage usage = tokens.usage();
        out.writeObjectPropertyStart("usage");
        out.writeNumberProperty("prompt_tokens", usage.promptTokens());
        out.writeNumberProperty("total_tokens", usage.promptTokens() + usage.outputTokens());
        out.writeNumberProperty("completion_tokens", usage.outputTokens());
        out.writeObjectPropertyStart("prompt_tokens_details");
        out.writeNumberProperty("cached_tokens", usage.cachedTokens());
        out.writeEndObject();
        tokens.reasoning().ifPresent(reasoning -> {
            out.writeObjectPropertyStart("completion_tokens_details");
            out.writeNumberProperty("reasoning_tokens", reasoning);
            out.writeEndObject();
        });
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

    /** Code points, as Python counts characters. */
    private static int characters(String text) {
        return text.codePointCount(0, text.length());
    }

    private static float finite(float logprob) {
        return Math.max(logprob, LEAST_LOGPROB);
    }
}
