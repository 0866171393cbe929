package baton.server;

import baton.engine.Engine;
import baton.engine.EngineUnavailableException;
import baton.engine.FinishReason;
import baton.engine.GenerationEvent;
import baton.engine.GenerationEvent.Finished;
import baton.engine.GenerationEvent.Usage;
import baton.engine.GenerationRequest;
import baton.engine.SamplingParamsBuilder;
import baton.engine.TokenLogprobs;
import baton.kv.JsonFields;
import baton.server.output.OutputParser;
import baton.server.output.OutputPieces;
import baton.server.output.Piece;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpServerResponse;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Optional;
import java.util.OptionalDouble;
import java.util.OptionalInt;
import java.util.OptionalLong;
import java.util.Set;
import java.util.concurrent.RejectedExecutionException;
import java.util.function.Consumer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The answer to one {@link ApiRequest} while the engine works on it.
 *
 * <p>Confined to the exchange's event loop. The engine calls its sinks on a thread of its own; each event is handed to the
 * event loop and the engine's thread continues. A request becomes one engine request for each prompt. It ends in one of four ways: all
 * sequences finished; one sequence failed, which ends all; the client disconnected; or the client reads so slowly that too much
 * output is pending. The last three abort the rest in the engine at once, and report the answer as lost.
 *
 * <p>A stream's status line is sent with its first event, so that a request that fails before that gets an error status.
 */
final class ResponseStream {
    private static final Logger LOG = LoggerFactory.getLogger(ResponseStream.class);

    /** Prompts of a request of which token ids are sent: all their seeds are in a header. */
    private static final int MOST_CONTINUED = 64;

    /** Between two comments with the token ids of an answer that is not streamed. One that takes less time has none. */
    private static final long COMMIT_NANOS = Duration.ofMillis(200).toNanos();

    private final HttpExchange exchange;
    private final Engine engine;
    private final ReplyWriter writer;
    private final ReplyWriter.Head head;
    private final AnswerForm answer;
    private final int maxPendingBytes;
    private final Consumer<ResponseStream> whenEnded;
    private final boolean tellsTokens;
    private final List<Long> seeds = new ArrayList<>();
    private final List<String> engineIds = new ArrayList<>();
    private final List<Choice> choices = new ArrayList<>();
    private final List<Optional<List<TokenLogprobs>>> promptLogprobs = new ArrayList<>();
    private final RequestRecord.Origin origin;
    private OptionalDouble ttftMillis = OptionalDouble.empty();
    private OptionalLong submittedNanos = OptionalLong.empty();
    private Optional<RequestRecord.End> end = Optional.empty();
    private int unfinished;
    private long committedNanos;
    private long pendingBytes;
    private boolean ended;

    /**
     * @param idSuffix makes the engine's ids unique
     * @param whenEnded called once, on the event loop
     */
    ResponseStream(
            ReplyWriter.Head head,
            String idSuffix,
            HttpExchange exchange,
            Engine engine,
            ReplyWriter writer,
            int maxPendingBytes,
            Consumer<ResponseStream> whenEnded) {
        this.head = head;
        this.exchange = exchange;
        this.engine = engine;
        this.writer = writer;
        this.maxPendingBytes = maxPendingBytes;
        this.whenEnded = whenEnded;
        ApiRequest request = head.request();
        answer = switch (request.api()) {
            case COMPLETION, CHAT -> writer.answer(head);
            case RESPONSES -> new ResponsesAnswer(head, writer);
            case INFERENCE -> new InferenceAnswer(request);
        };
        tellsTokens = request.generates()
                && request.prompts().size() <= MOST_CONTINUED
                && canContinue(request)
                && exchange.request().getHeader(Continuation.WANTED) != null;
        request.continuation().ifPresent(continued -> seeds.addAll(continued.seeds()));
        if (tellsTokens
                && seeds.isEmpty()
                && request.sampling().seed().isEmpty()
                && !request.sampling().greedy()) {
            request.prompts().forEach(_ -> seeds.add(engine.drawSeed()));
        }
        for (int prompt = 0; prompt < request.prompts().size(); prompt++) {
            engineIds.add(engineId(request.api(), request.api().idPrefix() + head.requestId(), prompt, idSuffix));
            promptLogprobs.add(Optional.empty());
        }
        for (int index = 0; index < request.sequences(); index++) {
            choices.add(new Choice(index));
        }
        unfinished = choices.size();
        origin = RequestRecord.Origin.of(exchange, head, engine.config().kvTransfer());
    }

