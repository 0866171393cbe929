package baton.bench;

import baton.bench.RouterReport.Case;
import baton.bench.RouterReport.Load;
import baton.bench.RouterReport.Streams;
import baton.cluster.JavaCommand;
import baton.cluster.ServerProcess;
import baton.kv.ConfigException;
import io.vertx.core.Context;
import io.vertx.core.Future;
import io.vertx.core.Vertx;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpClient;
import io.vertx.core.http.HttpClientOptions;
import io.vertx.core.http.HttpMethod;
import io.vertx.core.http.PoolOptions;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;

/**
 * Measures what {@code baton route} costs, in a process of its own in front of instances that compute nothing, and in the same run, in
 * turns: the client asking the prefill and the decode instance itself, and, where there is an {@code nginx}, nginx as a plain reverse
 * proxy of the decode instance, which is one leg and not two.
 *
 * @param requests of each round
 * @param events of each answer
 * @param rounds of each case that count, after two that do not
 * @param streams answered at once in the last part
 * @param memoryRequests that the router's memory is watched over
 * @param progress receives a line for each step
 */
public record RouterBench(
        int requests, int events, int rounds, int streams, int memoryRequests, Consumer<String> progress) {
    static final String DIRECT = "direct";
    static final String ROUTER = "router";
    static final String NGINX = "nginx";

    private static final Duration DEADLINE = Duration.ofMinutes(2);
    private static final String HOST = "127.0.0.1";
    private static final int IN_FLIGHT = 16;
    private static final int WARM_UPS = 2;
    private static final int STREAM_EVENTS = 20;
    private static final long STREAM_MILLIS = 100;
    private static final long AT_ONCE = 0;

    /** @throws ConfigException if a number is not positive */
    public RouterBench {
        positive("requests", requests);
        positive("events", events);
        positive("rounds", rounds);
        positive("streams", streams);
        positive("memory-requests", memoryRequests);
    }

    private static void positive(String field, int value) {
        if (value <= 0) {
            throw new ConfigException(field, "is " + value + ", must be positive");
        }
    }

    /** Sends one request and checks its answer. */
    private interface Target {
        Future<Void> ask(String name, int events, long millisBetween);
    }

    /**
     * @param baton runs Baton, for the router's process
     * @throws IOException if a process does not start or ends, or an answer does not come
     */
    public RouterReport run(JavaCommand baton) throws IOException {
        Vertx vertx = Vertx.vertx();
        Path log = Files.createTempFile("baton-route", ".log");
        Optional<ServerProcess> started = Optional.empty();
        Optional<NginxProxy> proxy = Optional.empty();
        try (StubInstances instances = StubInstances.start(vertx)) {
            ServerProcess router = ServerProcess.start(
                    "route",
                    baton,
                    List.of(
                            "route",
                            "--port",
                            "0",
                            "--prefill",
                            instances.prefillUrl(),
                            "--decode",
                            instances.decodeUrl()),
                    log);
            started = Optional.of(router);
            int port = router.awaitReady(DEADLINE).getPort();
            Optional<Path> nginx = NginxProxy.find(System.getenv().getOrDefault("PATH", ""));
            if (nginx.isPresent()) {
                proxy = Optional.of(NginxProxy.start(nginx.get(), instances.decodePort(), DEADLINE));
            }
            HttpClient client = vertx.createHttpClient(
                    new HttpClientOptions().setDefaultHost(HOST).setKeepAliveTimeout(300),
                    new PoolOptions().setHttp1MaxSize(streams + IN_FLIGHT).setMaxWaitQueueSize(-1));
            Target direct = (name, count, millis) -> post(client, instances.prefillPort(), name, 1, 0)
                    .compose(_ -> answer(client, instances.decodePort(), name, count, millis));
            Map<String, Target> targets = new LinkedHashMap<>();
            targets.put(DIRECT, direct);
            targets.put(ROUTER, (name, count, millis) -> answer(client, port, name, count, millis));
            proxy.ifPresent(each ->
                    targets.put(NGINX, (name, count, millis) -> answer(client, each.port(), name, count, millis)));
            long pid = router.process().pid();
            return measure(vertx, targets, pid, proxy);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IOException("interrupted", e);
        } finally {
            started.ifPresent(each -> {
                each.process().askToStop();
                each.process().awaitEnd(Duration.ofSeconds(10));
            });
            proxy.ifPresent(NginxProxy::close);
            Files.deleteIfExists(log);
        }
    }

    private RouterReport measure(Vertx vertx, Map<String, Target> targets, long router, Optional<NginxProxy> nginx)
            throws IOException, InterruptedException {
        Map<String, List<Load>> closed = new LinkedHashMap<>();
        for (int round = -WARM_UPS; round < rounds; round++) {
            progress.accept(round < 0 ? "warm-up" : "rate, round " + (round + 1) + " of " + rounds);
            for (Map.Entry<String, Target> each : targets.entrySet()) {
                OptionalLong before = cpu(each.getKey(), router, nginx);
                Load load = closed(vertx, each.getValue());
                OptionalLong after = cpu(each.getKey(), router, nginx);
                if (round >= 0) {
                    Load counted = before.isPresent() && after.isPresent()
                            ? load.withCpu((after.getAsLong() - before.getAsLong()) * 1e-6 / requests)
                            : load;
                    closed.computeIfAbsent(each.getKey(), _ -> new ArrayList<>())
                            .add(counted);
                }
            }
        }
        double half = RouterReport.medianRate(closed.getOrDefault(ROUTER, List.of())) / 2;
        Map<String, List<Load>> open = new LinkedHashMap<>();
        for (int round = -WARM_UPS; round < rounds; round++) {
            progress.accept(
                    round < 0
                            ? "warm-up at %.0f requests/s".formatted(half)
                            : "latency at %.0f requests/s, round %d of %d".formatted(half, round + 1, rounds));
            for (Map.Entry<String, Target> each : targets.entrySet()) {
                Load load = open(vertx, each.getValue(), half);
                if (round >= 0) {
                    open.computeIfAbsent(each.getKey(), _ -> new ArrayList<>()).add(load);
                }
            }
        }
        Target ofRouter = targets.getOrDefault(ROUTER, (_, _, _) -> Future.failedFuture("no router"));
        progress.accept(streams + " streams at once");
        Streams answered = streams(vertx, ofRouter);
        progress.accept("memory over " + memoryRequests + " requests");
        List<Long> resident = new ArrayList<>();
        for (int done = 0; done < memoryRequests; done += requests) {
            var _ = closed(vertx, ofRouter);
            resident.add(ResidentMemory.bytes(router));
        }
        List<Case> cases = new ArrayList<>();
        closed.forEach((name, loads) -> cases.add(new Case(name, loads, open.getOrDefault(name, List.of()))));
        return new RouterReport(Machine.here(), this.events, requests, half, cases, answered, resident);
    }

    /** Processor time in ns that a proxy has taken; empty for none. */
    private static OptionalLong cpu(String name, long router, Optional<NginxProxy> nginx) {
        return switch (name) {
            case ROUTER ->
                ProcessHandle.of(router)
                        .flatMap(each -> each.info().totalCpuDuration())
                        .map(time -> OptionalLong.of(time.toNanos()))
                        .orElse(OptionalLong.empty());
            case NGINX -> nginx.map(each -> OptionalLong.of(each.cpuNanos())).orElse(OptionalLong.empty());
            default -> OptionalLong.empty();
        };
    }

    private static Future<Buffer> post(HttpClient client, int port, String name, int count, long millis) {
        return client.request(HttpMethod.POST, port, HOST, "/v1/completions")
                .compose(request -> request.putHeader("Content-Type", "application/json")
                        .idleTimeout(DEADLINE.toMillis())
                        .send(StubInstances.request(name, count, millis)))
                .compose(response -> response.body()
                        .compose(body -> response.statusCode() == 200
                                ? Future.succeededFuture(body)
                                : Future.failedFuture("HTTP " + response.statusCode() + ": " + body)));
    }

    /** Fails if a byte of the answer is not what the decode instance sends for that request. */
    private static Future<Void> answer(HttpClient client, int port, String name, int count, long millis) {
        return post(client, port, name, count, millis)
                .compose(body -> body.toString().equals(StubInstances.answer(name, count))
                        ? Future.succeededFuture()
                        : Future.failedFuture("the answer of request " + name + " is " + body));
    }

    private static void await(CountDownLatch latch, AtomicInteger failed, Map<String, String> failures)
            throws IOException, InterruptedException {
        if (!latch.await(DEADLINE.toSeconds(), TimeUnit.SECONDS)) {
            throw new IOException(latch.getCount() + " answers did not come within " + DEADLINE.toSeconds() + " s");
        }
        if (failed.get() > 0) {
            throw new IOException(failed.get() + " requests failed, such as: " + failures.get("first"));
        }
    }

    /** As many requests at once as {@link #IN_FLIGHT}, each as soon as one has ended. */
    private Load closed(Vertx vertx, Target target) throws IOException, InterruptedException {
        return new Round(requests).closed(vertx, target, events);
    }

    /** Requests at their times, whether answers come or not; latency counts from the time at which a request was due. */
    private Load open(Vertx vertx, Target target, double rate) throws IOException, InterruptedException {
        return new Round(requests).open(vertx, target, events, rate);
    }

    private Streams streams(Vertx vertx, Target target) throws InterruptedException {
        CountDownLatch latch = new CountDownLatch(streams);
        AtomicInteger right = new AtomicInteger();
        Map<String, String> failures = new java.util.concurrent.ConcurrentHashMap<>();
        Context context = vertx.getOrCreateContext();
        for (int at = 0; at < streams; at++) {
            String name = "s" + at;
            context.runOnContext(_ -> {
                var _ = target.ask(name, STREAM_EVENTS, STREAM_MILLIS).onComplete(result -> {
                    if (result.succeeded()) {
                        right.incrementAndGet();
                    } else {
                        failures.putIfAbsent("first", String.valueOf(result.cause()));
                    }
                    latch.countDown();
                });
            });
        }
        boolean all = latch.await(DEADLINE.toSeconds(), TimeUnit.SECONDS);
        return new Streams(
                streams,
                right.get(),
                Optional.ofNullable(
                        all ? failures.get("first") : "not all ended within " + DEADLINE.toSeconds() + " s"));
    }

    /** One round of one case. */
    private static final class Round {
        private final long[] nanos;
        private final CountDownLatch latch;
        private final AtomicInteger next = new AtomicInteger();
        private final AtomicInteger failed = new AtomicInteger();
        private final AtomicLong last = new AtomicLong();
        private final Map<String, String> failures = new java.util.concurrent.ConcurrentHashMap<>();

        private Round(int requests) {
            nanos = new long[requests];
            latch = new CountDownLatch(requests);
        }

        private Load closed(Vertx vertx, Target target, int events) throws IOException, InterruptedException {
            long begun = System.nanoTime();
            for (int each = 0; each < IN_FLIGHT; each++) {
                vertx.runOnContext(_ -> nextOf(target, events));
            }
            await(latch, failed, failures);
            return new Load(nanos.length / ((last.get() - begun) * 1e-9), Optional.empty(), nanos);
        }

        private void nextOf(Target target, int events) {
            int index = next.getAndIncrement();
            if (index < nanos.length) {
                ask(target, index, events, System.nanoTime(), () -> nextOf(target, events));
            }
        }

        private Load open(Vertx vertx, Target target, int events, double rate)
                throws IOException, InterruptedException {
            Context context = vertx.getOrCreateContext();
            long begun = System.nanoTime();
            for (int index = 0; index < nanos.length; index++) {
                long due = begun + Math.round(index * 1e9 / rate);
                for (long now = System.nanoTime(); now < due; now = System.nanoTime()) {
                    LockSupport.parkNanos(due - now);
                }
                int at = index;
                context.runOnContext(_ -> ask(target, at, events, due, () -> {}));
            }
            await(latch, failed, failures);
            return new Load(nanos.length / ((last.get() - begun) * 1e-9), Optional.empty(), nanos);
        }

        private void ask(Target target, int index, int events, long from, Runnable then) {
            var _ = target.ask("r" + index, events, AT_ONCE).onComplete(result -> {
                long now = System.nanoTime();
                nanos[index] = now - from;
                last.accumulateAndGet(now, Math::max);
                if (result.failed()) {
                    failed.incrementAndGet();
                    failures.putIfAbsent("first", String.valueOf(result.cause()));
                }
                latch.countDown();
                then.run();
            });
        }
    }
}
