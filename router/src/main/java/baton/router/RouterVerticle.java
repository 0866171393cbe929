package baton.router;

import baton.router.RouterMetrics.Outcome;
import io.netty.handler.codec.DecoderException;
import io.vertx.core.Future;
import io.vertx.core.VerticleBase;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpClientOptions;
import io.vertx.core.http.HttpHeaders;
import io.vertx.core.http.HttpMethod;
import io.vertx.core.http.HttpServer;
import io.vertx.core.http.HttpServerOptions;
import io.vertx.core.http.HttpServerRequest;
import io.vertx.core.http.PoolOptions;
import io.vertx.core.net.SocketAddress;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BiConsumer;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/** One event loop's share of the router: reads requests, answers those about the router, starts an exchange for the others. */
final class RouterVerticle extends VerticleBase {
    private static final JsonMapper MAPPER = JsonMapper.builder().build();

    /**
     * Idle connections to instances are closed by this side first, in seconds: uvicorn closes its own after 5 s, and a request
     * sent into a closing connection is lost.
     */
    private static final int KEEP_ALIVE_SECONDS = 4;

    /** A body's first buffer, in bytes: what a client declares is not yet worth memory. */
    private static final int INITIAL_BODY = 64 << 10;

    private final RouterConfig config;
    private final HandoffFlow flow;
    private final InstanceSet prefills;
    private final InstanceSet decodes;
    private final HealthProbe probe;
    private final RouterMetrics metrics;
    private final AtomicInteger running;
    private final BodyMemory bodies;
    private final boolean logged;

    private final Map<String, Route> routes = Map.ofEntries(
            Map.entry("/v1/completions", new Route(HttpMethod.POST, this::handOff)),
            Map.entry("/v1/chat/completions", new Route(HttpMethod.POST, this::handOff)),
            Map.entry("/tokenize", new Route(HttpMethod.POST, this::proxyPost)),
            Map.entry("/detokenize", new Route(HttpMethod.POST, this::proxyPost)),
            Map.entry("/v1/models", new Route(HttpMethod.GET, this::proxyGet)),
            Map.entry("/version", new Route(HttpMethod.GET, this::proxyGet)),
            Map.entry("/load", new Route(HttpMethod.GET, this::proxyGet)),
            Map.entry("/tokenizer_info", new Route(HttpMethod.GET, this::proxyGet)),
            Map.entry("/health", new Route(HttpMethod.GET, this::health)),
            Map.entry("/healthcheck", new Route(HttpMethod.GET, this::healthcheck)),
            Map.entry("/metrics", new Route(HttpMethod.GET, this::metrics)));

    private @Nullable HttpServer server;

    private record Route(HttpMethod method, BiConsumer<RouterContext, HttpServerRequest> handler) {}

    /** @param logged whether each request has a line in the log */
    RouterVerticle(
            RouterConfig config,
            HandoffFlow flow,
            InstanceSet prefills,
            InstanceSet decodes,
            HealthProbe probe,
            RouterMetrics metrics,
            AtomicInteger running,
            BodyMemory bodies,
            boolean logged) {
        this.config = config;
        this.flow = flow;
        this.prefills = prefills;
        this.decodes = decodes;
        this.probe = probe;
        this.metrics = metrics;
        this.running = running;
        this.bodies = bodies;
        this.logged = logged;
    }

    @Override
    public Future<?> start() {
        RouterConfig.Limits limits = config.limits();
        // A pool as large as what may be in flight never queues: a queue would hide an overload and outlive its
        // clients.
        PoolOptions pool = new PoolOptions()
                .setHttp1MaxSize(limits.maxInFlight())
                .setMaxWaitQueueSize(0)
                .setEventLoopSize(0);
        HttpClientOptions clientOptions = new HttpClientOptions()
                .setConnectTimeout((int) limits.connect().toMillis())
                .setKeepAlive(true)
                .setKeepAliveTimeout(KEEP_ALIVE_SECONDS)
                .setMaxHeaderSize(64 << 10);
        RouterContext made = new RouterContext(
                vertx,
                vertx.createHttpClient(clientOptions, pool),
                config,
                flow,
                prefills,
                decodes,
                probe,
                metrics,
                running,
                bodies,
                logged);
        // All verticles share one port, also when it is a free one.
        SocketAddress address = config.port() == 0
                ? SocketAddress.sharedRandomPort(1, config.host())
                : SocketAddress.inetSocketAddress(config.port(), config.host());
        Duration longestSilence = limits.prefill().plus(limits.idle()).plusMinutes(1);
        HttpServer created = vertx.createHttpServer(new HttpServerOptions()
                .setHandle100ContinueAutomatically(true)
                .setMaxHeaderSize(64 << 10)
                .setMaxInitialLineLength(16 << 10)
                .setAcceptBacklog(4096)
                .setIdleTimeout((int) longestSilence.toSeconds()));
        server = created;
        return created.requestHandler(request -> route(made, request)).listen(address);
    }

