package baton.bench;

import baton.bench.RouterFigures.Case;
import baton.bench.RouterFigures.Load;
import baton.bench.RouterFigures.Watched;
import baton.bench.frame.Layout;
import baton.bench.frame.Machine;
import baton.cluster.JavaCommand;
import baton.cluster.ProcessGroup;
import baton.cluster.ServerProcess;
import baton.kv.ConfigException;
import baton.kv.Require;
import baton.messages.http.KeptConnections;
import io.vertx.core.Context;
import io.vertx.core.Future;
import io.vertx.core.Vertx;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpClientOptions;
import io.vertx.core.http.HttpMethod;
import io.vertx.core.http.PoolOptions;
import io.vertx.core.http.RequestOptions;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;
import java.util.stream.LongStream;
import java.util.stream.Stream;
import tools.jackson.databind.node.ObjectNode;

/**
 * Measures the cost of {@code baton route}, in a process of its own in front of instances that compute nothing, and in the same run, in
 * turns: the client asking the prefill and the decode instance itself, where there is an {@code nginx}, nginx as a plain reverse proxy
 * of the decode instance, which is one leg and not two, and other P/D proxies. A slow one gets fewer requests.
 *
 * @param requests of each round
 * @param promptTokens of each prompt, about
 * @param events of each answer
 * @param rounds of each case that count, after two that do not
 * @param streams answered at once in the last part
 * @param memoryRequests that the router's memory is watched over
 * @param tokenIds whether the decode instance sends token ids to a router that asks for them, as Baton's do
 * @param beside other proxies
 * @param progress receives a line for each step
 * @param warmedUp called before the rounds that count for latency: code that this process goes on to compile is not the router's cost
 */
