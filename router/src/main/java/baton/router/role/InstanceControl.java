package baton.router.role;

import baton.kv.Ticker;
import baton.messages.http.KeptConnections;
import baton.router.upstream.Instance;
import baton.router.upstream.Question;
import baton.router.upstream.UpstreamClient;
import io.vertx.core.Context;
import io.vertx.core.Future;
import io.vertx.core.MultiMap;
import io.vertx.core.Vertx;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpClientOptions;
import io.vertx.core.http.HttpHeaders;
import io.vertx.core.http.HttpMethod;
import io.vertx.core.http.PoolOptions;
import io.vertx.core.net.ClientSSLOptions;
import java.time.Duration;
import java.util.Optional;

/** Sends requests of the router itself to instances, from one event loop. */
public final class InstanceControl {
    private final Context context;
    private final UpstreamClient upstream;
    private final Duration deadline;
    private final MultiMap headers = MultiMap.caseInsensitiveMultiMap();

    /**
     * @param deadline for a connection, and for an answer that takes no time
     * @param apiKey of the instances
     * @param tls certificates, for instances at {@code https://}
     */
    public InstanceControl(
            Vertx vertx, Duration deadline, Optional<String> apiKey, ClientSSLOptions tls, Ticker ticker) {
        this.context = vertx.getOrCreateContext();
        this.deadline = deadline;
        upstream = new UpstreamClient(
                vertx,
                KeptConnections.open(
                        vertx,
                        new HttpClientOptions().setKeepAlive(false).setConnectTimeout((int) deadline.toMillis()),
                        new PoolOptions(),
                        Optional.of(tls)),
                ticker);
        headers.set(HttpHeaders.CONTENT_TYPE, "application/json");
        apiKey.ifPresent(key -> headers.set(HttpHeaders.AUTHORIZATION, "Bearer " + key));
    }

    /** The event loop. */
    Context context() {
        return context;
    }

    Vertx vertx() {
        return upstream.vertx();
    }

    long nanos() {
        return upstream.ticker().nanos();
    }

    /** Asks within the deadline of an answer that takes no time; fails with an {@link baton.router.upstream.UpstreamFailure}. */
    Future<Question.Answer> ask(Instance instance, HttpMethod method, String path, Buffer body, int mostBytes) {
        return new Question(method, path, headers, body, deadline, mostBytes).ask(upstream, instance);
    }

    /** Sends a completion with that {@code X-Request-Id}; fails with an {@link baton.router.upstream.UpstreamFailure}. */
    Future<Question.Answer> complete(Instance instance, String id, Buffer body, Duration longest, int mostBytes) {
        MultiMap own = MultiMap.caseInsensitiveMultiMap().addAll(headers).set("X-Request-Id", id);
        return new Question(HttpMethod.POST, "/v1/completions", own, body, longest, mostBytes).ask(upstream, instance);
    }

    /** Further requests use these certificates. Any thread. */
    public Future<Boolean> update(ClientSSLOptions certificates) {
        return upstream.http().update(certificates);
    }
}
