package baton.router;

import baton.kv.ConfigException;
import baton.router.RouterMetrics.LocalPrefillReason;
import baton.router.RouterMetrics.Outcome;
import baton.router.UpstreamFailure.Kind;
import io.micrometer.core.instrument.Timer;
import io.vertx.core.Future;
import io.vertx.core.MultiMap;
import io.vertx.core.Promise;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpClientResponse;
import io.vertx.core.http.HttpHeaders;
import io.vertx.core.http.HttpServerRequest;
import io.vertx.core.http.HttpServerResponse;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.json.JsonMapper;

/**
 * One client's request and the legs that serve it, from its complete body to the last byte of the answer.
 *
 * <h2>Course</h2>
 * A completion is planned for one prefill and one decode instance by the {@link HandoffFlow}. The prefill leg runs under one
 * deadline and its answer is read whole. The decode leg's answer is relayed as it comes. Other requests are a decode leg alone.
 *
 * <h2>Failure</h2>
 * Nothing is sent to the client before the first byte (for server-sent events: the first whole event) of the decode leg is
 * here; until then a leg that fails goes to another instance: prefill once, decode while there are instances left that
 * refuse or drop the connection or answer 503. From then on there is no retry, as the client would get tokens twice: the answer ends in an
 * error event, or breaks off. A 4xx of prefill is the client's answer. Once the client has left, both legs are closed at once.
 * Where the settings say so, a prompt that no prefill instance computes is left to the decode instance.
 *
 * <h2>Concurrency</h2>
 * Everything happens on the event loop of the client's connection. {@link #end} runs once; {@code ended} guards what is late.
 */
final class ProxiedRequest {
    private static final Logger log = LoggerFactory.getLogger(ProxiedRequest.class);
    private static final JsonMapper MAPPER = JsonMapper.builder().build();
    private static final int MAX_QUOTED_ERROR = 300;

    private final RouterContext services;
    private final HttpServerRequest request;
    private final HttpServerResponse client;
    /** As the instances get it. */
    private Buffer body;
    /** Bytes of {@link BodyMemory} that are held, those of the body as it came. */
    private final int taken;

    private final String givenId;
    private final MultiMap headers;
    private final long started = System.nanoTime();

    private final List<Instance> triedPrefills = new ArrayList<>(2);
    private final List<Instance> triedDecodes = new ArrayList<>(2);
    private String requestId;
    private @Nullable Plan plan;
    private @Nullable LocalPrefillReason localPrefill;
    private @Nullable Instance decode;
    private @Nullable Leg prefillLeg;
    private @Nullable Leg decodeLeg;
    private int attempts;
    private boolean prefillRetried;
    private long prefillMillis = -1;
    private long firstByteMillis = -1;
    private long bytes;
    private boolean clientHasBytes;
    private boolean ended;

    /** A hand-off between two instances, and the prefill leg's answer. */
    private record Plan(
            JsonObjectText body, Instance prefill, HandoffFlow.Handoff handoff, Future<JsonObjectText> prefilled) {}

    /** Prefill turned the request down; no instance would take it. */
    private static final class Rejection extends Exception {
        private final int status;
        private final transient MultiMap headers;
        private final transient Buffer body;

        Rejection(int status, MultiMap headers, Buffer body) {
            super("status " + status, null, false, false);
            this.status = status;
            this.headers = headers;
            this.body = body;
        }
    }

    private ProxiedRequest(RouterContext services, HttpServerRequest request, Buffer body) {
        this.services = services;
        this.request = request;
        this.client = request.response();
        this.body = body;
        this.taken = body.length();
        this.givenId = Headers.requestId(request.headers());
        this.requestId = givenId;
        this.headers = Headers.toInstance(request.headers(), services.config().apiKey());
        client.closeHandler(closed -> clientLeft());
        client.exceptionHandler(failed -> clientLeft());
    }

    /** Serves a completion by a prefill and a decode leg. The request has been counted as running; its end counts it off. */
    static void handOff(RouterContext services, HttpServerRequest request, Buffer body) {
        new ProxiedRequest(services, request, body).startHandoff();
    }

