package baton.router;

import baton.kv.ConfigException;
import baton.kv.Ticker;
import baton.router.flow.AutoFlow;
import baton.router.flow.HandoffFlow;
import baton.router.flow.PushFlow;
import baton.router.upstream.Discovery;
import baton.router.upstream.Instance;
import baton.router.upstream.InstanceSet;
import baton.router.upstream.Instances;
import baton.router.upstream.OwnAddress;
import baton.router.upstream.Registrations;
import baton.router.upstream.SlowStart;
import baton.trace.OtlpExporter;
import io.vertx.core.DeploymentOptions;
import io.vertx.core.Future;
import io.vertx.core.Vertx;
import io.vertx.core.VertxOptions;
import io.vertx.core.file.FileSystemOptions;
import java.io.IOException;
import java.net.SocketException;
import java.net.URI;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A running router: an HTTP server that sends each completion's prompt to a prefill instance and then streams the answer of a
 * decode instance. Clients and instances speak OpenAI's API, so the instances may be Baton's or vLLM's.
 */
public final class Router implements AutoCloseable {
    private static final Logger log = LoggerFactory.getLogger(Router.class);

    /** Threads that read and build large bodies; each may hold several copies of one. */
    private static final int MAX_WORKERS = 4;

    private final Vertx vertx;
    private final RouterContext context;
    private final List<RouterVerticle> verticles;
    private final Optional<Registrations> registrations;
    private final Optional<Discovery> discovery;
    private final List<FollowedFiles> followed;
    private final int port;

    private Router(
            Vertx vertx,
            RouterContext context,
            List<RouterVerticle> verticles,
            Optional<Registrations> registrations,
            Optional<Discovery> discovery,
            List<FollowedFiles> followed,
            int port) {
        this.vertx = vertx;
        this.context = context;
        this.verticles = verticles;
        this.registrations = registrations;
        this.discovery = discovery;
        this.followed = followed;
        this.port = port;
    }

    /**
     * Sends requests through a router with that flow in this process, so that the first request to the router started next takes no
     * longer than later ones. Failures are logged.
     *
     * @throws ConfigException if there is no such flow
     */
    public static void warmUp(String flow, Duration atMost) {
        warmUp(flow, RouterWarmUp.REQUESTS, 1, atMost);
    }

    /**
     * As {@link #warmUp(String, Duration)}.
     *
     * @param requests the most to send
     * @param clients that send them, each one after the other
     */
    public static void warmUp(String flow, int requests, int clients, Duration atMost) {
        // Stand-ins have no connectors by which a flow could be chosen.
        HandoffFlow handoffs = HandoffFlow.named(flow.equals(AutoFlow.NAME) ? PushFlow.NAME : flow);
        Ticker ticker = Ticker.system();
        long start = ticker.nanos();
        Vertx vertx = vertx(Runtime.getRuntime().availableProcessors());
        try {
            int answered = new RouterWarmUp(vertx, handoffs, ticker).run(requests, clients, atMost);
            log.info(
                    "warmed up in {} ms: {} requests to stand-ins for instances",
                    TimeUnit.NANOSECONDS.toMillis(ticker.nanos() - start),
                    answered);
        } catch (IOException | ExecutionException | TimeoutException e) {
            log.warn("not warmed up: {}", e.toString());
        } finally {
            try {
                await(vertx.close(), Duration.ofSeconds(10));
            } catch (ExecutionException | TimeoutException e) {
                log.warn("the event loops of the warm-up did not close: {}", e.toString());
            }
        }
    }

    private static Vertx vertx(int loops) {
        return Vertx.vertx(new VertxOptions()
                .setEventLoopPoolSize(loops)
                .setWorkerPoolSize(Math.clamp(loops / 2, 1, MAX_WORKERS))
                .setInternalBlockingPoolSize(2)
                .setFileSystemOptions(
                        new FileSystemOptions().setFileCachingEnabled(false).setClassPathResolvingEnabled(false)));
    }

    /**
     * Probes every instance once, asks for the connector addresses that the flow needs, then listens. Instances that are not
     * reachable yet are used as soon as they are healthy.
     *
     * @throws ConfigException if the address cannot be listened on
     */
    public static Router start(RouterConfig config) {
        return start(config, Optional.empty());
    }

    /**
     * As {@link #start(RouterConfig)}.
     *
     * @param spans takes the spans of requests; closed with the router
     */
    public static Router start(RouterConfig config, Optional<OtlpExporter> spans) {
        return start(config, spans, Ticker.system());
    }

