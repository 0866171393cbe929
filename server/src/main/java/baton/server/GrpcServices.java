package baton.server;

import baton.engine.Engine;
import baton.engine.EngineConfig;
import baton.kv.JsonFields;
import baton.kv.KvEventsConfig;
import baton.kv.ZeroMqEndpoint;
import baton.server.grpc.GenerateMessage;
import baton.server.grpc.ProtoReader;
import baton.server.grpc.ProtoWriter;
import io.vertx.core.Vertx;
import io.vertx.core.buffer.Buffer;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.UUID;
import java.util.function.BiConsumer;
import java.util.function.Consumer;
import java.util.function.Function;

/**
 * The services of the gRPC port, as in vLLM's Rust front end: {@code vllm.Inference}, the methods of {@code vllm.Control} that describe the
 * instance and abort requests, and {@code grpc.health.v1.Health}. Confined to the event loop, except {@link #fields}.
 */
final class GrpcServices {
    private static final String HEALTH = "grpc.health.v1.Health";
    private static final String INFERENCE = "vllm.Inference";
    private static final String CONTROL = "vllm.Control";

    /** {@code ServerInfo.proto_version}: that of the messages. */
    private static final String PROTO_VERSION = "0.6.0";

    private static final int SERVING = 1;
    private static final int NOT_SERVING = 2;
    private static final int SERVICE_UNKNOWN = 3;
    private static final long WATCH_MILLIS = 500;

    /** Of a message that is read on the event loop. */
    private static final int MOST_CONTROL_BYTES = 64 << 10;

    /** An upper bound of the memory of a byte of a message that ends a number, as a node of a tree and in copies of it. */
    private static final int BYTES_PER_NUMBER = 48;

    private final ServerConfig config;
    private final Engine engine;
    private final Preparers preparers;
    private final Set<ResponseStream> live;
    private final Consumer<HttpExchange> requireHealthy;
    private final Map<String, Consumer<GrpcExchange>> calls;
    private final Map<GrpcExchange, Watch> watches = new HashMap<>();
    private final String instanceId = UUID.randomUUID().toString();

    /** @param status that was sent last */
    private record Watch(boolean isKnown, int status) {}

    /**
     * @param requireHealthy throws the instance's failure
     * @param generate answers a call of {@code vllm.Inference}, in a stream or not
     */
    GrpcServices(
            ServerConfig config,
            Engine engine,
            Vertx vertx,
            Preparers preparers,
            Set<ResponseStream> live,
            Consumer<HttpExchange> requireHealthy,
            BiConsumer<GrpcExchange, Boolean> generate) {
        this.config = config;
        this.engine = engine;
        this.preparers = preparers;
        this.live = live;
        this.requireHealthy = requireHealthy;
        calls = Map.of(
                "/" + INFERENCE + "/Generate", exchange -> generate.accept(exchange, false),
                "/" + INFERENCE + "/GenerateStream", exchange -> generate.accept(exchange, true),
                "/" + CONTROL + "/GetServerInfo", exchange -> answer(exchange, _ -> serverInfo()),
                "/" + CONTROL + "/GetModelInfo", exchange -> answer(exchange, _ -> modelInfo()),
                "/" + CONTROL + "/GetKvEventSources", exchange -> answer(exchange, _ -> kvEventSources()),
                "/" + CONTROL + "/Abort", exchange -> answer(exchange, this::abort),
                "/" + CONTROL + "/IsPaused", exchange -> answer(exchange, _ -> new ProtoWriter()),
                "/" + CONTROL + "/IsSleeping", exchange -> answer(exchange, _ -> new ProtoWriter()),
                "/" + HEALTH + "/Check", exchange -> answer(exchange, message -> check(exchange, message)),
                "/" + HEALTH + "/Watch", this::watch);
        if (config.grpcPort().isPresent()) {
            vertx.setPeriodic(WATCH_MILLIS, _ -> List.copyOf(watches.keySet()).forEach(this::tell));
        }
    }

    /** Whether calls of a path need the API key. */
    static boolean needsKey(String path) {
        return !path.startsWith("/" + HEALTH + "/");
    }

    /** @throws ApiException if there is no such method, or if the instance does not have the rank that is called */
    void call(GrpcExchange exchange) {
        String path = exchange.request().path();
        Consumer<GrpcExchange> method = Optional.ofNullable(calls.get(path))
                .orElseThrow(() -> ApiException.notImplemented(
                        Json.shortened(path.substring(1)) + " is not a method of this server"));
        Optional.ofNullable(exchange.request().getHeader("x-data-parallel-rank"))
                .filter(rank -> !rank.strip().equals("0"))
                .ifPresent(rank -> {
                    throw ApiException.badField(
                            "x-data-parallel-rank",
                            "is '" + Json.shortened(rank) + "', must be 0: this instance is one data-parallel rank");
                });
        method.accept(exchange);
    }

    /** The fields of a request to generate; any thread. */
    static JsonFields fields(Buffer body, boolean stream, Preparation preparation) {
        byte[] message = GrpcExchange.message(body);
        long numbers = 0;
        for (byte next : message) {
            numbers += next >= 0 ? 1 : 0;
        }
        preparation.reserve(BYTES_PER_NUMBER * numbers);
        return JsonFields.of("", GenerateMessage.read(message, stream));
    }

    /** Ends the calls that have no end of their own. */
    void close() {
        List.copyOf(watches.keySet()).forEach(exchange -> exchange.end(Buffer.buffer()));
        watches.clear();
    }