    /** Passes a request to a decode instance as it is. Counted as with {@link #handOff}. */
    static void proxy(RouterContext services, HttpServerRequest request, Buffer body) {
        ProxiedRequest exchange = new ProxiedRequest(services, request, body);
        exchange.services
                .decodes()
                .next(List.of())
                .ifPresentOrElse(
                        instance -> exchange.sendDecode(instance, body), () -> exchange.noInstance(services.decodes()));
    }

    private void startHandoff() {
        JsonObjectText parsed;
        try {
            parsed = JsonObjectText.parse("body", body.getBytes());
        } catch (ConfigException e) {
            reject(ApiError.badRequest("body", String.valueOf(e.getMessage())));
            return;
        }
        if (!services.config().trustClientKvParams() && parsed.has(HandoffFlow.PARAMS)) {
            services.metrics().paramsDropped.increment();
            body = parsed.edit().drop(HandoffFlow.PARAMS).build();
            parsed = JsonObjectText.parse("body", body.getBytes());
        }
        RouterConfig.LocalPrefill policy = services.config().localPrefill();
        if (promptBytes(parsed) < policy.belowBytes()) {
            services.decodes()
                    .next(triedDecodes)
                    .ifPresentOrElse(
                            any -> prefillLocally(any, LocalPrefillReason.SHORT), () -> noInstance(services.decodes()));
            return;
        }
        Optional<Instance> prefill = services.prefills().next(triedPrefills, services.flow()::takes);
        // Chosen first as well: no prompt is computed that nobody could answer.
        Optional<Instance> chosen = services.decodes().next(triedDecodes, services.flow()::takes);
        if (prefill.isEmpty() && !(policy.asFallback() && chosen.isPresent())) {
            noInstance(services.prefills());
        } else if (chosen.isEmpty()) {
            noInstance(services.decodes());
        } else if (prefill.isEmpty()) {
            prefillLocally(chosen.get(), LocalPrefillReason.UNAVAILABLE);
        } else {
            attempt(parsed, prefill.get(), chosen.get());
        }
    }

    private static int promptBytes(JsonObjectText parsed) {
        return parsed.value("prompt")
                .or(() -> parsed.value("messages"))
                .map(json -> json.length)
                .orElse(Integer.MAX_VALUE);
    }

    /** Leaves the whole request to a decode instance. */
    private void prefillLocally(Instance chosen, LocalPrefillReason reason) {
        services.metrics().prefilledLocally(reason);
        localPrefill = reason;
        attempts++;
        plan = null;
        requestId = services.flow().idWithoutHandoff(givenId);
        sendDecode(chosen, body);
    }

    /** Runs the legs on these two instances; a prefill leg that has said the same to the same instance already counts. */
    private void attempt(JsonObjectText parsed, Instance prefill, Instance chosen) {
        HandoffFlow.Handoff handoff;
        try {
            handoff = services.flow().begin(parsed, givenId, prefill, chosen);
        } catch (ConfigException e) {
            reject(ApiError.badRequest(e.field(), String.valueOf(e.getMessage())));
            return;
        }
        int attempt = ++attempts;
        Plan last = plan;
        boolean sameTold = last != null
                && last.prefill == prefill
                && !last.prefilled.failed()
                && last.handoff.requestId().equals(handoff.requestId())
                && last.handoff.prefillBody().equals(handoff.prefillBody());
        requestId = handoff.requestId();
        decode = chosen;
        Plan current = new Plan(
                parsed,
                prefill,
                handoff,
                sameTold && last != null ? last.prefilled : sendPrefill(prefill, handoff.prefillBody()));
        plan = current;
        current.prefilled.onFailure(cause -> {
            if (attempt == attempts) {
                prefillFailed(current, cause);
            }
        });
        handoff.decodeBody()
                .apply(current.prefilled)
                .onComplete(
                        decodeBody -> {
                            if (attempt == attempts && !ended) {
                                if (triedDecodes.isEmpty()) {
                                    boolean carried = !decodeBody.equals(body);
                                    (carried ? services.metrics().carried : services.metrics().notCarried).increment();
                                }
                                sendDecode(chosen, decodeBody);
                            }
                        },
                        cause -> {
                            if (attempt == attempts && !ended && !current.prefilled.failed()) {
                                answerError(502, prefill + ": " + cause.getMessage(), Outcome.PREFILL_FAILED);
                            }
                        });
    }

