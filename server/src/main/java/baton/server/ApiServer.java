package baton.server;

import baton.engine.Engine;
import baton.engine.EngineStatus;
import baton.engine.EngineUnavailableException;
import baton.kv.ConfigException;
import baton.kv.Deadline;
import baton.kv.JsonFields;
import baton.kv.Ticker;
import baton.kv.WebGuard;
import io.vertx.core.Context;
import io.vertx.core.Future;
import io.vertx.core.Handler;
import io.vertx.core.Promise;
import io.vertx.core.Vertx;
import io.vertx.core.VertxOptions;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.file.FileSystemOptions;
import io.vertx.core.http.HttpConnection;
import io.vertx.core.http.HttpMethod;
import io.vertx.core.http.HttpServer;
import io.vertx.core.http.HttpServerOptions;
import io.vertx.core.http.HttpServerRequest;
import java.net.SocketException;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Duration;
import java.time.InstantSource;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The OpenAI HTTP API of one instance, and the gRPC services of vLLM, as vLLM serves them.
 *
 * <h2>Threads</h2>
 *
 * One event loop owns all connections and the state of all requests and never blocks. A small pool parses bodies, renders
 * templates and tokenizes prompts. The engine's events come from its own thread and are queued to the event loop. The owner closes
 * the server first, then the engine.
 *
 * <h2>Request ids</h2>
 *
 * {@code X-Request-Id}, else the body's {@code request_id}, else a random one, is the base of the ids that responses show
 * ({@code cmpl-<id>}, {@code chatcmpl-<id>}), and is echoed in {@code X-Request-Id}. An id that is longer than 256
 * characters or has others than {@code A-Z a-z 0-9 . _ : - / [ ] @ + = ~} is refused: ids appear in logs and, with some
 * connectors, carry addresses, so they are not replaced silently. The engine's ids are the responses' with the
 * prompt's number (completions) and eight random hexadecimal digits added, as vLLM's are.
 */
