package baton.router;

import baton.kv.ConfigException;
import baton.kv.WebGuard;
import baton.messages.http.KeptConnections;
import baton.router.access.ClientAdmission;
import baton.router.access.ClientGate;
import baton.router.access.ClientPass;
import baton.router.body.ReceivedBody;
import baton.router.metrics.RouterMetric;
import baton.router.metrics.RouterMetrics;
import baton.router.metrics.RouterMetrics.AdmissionResult;
import baton.router.metrics.RouterMetrics.Outcome;
import baton.router.upstream.InstanceSet;
import baton.router.upstream.UpstreamClient;
import io.vertx.core.Future;
import io.vertx.core.MultiMap;
import io.vertx.core.VerticleBase;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpClientOptions;
import io.vertx.core.http.HttpHeaders;
import io.vertx.core.http.HttpMethod;
import io.vertx.core.http.HttpServer;
import io.vertx.core.http.HttpServerOptions;
import io.vertx.core.http.HttpServerRequest;
import io.vertx.core.http.HttpVersion;
import io.vertx.core.http.PoolOptions;
import io.vertx.core.net.ClientSSLOptions;
import io.vertx.core.net.ServerSSLOptions;
import io.vertx.core.net.SocketAddress;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/** The router on one event loop: reads requests, answers those about the router itself and starts a {@link ProxiedRequest} for each other. */
final class RouterVerticle extends VerticleBase {
    private static final JsonMapper MAPPER = JsonMapper.builder().build();

    /**
     * Seconds after which the router closes an idle connection to an instance: uvicorn closes it after 5 s, and a request sent into
     * a closing connection is lost.
     */
    private static final int KEEP_ALIVE_SECONDS = 4;

    /** How often idle connections to instances are looked for: closing all of one second's at once would hold up the event loop. */
    private static final int CLEANER_MILLIS = 100;

    /** How long a client's connection may have no request, or an incomplete head of one. */
    private static final Duration MOST_IDLE = Duration.ofSeconds(75);

    /** How much of a body is read after a refusal, so that the client reads that: so many times the largest body that is taken. */
    private static final int MOST_DROPPED = 4;

    private final RouterContext shared;
    private final RouterConfig config;
    private final RouterContext.Routing routing;
    private final RouterContext.InFlight inFlight;
    private final RouterMetrics metrics;
    private final WebGuard webGuard;

    private final Map<String, Route> routes = Map.ofEntries(
            Map.entry("/v1/completions", new Route(HttpMethod.POST, false, this::handOff)),
            Map.entry("/v1/chat/completions", new Route(HttpMethod.POST, false, this::handOff)),
            Map.entry("/v1/responses", new Route(HttpMethod.POST, false, this::handOff)),
            Map.entry("/v1/completions/render", new Route(HttpMethod.POST, false, this::proxyPost)),
            Map.entry("/v1/chat/completions/render", new Route(HttpMethod.POST, false, this::proxyPost)),
            Map.entry("/tokenize", new Route(HttpMethod.POST, false, this::proxyPost)),
            Map.entry("/detokenize", new Route(HttpMethod.POST, false, this::proxyPost)),
            Map.entry("/v1/models", new Route(HttpMethod.GET, false, this::proxyGet)),
            Map.entry("/version", new Route(HttpMethod.GET, false, this::proxyGet)),
            Map.entry("/load", new Route(HttpMethod.GET, false, this::proxyGet)),
            Map.entry("/tokenizer_info", new Route(HttpMethod.GET, false, this::proxyGet)),
            Map.entry("/health", new Route(HttpMethod.GET, true, this::health)),
            Map.entry("/healthcheck", new Route(HttpMethod.GET, true, this::healthcheck)),
            Map.entry("/metrics", new Route(HttpMethod.GET, true, this::metrics)));

    private final Observation observation;
    private final Admin admin;
    /** Written before the port is listened on, and then not any more. */
    private volatile @Nullable HttpServer server;

    /** The idle connections of the event loop. */
    private @Nullable IdleConnections connections;