    private Future<JsonObjectText> sendPrefill(Instance instance, Buffer prefillBody) {
        if (prefillLeg != null) {
            prefillLeg.abort();
        }
        if (!triedPrefills.contains(instance)) {
            triedPrefills.add(instance);
        }
        Promise<JsonObjectText> answer = Promise.promise();
        Leg leg = new Leg(
                services.vertx(),
                instance,
                new PrefillAnswer(instance, answer),
                services.config().limits().prefill(),
                Leg.Bounds.WHOLE,
                instance.begin());
        prefillLeg = leg;
        leg.send(services.client(), request.method(), request.uri(), legHeaders(), prefillBody);
        return answer.future();
    }

    private void prefillFailed(Plan failed, Throwable cause) {
        if (ended) {
            return;
        }
        if (clientHasBytes) {
            log.warn("{}: prefill failed while decode already answers: {}", givenId, cause.getMessage());
            return;
        }
        if (decodeLeg != null) {
            decodeLeg.abort();
        }
        if (cause instanceof Rejection rejection) {
            Headers.toClient(rejection.headers, client.headers());
            ownHeaders();
            bytes = rejection.body.length();
            client.setStatusCode(rejection.status);
            end(Outcome.REJECTED);
            client.end(rejection.body);
            return;
        }
        if (cause instanceof UpstreamFailure failure) {
            note(failure);
            Optional<Instance> other =
                    prefillRetried ? Optional.empty() : services.prefills().next(triedPrefills, services.flow()::takes);
            if (other.isPresent() && decode != null) {
                log.info("{}: {}, trying {}", givenId, failure.describe(), other.get());
                services.metrics().retried(Instance.Role.PREFILL);
                prefillRetried = true;
                attempt(failed.body, other.get(), decode);
                return;
            }
            if (services.config().localPrefill().asFallback() && decode != null) {
                log.warn("{}: {}, {} computes the prompt", givenId, failure.describe(), decode);
                prefillLocally(decode, LocalPrefillReason.FAILED);
                return;
            }
            answerError(failure.status(), failure.describe(), Outcome.PREFILL_FAILED);
        } else {
            answerError(502, failed.prefill + ": " + cause, Outcome.PREFILL_FAILED);
        }
    }

    private void sendDecode(Instance instance, Buffer decodeBody) {
        decode = instance;
        triedDecodes.add(instance);
        Leg leg = new Leg(
                services.vertx(),
                instance,
                new Relay(decodeBody),
                services.config().limits().idle(),
                Leg.Bounds.SILENCE,
                instance.begin());
        decodeLeg = leg;
        leg.send(services.client(), request.method(), request.uri(), legHeaders(), decodeBody);
    }

    /** Goes to another decode instance if the client has seen nothing and the instance, not the request, was at fault. */
    private void decodeFailed(UpstreamFailure failure, Buffer decodeBody) {
        note(failure);
        boolean retriable =
                failure.kind() == Kind.CONNECT || failure.kind() == Kind.LOST || failure.kind() == Kind.REFUSED;
        Optional<Instance> other = retriable ? otherDecode() : Optional.empty();
        if (other.isEmpty()) {
            answerError(failure.status(), failure.describe(), Outcome.DECODE_FAILED);
            return;
        }
        log.info("{}: {}, trying {}", givenId, failure.describe(), other.get());
        services.metrics().retried(Instance.Role.DECODE);
        if (plan == null) {
            sendDecode(other.get(), decodeBody);
        } else {
            attempt(plan.body, plan.prefill, other.get());
        }
    }

    private Optional<Instance> otherDecode() {
        return plan == null
                ? services.decodes().next(triedDecodes)
                : services.decodes().next(triedDecodes, services.flow()::takes);
    }

    private void clientLeft() {
        if (!ended) {
            services.metrics().disconnects.increment();
            end(Outcome.CLIENT_DISCONNECTED);
        }
    }

    /** What a failure says about its instance's health. */
    private void note(UpstreamFailure failure) {
        switch (failure.kind()) {
            case CONNECT -> failure.instance().markDown(failure.reason());
            case LOST, TIMEOUT, REFUSED -> services.probe().soon(failure.instance());
            case ANSWER, CLIENT_STALLED -> {}
        }
    }

    private void noInstance(InstanceSet set) {
        if (!ended && set.isFull()) {
            client.putHeader("Retry-After", "1");
        }
        answerError(503, set.whyNone(services.flow()::takes), Outcome.UNAVAILABLE);
    }