    /** @throws ApiException if the request continues an answer that cannot be continued */
    static void requireContinuable(ApiRequest request) {
        if (request.continuation().isPresent() && !canContinue(request)) {
            throw ApiException.badField(
                    Continuation.FIELD,
                    "is not available for streams of responses with log probabilities, nor for answers with best_of");
        }
    }

    /**
     * Whether another instance can send the rest. Of a stream it does not know the log probabilities of tokens before it, which
     * the last events of a response have. It takes a whole answer of one token for a prefill leg.
     */
    private static boolean canContinue(ApiRequest request) {
        return switch (request.api()) {
            case COMPLETION, CHAT -> request.stream() || canContinueWhole(request);
            case RESPONSES -> request.stream() ? request.logprobs().isEmpty() : canContinueWhole(request);
            case INFERENCE -> false;
        };
    }

    private static boolean canContinueWhole(ApiRequest request) {
        return request.n() == request.sampling().n()
                && request.sampling().maxTokens().orElse(0) != 1;
    }

    /** Whether the request has one of these ids, in its {@code X-Request-Id} or in its answer. */
    boolean isCalledOneOf(Set<String> ids) {
        return origin.isCalledOneOf(ids);
    }

    /** The facts of the request that are known now. */
    RequestRecord record() {
        return new RequestRecord(
                origin,
                submittedNanos,
                ttftMillis.isPresent()
                        ? OptionalLong.of((long) (ttftMillis.getAsDouble() * 1e6))
                        : OptionalLong.empty(),
                exchange.nanos(),
                choices.stream()
                        .limit(RequestRecord.MOST_SEQUENCES)
                        .map(choice -> RequestRecord.Sequence.of(promptTokens(choice), choice.finished))
                        .toList(),
                usage(),
                end);
    }

    /** Whether it is one of the server's own, which is not reported. */
    boolean warmsUp() {
        return exchange.warmsUp();
    }

    /** Whether it is for one token, as the prefill leg of a hand-over is. */
    boolean isPrefill() {
        return head.request().sampling().maxTokens().orElse(0) == 1;
    }

    /** @param suffix a random end that differs from that of the request's other leg, 8 hexadecimal digits */
    static String engineId(ApiRequest.Api api, String id, int prompt, String suffix) {
        return (api == ApiRequest.Api.COMPLETION ? id + "-" + prompt : id) + "-" + suffix;
    }

    /** Hands the request to the engine. */
    void start() {
        exchange.whenClientLeaves(this::clientLeft);
        ApiRequest request = head.request();
        if (request.kvTransferParams().isPresent()
                && engine.config().kvTransfer().connector().isEmpty()) {
            LOG.warn(
                    "{}: has kv_transfer_params, but this instance has no kv_connector: its KV is neither taken over nor kept",
                    head.id());
        }
        submittedNanos = OptionalLong.of(exchange.nanos());
        for (int i = 0; i < engineIds.size(); i++) {
            int prompt = i;
            GenerationRequest engineRequest = new GenerationRequest(
                    engineIds.get(prompt),
                    request.prompts().get(prompt).computed(),
                    seeds.isEmpty()
                            ? request.sampling()
                            : SamplingParamsBuilder.builder(request.sampling())
                                    .seed(OptionalLong.of(seeds.get(prompt)))
                                    .build(),
                    request.kvTransferParams(),
                    request.cacheSalt(),
                    request.priority(),
                    request.cacheHitThreshold(),
                    request.continuation()
                            .map(continued -> continued.generated(prompt, request.sampling()))
                            .orElse(List.of()),
                    request.continuation().isPresent()
                            || request.prompts().get(prompt).output().length > 0);
            try {
                engine.submit(engineRequest, event -> hop(prompt, event));
            } catch (RuntimeException e) {
                fail(e, engineIds.subList(0, prompt));
                // The peers' blocks of the other prompts are not needed either, unless the client may retry elsewhere.
                request.kvTransferParams()
                        .filter(_ -> !(e instanceof EngineUnavailableException))
                        .ifPresent(params -> engineIds
                                .subList(prompt + 1, engineIds.size())
                                .forEach(id -> engine.refused(id, params)));
                return;
            }
        }
    }