    private volatile @Nullable KeptConnections client;

    /** @param open whether clients need no key */
    private record Route(HttpMethod method, boolean open, Handler handler) {}

    private interface Handler {
        void accept(UpstreamClient upstream, HttpServerRequest request, ClientPass pass);
    }

    RouterVerticle(RouterContext shared) {
        this.shared = shared;
        this.config = shared.config();
        this.routing = shared.routing();
        this.inFlight = shared.inFlight();
        this.metrics = shared.reporting().metrics();
        this.webGuard = config.webGuard();
        this.observation = new Observation(
                config.policy(),
                routing,
                shared.roles(),
                inFlight.running(),
                shared.reporting().traces());
        this.admin =
                new Admin(inFlight.worker().vertx(), config.sources().adminKey(), shared.membership(), shared.roles());
    }

    @Override
    public Future<?> start() {
        RouterConfig.Limits limits = config.limits();
        // A pool with room for all requests in flight never queues: a queue would hide an overload and keep requests of
        // clients that have left.
        PoolOptions pool = new PoolOptions()
                .setHttp1MaxSize(limits.maxInFlight())
                .setMaxWaitQueueSize(0)
                .setCleanerPeriod(CLEANER_MILLIS)
                .setEventLoopSize(0);
        HttpClientOptions clientOptions = new HttpClientOptions()
                .setConnectTimeout((int) limits.connect().toMillis())
                .setKeepAlive(true)
                .setKeepAliveTimeout(KEEP_ALIVE_SECONDS)
                .setMaxHeaderSize(64 << 10);
        RouterTls tls = shared.guards().tls();
        KeptConnections toInstances = KeptConnections.open(vertx, clientOptions, pool, Optional.of(tls.client()));
        client = toInstances;
        UpstreamClient upstream =
                new UpstreamClient(vertx, toInstances, shared.reporting().ticker());
        // All verticles share one port, chosen or free.
        SocketAddress address = config.port() == 0
                ? SocketAddress.sharedRandomPort(1, config.host())
                : SocketAddress.inetSocketAddress(config.port(), config.host());
        Duration longestSilence = limits.prefill().plus(limits.idle()).plusMinutes(1);
        HttpServerOptions options = new HttpServerOptions()
                .setSsl(tls.server().isPresent())
                .setHttp2ClearTextEnabled(false)
                .setHandle100ContinueAutomatically(true)
                .setPerMessageWebSocketCompressionSupported(false)
                .setPerFrameWebSocketCompressionSupported(false)
                .setMaxHeaderSize(64 << 10)
                .setMaxInitialLineLength(16 << 10)
                .setAcceptBacklog(4096)
                .setIdleTimeout((int) longestSilence.toSeconds());
        tls.server()
                .ifPresent(ssl -> options.setKeyCertOptions(ssl.getKeyCertOptions())
                        .setTrustOptions(ssl.getTrustOptions())
                        .setClientAuth(ssl.getClientAuth())
                        .setUseAlpn(false));
        HttpServer created = vertx.createHttpServer(options);
        server = created;
        Duration idle = limits.idle().compareTo(MOST_IDLE) < 0 ? limits.idle() : MOST_IDLE;
        IdleConnections watched = new IdleConnections(vertx, shared.reporting().ticker(), idle);
        connections = watched;
        return created.connectionHandler(connection -> {
                    FlushConsolidation.of(connection);
                    watched.opened(connection);
                })
                .requestHandler(request -> {
                    watched.began(request.connection());
                    request.response().endHandler(_ -> ended(request));
                    admit(upstream, request);
                })
                .listen(address);
    }

    private void ended(HttpServerRequest request) {
        IdleConnections watched = connections;
        if (watched != null) {
            watched.ended(request.connection());
        }
    }

    int port() {
        HttpServer started = server;
        if (started == null) {
            throw new IllegalStateException("not started");
        }
        return started.actualPort();
    }

    /** New connections of clients use these certificates. Any thread. */
    Future<Boolean> update(ServerSSLOptions certificates) {
        HttpServer started = server;
        return started == null ? Future.succeededFuture(false) : started.updateSSLOptions(certificates, true);
    }