    private void answerError(int status, String message, Outcome outcome) {
        answer(ApiError.upstream(status, message), outcome);
    }

    private void reject(ApiError error) {
        answer(error, Outcome.REJECTED);
    }

    private void answer(ApiError error, Outcome outcome) {
        if (!ended) {
            ownHeaders();
            client.setStatusCode(error.status());
            end(outcome);
            error.send(client);
        }
    }

    private void ownHeaders() {
        client.putHeader(Headers.REQUEST_ID, givenId);
        if (!requestId.equals(givenId)) {
            client.putHeader(Headers.HANDOFF_ID, requestId);
        }
        if (plan != null) {
            client.putHeader(Headers.PREFILL, plan.prefill.url());
        }
        if (localPrefill != null) {
            client.putHeader(Headers.LOCAL_PREFILL, localPrefill.label);
        }
        if (decodeLeg != null && decode != null) {
            client.putHeader(Headers.DECODE, decode.url());
        }
    }

    private MultiMap legHeaders() {
        return MultiMap.caseInsensitiveMultiMap().addAll(headers).set(Headers.REQUEST_ID, requestId);
    }

    /**
     * The end of everything, whichever way it came. Whatever leg still runs is closed. Comes before the last bytes are sent, so
     * that a client that has its answer is no longer counted.
     */
    private void end(Outcome outcome) {
        if (ended) {
            return;
        }
        ended = true;
        if (prefillLeg != null) {
            prefillLeg.abort();
        }
        if (decodeLeg != null) {
            decodeLeg.abort();
        }
        services.running().decrementAndGet();
        services.bodies().giveBack(taken);
        services.metrics().ended(outcome);
        long nanos = System.nanoTime() - started;
        services.metrics().request.record(nanos, TimeUnit.NANOSECONDS);
        if (services.logged() && log.isInfoEnabled()) {
            log.info(
                    "request={} handoff={} path={} outcome={} status={} prefill={} prefill_ms={} decode={} first_byte_ms={} total_ms={} bytes={}",
                    givenId,
                    requestId.equals(givenId) ? "-" : requestId,
                    request.path(),
                    outcome,
                    client.getStatusCode(),
                    plan != null ? plan.prefill.url() : localPrefill != null ? "local:" + localPrefill.label : "-",
                    prefillMillis < 0 ? "-" : prefillMillis,
                    decodeLeg == null || decode == null ? "-" : decode.url(),
                    firstByteMillis < 0 ? "-" : firstByteMillis,
                    nanos / 1_000_000,
                    bytes);
        }
    }

    private static long record(Timer timer, long since) {
        long nanos = System.nanoTime() - since;
        timer.record(nanos, TimeUnit.NANOSECONDS);
        return nanos / 1_000_000;
    }

    /** Reads the prefill leg's answer whole: only then is the prompt's cache there. */
    private final class PrefillAnswer implements Leg.Receiver {
        private final Instance instance;
        private final Promise<JsonObjectText> answer;
        private final Buffer text = Buffer.buffer();
        private final long sent = System.nanoTime();
        private @Nullable HttpClientResponse head;

        PrefillAnswer(Instance instance, Promise<JsonObjectText> answer) {
            this.instance = instance;
            this.answer = answer;
        }

        @Override
        public void onHead(HttpClientResponse head) {
            this.head = head;
        }

        @Override
        public void onChunk(Buffer chunk) {
            text.appendBuffer(chunk);
            int max = services.config().limits().maxBodyBytes();
            if (text.length() > max && prefillLeg != null) {
                prefillLeg.fail(Kind.ANSWER, "its answer is longer than " + max + " bytes");
            }
        }

        @Override
        public void onEnd() {
            prefillMillis = ProxiedRequest.record(services.metrics().prefill, sent);
            if (head == null) {
                throw new IllegalStateException("an answer ended without its head");
            }
            int status = head.statusCode();
            // Another instance would be reached by the same circle.
            if ((status >= 400 && status < 500) || status == 508) {
                answer.fail(new Rejection(status, head.headers(), text));
            } else if (status != 200) {
                answer.fail(new UpstreamFailure(instance, Kind.ANSWER, "HTTP " + status + quotedError()));
            } else {
                JsonObjectText parsed;
                try {
                    parsed = JsonObjectText.parse("its answer", text.getBytes());
                } catch (ConfigException e) {
                    answer.fail(new UpstreamFailure(instance, Kind.ANSWER, String.valueOf(e.getMessage())));
                    return;
                }
                answer.complete(parsed);
            }
        }

