package baton.router;

import baton.kv.ConfigException;
import io.vertx.core.DeploymentOptions;
import io.vertx.core.Future;
import io.vertx.core.Vertx;
import io.vertx.core.VertxOptions;
import io.vertx.core.file.FileSystemOptions;
import java.io.IOException;
import java.net.SocketException;
import java.net.URI;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A running router: an HTTP server that sends each completion's prompt to a prefill instance and then streams the answer of a
 * decode instance. It speaks OpenAI's API to both sides, so the instances may be Baton's or vLLM's.
 */
public final class Router implements AutoCloseable {
    private static final Logger log = LoggerFactory.getLogger(Router.class);

    private final RouterConfig config;
    private final Vertx vertx;
    private final HealthProbe probe;
    private final RouterMetrics metrics;
    private final List<RouterVerticle> verticles;
    private final Optional<Registrations> registrations;
    private final int port;

    private Router(
            RouterConfig config,
            Vertx vertx,
            HealthProbe probe,
            RouterMetrics metrics,
            List<RouterVerticle> verticles,
            Optional<Registrations> registrations,
            int port) {
        this.config = config;
        this.vertx = vertx;
        this.probe = probe;
        this.metrics = metrics;
        this.verticles = verticles;
        this.registrations = registrations;
        this.port = port;
    }

    /**
     * Runs requests through a router of that flow in this process, so that the first request of the one that is started next takes no
     * longer than later ones. Failures are logged.
     *
     * @throws ConfigException if there is no such flow
     */
    public static void warmUp(String flow, Duration atMost) {
        HandoffFlow handoffs = HandoffFlow.named(flow);
        long start = System.nanoTime();
        Vertx vertx = vertx(Runtime.getRuntime().availableProcessors());
        try {
            int answered = new WarmUp(vertx, handoffs).run(atMost);
            log.info(
                    "warmed up in {} ms: {} requests to stand-ins for instances",
                    (System.nanoTime() - start) / 1_000_000,
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
                .setWorkerPoolSize(1)
                .setInternalBlockingPoolSize(2)
                .setFileSystemOptions(
                        new FileSystemOptions().setFileCachingEnabled(false).setClassPathResolvingEnabled(false)));
    }

    /**
     * Probes every instance once, and asks it what the flow needs to know, then listens. Instances that are not there yet are
     * used as soon as they are healthy.
     *
     * @throws ConfigException if the address cannot be listened on
     */
    public static Router start(RouterConfig config) {
        requireOthers(config, OwnAddress.of(config.host(), config.port()));
        int loops = Runtime.getRuntime().availableProcessors();
        Vertx vertx = vertx(loops);
        InstanceSet prefills = new InstanceSet(
                Instance.Role.PREFILL, config.prefill(), config.limits().maxPerInstance());
        InstanceSet decodes = new InstanceSet(
                Instance.Role.DECODE, config.decode(), config.limits().maxPerInstance());
        AtomicInteger running = new AtomicInteger();
        BodyMemory bodies = new BodyMemory(config.limits());
        RouterMetrics metrics = new RouterMetrics(prefills, decodes, running);
        HandoffFlow flow = HandoffFlow.named(config.flow());
        HealthProbe probe = new HealthProbe(vertx, config, flow, metrics);
        List<RouterVerticle> verticles = new CopyOnWriteArrayList<>();
        try {
            await(probe.start(prefills, decodes), config.limits().connect().plusSeconds(5));
            await(
                    vertx.deployVerticle(
                            () -> {
                                RouterVerticle verticle = new RouterVerticle(
                                        config, flow, prefills, decodes, probe, metrics, running, bodies, true);
                                verticles.add(verticle);
                                return verticle;
                            },
                            new DeploymentOptions().setInstances(loops)),
                    Duration.ofSeconds(30));
        } catch (ExecutionException | TimeoutException e) {
            close(vertx, probe, metrics);
            String why = e.getCause() instanceof SocketException known ? known.getMessage() : e.toString();
            throw new ConfigException(
                    "port", "cannot listen on " + config.host() + ":" + config.port() + ": " + why, e);
        }
        int port = verticles.getFirst().port();
        Optional<Registrations> registrations;
        try {
            OwnAddress own = OwnAddress.of(config.host(), port);
            requireOthers(config, own);
            registrations = config.registry()
                    .map(registry -> new Registrations(vertx, registry, own, prefills, decodes, probe, metrics));
        } catch (ConfigException e) {
            close(vertx, probe, metrics);
            throw e;
        }
        Router router = new Router(config, vertx, probe, metrics, verticles, registrations, port);
        log.info(
                "listening on http://{}:{}, flow {}, prefill {}, decode {}",
                config.host(),
                router.port,
                flow.name(),
                config.prefill(),
                config.decode());
        registrations.ifPresent(open -> log.info(
                "instances register at tcp://{}:{}",
                config.registry().orElseThrow().host(),
                open.port()));
        return router;
    }

    /** @throws ConfigException if an instance is the router itself */
    private static void requireOthers(RouterConfig config, OwnAddress own) {
        for (Instance.Role role : Instance.Role.values()) {
            List<URI> addresses = role == Instance.Role.PREFILL ? config.prefill() : config.decode();
            for (URI address : addresses) {
                int port = address.getPort() < 0 ? 80 : address.getPort();
                if (own.isAt(address.getHost(), port)) {
                    throw new ConfigException(
                            role.label,
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

    /** The port at which instances register, if they may. */
    public OptionalInt registerPort() {
        return registrations.map(open -> OptionalInt.of(open.port())).orElseGet(OptionalInt::empty);
    }

    /** Stops accepting, waits for running requests up to the drain deadline, then ends what is left. */
    @Override
    public void close() {
        try {
            Future<Void> drained = Future.join(
                            verticles.stream().map(RouterVerticle::drain).toList())
                    .mapEmpty();
            await(drained, config.limits().drain().plusSeconds(5));
        } catch (ExecutionException | TimeoutException e) {
            log.warn("requests did not drain: {}", e.toString());
        }
        registrations.ifPresent(Registrations::close);
        close(vertx, probe, metrics);
    }

    private static void close(Vertx vertx, HealthProbe probe, RouterMetrics metrics) {
        try {
            await(probe.stop().eventually(vertx::close), Duration.ofSeconds(10));
        } catch (ExecutionException | TimeoutException e) {
            log.warn("the event loops did not close: {}", e.toString());
        }
        metrics.close();
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