    int port() {
        if (server == null) {
            throw new IllegalStateException("not started");
        }
        return server.actualPort();
    }

    /** Takes no more connections and requests; completes when the running ones have ended or the drain deadline has passed. */
    Future<Void> drain() {
        return server == null
                ? Future.succeededFuture()
                : server.shutdown(config.limits().drain());
    }

    private void route(RouterContext services, HttpServerRequest request) {
        String path = request.path() == null ? "" : request.path();
        Route route = routes.get(path);
        if (route == null && path.startsWith("/v1/models/")) {
            route = routes.get("/v1/models");
        }
        List<String> encodings = request.headers().getAll(HttpHeaders.TRANSFER_ENCODING);
        if (!encodings.isEmpty() && !String.join(",", encodings).strip().equalsIgnoreCase("chunked")) {
            // Where such a body ends is not known: the connection is closed after the answer, and nothing more read
            // from it.
            Future<Void> _ = request.connection().shutdown(1, TimeUnit.SECONDS);
            reject(
                    request,
                    ApiError.of(
                            501,
                            "NotImplementedError",
                            "Transfer-Encoding is '" + String.join(", ", encodings) + "', must be chunked or absent"));
        } else if (route == null) {
            reject(request, ApiError.of(404, "NotFoundError", "no such path: " + path));
        } else if (!route.method.equals(request.method())) {
            request.response().putHeader(HttpHeaders.ALLOW, route.method.name());
            reject(
                    request,
                    ApiError.of(
                            405,
                            "MethodNotAllowedError",
                            path + " takes " + route.method + ", not " + request.method()));
        } else {
            route.handler.accept(services, request);
        }
    }

    private void handOff(RouterContext services, HttpServerRequest request) {
        readJson(services, request, body -> ProxiedRequest.handOff(services, request, body));
    }

    private void proxyPost(RouterContext services, HttpServerRequest request) {
        readJson(services, request, body -> ProxiedRequest.proxy(services, request, body));
    }

    private void proxyGet(RouterContext services, HttpServerRequest request) {
        if (admit(request)) {
            ProxiedRequest.proxy(services, request, Buffer.buffer());
        }
    }

    /** Counts a request as running, unless there are too many, or it goes round in a circle. */
    private boolean admit(HttpServerRequest request) {
        int hops = Headers.hops(request.headers());
        if (hops >= Headers.MOST_HOPS) {
            reject(
                    request,
                    ApiError.of(
                            508,
                            "LoopDetectedError",
                            Headers.HOPS + " is " + hops + ": the request has passed as many routers, "
                                    + Headers.MOST_HOPS
                                    + " at most may stand one behind the other; an instance of one of them is a router that"
                                    + " leads back to it"));
            return false;
        }
        int max = config.limits().maxInFlight();
        if (running.incrementAndGet() <= max) {
            return true;
        }
        running.decrementAndGet();
        metrics.ended(Outcome.UNAVAILABLE);
        request.response().putHeader("Retry-After", "1");
        send(request, ApiError.upstream(503, "overloaded: " + max + " requests are in flight, the most allowed"));
        return false;
    }

    private void health(RouterContext services, HttpServerRequest request) {
        ObjectNode answer = MAPPER.createObjectNode();
        ArrayNode missing = MAPPER.createArrayNode();
        ObjectNode down = MAPPER.createObjectNode();
        for (InstanceSet set : new InstanceSet[] {prefills, decodes}) {
            if (set.all().stream().noneMatch(instance -> instance.isUp() && flow.takes(instance))) {
                missing.add(set.role().label);
            }
            set.all().forEach(instance -> instance.downReason().ifPresent(reason -> down.put(instance.url(), reason)));
        }
        answer.put("status", missing.isEmpty() ? "ok" : "unavailable");
        answer.set("missing", missing);
        answer.set("down", down);
        sendJson(request, missing.isEmpty() ? 200 : 503, answer);
    }

    private void healthcheck(RouterContext services, HttpServerRequest request) {
        sendJson(
                request,
                200,
                MAPPER.createObjectNode()
                        .put("status", "ok")
                        .put("prefill_instances", prefills.all().size())
                        .put("decode_instances", decodes.all().size()));
    }