    /** New connections to instances use these certificates. Any thread. */
    Future<Boolean> update(ClientSSLOptions certificates) {
        KeptConnections started = client;
        return started == null ? Future.succeededFuture(false) : started.update(certificates);
    }

    /** Takes no more connections and requests; completes when running requests have ended or the drain deadline has passed. */
    Future<Void> drain() {
        HttpServer started = server;
        return started == null
                ? Future.succeededFuture()
                : started.shutdown(config.limits().drain());
    }

    /** Goes on with a request that is not of a web page that may not use the router. */
    private void admit(UpstreamClient upstream, HttpServerRequest request) {
        MultiMap headers = request.headers();
        WebGuard.Verdict verdict = webGuard.judge(new WebGuard.Request(
                request.method().name(),
                request.version() == HttpVersion.HTTP_1_1,
                headers.getAll(HttpHeaders.HOST),
                headers.getAll(HttpHeaders.ORIGIN),
                Optional.ofNullable(headers.get("Sec-Fetch-Site")),
                Optional.ofNullable(headers.get(HttpHeaders.ACCESS_CONTROL_REQUEST_METHOD)),
                Optional.ofNullable(headers.get(HttpHeaders.ACCESS_CONTROL_REQUEST_HEADERS))));
        switch (verdict) {
            case WebGuard.Verdict.Admitted(Map<String, String> added) -> {
                added.forEach(request.response()::putHeader);
                route(upstream, request);
            }
            case WebGuard.Verdict.Preflight(Map<String, String> added) -> {
                added.forEach(request.response()::putHeader);
                request.response().end();
            }
            case WebGuard.Verdict.Refused(int status, String message) ->
                reject(request, status, status == 403 ? "PermissionDeniedError" : "BadRequestError", message);
        }
    }

    private void route(UpstreamClient upstream, HttpServerRequest request) {
        String path = request.path() == null ? "" : request.path();
        Route route = routes.get(path);
        if (route == null && path.startsWith("/v1/models/") && !Headers.climbs(path)) {
            route = routes.get("/v1/models");
        }
        if (route == null && Admin.serves(path)) {
            route = new Route(HttpMethod.POST, true, (_, asked, _) -> administer(path, asked));
        }
        if (route == null && observation.serves(path)) {
            route = new Route(HttpMethod.GET, true, (_, asked, _) -> observe(path, asked));
        }
        List<String> encodings = request.headers().getAll(HttpHeaders.TRANSFER_ENCODING);
        if (!encodings.isEmpty() && !String.join(",", encodings).strip().equalsIgnoreCase("chunked")) {
            // The end of such a body is unknown: the connection is closed after the answer, and nothing more is read
            // from it.
            Future<Void> _ = request.connection().shutdown(1, TimeUnit.SECONDS);
            reject(
                    request,
                    501,
                    "NotImplementedError",
                    "Transfer-Encoding is '" + String.join(", ", encodings) + "', must be chunked or absent");
        } else if (route == null) {
            reject(request, 404, "NotFoundError", "no such path: " + path);
        } else if (!route.method.equals(request.method())) {
            request.response().putHeader(HttpHeaders.ALLOW, route.method.name());
            reject(
                    request,
                    405,
                    "MethodNotAllowedError",
                    path + " takes " + route.method + ", not " + request.method());
        } else {
            enter(route, upstream, request);
        }
    }

