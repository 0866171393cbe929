package baton.server;

import baton.engine.FinishReason;
import baton.engine.GenerationEvent.Finished;
import baton.engine.TokenLogprobs;
import baton.kv.JsonFields;
import baton.server.grpc.GenerateMessage;
import baton.server.grpc.ProtoStruct;
import baton.server.grpc.ProtoWriter;
import io.vertx.core.buffer.Buffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;

/**
 * The answer to one request of {@code vllm.Inference}: {@code GenerateResponse} messages of vLLM's {@code inference.proto}. A message has
 * the sequence's further output, the first one the prompt's facts, and the last one of each sequence its end.
 */
final class InferenceAnswer implements AnswerForm {
    private static final int LENGTH = 1;
    private static final int STOP = 2;
    private static final int ABORTED = 3;

    private final ApiRequest request;
    private final boolean showsText;
    private final boolean showsPromptIds;
    private final Map<Integer, Integer> lastIds = new HashMap<>();
    private boolean begun;

    InferenceAnswer(ApiRequest request) {
        this.request = request;
        showsText = request.repeated().bool(GenerateMessage.SHOWS_TEXT).orElse(true);
        showsPromptIds =
                request.repeated().bool(GenerateMessage.SHOWS_PROMPT_IDS).orElse(false);
    }

    @Override
    public Buffer part(
            ReplyWriter.Output output, Optional<ReplyWriter.Tokens> usage, Optional<JsonFields> kvTransferParams) {
        ProtoWriter response = new ProtoWriter();
        if (!begun) {
            begun = true;
            response.message(1, promptInfo(output));
        }
        return GrpcExchange.frame(response.message(2, sequence(output, kvTransferParams)));
    }

    @Override
    public Buffer whole(
            List<ReplyWriter.Output> outputs, ReplyWriter.Tokens usage, Optional<JsonFields> kvTransferParams) {
        return part(outputs.getFirst(), Optional.empty(), kvTransferParams);
    }

    @Override
    public Buffer last(ReplyWriter.Tokens usage, Optional<JsonFields> kvTransferParams) {
        return Buffer.buffer();
    }

    @Override
    public Buffer done() {
        return Buffer.buffer();
    }

    /** The error is in the trailers. */
    @Override
    public Buffer failure(ApiException error) {
        return Buffer.buffer();
    }

    private ProtoWriter promptInfo(ReplyWriter.Output output) {
        int[] ids = request.prompts().getFirst().ids();
        ProtoWriter info = new ProtoWriter().integer(1, ids.length);
        if (showsPromptIds) {
            info.integers(2, ids);
        }
        // The first token has no probability; a zero takes its place.
        output.promptLogprobs()
                .ifPresent(scored -> logprobs(
                        info,
                        3,
                        Optional.of(new TokenLogprobs(ids[0], 0, 0, List.of())),
                        scored,
                        request.sampling().promptLogprobs()));
        return info;
    }

    private ProtoWriter sequence(ReplyWriter.Output output, Optional<JsonFields> kvTransferParams) {
        ProtoWriter sequence = new ProtoWriter().integer(1, output.index()).string(2, showsText ? output.text() : "");
        sequence.integer(3, output.ids().length);
        if (request.returnTokenIds()) {
            sequence.integers(4, output.ids());
        }
        if (!output.logprobs().isEmpty()) {
            logprobs(sequence, 5, Optional.empty(), output.logprobs(), request.logprobs());
        }
        if (output.ids().length > 0) {
            lastIds.put(output.index(), output.ids()[output.ids().length - 1]);
        }
        output.finished()
                .ifPresent(end -> sequence.message(
                        8, finishInfo(end, Optional.ofNullable(lastIds.get(output.index())), kvTransferParams)));
        return sequence;
    }

    /** Three fields with an element for each token: log probabilities, ranks, and the alternatives without the token itself. */
    private static void logprobs(
            ProtoWriter message,
            int field,
            Optional<TokenLogprobs> first,
            List<TokenLogprobs> rest,
            OptionalInt shown) {
        List<TokenLogprobs> tokens = new ArrayList<>(rest);
        first.ifPresent(tokens::addFirst);
        message.floats(field, tokens.stream().map(TokenLogprobs::logprob).toList());
        message.integers(
                field + 1, tokens.stream().mapToInt(TokenLogprobs::rank).toArray());
        for (TokenLogprobs token : tokens) {
            ProtoWriter alternatives = new ProtoWriter();
            for (int i = 0; i < Math.min(shown.orElse(0), token.top().size()); i++) {
                TokenLogprobs.Candidate candidate = token.top().get(i);
                if (candidate.id() != token.id()) {
                    alternatives.message(
                            1,
                            new ProtoWriter()
                                    .integer(1, candidate.id())
                                    .number32(2, candidate.logprob())
                                    .integer(3, i + 1));
                }
            }
            message.message(field + 2, alternatives);
        }
    }

    private static ProtoWriter finishInfo(
            Finished end, Optional<Integer> lastId, Optional<JsonFields> kvTransferParams) {
        ProtoWriter info = new ProtoWriter()
                .integer(1, end.usage().outputTokens())
                .integer(
                        2,
                        switch (end.reason()) {
                            case LENGTH -> LENGTH;
                            case STOP -> STOP;
                            case ABORT, CACHE_THRESHOLD, ERROR -> ABORTED;
                        });
        switch (end.stopReason().orElse("")) {
            case Number id -> info.integer(3, id.longValue());
            case String stop when !stop.isEmpty() -> info.string(5, stop);
            case Object _ -> {
                // The end of sequence is the last token.
                lastId.filter(_ -> end.reason() == FinishReason.STOP).ifPresent(id -> info.integer(4, id));
            }
        }
        kvTransferParams.ifPresent(params -> info.message(6, ProtoStruct.of(params.toJson())));
        return info.integer(9, end.usage().cachedTokens());
    }
}