    private void answer(GrpcExchange exchange, Function<byte[], ProtoWriter> answer) {
        read(exchange, message -> exchange.answer(GrpcExchange.frame(answer.apply(message))));
    }

    private void read(GrpcExchange exchange, Consumer<byte[]> next) {
        preparers.readBody(exchange, (body, preparation) -> {
            preparation.release();
            try {
                if (body.length() > MOST_CONTROL_BYTES) {
                    throw ApiException.tooLarge("the message of "
                            + exchange.request().path().substring(1) + " may have " + MOST_CONTROL_BYTES
                            + " bytes, this one has " + body.length());
                }
                next.accept(GrpcExchange.message(body));
            } catch (RuntimeException e) {
                // The client gets an answer after any error.
                exchange.fail(e);
            }
        });
    }

    private ProtoWriter serverInfo() {
        EngineConfig engineConfig = engine.config();
        int tensor = engineConfig.parallel().tensorParallelSize();
        int pipeline = engineConfig.parallel().pipelineParallelSize();
        ProtoWriter parallelism = new ProtoWriter()
                .integer(1, tensor)
                .integer(2, pipeline)
                .integer(3, 1)
                .integer(4, 0)
                .integer(5, 1)
                .integer(6, (long) tensor * pipeline)
                .integer(7, 1);
        return new ProtoWriter()
                .string(1, config.version())
                .string(2, "vllm")
                .string(3, instanceId)
                .message(4, parallelism)
                .integer(5, engine.maxModelLen())
                .integer(6, engineConfig.blockSize())
                .integer(7, engine.status().totalBlocks())
                .integer(8, engineConfig.maxNumSeqs())
                .integer(9, engineConfig.maxNumBatchedTokens())
                .integer(10, 0)
                .message(11, new ProtoWriter())
                .string(12, PROTO_VERSION)
                .integer(14, engineConfig.blockSize());
    }

    private ProtoWriter modelInfo() {
        ProtoWriter info = new ProtoWriter()
                .string(1, engine.config().model().toAbsolutePath().toString())
                .string(2, config.servedModelNames().getFirst());
        config.servedModelNames().stream().skip(1).forEach(alias -> info.string(3, alias));
        info.bool(20, true).bool(21, true);
        config.reasoningParser().ifPresent(parser -> info.string(24, parser));
        config.toolCallParser().filter(parser -> !parser.equals("auto")).ifPresent(parser -> info.string(25, parser));
        return info;
    }

    private ProtoWriter kvEventSources() {
        ProtoWriter sources = new ProtoWriter();
        config.kvEventSources().forEach((rank, source) -> sources.message(1, kvEventSource(rank, source)));
        return sources;
    }

    private static ProtoWriter kvEventSource(int rank, KvEventsConfig source) {
        return new ProtoWriter()
                .string(1, source.publisher().configName())
                .string(2, source.endpoint().toString())
                .string(3, source.topic())
                .string(4, source.replayEndpoint().map(ZeroMqEndpoint::toString).orElse(""))
                .integer(5, rank)
                .string(6, "msgpack")
                .integer(7, 1)
                .integer(8, source.bufferSteps())
                .integer(9, source.hwm())
                .integer(10, source.maxQueueSize());
    }

    /** Requests that run end with their output so far; other ids are not known any more. */
    private ProtoWriter abort(byte[] message) {
        ProtoReader in = ProtoReader.of("AbortRequest", message);
        Set<String> ids = new HashSet<>();
        while (in.next()) {
            if (in.field() == 1) {
                ids.add(in.string());
            } else {
                in.skip();
            }
        }
        List.copyOf(live).stream().filter(stream -> stream.isCalledOneOf(ids)).forEach(ResponseStream::abort);
        return new ProtoWriter();
    }

    private ProtoWriter check(GrpcExchange exchange, byte[] message) {
        String service = service(message);
        if (!isKnown(service)) {
            throw ApiException.notFound("no service '" + Json.shortened(service) + "'", Optional.of("service"));
        }
        return status(status(exchange, true));
    }

    private void watch(GrpcExchange exchange) {
        read(exchange, message -> {
            watches.put(exchange, new Watch(isKnown(service(message)), 0));
            exchange.whenClientLeaves(() -> watches.remove(exchange));
            exchange.begin(true);
            tell(exchange);
        });
    }

    /** Sends the status to a call that watches it, if it is another one than before. */
    private void tell(GrpcExchange exchange) {
        watches.computeIfPresent(exchange, (_, watch) -> {
            int status = status(exchange, watch.isKnown);
            if (status != watch.status) {
                exchange.response().write(GrpcExchange.frame(status(status)));
            }
            return new Watch(watch.isKnown, status);
        });
    }

    private static String service(byte[] message) {
        ProtoReader in = ProtoReader.of("HealthCheckRequest", message);
        String service = "";
        while (in.next()) {
            if (in.field() == 1) {
                service = in.string();
            } else {
                in.skip();
            }
        }
        return service;
    }

    private static boolean isKnown(String service) {
        return Set.of("", INFERENCE, CONTROL).contains(service);
    }

    private int status(GrpcExchange exchange, boolean known) {
        if (!known) {
            return SERVICE_UNKNOWN;
        }
        try {
            requireHealthy.accept(exchange);
            return SERVING;
        } catch (ApiException _) {
            return NOT_SERVING;
        }
    }

    private static ProtoWriter status(int status) {
        return new ProtoWriter().integer(1, status);
    }
}