    static Router start(RouterConfig config, Optional<OtlpExporter> spans, Ticker ticker) {
        requireNotOwn(config, OwnAddress.of(config.host(), config.port()));
        Optional<KeysFile> keys = config.security().clientKeys().map(file -> KeysFile.read(file, ticker));
        int loops = Runtime.getRuntime().availableProcessors();
        Vertx vertx = vertx(loops);
        RouterTls tls;
        try {
            tls = RouterTls.read(vertx, config.security());
        } catch (ConfigException e) {
            close(vertx.close());
            spans.ifPresent(OtlpExporter::close);
            throw e;
        }
        int maxRunning = config.limits().maxPerInstance();
        SlowStart slowStart = new SlowStart(config.policy().slowStart(), ticker);
        Instances instances = new Instances(
                new InstanceSet(Instance.Role.PREFILL, config.prefill(), maxRunning, slowStart),
                new InstanceSet(Instance.Role.DECODE, config.decode(), maxRunning, slowStart));
        RouterContext context = RouterContext.create(
                vertx, config, instances, ticker, new RouterContext.Guards(keys.map(KeysFile::gate), tls), spans, true);
        List<RouterVerticle> verticles = new CopyOnWriteArrayList<>();
        try {
            await(
                    context.routing().probe().start(instances),
                    config.limits().connect().plusSeconds(5));
            await(
                    vertx.deployVerticle(
                            () -> {
                                RouterVerticle verticle = new RouterVerticle(context);
                                verticles.add(verticle);
                                return verticle;
                            },
                            new DeploymentOptions().setInstances(loops)),
                    Duration.ofSeconds(30));
        } catch (ExecutionException | TimeoutException e) {
            close(vertx, context);
            String why = e.getCause() instanceof SocketException known ? known.getMessage() : e.toString();
            throw new ConfigException(
                    "port", "cannot listen on " + config.host() + ":" + config.port() + ": " + why, e);
        }
        int port = verticles.getFirst().port();
        Optional<Registrations> registrations;
        try {
            OwnAddress own = OwnAddress.of(config.host(), port);
            requireNotOwn(config, own);
            context.membership().listeningAt(own);
            registrations = config.registry()
                    .map(registry -> new Registrations(
                            vertx,
                            registry,
                            own,
                            instances,
                            context.routing().probe(),
                            context.reporting().metrics(),
                            ticker));
        } catch (ConfigException e) {
            close(vertx, context);
            throw e;
        }
        Discovery.Settings sources = config.sources().discovery();
        Optional<Discovery> discovery = sources.isEmpty()
                ? Optional.empty()
                : Optional.of(new Discovery(vertx, sources, context.membership(), ticker));
        List<FollowedFiles> followed = new ArrayList<>(tls.follow(
                vertx,
                new RouterTls.Users(
                        options -> Future.all(verticles.stream()
                                .map(each -> each.update(options))
                                .toList()),
                        options -> {
                            List<Future<?>> updates = new ArrayList<>(verticles.stream()
                                    .map(each -> each.update(options))
                                    .toList());
                            updates.add(context.routing().probe().update(options));
                            updates.add(context.roles().control().update(options));
                            context.routing()
                                    .tokens()
                                    .ifPresent(
                                            tokens -> updates.add(tokens.feeds().update(options)));
                            return Future.all(updates);
                        }),
                context.reporting().metrics(),
                ticker));
        keys.ifPresent(
                file -> followed.add(file.follow(vertx, context.reporting().metrics(), ticker)));
        context.roles().controller().ifPresent(controller -> controller.start(vertx));
        context.roles()
                .balance()
                .ifPresent(
                        balance -> balance.start(config.limits().probeInterval().toMillis()));
        Router router = new Router(vertx, context, verticles, registrations, discovery, followed, port);
        log.info(
                "listening on {}://{}:{}, flow {}, prefill {}, decode {}",
                config.security().scheme(),
                config.host(),
                router.port,
                context.routing().flow().name(),
                config.prefill(),
                config.decode());
        registrations.ifPresent(open -> log.info(
                "instances register at tcp://{}:{}",
                config.registry().orElseThrow().host(),
                open.port()));
        return router;
    }

    /** @throws ConfigException if an instance is the router itself */
    private static void requireNotOwn(RouterConfig config, OwnAddress own) {
        for (Instance.Role role : Instance.Role.values()) {
            List<URI> addresses = role == Instance.Role.PREFILL ? config.prefill() : config.decode();
            for (URI address : addresses) {
                int port = new Instance(role, address).port();
                if (own.isAt(address.getHost(), port)) {
                    throw new ConfigException(
                            role.label(),
                            "'" + address + "' is this router's own address, port " + port
                                    + " of this machine: requests would go round in a circle");
                }
            }
        }
    }

    /** The port listened on. */
    public int port() {
        return port;
    }

    /** The port at which instances register; empty if registration is off. */
    public OptionalInt registerPort() {
        return registrations.map(open -> OptionalInt.of(open.port())).orElseGet(OptionalInt::empty);
    }

    /** Stops accepting, waits for running requests up to the drain deadline, then ends the rest. */
    @Override
    public void close() {
        try {
            Future<Void> drained = Future.join(
                            verticles.stream().map(RouterVerticle::drain).toList())
                    .mapEmpty();
            await(drained, context.config().limits().drain().plusSeconds(5));
        } catch (ExecutionException | TimeoutException e) {
            log.warn("requests did not drain: {}", e.toString());
        }
        registrations.ifPresent(Registrations::close);
        discovery.ifPresent(Discovery::close);
        followed.forEach(FollowedFiles::close);
        close(vertx, context);
    }

    private static void close(Vertx vertx, RouterContext context) {
        context.routing().tokens().ifPresent(tokens -> tokens.feeds().close());
        close(context.routing().probe().stop().eventually(vertx::close));
        // After the last requests, which the loops' end ends.
        context.reporting().spans().ifPresent(OtlpExporter::close);
        context.reporting().metrics().close();
    }

    private static void close(Future<Void> closed) {
        try {
            await(closed, Duration.ofSeconds(10));
        } catch (ExecutionException | TimeoutException e) {
            log.warn("the event loops did not close: {}", e.toString());
        }
    }

    static void await(Future<?> future, Duration deadline) throws ExecutionException, TimeoutException {
        try {
            future.toCompletionStage().toCompletableFuture().get(deadline.toNanos(), TimeUnit.NANOSECONDS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new TimeoutException("interrupted");
        }
    }
}