    /** Aborts running sequences in the engine; the output so far becomes the answer. */
    void abort() {
        engineIds.forEach(engine::abort);
    }

    /** The server ends: an answer that another instance can give loses its connection, others are aborted. */
    void breakOff() {
        if (canBreakOff()) {
            breakOff("abort", Optional.empty());
        } else {
            abort();
        }
    }

    /** Whether a router continues the answer elsewhere, or begins it anew, as its client has nothing of it. */
    private boolean canBreakOff() {
        return tellsTokens
                || (exchange.request().getHeader(Continuation.WANTED) != null
                        && !exchange.response().headWritten());
    }

    private void breakOff(String finish, Optional<String> error) {
        abandon(engineIds);
        end(finish, 200, error);
        exchange.reset();
    }

    private void hop(int prompt, GenerationEvent event) {
        try {
            exchange.context().runOnContext(_ -> {
                if (ended) {
                    return;
                }
                try {
                    onEvent(prompt, event);
                } catch (RuntimeException e) {
                    // The client must get an end of the answer.
                    LOG.error("{}: cannot handle {}", head.id(), event, e);
                    fail(e, engineIds);
                }
            });
        } catch (RejectedExecutionException e) {
            LOG.debug("{}: the server has stopped, its event is dropped", head.id());
        }
    }

    private void onEvent(int prompt, GenerationEvent event) {
        switch (event) {
            case GenerationEvent.PromptLogprobs(int _, List<TokenLogprobs> logprobs) ->
                promptLogprobs.set(prompt, Optional.of(logprobs));
            case GenerationEvent.Output output -> onOutput(choice(prompt, event), output);
            case Finished finished -> onFinished(choice(prompt, event), finished);
        }
    }

    private Choice choice(int prompt, GenerationEvent event) {
        return choices.get(prompt * head.request().sampling().n() + event.index());
    }

    private void onOutput(Choice choice, GenerationEvent.Output output) {
        choice.add(output);
        if (head.request().stream() && choice.wasSent(output)) {
            if (choice.isDue()) {
                ReplyWriter.Output sent = choice.take(choice.index);
                if (head.request().api() == ApiRequest.Api.RESPONSES) {
                    // Its later events repeat earlier ones, and their number.
                    answer.part(sent, Optional.empty(), Optional.empty());
                }
            }
            return;
        }
        if (ttftMillis.isEmpty()) {
            ttftMillis = OptionalDouble.of(exchange.millis());
        }
        if (!head.request().stream()) {
            commitWhole();
            return;
        }
        if (choice.isDue()) {
            Optional<Usage> usage = head.request().continuousUsage()
                    ? Optional.of(new Usage(promptTokens(choice), 0, 0, choice.tokens))
                    : Optional.empty();
            Buffer part = part(choice, usage, Optional.empty());
            // The last text without a token of its own is committed with the end.
            send(tellsTokens && output.ids().length > 0 ? part.appendString(choice.commit(false)) : part);
        } else if (tellsTokens && output.ids().length > 0) {
            // Log probabilities that are not sent yet would be lost, so their tokens are not committed.
            boolean isScored = head.request().logprobs().isPresent();
            send(Buffer.buffer(
                    isScored ? Continuation.commit(choice.index, List.of(), false, false) : choice.commit(false)));
        }
    }

