package baton.bench.serve;

import baton.messages.http.KeptConnections;
import io.vertx.core.Context;
import io.vertx.core.Future;
import io.vertx.core.Vertx;
import io.vertx.core.VertxOptions;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpClientOptions;
import io.vertx.core.http.HttpClientRequest;
import io.vertx.core.http.HttpMethod;
import io.vertx.core.http.HttpServer;
import io.vertx.core.http.PoolOptions;
import io.vertx.core.http.RequestOptions;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.atomic.AtomicReferenceArray;
import java.util.concurrent.locks.LockSupport;
import java.util.function.IntConsumer;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;
import tools.jackson.databind.node.JsonNodeFactory;

/**
 * Sends requests at their times, whether answers come or not. One thread sees to all connections and reads the clock; before it
 * measures anything it talks to a server of its own for a moment, so that the first requests do not count how this program starts.
 */
public final class LoadGenerator implements AutoCloseable {
    private static final Duration STOP = Duration.ofSeconds(10);
    private static final Duration CONNECT = Duration.ofSeconds(30);
    private static final int KEEP_ALIVE_SECONDS = 4;
    private static final int MOST_CONNECTIONS = 60_000;
    private static final int WARM_UPS = 300;
    private static final int WARM_UP_EVENTS = 8;

    private final Vertx vertx = Vertx.vertx(new VertxOptions().setEventLoopPoolSize(2));
    private final Context context = vertx.getOrCreateContext();
    private final KeptConnections client;
    private final Duration patience;

    /**
     * @param insecure whether any certificate is accepted
     * @param patience for each answer
     * @throws IOException if the client's warm-up fails
     */
    public LoadGenerator(boolean insecure, Duration patience) throws IOException {
        this.patience = patience;
        client = KeptConnections.open(
                vertx,
                new HttpClientOptions()
                        .setConnectTimeout(Math.toIntExact(CONNECT.toMillis()))
                        .setKeepAliveTimeout(KEEP_ALIVE_SECONDS)
                        .setTrustAll(insecure)
                        .setVerifyHost(!insecure),
                new PoolOptions().setHttp1MaxSize(MOST_CONNECTIONS).setMaxWaitQueueSize(-1),
                Optional.empty());
        warmUp();
    }

    private void warmUp() throws IOException {
        String event = "data: {\"choices\": [{\"text\": \"x\"}]}\n\n";
        HttpServer server = vertx.createHttpServer().requestHandler(request -> {
            request.response().setChunked(true);
            request.endHandler(_ -> {
                for (int i = 0; i < WARM_UP_EVENTS; i++) {
                    var _ = request.response().write(event);
                }
                var _ = request.response()
                        .end("data: {\"choices\": [], \"usage\": {\"completion_tokens\": 8}}\n\ndata: [DONE]\n\n");
            });
        });
        try {
            int port = await(server.listen(0, "127.0.0.1"), STOP).actualPort();
            Sample sample = new Sample(JsonNodeFactory.instance.stringNode("x"), 1, WARM_UP_EVENTS);
            List<Sample> samples =
                    IntStream.range(0, WARM_UPS).mapToObj(_ -> sample).toList();
            Endpoint endpoint = Endpoint.of(Backend.OPENAI, "http://127.0.0.1:" + port);
            Schedule schedule = new Schedule(samples, new double[WARM_UPS], OptionalInt.of(4));
            Run run = new Run(endpoint, RequestBody.greedy(Backend.OPENAI, "x"), schedule, _ -> {}, CONNECT);
            for (Exchange each : run(run).exchanges()) {
                if (!each.succeeded()) {
                    throw new IOException("the client's warm-up failed: " + each.error());
                }
            }
        } finally {
            await(server.close(), STOP);
        }
    }

    /**
     * The requests to send, and their times.
     *
     * @param due seconds after the begin for each sample, ascending
     * @param most requests at once
     */
    public record Schedule(List<Sample> samples, double[] due, OptionalInt most) {
        public Schedule {
            samples = List.copyOf(samples);
            if (due.length != samples.size()) {
                throw new IllegalArgumentException(due.length + " times for " + samples.size() + " samples");
            }
        }

        /** A schedule with the times of {@code arrivals}. */
        public static Schedule of(List<Sample> samples, Arrivals arrivals, long seed, OptionalInt most) {
            return new Schedule(samples, arrivals.due(samples.size(), seed), most);
        }
    }

    /**
     * Sends all requests and waits for all answers.
     *
     * @param progress receives how many answers have ended, on the thread of the connections
     * @return the exchanges in the order of the samples; failed ones among them
     * @throws IOException if interrupted
     */
    public Metrics run(Endpoint endpoint, RequestBody body, Schedule schedule, IntConsumer progress)
            throws IOException {
        return run(new Run(endpoint, body, schedule, progress, patience));
    }

    private Metrics run(Run run) throws IOException {
        long begun = System.nanoTime();
        for (int i = 0; i < run.bodies.size(); i++) {
            long due = begun + Math.round(run.schedule.due[i] * 1e9);
            for (long now = System.nanoTime(); now < due; now = System.nanoTime()) {
                LockSupport.parkNanos(due - now);
                if (Thread.interrupted()) {
                    Thread.currentThread().interrupt();
                    throw new IOException("interrupted");
                }
            }
            int at = i;
            context.runOnContext(_ -> run.arrive(at, due));
        }
        List<Exchange> all = run.await();
        return new Metrics(all, (System.nanoTime() - begun) * 1e-9);
    }