        @Override
        public void onFailure(UpstreamFailure failure) {
            answer.fail(failure);
        }

        /** The instance's own words, if it gave any. */
        private String quotedError() {
            try {
                String message = MAPPER.readTree(text.getBytes())
                        .path("error")
                        .path("message")
                        .asString("");
                return message.isEmpty()
                        ? ""
                        : ": " + message.substring(0, Math.min(message.length(), MAX_QUOTED_ERROR));
            } catch (JacksonException e) {
                return "";
            }
        }
    }

    /** Passes the decode leg's answer to the client, no faster than the client takes it. */
    private final class Relay implements Leg.Receiver {
        private final Buffer decodeBody;
        private final long sent = System.nanoTime();
        private @Nullable HttpClientResponse head;
        private @Nullable SseFramer framer;

        Relay(Buffer decodeBody) {
            this.decodeBody = decodeBody;
        }

        @Override
        public void onHead(HttpClientResponse head) {
            this.head = head;
            // It is stopping, or has too much to do; another may take the request.
            if (head.statusCode() == 503 && decodeLeg != null && otherDecode().isPresent()) {
                decodeLeg.fail(Kind.REFUSED, "HTTP 503");
                return;
            }
            String type = head.getHeader(HttpHeaders.CONTENT_TYPE);
            if (type != null && type.regionMatches(true, 0, "text/event-stream", 0, 17)) {
                framer = new SseFramer();
            }
        }

        @Override
        public void onChunk(Buffer chunk) {
            if (framer == null) {
                write(chunk);
            } else {
                writeEvents(framer.accept(chunk));
            }
        }

        @Override
        public void onEnd() {
            if (framer != null) {
                write(framer.rest());
            }
            writeHead();
            ProxiedRequest.record(services.metrics().decode, sent);
            end(client.getStatusCode() < 500 ? Outcome.OK : Outcome.DECODE_FAILED);
            client.end();
        }

        @Override
        public void onFailure(UpstreamFailure failure) {
            if (!clientHasBytes) {
                decodeFailed(failure, decodeBody);
                return;
            }
            note(failure);
            log.warn("{}: answer broken off after {} bytes: {}", givenId, bytes, failure.describe());
            if (failure.kind() == Kind.CLIENT_STALLED) {
                clientLeft();
                client.reset();
                return;
            }
            end(Outcome.DECODE_BROKEN);
            if (framer == null) {
                client.reset();
            } else {
                if (framer.insideEvent()) {
                    client.write("\n\n");
                }
                client.end(
                        ApiError.upstream(failure.status(), failure.describe()).toEvent());
            }
        }

        /** Each by itself, so that a client that keeps up can tell them apart; what it has not taken yet goes together. */
        private void writeEvents(List<Buffer> events) {
            int next = 0;
            while (next < events.size() && !client.writeQueueFull()) {
                write(events.get(next++));
            }
            if (next < events.size()) {
                Buffer rest = Buffer.buffer();
                events.subList(next, events.size()).forEach(rest::appendBuffer);
                write(rest);
            }
        }

        private void write(Buffer chunk) {
            if (chunk.length() == 0) {
                return;
            }
            writeHead();
            bytes += chunk.length();
            client.write(chunk);
            if (client.writeQueueFull() && decodeLeg != null) {
                Leg leg = decodeLeg;
                leg.pause();
                client.drainHandler(drained -> leg.resume());
            }
        }

        private void writeHead() {
            if (clientHasBytes || head == null) {
                return;
            }
            clientHasBytes = true;
            ProxiedRequest.record(services.metrics().decodeFirstByte, sent);
            firstByteMillis = ProxiedRequest.record(services.metrics().firstByte, started);
            client.setStatusCode(head.statusCode());
            Headers.toClient(head.headers(), client.headers());
            if (!client.headers().contains(HttpHeaders.CONTENT_LENGTH)) {
                client.setChunked(true);
            }
            ownHeaders();
        }
    }
}