    /** Sends the token ids of an answer of which no text is sent before its end, now and then. */
    private void commitWhole() {
        long now = exchange.nanos();
        if (tellsTokens && now - committedNanos >= COMMIT_NANOS) {
            committedNanos = now;
            Buffer comments = Buffer.buffer();
            choices.stream()
                    .filter(choice -> !choice.uncommitted.isEmpty())
                    .forEach(choice -> comments.appendString(choice.commit(false)));
            send(comments);
        }
    }

    /** The output that is not sent yet, as a part of a stream. */
    private Buffer part(Choice choice, Optional<Usage> usage, Optional<JsonFields> kvTransferParams) {
        return answer.part(
                choice.take(choice.index), usage.map(tokens -> counted(tokens, List.of(choice))), kvTransferParams);
    }

    private void onFinished(Choice choice, Finished finished) {
        if (finished.reason() == FinishReason.ERROR) {
            choice.finished = Optional.of(finished);
            String reason = finished.error().orElse("the engine gave no reason");
            if (engine.status().failure().isPresent() && canBreakOff()) {
                breakOff("error", Optional.of(reason));
                return;
            }
            fail(ApiException.internal("generation failed: " + reason), engineIds);
            return;
        }
        choice.finish(finished);
        unfinished--;
        boolean last = unfinished == 0;
        if (!head.request().stream()) {
            if (last) {
                Buffer reply = answer.whole(shown(), counted(), kvTransferParams());
                end(200);
                if (exchange.response().headWritten()) {
                    exchange.end(reply);
                } else {
                    exchange.answer(reply).onFailure(_ -> abandon(engineIds));
                }
            }
            return;
        }
        boolean usageFollows = head.request().includeUsage();
        Buffer part = part(
                choice,
                head.request().continuousUsage() ? Optional.of(usage(choice)) : Optional.empty(),
                finished.kvTransferParams());
        if (!choice.before.finished()) {
            send(tellsTokens ? part.appendString(choice.commit(true)) : part);
        }
        if (last && !ended) {
            if (usageFollows) {
                send(answer.last(counted(), kvTransferParams()));
            }
            if (!ended) {
                begin();
                end(200);
                exchange.end(answer.done());
            }
        }
    }

    /** The engine's prompt of a prefill leg that continues an answer has tokens of the answer too, which may be cached. */
    private Usage usage(Choice choice) {
        int prompt = promptTokens(choice);
        int cached = Math.min(
                prompt, choice.finished.map(end -> end.usage().cachedTokens()).orElse(0));
        int transferred = Math.min(
                cached,
                choice.finished.map(end -> end.usage().transferredTokens()).orElse(0));
        return new Usage(prompt, cached, transferred, choice.tokens);
    }

    /** All choices; of prompts with more sequences than requested, those with the highest mean log probability, in that order. */
    private List<ReplyWriter.Output> shown() {
        int made = head.request().sampling().n();
        int shown = head.request().n();
        if (made == shown) {
            return choices.stream().map(choice -> choice.take(choice.index)).toList();
        }
        List<ReplyWriter.Output> outputs = new ArrayList<>();
        for (int first = 0; first < choices.size(); first += made) {
            choices.subList(first, first + made).stream()
                    .sorted(Comparator.comparingDouble(Choice::meanLogprob).reversed())
                    .limit(shown)
                    .forEach(choice -> outputs.add(choice.take(outputs.size())));
        }
        return outputs;
    }

    private int promptTokens(Choice choice) {
        return head.request()
                .prompts()
                .get(choice.index / head.request().sampling().n())
                .ids()
                .length;
    }

    /** Usage of all choices; a prompt and its cached tokens count once, however many sequences continue it. */
    private Usage usage() {
        int prompt = 0;
        int cached = 0;
        int transferred = 0;
        int output = 0;
        for (Choice choice : choices) {
            output += choice.tokens;
            if (choice.index % head.request().sampling().n() == 0) {
                Usage own = usage(choice);
                prompt += own.promptTokens();
                cached += own.cachedTokens();
                transferred += own.transferredTokens();
            }
        }
        return new Usage(prompt, cached, transferred, output);
    }