    /** One request alone. */
    public Exchange ask(Endpoint endpoint, RequestBody body, Sample sample) throws IOException {
        return run(endpoint, body, new Schedule(List.of(sample), new double[1], OptionalInt.empty()), _ -> {})
                .exchanges()
                .getFirst();
    }

    /** Runs on the context's thread, except {@link #await}. */
    private final class Run {
        private final Endpoint endpoint;
        private final List<Buffer> bodies;
        private final Schedule schedule;
        private final IntConsumer progress;
        private final Duration patience;
        private final RequestOptions options;
        private final AtomicReferenceArray<Exchange> ended;
        private final CountDownLatch latch;
        private final AtomicInteger done = new AtomicInteger();
        private final ArrayDeque<Runnable> waiting = new ArrayDeque<>();
        private int active;

        Run(Endpoint endpoint, RequestBody body, Schedule schedule, IntConsumer progress, Duration patience) {
            this.endpoint = endpoint;
            this.patience = patience;
            this.schedule = schedule;
            this.progress = progress;
            bodies = schedule.samples.stream().map(body::of).toList();
            ended = new AtomicReferenceArray<>(bodies.size());
            latch = new CountDownLatch(bodies.size());
            options = new RequestOptions()
                    .setMethod(HttpMethod.POST)
                    .setAbsoluteURI(endpoint.url())
                    .putHeader("Content-Type", "application/json");
            for (Map.Entry<String, String> header : endpoint.headers().entrySet()) {
                options.putHeader(header.getKey(), header.getValue());
            }
        }

        void arrive(int index, long due) {
            long arrived = System.nanoTime();
            if (active < schedule.most.orElse(Integer.MAX_VALUE)) {
                send(index, due, arrived);
            } else {
                waiting.add(() -> send(index, due, arrived));
            }
        }

        private void send(int index, long due, long arrived) {
            active++;
            int counted = schedule.samples.get(index).promptTokens();
            long sent = System.nanoTime();
            StreamedAnswer answer = new StreamedAnswer(endpoint.backend());
            AtomicReference<@Nullable HttpClientRequest> open = new AtomicReference<>();
            long timer = vertx.setTimer(Math.max(1, patience.toMillis()), _ -> {
                if (isFirstEnd(index, StreamedAnswer.failed(due, arrived, sent, counted, late()))) {
                    HttpClientRequest started = open.get();
                    if (started != null) {
                        // Before the next one takes its place.
                        var _ = started.reset();
                    }
                    ended();
                }
            });
            Future<Exchange> whole = client.send(options, request -> {
                        open.set(request);
                        if (ended.get(index) != null) {
                            var _ = request.reset();
                            return Future.failedFuture(late());
                        }
                        return request.send(bodies.get(index));
                    })
                    .compose(response -> {
                        if (response.statusCode() != 200) {
                            return response.body()
                                    .compose(text -> Future.failedFuture("HTTP " + response.statusCode() + ": "
                                            + EndpointClient.shown(text.toString())));
                        }
                        response.handler(bytes -> {
                            if (ended.get(index) == null) {
                                answer.read(bytes);
                            } else {
                                var _ = response.request().reset();
                            }
                        });
                        return response.end().map(_ -> answer.end(due, arrived, sent, counted));
                    });
            var _ = whole.onComplete(result -> {
                vertx.cancelTimer(timer);
                end(
                        index,
                        result.succeeded()
                                ? result.result()
                                : StreamedAnswer.failed(due, arrived, sent, counted, why(result.cause())));
            });
        }

        private String late() {
            return "the answer did not end within " + patience.toSeconds() + " s";
        }

        private void end(int index, Exchange exchange) {
            if (isFirstEnd(index, exchange)) {
                ended();
            }
        }

        private boolean isFirstEnd(int index, Exchange exchange) {
            return ended.compareAndSet(index, null, exchange);
        }

        private void ended() {
            active--;
            Optional.ofNullable(waiting.poll()).ifPresent(Runnable::run);
            progress.accept(done.incrementAndGet());
            latch.countDown();
        }

        List<Exchange> await() throws IOException {
            try {
                // Every request ends by its own timer, and those that wait for a permit do so one after the other.
                while (!latch.await(1, TimeUnit.MINUTES)) {
                    if (Thread.interrupted()) {
                        throw new InterruptedException();
                    }
                }
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                throw new IOException("interrupted", e);
            }
            List<Exchange> all = new ArrayList<>(bodies.size());
            for (int i = 0; i < bodies.size(); i++) {
                all.add(ended.get(i));
            }
            return all;
        }
    }

    private static String why(Throwable failure) {
        return EndpointClient.shown(failure.getMessage() == null ? failure.toString() : failure.getMessage());
    }

    private static <T> T await(Future<T> future, Duration deadline) throws IOException {
        try {
            return future.toCompletionStage().toCompletableFuture().get(deadline.toMillis(), TimeUnit.MILLISECONDS);
        } catch (ExecutionException e) {
            throw new IOException(why(e.getCause() == null ? e : e.getCause()), e);
        } catch (TimeoutException e) {
            throw new IOException("no answer within " + deadline.toSeconds() + " s", e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IOException("interrupted", e);
        }
    }

    /** Ends connections and threads. */
    @Override
    public void close() {
        try {
            await(client.close(), STOP);
            await(vertx.close(), STOP);
        } catch (IOException e) {
            // All answers have been read: nothing depends on it any more.
            System.err.println("baton: the client did not close: " + e.getMessage());
        }
    }
}