    /** Runs a route's handler if the request's key allows that. */
    private void enter(Route route, UpstreamClient upstream, HttpServerRequest request) {
        Optional<ClientGate> gate = shared.guards().gate();
        if (route.open || gate.isEmpty()) {
            route.handler.accept(upstream, request, ClientPass.open());
            return;
        }
        switch (gate.get().enter(request.headers().getAll(HttpHeaders.AUTHORIZATION))) {
            case ClientAdmission.Admitted(ClientPass pass) -> {
                pass.client().ifPresent(name -> {
                    metrics.watch(
                            RouterMetric.CLIENT_REQUESTS_RUNNING,
                            () -> gate.get().inFlight(name),
                            name);
                    metrics.count(RouterMetric.CLIENT_REQUESTS, name, AdmissionResult.ADMITTED);
                });
                // However the request ends. One that is proxied has its own handler of the connection's end, and
                // releases the
                // pass before the client has all of the answer. A response has one handler of its end.
                request.response()
                        .endHandler(_ -> {
                            ended(request);
                            pass.release();
                        })
                        .closeHandler(_ -> pass.release());
                route.handler.accept(upstream, request, pass);
            }
            case ClientAdmission.Unknown(String reason) -> {
                metrics.count(RouterMetric.CLIENT_REQUESTS, "", AdmissionResult.UNKNOWN);
                rejectUnknown(request, reason);
            }
            case ClientAdmission.Limited(String name, String reason, long seconds) -> {
                metrics.count(RouterMetric.CLIENT_REQUESTS, name, AdmissionResult.LIMITED);
                request.response().putHeader("Retry-After", Long.toString(seconds));
                reject(request, 429, "RateLimitError", reason);
            }
        }
    }

    private void rejectUnknown(HttpServerRequest request, String reason) {
        request.response().putHeader("WWW-Authenticate", "Bearer");
        reject(request, 401, "AuthenticationError", reason);
    }

    /** Answers about the router: all with the admin key, or where clients need no key; with a client's key the requests of that key. */
    private void observe(String path, HttpServerRequest request) {
        Optional<ClientGate> gate = shared.guards().gate();
        if (gate.isEmpty() || observation.isPage(path) || admin.hasKey(request)) {
            observation.answer(request, _ -> true);
            return;
        }
        Optional<String> client = gate.get().identify(request.headers().getAll(HttpHeaders.AUTHORIZATION));
        if (client.isPresent()) {
            observation.answer(request, trace -> trace.head().client().equals(client));
        } else {
            rejectUnknown(request, "Authorization must be 'Bearer' and an API key or the router's admin key");
        }
    }

    private void handOff(UpstreamClient upstream, HttpServerRequest request, ClientPass pass) {
        readJson(request, body -> ProxiedRequest.handOff(shared, upstream, request, pass, body));
    }

    private void administer(String path, HttpServerRequest request) {
        admin.refusal(request)
                .ifPresentOrElse(
                        refusal -> reject(request, refusal),
                        () -> readJson(
                                request,
                                body -> admin.run(path, body).onComplete(answer -> {
                                    inFlight.running().decrementAndGet();
                                    inFlight.bodies().giveBack(body.length());
                                    if (answer.succeeded()) {
                                        sendJson(request, 200, answer.result());
                                    } else if (answer.cause() instanceof ConfigException wrong) {
                                        reject(
                                                request,
                                                ApiError.badRequest(wrong.field(), String.valueOf(wrong.getMessage())));
                                    } else {
                                        reject(request, 500, "InternalServerError", String.valueOf(answer.cause()));
                                    }
                                })));
    }

    private void proxyPost(UpstreamClient upstream, HttpServerRequest request, ClientPass pass) {
        readJson(request, body -> ProxiedRequest.proxy(shared, upstream, request, pass, body));
    }

    private void proxyGet(UpstreamClient upstream, HttpServerRequest request, ClientPass pass) {
        if (admit(request)) {
            ProxiedRequest.proxy(shared, upstream, request, pass, new ReceivedBody(0));
        }
    }

    /** Counts a request as running, unless there are too many, or it has passed too many routers. */
    private boolean admit(HttpServerRequest request) {
        int hops = Headers.hops(request.headers());
        if (hops >= Headers.MOST_HOPS) {
            reject(
                    request,
                    508,
                    "LoopDetectedError",
                    Headers.HOPS + " is " + hops + ": the request has passed as many routers, "
                            + Headers.MOST_HOPS
                            + " at most may stand one behind the other; an instance of one of them is a router that"
                            + " leads back to it");
            return false;
        }
        int max = config.limits().maxInFlight();
        if (inFlight.running().incrementAndGet() <= max) {
            return true;
        }
        inFlight.running().decrementAndGet();
        metrics.count(RouterMetric.REQUESTS, Outcome.UNAVAILABLE);
        request.response().putHeader("Retry-After", "1");
        send(request, ApiError.upstream(503, "overloaded: " + max + " requests are in flight, the most allowed"));
        return false;
    }