    private ReplyWriter.Tokens counted() {
        return counted(usage(), choices);
    }

    private ReplyWriter.Tokens counted(Usage usage, List<Choice> of) {
        return new ReplyWriter.Tokens(
                usage,
                head.request().reasons()
                        ? OptionalInt.of(of.stream()
                                .mapToInt(choice -> choice.reasoningTokens)
                                .sum())
                        : OptionalInt.empty());
    }

    private Optional<JsonFields> kvTransferParams() {
        return choices.stream()
                .flatMap(choice -> choice.finished.flatMap(Finished::kvTransferParams).stream())
                .findFirst();
    }

    /** Sets the headers of a stream, or of comments before a whole answer, before its first bytes. */
    private void begin() {
        HttpServerResponse response = exchange.response();
        if (!response.headWritten()) {
            if (tellsTokens) {
                response.putHeader(Continuation.STREAM, Continuation.stream(head.id(), head.created(), seeds));
            }
            exchange.begin(head.request().stream());
        }
    }

    /**
     * Writes an event at once. Bytes that the client has not read are counted; too many before another event end the request, but not
     * before the last ones, which may have all of the text again.
     */
    private void send(Buffer event) {
        if (ended || exchange.clientLeft() || event.length() == 0) {
            return;
        }
        if (pendingBytes > maxPendingBytes && unfinished > 0) {
            LOG.warn(
                    "{}: aborted, its client does not read: pending_bytes={} max_pending_bytes={}",
                    head.id(),
                    pendingBytes,
                    maxPendingBytes);
            breakOff("client_too_slow", Optional.empty());
            return;
        }
        begin();
        int length = event.length();
        pendingBytes += length;
        exchange.response().write(event).onComplete(written -> {
            pendingBytes -= length;
            if (written.failed()) {
                abandon(engineIds);
            }
        });
    }

    private void abandon(List<String> submitted) {
        submitted.forEach(engine::abandon);
    }

    private void clientLeft() {
        if (!ended) {
            abandon(engineIds);
            end("client_left", HttpExchange.CLIENT_LEFT, Optional.empty());
        }
    }

    private void fail(Throwable failure, List<String> submitted) {
        abandon(submitted);
        HttpServerResponse response = exchange.response();
        ApiException error = ApiException.of(failure);
        if (response.headWritten()) {
            // The status was already sent; clients recognize the error by the missing [DONE].
            end("error", 200, Optional.of(error.message()));
            exchange.breakOff(
                    error,
                    head.request().stream()
                            ? answer.failure(error)
                            : Buffer.buffer(Continuation.status(error.status())).appendBuffer(writer.error(error)));
        } else {
            boolean refused = error.status() < 500 || error.status() == 503;
            end(refused ? "refused" : "error", error.status(), Optional.of(error.message()));
            exchange.fail(failure);
        }
        if (failure == error && error.status() == 500) {
            LOG.warn("{}: {}", head.id(), error.message());
        }
    }

    private void end(int status) {
        end(
                choices.stream()
                        .flatMap(choice -> choice.finished.stream())
                        .map(finished -> finished.reason().wireName())
                        .distinct()
                        .reduce((first, second) -> first + "," + second)
                        .orElse("-"),
                status,
                Optional.empty());
    }

    private void end(String finish, int status, Optional<String> error) {
        ended = true;
        end = Optional.of(new RequestRecord.End(status, finish, error));
        Usage usage = usage();
        exchange.log(
                status,
                head.id(),
                Optional.of(new AccessLine.Tokens(
                        usage.promptTokens(), usage.cachedTokens(), usage.transferredTokens(), usage.outputTokens())),
                ttftMillis,
                finish,
                error);
        whenEnded.accept(this);
    }

    /** One sequence and its output that is not sent yet. */
    private final class Choice {
        final int index;
        Optional<Finished> finished = Optional.empty();
        /** Tokens generated so far. */
        int tokens;