public record RouterBench(
        int requests,
        int promptTokens,
        int events,
        int rounds,
        int streams,
        int memoryRequests,
        boolean tokenIds,
        List<ProxyCommand> beside,
        Consumer<String> progress,
        Runnable warmedUp) {
    static final String DIRECT = "direct";
    /** Baton's, in the figures. */
    public static final String ROUTER = "router";

    static final String NGINX = "nginx";

    private static final Duration DEADLINE = Duration.ofMinutes(2);
    private static final String HOST = "127.0.0.1";
    private static final int IN_FLIGHT = 16;
    /** Kept by the client to each server, except for the streams; a request that finds none free waits, which counts. */
    private static final int CONNECTIONS = 64;

    static final int WARM_UPS = 2;
    private static final int STREAM_EVENTS = 20;
    private static final long STREAM_MILLIS = 100;
    private static final long AT_ONCE = 0;

    /** How long pauses of the processors are looked for before each round that measures latency. */
    private static final Duration LOOK = Duration.ofMillis(300);

    /** A slow proxy gets as many requests as take so long, by the first of them, or a tenth of all. */
    private static final Duration LONGEST_ROUND = Duration.ofSeconds(3);

    /** One direct request is sent for so many of a proxy. */
    private static final int REQUESTS_PER_DIRECT = 4;

    /** How the figures are shown. */
    public static final Layout FIGURES = RouterFigures.FIGURES;

    /** @throws ConfigException if a number is not positive */
    public RouterBench {
        Require.positive("requests", requests);
        Require.positive("prompt-tokens", promptTokens);
        Require.positive("events", events);
        Require.positive("rounds", rounds);
        Require.positive("streams", streams);
        Require.positive("memory-requests", memoryRequests);
        beside = List.copyOf(beside);
    }

    /** Sends one request and checks its answer. */
    interface Ask {
        Future<Void> ask(String name, int events, long millisBetween);
    }

    /**
     * One way to the instances.
     *
     * @param meanwhile asks the same instances directly while latency is measured; empty for {@link #DIRECT}
     * @param pid of the proxy's process; empty for none
     * @param requests of each round
     */
    private record Target(String name, Ask ask, Optional<Ask> meanwhile, OptionalLong pid, int requests) {}

    /**
     * @param baton runs Baton, for the router's process
     * @throws IOException if a process does not start or ends, or an answer does not come
     */
    public void run(JavaCommand baton, ObjectNode json) throws IOException, InterruptedException {
        Vertx vertx = Vertx.vertx();
        List<OtherProgram> proxies = new ArrayList<>();
        try (ProcessGroup processes = ProcessGroup.create();
                StubInstances instances = StubInstances.start(vertx, tokenIds)) {
            ServerProcess router = processes.serve(
                    "route",
                    baton.forRouter(),
                    List.of(
                            "route",
                            "--port",
                            "0",
                            "--prefill",
                            instances.prefillUrl(),
                            "--decode",
                            instances.decodeUrl()));
            int port = router.awaitReady(DEADLINE).getPort();
            KeptConnections client = client(vertx, CONNECTIONS);
            List<Target> targets = new ArrayList<>();
            Ask direct = (name, count, millis) -> post(client, instances.prefillPort(), name, 1, 0)
                    .compose(_ -> answer(client, instances.decodePort(), name, count, millis));
            targets.add(new Target(DIRECT, direct, Optional.empty(), OptionalLong.empty(), requests));
            Target routed = through(
                    client,
                    ROUTER,
                    port,
                    direct,
                    OptionalLong.of(router.process().pid()),
                    requests);
            targets.add(routed);
            Optional<Path> nginx = OtherProgram.find("nginx", "/usr/sbin");
            if (nginx.isPresent()) {
                OtherProgram proxy = nginx(nginx.get(), instances.decodePort());
                proxies.add(proxy);
                targets.add(through(
                        client,
                        NGINX,
                        proxy.port(),
                        (name, count, millis) -> answer(client, instances.decodePort(), name, count, millis),
                        OptionalLong.of(proxy.pid()),
                        requests));
            }
            for (ProxyCommand each : beside) {
                progress.accept("starting " + each.name());
                OtherProgram proxy = OtherProgram.start(
                        each.name(),
                        (proxyPort, _) -> each.arguments(proxyPort, instances.prefillPort(), instances.decodePort()));
                proxies.add(proxy);
                OptionalLong pid = OptionalLong.of(proxy.pid());
                Target probed = through(client, each.name(), proxy.port(), direct, pid, Math.max(1, requests / 10));
                awaitAnswer(probed);
                double rate = closed(vertx, probed).rate();
                int own = (int) Math.clamp(rate * LONGEST_ROUND.toSeconds(), probed.requests(), requests);
                targets.add(through(client, each.name(), proxy.port(), direct, pid, own));
            }
            KeptConnections wide = client(vertx, streams);
            Ask streamed = (request, count, millis) -> answer(wide, port, request, count, millis);
            measure(vertx, targets, routed, streamed, router.process().pid(), json);
        } finally {
            proxies.forEach(OtherProgram::close);
        }
    }

    /** Some proxies listen before they know an instance. */
    private static void awaitAnswer(Target proxy) throws IOException, InterruptedException {
        long begun = System.nanoTime();
        while (true) {
            try {
                StubInstances.await(proxy.ask().ask("probe", 1, AT_ONCE));
                return;
            } catch (IOException e) {
                if (System.nanoTime() - begun >= DEADLINE.toNanos()) {
                    throw new IOException(proxy.name() + " gives no right answer: " + e.getMessage(), e);
                }
                Thread.sleep(200);
            }
        }
    }

    private static KeptConnections client(Vertx vertx, int connections) {
        return KeptConnections.open(
                vertx,
                new HttpClientOptions().setKeepAliveTimeout(300),
                new PoolOptions().setHttp1MaxSize(connections).setMaxWaitQueueSize(-1),
                Optional.empty());
    }

    private Target through(
            KeptConnections client, String name, int port, Ask meanwhile, OptionalLong pid, int requests) {
        return new Target(
                name,
                (request, count, millis) -> answer(client, port, request, count, millis),
                Optional.of(meanwhile),
                pid,
                requests);
    }

    /** nginx as a reverse proxy of one server, with connections kept on both sides and answers passed on as they come. */
    private static OtherProgram nginx(Path program, int upstream) throws IOException, InterruptedException {
        return OtherProgram.start(NGINX, (port, directory) -> {
            Path file = directory.resolve("nginx.conf");
            Files.writeString(file, """
                    daemon off;
                    master_process off;
                    pid %1$s/nginx.pid;
                    error_log stderr error;
                    events { worker_connections 8192; }
                    http {
                      access_log off;
                      client_body_temp_path %1$s/body;
                      proxy_temp_path %1$s/proxy;
                      fastcgi_temp_path %1$s/fastcgi;
                      uwsgi_temp_path %1$s/uwsgi;
                      scgi_temp_path %1$s/scgi;
                      keepalive_requests 1000000;
                      upstream decode { server 127.0.0.1:%2$d; keepalive 64; }
                      server {
                        listen 127.0.0.1:%3$d;
                        location / {
                          proxy_pass http://decode;
                          proxy_http_version 1.1;
                          proxy_set_header Connection "";
                          proxy_buffering off;
                        }
                      }
                    }
                    """.formatted(directory, upstream, port));
            return List.of(program.toString(), "-p", directory.toString(), "-c", file.toString());
        });
    }

    private void measure(
            Vertx vertx, List<Target> targets, Target router, Ask streamed, long routerPid, ObjectNode json)
            throws IOException, InterruptedException {
        Machine.here().writeTo(json.putObject("machine"));
        RouterFigures figures = new RouterFigures(events, requests, promptTokens);
        for (int round = -WARM_UPS; round < rounds; round++) {
            progress.accept(round < 0 ? "warm-up" : "rate, round " + (round + 1) + " of " + rounds);
            for (Target each : targets) {
                Case of = figures.of(each.name());
                (round < 0 ? of.first() : of.closed()).add(closedWithCpu(vertx, each));
                if (each.pid().isPresent()) {
                    of.resident().add(residentBytes(each.pid().getAsLong()));
                }
                figures.write(json);
            }
        }
        double half = figures.of(ROUTER).rate() / 2;
        json.put("open_rate", half);
        ProcessorPauses pauses = ProcessorPauses.NONE;
        for (int round = -WARM_UPS; round < rounds; round++) {
            if (round == 0) {
                warmedUp.run();
            }
            progress.accept(
                    round < 0
                            ? "warm-up at %.0f requests/s".formatted(half)
                            : "latency at %.0f requests/s, round %d of %d".formatted(half, round + 1, rounds));
            if (round >= 0) {
                pauses = pauses.plus(ProcessorPauses.look(LOOK));
                json.put("pauses_per_second", pauses.perSecond()).put("pauses_share", pauses.share());
            }
            for (Target each : targets) {
                Case of = figures.of(each.name());
                OpenLoads loads = open(vertx, each, Math.min(half, of.rate() / 2));
                if (round >= 0) {
                    of.open().add(loads.own());
                    loads.meanwhile().ifPresent(of.meanwhile()::add);
                    figures.write(json);
                }
            }
        }
        progress.accept(streams + " streams at once");
        streams(vertx, streamed, json);
        progress.accept("memory over " + memoryRequests + " requests");
        for (int done = 0; done < memoryRequests; done += requests) {
            Load load = closedWithCpu(vertx, router);
            figures.watched().add(new Watched(ResidentMemory.bytes(routerPid), load));
            figures.write(json);
        }
    }

    private Load closedWithCpu(Vertx vertx, Target target) throws IOException, InterruptedException {
        if (target.pid().isEmpty()) {
            return closed(vertx, target);
        }
        long pid = target.pid().getAsLong();
        long before = cpuNanos(pid);
        Load load = closed(vertx, target);
        return load.withCpu((cpuNanos(pid) - before) * 1e-6 / target.requests());
    }

    private static List<ProcessHandle> withDescendants(long pid) {
        return ProcessHandle.of(pid).stream()
                .flatMap(each -> Stream.concat(Stream.of(each), each.descendants()))
                .toList();
    }

    private static long residentBytes(long pid) throws IOException {
        long bytes = 0;
        for (ProcessHandle each : withDescendants(pid)) {
            bytes += ResidentMemory.bytes(each.pid());
        }
        return bytes;
    }

    /** Processor time that a process and those that it has started have taken. */
    private static long cpuNanos(long pid) {
        return withDescendants(pid).stream()
                .flatMap(each -> each.info().totalCpuDuration().stream())
                .mapToLong(Duration::toNanos)
                .sum();
    }

    private Future<Buffer> post(KeptConnections client, int port, String name, int count, long millis) {
        RequestOptions options = new RequestOptions()
                .setMethod(HttpMethod.POST)
                .setHost(HOST)
                .setPort(port)
                .setURI("/v1/completions");
        return client.send(
                        options,
                        request -> request.putHeader("Content-Type", "application/json")
                                .idleTimeout(DEADLINE.toMillis())
                                .send(StubInstances.request(name, count, millis, promptTokens)))
                .compose(response -> response.body()
                        .compose(body -> response.statusCode() == 200
                                ? Future.succeededFuture(body)
                                : Future.failedFuture("HTTP " + response.statusCode() + ": " + body)));
    }

    /** Fails if the answer differs by a byte from the decode instance's for that request. */
    private Future<Void> answer(KeptConnections client, int port, String name, int count, long millis) {
        return post(client, port, name, count, millis)
                .compose(body -> body.toString().equals(StubInstances.answer(name, count))
                        ? Future.succeededFuture()
                        : Future.failedFuture("the answer of request " + name + " is " + body));
    }

    /** Sends {@link #IN_FLIGHT} requests at once, and one more as soon as one has ended. */
    private Load closed(Vertx vertx, Target target) throws IOException, InterruptedException {
        Round round = new Round(target.requests(), System.nanoTime());
        for (int each = 0; each < IN_FLIGHT; each++) {
            vertx.runOnContext(_ -> round.askAgain(target.ask(), events));
        }
        return round.await();
    }

    /** @param meanwhile direct requests between those of a proxy */
    private record OpenLoads(Load own, Optional<Load> meanwhile) {}

    /**
     * Requests at their times, whether answers come or not; latency counts from the time at which a request was due. Those of a proxy have direct
     * requests between them, at the same distance, which meet a client, instances and a machine that are as busy.
     */
    private OpenLoads open(Vertx vertx, Target target, double rate) throws IOException, InterruptedException {
        Context context = vertx.getOrCreateContext();
        int direct = target.meanwhile().isPresent()
                ? (target.requests() + REQUESTS_PER_DIRECT - 1) / REQUESTS_PER_DIRECT
                : 0;
        int all = target.requests() + direct;
        double interval = 1e9 / rate * target.requests() / all;
        long begun = System.nanoTime();
        Round own = new Round(target.requests(), begun);
        Optional<Round> meanwhile = target.meanwhile().map(_ -> new Round(direct, begun));
        for (int index = 0; index < all; index++) {
            long offset = Math.round(index * interval);
            if (meanwhile.isPresent() && index % (REQUESTS_PER_DIRECT + 1) == 0) {
                meanwhile.get().askAt(offset, context, target.meanwhile().orElseThrow(), events);
            } else {
                own.askAt(offset, context, target.ask(), events);
            }
        }
        Load load = own.await();
        return new OpenLoads(
                load, meanwhile.isPresent() ? Optional.of(meanwhile.get().await()) : Optional.empty());
    }

    private void streams(Vertx vertx, Ask target, ObjectNode json) throws InterruptedException {
        CountDownLatch latch = new CountDownLatch(streams);
        AtomicInteger right = new AtomicInteger();
        Queue<String> failures = new ConcurrentLinkedQueue<>();
        Context context = vertx.getOrCreateContext();
        for (int at = 0; at < streams; at++) {
            String name = "s" + at;
            context.runOnContext(_ -> {
                var _ = target.ask(name, STREAM_EVENTS, STREAM_MILLIS).onComplete(result -> {
                    if (result.succeeded()) {
                        right.incrementAndGet();
                    } else {
                        failures.add(String.valueOf(result.cause()));
                    }
                    latch.countDown();
                });
            });
        }
        if (!latch.await(DEADLINE.toSeconds(), TimeUnit.SECONDS)) {
            failures.add("not all ended within " + DEADLINE.toSeconds() + " s");
        }
        json.put("streams", streams).put("streams_right", right.get());
        Optional.ofNullable(failures.peek()).ifPresent(first -> json.put("streams_failure", first));
    }

    /** One round of one case. */
    static final class Round {
        private final long begun;

        /** The time from a request's due time to the end of its right answer; 0 without one. */
        private final AtomicLongArray nanos;

        private final CountDownLatch latch;
        private final AtomicInteger next = new AtomicInteger();
        private final AtomicLong last = new AtomicLong();
        private final Queue<String> failures = new ConcurrentLinkedQueue<>();

        Round(int requests, long begun) {
            this.begun = begun;
            nanos = new AtomicLongArray(requests);
            latch = new CountDownLatch(requests);
        }

        /** Sends requests one after the other until all have been sent. */
        void askAgain(Ask target, int events) {
            int index = next.getAndIncrement();
            if (index < nanos.length()) {
                ask(target, index, events, System.nanoTime(), () -> askAgain(target, events));
            }
        }

        /**
         * Waits until then and sends the next request.
         *
         * @param offset nanoseconds since the round began
         */
        private void askAt(long offset, Context context, Ask target, int events) {
            long due = begun + offset;
            for (long now = System.nanoTime(); now < due; now = System.nanoTime()) {
                LockSupport.parkNanos(due - now);
            }
            int index = next.getAndIncrement();
            context.runOnContext(_ -> ask(target, index, events, due, () -> {}));
        }

        /** @throws IOException if no request was answered rightly */
        Load await() throws IOException, InterruptedException {
            boolean all = latch.await(DEADLINE.toSeconds(), TimeUnit.SECONDS);
            long[] right = LongStream.range(0, nanos.length())
                    .map(index -> nanos.get((int) index))
                    .filter(each -> each > 0)
                    .toArray();
            Optional<String> failure = Optional.ofNullable(failures.peek())
                    .or(() -> all ? Optional.empty() : Optional.of("no answer within " + DEADLINE.toSeconds() + " s"));
            if (right.length == 0) {
                throw new IOException("all of " + nanos.length() + " requests failed, such as: " + failure.orElse(""));
            }
            return new Load(
                    right.length / ((last.get() - begun) * 1e-9),
                    Optional.empty(),
                    right,
                    nanos.length() - right.length,
                    failure);
        }

        private void ask(Ask target, int index, int events, long from, Runnable then) {
            var _ = target.ask("r" + index, events, AT_ONCE).onComplete(result -> {
                long now = System.nanoTime();
                last.accumulateAndGet(now, Math::max);
                if (result.failed()) {
                    failures.add(String.valueOf(result.cause()));
                } else {
                    nanos.set(index, Math.max(1, now - from));
                }
                latch.countDown();
                then.run();
            });
        }
    }
}