    private void health(UpstreamClient upstream, HttpServerRequest request, ClientPass pass) {
        ObjectNode answer = MAPPER.createObjectNode();
        ArrayNode missing = MAPPER.createArrayNode();
        ObjectNode down = MAPPER.createObjectNode();
        for (InstanceSet set : routing.instances().sets()) {
            if (set.all().stream()
                    .noneMatch(instance -> instance.isUp()
                            && !instance.isDraining()
                            && routing.flow().fits(instance, routing.instances().others(set)))) {
                missing.add(set.role().label());
            }
            set.all().forEach(instance -> instance.downReason().ifPresent(reason -> down.put(instance.url(), reason)));
        }
        answer.put("status", missing.isEmpty() ? "ok" : "unavailable");
        answer.set("missing", missing);
        answer.set("down", down);
        sendJson(request, missing.isEmpty() ? 200 : 503, answer);
    }

    private void healthcheck(UpstreamClient upstream, HttpServerRequest request, ClientPass pass) {
        sendJson(
                request,
                200,
                MAPPER.createObjectNode()
                        .put("status", "ok")
                        .put(
                                "prefill_instances",
                                routing.instances().prefills().all().size())
                        .put(
                                "decode_instances",
                                routing.instances().decodes().all().size()));
    }

    private void metrics(UpstreamClient upstream, HttpServerRequest request, ClientPass pass) {
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
    private void readJson(HttpServerRequest request, Consumer<ReceivedBody> handler) {
        String type = request.getHeader(HttpHeaders.CONTENT_TYPE);
        String encoding = request.getHeader(HttpHeaders.CONTENT_ENCODING);
        int max = config.limits().maxBodyBytes();
        if (type == null || !type.split(";", 2)[0].strip().equalsIgnoreCase("application/json")) {
            reject(
                    request,
                    415,
                    "UnsupportedMediaTypeError",
                    "Content-Type is '" + (type == null ? "" : type) + "', must be application/json");
        } else if (encoding != null && !encoding.equalsIgnoreCase("identity")) {
            reject(
                    request,
                    415,
                    "UnsupportedMediaTypeError",
                    "Content-Encoding is '" + encoding + "', must be identity");
        } else if (RequestBodyReader.declaredLength(request) > max) {
            reject(request, RequestBodyReader.tooLarge(max));
        } else if (admit(request)) {
            new RequestBodyReader(vertx, config.limits(), inFlight, request, handler, error -> reject(request, error))
                    .read();
        }
    }

    private void reject(HttpServerRequest request, int status, String type, String message) {
        reject(request, ApiError.of(status, type, message));
    }

    private void reject(HttpServerRequest request, ApiError error) {
        metrics.count(RouterMetric.REQUESTS, Outcome.REJECTED);
        send(request, error);
    }

    /** Answers a request without its body: the rest of the body is read and dropped, up to the idle deadline and a size. */
    private void send(HttpServerRequest request, ApiError error) {
        request.response()
                .putHeader(Headers.REQUEST_ID, Headers.requestId(request.headers(), config.trustClientKvParams()));
        error.send(request.response());
        if (!request.isEnded()) {
            long timer = vertx.setTimer(
                    config.limits().idle().toMillis(),
                    late -> request.connection().close());
            AtomicLong dropped = new AtomicLong();
            request.handler(chunk -> {
                if (dropped.addAndGet(chunk.length())
                        > (long) MOST_DROPPED * config.limits().maxBodyBytes()) {
                    request.connection().close();
                }
            });
            request.endHandler(done -> vertx.cancelTimer(timer));
            request.exceptionHandler(gone -> vertx.cancelTimer(timer));
        }
    }
}