    private void metrics(RouterContext services, HttpServerRequest request) {
        request.response()
                .putHeader(HttpHeaders.CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")
                .end(metrics.scrape());
    }

    private static void sendJson(HttpServerRequest request, int status, ObjectNode json) {
        request.response()
                .setStatusCode(status)
                .putHeader(HttpHeaders.CONTENT_TYPE, "application/json")
                .end(Buffer.buffer(MAPPER.writeValueAsBytes(json)));
    }

    /** Reads a JSON body within the size and idle limits, and hands it on. */
    private void readJson(RouterContext services, HttpServerRequest request, Consumer<Buffer> handler) {
        String type = request.getHeader(HttpHeaders.CONTENT_TYPE);
        String encoding = request.getHeader(HttpHeaders.CONTENT_ENCODING);
        int max = config.limits().maxBodyBytes();
        if (type == null || !type.split(";", 2)[0].strip().equalsIgnoreCase("application/json")) {
            reject(
                    request,
                    ApiError.of(
                            415,
                            "UnsupportedMediaTypeError",
                            "Content-Type is '" + (type == null ? "" : type) + "', must be application/json"));
        } else if (encoding != null && !encoding.equalsIgnoreCase("identity")) {
            reject(
                    request,
                    ApiError.of(
                            415,
                            "UnsupportedMediaTypeError",
                            "Content-Encoding is '" + encoding + "', must be identity"));
        } else if (declaredLength(request) > max) {
            reject(request, tooLarge(max));
        } else if (admit(request)) {
            new BodyReader(services, request, handler, max).read();
        }
    }

    private static long declaredLength(HttpServerRequest request) {
        String length = request.getHeader(HttpHeaders.CONTENT_LENGTH);
        try {
            return length == null ? 0 : Long.parseLong(length.strip());
        } catch (NumberFormatException e) {
            return Long.MAX_VALUE;
        }
    }

    private static ApiError tooLarge(int max) {
        return ApiError.of(413, "RequestTooLargeError", "the body is longer than " + max + " bytes, the most allowed");
    }

    private void reject(HttpServerRequest request, ApiError error) {
        metrics.ended(Outcome.REJECTED);
        send(request, error);
    }

    /** Answers a request whose body is not wanted: what still comes of it is dropped, for as long as the idle deadline. */
    private void send(HttpServerRequest request, ApiError error) {
        request.response().putHeader(Headers.REQUEST_ID, Headers.requestId(request.headers()));
        error.send(request.response());
        if (!request.isEnded()) {
            long timer = vertx.setTimer(
                    config.limits().idle().toMillis(),
                    late -> request.connection().close());
            request.handler(dropped -> {});
            request.endHandler(done -> vertx.cancelTimer(timer));
            request.exceptionHandler(gone -> vertx.cancelTimer(timer));
        }
    }

    /** Collects one request's body. */
    private final class BodyReader {
        private final RouterContext services;
        private final HttpServerRequest request;
        private final Consumer<Buffer> handler;
        private final int max;
        private Buffer body;
        private boolean over;

        BodyReader(RouterContext services, HttpServerRequest request, Consumer<Buffer> handler, int max) {
            this.services = services;
            this.request = request;
            this.handler = handler;
            this.max = max;
            this.body = Buffer.buffer((int) Math.min(declaredLength(request), INITIAL_BODY));
        }

        void read() {
            Duration deadline = config.limits().idle();
            long timer = services.vertx()
                    .setTimer(
                            deadline.toMillis(),
                            late -> finish(ApiError.of(
                                    408,
                                    "RequestTimeoutError",
                                    "the body was not complete within " + deadline.toMillis() + " ms")));
            request.handler(chunk -> {
                if (!over && body.length() + chunk.length() > max) {
                    vertx.cancelTimer(timer);
                    finish(tooLarge(max));
                } else if (!over && bodies.take(chunk.length())) {
                    body.appendBuffer(chunk);
                } else if (!over) {
                    vertx.cancelTimer(timer);
                    request.response().putHeader("Retry-After", "1");
                    finish(ApiError.upstream(
                            503,
                            "overloaded: requests with " + bodies.limit() + " bytes are in flight, the most allowed"));
                }
            });
            request.endHandler(complete -> {
                vertx.cancelTimer(timer);
                if (!over) {
                    over = true;
                    handler.accept(body);
                }
            });
            request.exceptionHandler(gone -> {
                vertx.cancelTimer(timer);
                if (gone instanceof NumberFormatException || gone instanceof DecoderException) {
                    // The connection is closed after this.
                    finish(ApiError.of(
                            400, "BadRequestError", "the body's chunks are malformed: " + gone.getMessage()));
                } else if (!over) {
                    drop();
                }
            });
        }

        private void finish(ApiError error) {
            if (!over) {
                drop();
                reject(request, error);
            }
        }

        private void drop() {
            over = true;
            running.decrementAndGet();
            bodies.giveBack(body.length());
            body = Buffer.buffer();
        }
    }
}
