package baton.store.mooncake;

import baton.kv.Deadline;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodySubscribers;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeoutException;
import java.util.function.Function;
import tools.jackson.core.JacksonException;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/**
 * The REST service of Mooncake 0.3.13 ({@code mc_store_rest_server}, mooncake/mooncake_store_service.py). It takes text only, so objects are
 * in Base64: a third more bytes in the store and on the way. It answers one request after the other.
 */
final class RestClient implements ObjectClient {
    /** The most bytes that the service takes as a body. */
    private static final long MOST_BODY_BYTES = 100L << 20;

    /** The limit of a body's key and its braces. */
    private static final long MOST_KEY_BYTES = 64 << 10;

    /** The limit of an answer that is no object. */
    private static final long MOST_ANSWER_BYTES = 64 << 10;

    private static final JsonMapper JSON = new JsonMapper();

    private final String base;
    private final HttpClient http;

    /** @param base {@code http://host:port}, without a slash behind it */
    RestClient(URI base, Duration connectTimeout) {
        this.base = base.toString();
        http = HttpClient.newBuilder()
                .version(HttpClient.Version.HTTP_1_1)
                .connectTimeout(connectTimeout)
                .build();
    }

    @Override
    public int batch() {
        return 1;
    }

    @Override
    public long mostBytes() {
        return (MOST_BODY_BYTES - MOST_KEY_BYTES) / 4 * 3;
    }

    @Override
    public void register(MemorySegment memory) {}

    @Override
    public List<Outcome> exist(List<String> keys, Deadline deadline) {
        List<Outcome> outcomes = new ArrayList<>(keys.size());
        for (String key : keys) {
            outcomes.add(send(request("exist", key).GET(), deadline, response -> {
                if (response.statusCode() != 200) {
                    return Outcome.ERROR;
                }
                try {
                    JsonNode exists = JSON.readTree(response.body()).path("exists");
                    return exists.isBoolean() ? exists.asBoolean() ? Outcome.DONE : Outcome.ABSENT : Outcome.ERROR;
                } catch (JacksonException _) {
                    return Outcome.ERROR;
                }
            }));
        }
        return outcomes;
    }

    @Override
    public List<Outcome> get(List<String> keys, List<MemorySegment> to, Deadline deadline) {
        List<Outcome> outcomes = new ArrayList<>(keys.size());
        for (int i = 0; i < keys.size(); i++) {
            MemorySegment target = to.get(i);
            long most = Math.max(MOST_ANSWER_BYTES, (target.byteSize() + 2) / 3 * 4);
            outcomes.add(send(
                    request("get", keys.get(i)).GET(), most, deadline, response -> switch (response.statusCode()) {
                        case 200 -> decode(response.body(), target);
                        case 404 -> Outcome.ABSENT;
                        default -> Outcome.ERROR;
                    }));
        }
        return outcomes;
    }

    private static Outcome decode(byte[] text, MemorySegment to) {
        byte[] bytes;
        try {
            bytes = Base64.getDecoder().decode(text);
        } catch (IllegalArgumentException _) {
            return Outcome.FOREIGN;
        }
        if (bytes.length != to.byteSize()) {
            return Outcome.LENGTH;
        }
        MemorySegment.copy(bytes, 0, to, ValueLayout.JAVA_BYTE, 0, bytes.length);
        return Outcome.DONE;
    }

    @Override
    public List<Outcome> put(List<String> keys, List<MemorySegment> from, Deadline deadline) {
        List<Outcome> outcomes = new ArrayList<>(keys.size());
        for (int i = 0; i < keys.size(); i++) {
            HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(base + "/api/put"))
                    .header("Content-Type", "application/json")
                    .PUT(body(keys.get(i), from.get(i)));
            // A store without room answers like one with any other trouble.
            outcomes.add(
                    send(request, deadline, response -> response.statusCode() == 200 ? Outcome.DONE : Outcome.ERROR));
        }
        return outcomes;
    }

    private static HttpRequest.BodyPublisher body(String key, MemorySegment object) {
        byte[] head = ("{\"key\":" + JSON.writeValueAsString(key) + ",\"value\":\"").getBytes(StandardCharsets.UTF_8);
        byte[] value = Base64.getEncoder().encode(object.toArray(ValueLayout.JAVA_BYTE));
        return BodyPublishers.concat(
                BodyPublishers.ofByteArray(head),
                BodyPublishers.ofByteArray(value),
                BodyPublishers.ofByteArray(new byte[] {'"', '}'}));
    }

    /** The service answers in the same way for a key that is not there, that has a lease, and for any other trouble. */
    @Override
    public Outcome remove(String key, Deadline deadline) {
        return send(
                request("remove", key).DELETE(),
                deadline,
                response -> response.statusCode() == 200 ? Outcome.DONE : Outcome.LEASED);
    }

    private HttpRequest.Builder request(String what, String key) {
        // Form encoding differs from that of a path in the space alone.
        String encoded = URLEncoder.encode(key, StandardCharsets.UTF_8).replace("+", "%20");
        return HttpRequest.newBuilder(URI.create(base + "/api/" + what + "/" + encoded));
    }

    private Outcome send(
            HttpRequest.Builder request, Deadline deadline, Function<HttpResponse<byte[]>, Outcome> reading) {
        return send(request, MOST_ANSWER_BYTES, deadline, reading);
    }

    /** @param most bytes of an answer that are taken; of a longer one, none */
    private Outcome send(
            HttpRequest.Builder request,
            long most,
            Deadline deadline,
            Function<HttpResponse<byte[]>, Outcome> reading) {
        if (deadline.isOver()) {
            return Outcome.TIMEOUT;
        }
        CompletableFuture<HttpResponse<byte[]>> answer;
        try {
            answer = http.sendAsync(
                    request.build(),
                    info -> info.headers().firstValueAsLong("Content-Length").orElse(0) > most
                            ? BodySubscribers.replacing(new byte[0])
                            : BodySubscribers.limiting(BodySubscribers.ofByteArray(), most));
        } catch (IllegalArgumentException _) {
            return Outcome.ERROR;
        }
        try {
            return reading.apply(deadline.get(answer));
        } catch (TimeoutException _) {
            answer.cancel(true);
            return Outcome.TIMEOUT;
        } catch (ExecutionException e) {
            return e.getCause() instanceof IOException ? Outcome.UNAVAILABLE : Outcome.ERROR;
        } catch (InterruptedException _) {
            answer.cancel(true);
            Thread.currentThread().interrupt();
            return Outcome.CLOSED;
        }
    }

    @Override
    public void stop() {
        http.shutdownNow();
    }

    @Override
    public void close() {
        http.shutdownNow();
    }
}