public final class ApiServer implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(ApiServer.class);
    private static final Pattern REQUEST_ID = Pattern.compile("[A-Za-z0-9._:/\\[\\]@+=~-]{1,256}");

    /** Paths besides {@code /v1/} that need the API key: they compute, or name the address of KV caches or events. Probes of health, metrics and version have no key. */
    private static final Set<String> NEED_KEY =
            Set.of("/tokenize", "/detokenize", "/reset_prefix_cache", "/kv_transfer_params", "/kv_event_sources");

    private static final Duration START_DEADLINE = Duration.ofSeconds(30);
    private static final Duration CLOSE_DEADLINE = Duration.ofSeconds(10);

    /** How long aborted requests may take to end. */
    private static final Duration ABORT_GRACE = Duration.ofSeconds(1);

    private static final Duration DRAIN_POLL = Duration.ofMillis(20);

    private final ServerConfig config;
    private final WebGuard webGuard;
    private final Engine engine;
    private final Ticker ticker;
    private final InstantSource clock = InstantSource.system();
    private final InstanceInfo info;
    private final JsonBody bodies;
    private final RequestReader reader;
    private final ReplyWriter writer;
    private final Vertx vertx;
    private final Context context;
    private final Preparers preparers;
    private final HttpServer http;
    private final Optional<HttpServer> grpc;
    private final GrpcServices grpcServices;
    private final Set<ResponseStream> live = new HashSet<>();
    private final RequestHistory history;
    private final PdRole role;
    private final HotPrefixes hot;
    /** Timers of connections without a request in progress. */
    private final Map<HttpConnection, Long> idleTimers = new HashMap<>();

    /** Requests in progress of each connection that has one. */
    private final Map<HttpConnection, Integer> inProgress = new HashMap<>();

    private final Map<String, Map<HttpMethod, Consumer<HttpExchange>>> routes;
    private volatile boolean stopping;
    /** While present, only the warm-up's requests are served. */
    private volatile Optional<WarmUp> warmUp;

    /** Makes fields of a body. */
    private interface Parsing {
        JsonFields parse(Buffer body, Preparation preparation);
    }

    /** Reads the fields of a body. */
    private interface Reading {
        ApiRequest read(RequestReader reader, JsonFields fields, Preparation preparation);
    }

    /** Makes an answer that may be long, beside the event loop. */
    private interface Listing {
        Buffer answer(JsonFields fields, Preparation preparation);
    }

    private ApiServer(ServerConfig config, Engine engine, PrometheusMetrics metrics, Ticker ticker) {
        this.ticker = ticker;
        this.config = config;
        this.webGuard = config.webGuard();
        this.engine = engine;
        bodies = new JsonBody(config);
        reader = new RequestReader(config, engine);
        writer = new ReplyWriter(engine.tokenizer());
        info = new InstanceInfo(config, engine, metrics, writer, clock);
        hot = new HotPrefixes(config.apiKey().isPresent());
        routes = routes();
        history = new RequestHistory(config.spans(), live);
        role = new PdRole(engine.config().kvTransfer(), clock);
        warmUp = config.warmUp().map(budget -> new WarmUp(config, engine, budget, ticker));
        vertx = Vertx.vertx(new VertxOptions()
                .setEventLoopPoolSize(1)
                .setFileSystemOptions(
                        new FileSystemOptions().setFileCachingEnabled(false).setClassPathResolvingEnabled(false)));
        context = vertx.getOrCreateContext();
        preparers = new Preparers(config, vertx, context);
        http = listener(ListenOptions.of(config, vertx), this::handle);
        grpcServices = new GrpcServices(config, engine, vertx, preparers, live, this::requireHealthy, this::infer);
        grpc = config.grpcPort().isPresent()
                ? Optional.of(
                        listener(ListenOptions.grpc(config, config.grpcPort().getAsInt(), vertx), this::handleCall))
                : Optional.empty();
    }

    private Map<String, Map<HttpMethod, Consumer<HttpExchange>>> routes() {
        return Map.ofEntries(
                Map.entry(
                        "/v1/completions",
                        Map.of(
                                HttpMethod.POST,
                                exchange -> generate(exchange, ApiRequest.Api.COMPLETION, RequestReader::completion))),
                Map.entry(
                        "/v1/chat/completions",
                        Map.of(
                                HttpMethod.POST,
                                exchange -> generate(exchange, ApiRequest.Api.CHAT, RequestReader::chat))),
                Map.entry(
                        "/v1/responses",
                        Map.of(
                                HttpMethod.POST,
                                exchange -> generate(exchange, ApiRequest.Api.RESPONSES, RequestReader::responses))),
                Map.entry(
                        "/v1/completions/render",
                        Map.of(HttpMethod.POST, exchange -> render(exchange, RequestReader::completion))),
                Map.entry(
                        "/v1/chat/completions/render",
                        Map.of(HttpMethod.POST, exchange -> render(exchange, RequestReader::chat))),
                Map.entry(InstanceInfo.MODELS, Map.of(HttpMethod.GET, info::models)),
                Map.entry("/health", Map.of(HttpMethod.GET, this::health)),
                Map.entry("/ping", Map.of(HttpMethod.GET, this::health, HttpMethod.POST, this::health)),
                Map.entry("/load", Map.of(HttpMethod.GET, this::load)),
                Map.entry("/metrics", Map.of(HttpMethod.GET, info::metrics)),
                Map.entry("/kv_transfer_params", Map.of(HttpMethod.GET, info::kvTransferParams)),
                Map.entry("/kv_event_sources", Map.of(HttpMethod.GET, info::kvEventSources)),
                Map.entry("/version", Map.of(HttpMethod.GET, info::version)),
                Map.entry("/is_sleeping", Map.of(HttpMethod.GET, info::isSleeping)),
                Map.entry(
                        PdRole.PATH,
                        Map.of(
                                HttpMethod.GET,
                                exchange -> exchange.json(200, role.answer(writer.json(), live)),
                                HttpMethod.POST,
                                exchange -> list(exchange, (fields, _) -> role.change(fields)))),
                Map.entry(HotPrefixes.PATH, Map.of(HttpMethod.GET, hot::answer)),
                Map.entry("/tokenize", Map.of(HttpMethod.POST, this::tokenize)),
                Map.entry("/detokenize", Map.of(HttpMethod.POST, this::detokenize)),
                Map.entry("/reset_prefix_cache", Map.of(HttpMethod.POST, this::resetPrefixCache)));
    }

    private HttpServer listener(HttpServerOptions options, Handler<HttpServerRequest> handler) {
        return vertx.createHttpServer(options)
                .requestHandler(handler)
                .connectionHandler(this::connected)
                .exceptionHandler(failure -> LOG.debug("connection failed: {}", failure.toString()));
    }

    /**
     * Listens, and serves until closed. If a warm-up is configured, requests and {@code /health} are answered with 503
     * until {@link #warmUp} is done.
     *
     * @throws ConfigException if the address cannot be listened on
     */
    public static ApiServer start(ServerConfig config, Engine engine, PrometheusMetrics metrics) {
        return start(config, engine, metrics, Ticker.system());
    }

    static ApiServer start(ServerConfig config, Engine engine, PrometheusMetrics metrics, Ticker ticker) {
        ApiServer server = new ApiServer(config, engine, metrics, ticker);
        try {
            server.listen(server.http, "port", config.port());
            server.grpc.ifPresent(listener ->
                    server.listen(listener, "grpc_port", config.grpcPort().orElseThrow()));
        } catch (ConfigException e) {
            server.close(Duration.ZERO);
            throw e;
        }
        LOG.info("serving {} on {}", config.servedModelNames().getFirst(), config.url(server.port()));
        server.grpcPort().ifPresent(port -> LOG.info("serving gRPC on {}:{}", config.host(), port));
        return server;
    }

    private void listen(HttpServer listener, String field, int port) {
        try {
            await(listener.listen(), START_DEADLINE);
        } catch (ExecutionException | TimeoutException e) {
            String why = e.getCause() instanceof SocketException known ? known.getMessage() : e.toString();
            throw new ConfigException(field, "cannot listen on " + config.host() + ":" + port + ": " + why, e);
        }
    }

    /**
     * Computes a few prompts, if configured, and is ready then. Errors are logged.
     *
     * @throws EngineUnavailableException if the engine cannot compute anything
     */
    public void warmUp() {
        warmUp.ifPresent(this::warmUp);
        warmUp = Optional.empty();
    }

    /** With TLS at a port of its own, which is closed after it: no certificate needs to be trusted or presented. */
    private void warmUp(WarmUp requests) {
        Optional<HttpServer> local = config.tls().map(_ -> listener(ListenOptions.local(), this::handle));
        try {
            await(local.map(HttpServer::listen).orElseGet(() -> Future.succeededFuture(http)), START_DEADLINE);
            requests.run(local.orElse(http).actualPort(), this::settle);
        } catch (ExecutionException | TimeoutException e) {
            LOG.warn("the port of the warm-up: {}", e.toString());
        } finally {
            local.ifPresent(this::closeLocal);
        }
    }

    /** A port without TLS must not be open once the server is ready. */
    private void closeLocal(HttpServer local) {
        try {
            await(local.close(), CLOSE_DEADLINE);
        } catch (ExecutionException | TimeoutException e) {
            throw new EngineUnavailableException("the port of the warm-up, which is without TLS, does not close: " + e);
        }
    }

    /** Returns when the event loop has run the tasks queued so far. */
    private void settle() {
        Promise<Void> done = Promise.promise();
        context.runOnContext(_ -> done.complete());
        try {
            await(done.future(), CLOSE_DEADLINE);
        } catch (ExecutionException | TimeoutException e) {
            LOG.warn("the event loop is busy: {}", e.toString());
        }
    }

    /** The port it listens on. */
    public int port() {
        return http.actualPort();
    }

    /** The port for gRPC; empty if there is none. */
    public OptionalInt grpcPort() {
        return grpc.map(listener -> OptionalInt.of(listener.actualPort())).orElse(OptionalInt.empty());
    }

    /**
     * Refuses new requests with 503 and {@code Retry-After}, and so {@code /health}. Waits until running requests have ended and no
     * peer needs blocks of an ended request any more; nothing is aborted. To be followed by {@link #close}.
     *
     * @return false if that took longer than {@code deadline}
     */
    public boolean drain(Duration deadline) {
        stopping = true;
        Promise<Boolean> done = Promise.promise();
        LOG.info("draining: running requests and hand-offs have {} s", deadline.toSeconds());
        context.runOnContext(_ -> awaitRest(Deadline.after(ticker, deadline), done));
        try {
            return await(done.future(), deadline.plus(CLOSE_DEADLINE));
        } catch (ExecutionException | TimeoutException e) {
            LOG.warn("draining failed: {}", e.toString());
            return false;
        }
    }

    private void awaitRest(Deadline deadline, Promise<Boolean> done) {
        EngineStatus status = engine.status();
        boolean atRest =
                live.isEmpty() && (status.isAtRest() || status.failure().isPresent());
        if (atRest) {
            done.complete(true);
        } else if (deadline.isOver()) {
            LOG.warn(
                    "drained as far as time allowed: {} requests run, blocks of {} ended ones are kept for peers{}",
                    live.size(),
                    status.awaitingRelease(),
                    status.storing() ? ", values are on their way to a store" : "");
            done.complete(false);
        } else {
            vertx.setTimer(DRAIN_POLL.toMillis(), _ -> awaitRest(deadline, done));
        }
    }

    /** Stops accepting and gives running requests ten seconds. */
    @Override
    public void close() {
        close(CLOSE_DEADLINE);
    }

    /**
     * Stops accepting; running requests may finish. Those still running after {@code deadline} are aborted: their answers end
     * with the output so far and the finish reason {@code abort}. Streams that can be continued elsewhere break off.
     */
    public void close(Duration deadline) {
        stopping = true;
        try {
            Duration patience = deadline.plus(ABORT_GRACE);
            context.runOnContext(_ -> {
                grpcServices.close();
                if (deadline.isZero()) {
                    abortAll();
                } else {
                    vertx.setTimer(Math.max(1, deadline.toMillis()), _ -> abortAll());
                }
            });
            Future<Void> calls =
                    grpc.map(listener -> listener.shutdown(patience)).orElse(Future.succeededFuture());
            await(Future.all(http.shutdown(patience), calls), patience.plus(ABORT_GRACE));
        } catch (ExecutionException | TimeoutException | RejectedExecutionException e) {
            LOG.warn("requests were cut off at shutdown: {}", e.toString());
        }
        try {
            await(vertx.close(), CLOSE_DEADLINE);
        } catch (ExecutionException | TimeoutException e) {
            LOG.warn("the HTTP server did not stop cleanly: {}", e.toString());
        }
        preparers.close();
    }

    private void abortAll() {
        if (!live.isEmpty()) {
            LOG.info("aborting {} requests at shutdown", live.size());
            List.copyOf(live).forEach(ResponseStream::breakOff);
        }
    }

    private static <T> T await(Future<T> future, Duration deadline) throws ExecutionException, TimeoutException {
        try {
            return future.toCompletionStage().toCompletableFuture().get(deadline.toMillis(), TimeUnit.MILLISECONDS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new ExecutionException(e);
        }
    }

    private void handle(HttpServerRequest request) {
        Optional<WarmUp> own = warmUp;
        boolean warmsUp = own.filter(requests -> requests.isOwn(request)).isPresent();
        // Probes before the server is ready have no line either.
        boolean logged = !warmsUp && (own.isEmpty() || !config.unloggedPaths().contains(request.path()));
        serve(new HttpExchange(request, context, writer, config, warmsUp, logged, ticker), this::route);
    }

    private void handleCall(HttpServerRequest request) {
        GrpcExchange call = new GrpcExchange(request, context, writer, config, ticker, vertx);
        serve(call, _ -> {
            if (GrpcServices.needsKey(request.path())) {
                authorize(request);
            }
            call.admitCall();
            grpcServices.call(call);
        });
    }

    private void serve(HttpExchange exchange, Consumer<HttpExchange> route) {
        busy(exchange);
        try {
            exchange.requireKnownEncoding();
            requestIdHeader(exchange.request()).ifPresent(exchange::identify);
            exchange.admit(webGuard, route);
        } catch (Exception | LinkageError e) {
            // The client gets an answer after any error.
            exchange.fail(e);
        }
    }

    /** A connection without a request in progress is closed after the idle timeout. */
    private void connected(HttpConnection connection) {
        idleTimers.put(connection, startIdleTimer(connection));
        connection.closeHandler(_ -> {
            inProgress.remove(connection);
            Optional.ofNullable(idleTimers.remove(connection)).ifPresent(vertx::cancelTimer);
        });
    }

    private void busy(HttpExchange exchange) {
        HttpConnection connection = exchange.request().connection();
        Optional.ofNullable(idleTimers.remove(connection)).ifPresent(vertx::cancelTimer);
        inProgress.merge(connection, 1, Integer::sum);
        exchange.whenOver(() -> {
            Integer left = inProgress.computeIfPresent(connection, (_, count) -> count - 1);
            if (left != null && left == 0) {
                inProgress.remove(connection);
                idleTimers.computeIfAbsent(connection, this::startIdleTimer);
            }
        });
    }

    private long startIdleTimer(HttpConnection connection) {
        return vertx.setTimer(config.idleTimeout().toMillis(), _ -> {
            idleTimers.remove(connection);
            LOG.debug("{}: closed, it was idle for {}", connection.remoteAddress(), config.idleTimeout());
            HttpExchange.closeIdle(connection);
        });
    }

    private void route(HttpExchange exchange) {
        HttpServerRequest request = exchange.request();
        String path = request.path();
        Map<HttpMethod, Consumer<HttpExchange>> methods = routes.get(path);
        if (methods == null && path.startsWith(InstanceInfo.MODELS + "/")) {
            methods = Map.of(HttpMethod.GET, info::model);
        }
        if (methods == null && RequestHistory.serves(path)) {
            methods = Map.of(HttpMethod.GET, history::explain);
        }
        if (path.startsWith("/v1/") || NEED_KEY.contains(path)) {
            authorize(request);
        }
        if (methods == null) {
            throw ApiException.notFound("no such path: " + Json.shortened(path), Optional.empty());
        }
        Consumer<HttpExchange> handler = methods.get(request.method());
        if (handler == null) {
            String allowed =
                    methods.keySet().stream().map(HttpMethod::name).sorted().collect(Collectors.joining(", "));
            exchange.response().putHeader("Allow", allowed);
            throw ApiException.methodNotAllowed(path + " does not take " + request.method() + "; it takes " + allowed);
        }
        exchange.requireJson();
        handler.accept(exchange);
    }

    private void authorize(HttpServerRequest request) {
        if (config.apiKey().isEmpty()) {
            return;
        }
        String header = Optional.ofNullable(request.getHeader("Authorization")).orElse("");
        String scheme = "Bearer ";
        String given =
                header.regionMatches(true, 0, scheme, 0, scheme.length()) ? header.substring(scheme.length()) : "";
        // In constant time, however much of the key matches.
        if (!MessageDigest.isEqual(
                given.strip().getBytes(StandardCharsets.UTF_8),
                config.apiKey().get().getBytes(StandardCharsets.UTF_8))) {
            throw ApiException.unauthorized(
                    given.isEmpty()
                            ? "no API key; send the header 'Authorization: Bearer <key>'"
                            : "the API key is not the right one");
        }
    }

    private void generate(HttpExchange exchange, ApiRequest.Api api, Reading read) {
        generate(exchange, api, (body, preparation) -> bodies.parse(body.getBytes(), preparation), read);
    }

    private void infer(GrpcExchange call, boolean stream) {
        generate(
                call,
                ApiRequest.Api.INFERENCE,
                (body, preparation) -> GrpcServices.fields(body, stream, preparation),
                RequestReader::inference);
    }

    private void generate(HttpExchange exchange, ApiRequest.Api api, Parsing parse, Reading read) {
        refuseUnlessServed(exchange);
        Optional<String> header = requestIdHeader(exchange.request());
        preparers.readBody(
                exchange,
                (body, preparation) -> preparers.prepare(
                        exchange,
                        preparation,
                        () -> {
                            JsonFields fields = parse.parse(body, preparation);
                            String id = requestId(header, fields);
                            try {
                                ApiRequest request = read.read(reader, fields, preparation);
                                ResponseStream.requireContinuable(request);
                                return Map.entry(id, request);
                            } catch (RuntimeException e) {
                                // After a 503 another instance may still be tried.
                                if (ApiException.of(e).status() != 503 || exchange.clientLeft()) {
                                    refused(api, id, RequestFields.readableKvTransferParams(fields));
                                }
                                throw e;
                            }
                        },
                        identified -> start(exchange, identified.getKey(), identified.getValue())));
    }

    /** A peer need not keep blocks for a request that is not submitted. */
    private void refused(ApiRequest.Api api, String requestId, Optional<JsonFields> kvTransferParams) {
        kvTransferParams.ifPresent(params ->
                engine.refused(ResponseStream.engineId(api, api.idPrefix() + requestId, 0, randomSuffix()), params));
    }

    private void start(HttpExchange exchange, String requestId, ApiRequest given) {
        refuseUnlessServed(exchange);
        ApiRequest request = Optional.ofNullable(exchange.request().getHeader(Continuation.PROMPT_SHARE))
                .map(share -> given.part(share, engine.config().blockSize()))
                .orElse(given);
        if (exchange.clientLeft()) {
            refused(request.api(), requestId, request.kvTransferParams());
            return;
        }
        exchange.identify(requestId);
        ResponseStream stream = new ResponseStream(
                new ReplyWriter.Head(
                        request,
                        requestId,
                        request.continuation()
                                .map(Continuation::id)
                                .orElse(request.api().idPrefix() + requestId),
                        request.continuation()
                                .map(Continuation::created)
                                .orElseGet(() -> clock.instant().getEpochSecond())),
                randomSuffix(),
                exchange,
                engine,
                writer,
                config.maxPendingBytes(),
                ended -> {
                    live.remove(ended);
                    history.add(ended);
                    role.ended(ended);
                });
        live.add(stream);
        hot.used(exchange, request);
        stream.start();
    }

    private static String randomSuffix() {
        return UUID.randomUUID().toString().substring(0, 8);
    }

    /** While the server drains, streams are moved away from it. */
    private void refuseUnlessServed(HttpExchange exchange) {
        if (!stopping || exchange.request().getHeader(Continuation.MOVE) == null) {
            refuseUnlessReady(exchange);
        }
    }

    private void refuseUnlessReady(HttpExchange exchange) {
        if (stopping) {
            throw ApiException.unavailable("the server is stopping");
        }
        Optional<WarmUp> own = warmUp;
        if (exchange.warmsUp() ? own.filter(requests -> !requests.isOver()).isEmpty() : own.isPresent()) {
            throw ApiException.unavailable("the instance is warming up");
        }
    }

    private static Optional<String> requestIdHeader(HttpServerRequest request) {
        return Optional.ofNullable(request.getHeader("X-Request-Id")).map(id -> requireId("X-Request-Id", id));
    }

    /** The header's id, else the body's, else a random one. */
    private String requestId(Optional<String> header, JsonFields fields) {
        Optional<String> own = reader.requestId(fields).map(id -> requireId("request_id", id));
        return header.or(() -> own).orElseGet(() -> UUID.randomUUID().toString().replace("-", ""));
    }

    private static String requireId(String field, String id) {
        if (!REQUEST_ID.matcher(id).matches()) {
            throw ApiException.badField(
                    field,
                    "must be 1 to 256 of A-Z a-z 0-9 . _ : - / [ ] @ + = ~, has " + id.length() + " characters: '"
                            + Json.shortened(id) + "'");
        }
        return id;
    }

    private void health(HttpExchange exchange) {
        requireHealthy(exchange);
        exchange.reply(200, "text/plain", Buffer.buffer());
    }

    private void requireHealthy(HttpExchange exchange) {
        refuseUnlessReady(exchange);
        engine.status().failure().ifPresent(failure -> {
            throw ApiException.unavailable("the engine has failed: " + failure);
        });
        engine.status().blocking().ifPresent(call -> {
            throw ApiException.unavailable("the engine waits for the KV connector: its " + call.method()
                    + " has not returned for " + Math.round(call.seconds()) + " s");
        });
    }

    /** The number of running requests. */
    private void load(HttpExchange exchange) {
        exchange.json(200, writer.json().document(out -> {
            out.writeStartObject();
            out.writeNumberProperty("server_load", live.size());
            out.writeEndObject();
        }));
    }

    /** Answers with token ids, or with the text of them, without the engine. */
    private void list(HttpExchange exchange, Listing listing) {
        preparers.readBody(
                exchange,
                (body, preparation) -> preparers.prepare(
                        exchange,
                        preparation,
                        () -> {
                            preparation.check();
                            return preparation.keep(
                                    listing.answer(bodies.parse(body.getBytes(), preparation), preparation));
                        },
                        answer -> preparers.send(exchange, preparation, answer)));
    }

    private void tokenize(HttpExchange exchange) {
        list(exchange, (fields, preparation) -> {
            TokenList list = new TokenList(
                    reader.tokenize(fields, preparation),
                    fields.bool("return_token_strs").orElse(false));
            preparation.reserve(list.bytes());
            return list.document(engine);
        });
    }

    private void detokenize(HttpExchange exchange) {
        list(exchange, (fields, preparation) -> {
            String text = reader.detokenize(fields, preparation);
            return new Json().document(out -> {
                out.writeStartObject();
                out.writeStringProperty("prompt", text);
                out.writeEndObject();
            });
        });
    }

    /** Answers with the prompts of a request as token ids, which vLLM's {@code /inference/v1/generate} and routers take. */
    private void render(HttpExchange exchange, Reading read) {
        Optional<String> header = requestIdHeader(exchange.request());
        list(exchange, (fields, preparation) -> {
            String id = requestId(header, fields);
            RenderedRequest rendered =
                    new RenderedRequest(read.read(reader, fields, preparation), id, fields, engine.maxModelLen());
            preparation.reserve(rendered.bytes());
            return rendered.document();
        });
    }

    private void resetPrefixCache(HttpExchange exchange) {
        Preparation preparation = preparers.preparation(exchange);
        Callable<Boolean> reset = () -> {
            preparation.check();
            return engine.resetPrefixCache();
        };
        preparers.prepare(exchange, preparation, reset, done -> {
            if (!done) {
                throw ApiException.conflict("the prefix cache cannot be reset while requests run; try again later");
            }
            exchange.reply(200, "text/plain", Buffer.buffer());
        });
    }

    /** Bytes held by requests that the engine does not have yet. */
    long preparingBytes() {
        return preparers.bytes();
    }
}