        /** Those of them that are not sent yet. */
        int untaken;

        /** Those of all that are reasoning. */
        int reasoningTokens;

        /** Of this choice, sent by another instance. */
        final Continuation.Output before;

        /** The last ones, if they are reasoning or a mark that ends it. */
        private int undecidedTokens;

        private final OutputParser parser = head.request().parser().get();
        private final List<Piece> pieces = new ArrayList<>();
        private boolean called;
        private final List<int[]> ids = new ArrayList<>();
        private final List<GenerationEvent.Output> uncommitted = new ArrayList<>();
        private final List<TokenLogprobs> logprobs = new ArrayList<>();
        private double logprobSum;
        private int textOffset;
        private boolean taken;

        Choice(int index) {
            this.index = index;
            before = head.request().continuation().orElse(Continuation.NONE).output(index);
            logprobs.addAll(before.logprobs());
        }

        /** Whether another instance has sent the output that was last added. */
        boolean wasSent(GenerationEvent.Output output) {
            return before.finished() || (output.ids().length > 0 && tokens > 0 && tokens <= before.ids().length);
        }

        /** The event with the tokens that no such event has had. */
        String commit(boolean ends) {
            ApiRequest request = head.request();
            boolean isScored = !request.stream() && request.logprobs().isPresent();
            String event = Continuation.commit(index, uncommitted, isScored, ends);
            uncommitted.clear();
            return event;
        }

        void add(GenerationEvent.Output output) {
            if (!head.request().generates()) {
                return;
            }
            add(parser.add(output.text()));
            ids.add(output.ids());
            tokens += output.ids().length;
            boolean isNew = !wasSent(output);
            if (head.request().logprobs().isPresent() && (isNew || head.request().stream())) {
                logprobs.addAll(output.logprobs());
            }
            if (tellsTokens && isNew) {
                uncommitted.add(output);
            }
            undecidedTokens += output.ids().length;
            decide(parser.place());
            untaken += output.ids().length;
            output.logprobs().forEach(token -> logprobSum += token.logprob());
        }

        void finish(Finished end) {
            finished = Optional.of(end);
            add(parser.end());
            decide(OutputParser.Place.REASONING);
        }

        private void decide(OutputParser.Place place) {
            if (place != OutputParser.Place.UNDECIDED) {
                reasoningTokens += place == OutputParser.Place.REASONING ? undecidedTokens : 0;
                undecidedTokens = 0;
            }
        }

        private void add(List<Piece> added) {
            pieces.addAll(added);
            for (Piece piece : added) {
                called |= piece instanceof Piece.CallBegin;
            }
        }

        /** Whether an event is to be sent: the first, and later ones that show something and have enough tokens. */
        boolean isDue() {
            ApiRequest request = head.request();
            boolean shows = !pieces.isEmpty() || request.returnTokenIds() || !logprobs.isEmpty();
            return !taken || (shows && untaken >= request.streamInterval());
        }

        double meanLogprob() {
            return tokens == 0 ? Double.NEGATIVE_INFINITY : logprobSum / tokens;
        }

        /** The output since the last call, as part of the choice {@code shownIndex}. */
        ReplyWriter.Output take(int shownIndex) {
            ApiRequest request = head.request();
            int prompt = index / request.sampling().n();
            boolean first = !taken;
            ReplyWriter.Output output = new ReplyWriter.Output(
                    shownIndex,
                    first,
                    textOffset,
                    new OutputPieces(pieces),
                    ids.stream().flatMapToInt(Arrays::stream).toArray(),
                    List.copyOf(logprobs),
                    first && (request.echo() || request.showPromptLogprobs())
                            ? promptLogprobs.get(prompt)
                            : Optional.empty(),
                    called && !request.namesTool(),
                    finished);
            textOffset += writer.characters(request, output);
            untaken = 0;
            pieces.clear();
            ids.clear();
            logprobs.clear();
            taken = true;
            return output;
        }
    }
}
