package baton.router;

import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.messages.PeerAddress;
import baton.router.flow.HandoffFlow;
import baton.router.metrics.RouterMetrics;
import baton.router.upstream.Instance;
import baton.router.upstream.InstanceSet;
import baton.router.upstream.Instances;
import baton.router.upstream.Registrations;
import io.vertx.core.DeploymentOptions;
import io.vertx.core.Vertx;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpHeaders;
import io.vertx.core.http.HttpMethod;
import io.vertx.core.http.HttpServer;
import io.vertx.core.http.HttpServerRequest;
import io.vertx.core.http.HttpServerResponse;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Sends requests through event loops like the router's to a stand-in for instances, all in this process: classes are loaded and code
 * is compiled before the first client's request. No instance gets a request, and the router's metrics and log do not show any.
 */
final class RouterWarmUp {
    private static final Duration EACH = Duration.ofSeconds(5);
    static final int REQUESTS = 24;
    private static final int ON_ONE_CONNECTION = 4;
    /** Words of a small request. */
    private static final int SHORT = 20;

    /** Words of a request with more bytes than {@link BodyWorker#LARGE}. */
    private static final int LONG = 14_000;

    private static final InetAddress LOOPBACK = InetAddress.getLoopbackAddress();

    /** Part of the body of a prefill leg only. */
    private static final String WHOLE = "\"stream\":false";

    private static final String PARAMS =
            "{\"kv_transfer_params\": {\"do_remote_prefill\": true, \"do_remote_decode\": false,"
                    + " \"remote_engine_id\": \"warm-up\", \"remote_host\": \"127.0.0.1\", \"remote_port\": 1, \"tp_size\": 1}}";

    private static final Buffer EVENT = Buffer.buffer(
            "data: {\"id\": \"warm-up\", \"choices\": [{\"index\": 0, \"delta\": {\"content\": \"word\"}}]}\n\n");

    private static final String LAST = "data: [DONE]\n\n";

    /** How a chunked answer ends. */
    private static final byte[] END = (LAST + "\r\n0\r\n\r\n").getBytes(StandardCharsets.UTF_8);

    private final Vertx vertx;
    private final HandoffFlow flow;
    private final Ticker ticker;
    /** Legs and streams that were answered. */
    private final AtomicInteger legs = new AtomicInteger();

    private final AtomicInteger streams = new AtomicInteger();

    RouterWarmUp(Vertx vertx, HandoffFlow flow, Ticker ticker) {
        this.vertx = vertx;
        this.flow = flow;
        this.ticker = ticker;
    }

    /**
     * Sends requests as long as there is time.
     *
     * @param requests the most to send
     * @param clients each sends one after the other
     * @return how many were answered
     * @throws IOException if an answer is not as expected
     */
    int run(int requests, int clients, Duration atMost) throws IOException, ExecutionException, TimeoutException {
        Deadline deadline = Deadline.after(ticker, atMost);
        URI prefill = standIn();
        URI decode = standIn();
        RouterConfig config = RouterConfig.of(List.of(prefill), List.of(decode))
                .flow(flow.name())
                .registry(new Registrations.Settings(
                        LOOPBACK.getHostAddress(),
                        0,
                        EACH,
                        Registrations.Settings.DEFAULT_MAX_INSTANCES,
                        Registrations.Settings.PRIVATE_NETWORKS))
                .build();
        Instances instances = new Instances(set(Instance.Role.PREFILL, prefill), set(Instance.Role.DECODE, decode));
        RouterContext context = RouterContext.create(
                vertx,
                config,
                instances,
                ticker,
                new RouterContext.Guards(Optional.empty(), RouterTls.none(vertx)),
                Optional.empty(),
                false);
        try (RouterMetrics metrics = context.reporting().metrics()) {
            List<RouterVerticle> verticles = new CopyOnWriteArrayList<>();
            Router.await(
                    vertx.deployVerticle(
                            () -> {
                                RouterVerticle verticle = new RouterVerticle(context);
                                verticles.add(verticle);
                                return verticle;
                            },
                            new DeploymentOptions()
                                    .setInstances(Runtime.getRuntime().availableProcessors())),
                    EACH);
            int answered = ask(verticles.getFirst().port(), requests, clients, deadline);
            metrics.scrape();
            return answered;
        }
    }

    /** Starts a server that stands in for an instance: its address. */
    private URI standIn() throws ExecutionException, TimeoutException {
        HttpServer standIn = vertx.createHttpServer().requestHandler(this::answer);
        Router.await(standIn.listen(0, LOOPBACK.getHostAddress()), EACH);
        return URI.create("http://" + LOOPBACK.getHostAddress() + ":" + standIn.actualPort());
    }

    private static int ask(int port, int requests, int clients, Deadline deadline) throws ExecutionException {
        AtomicInteger next = new AtomicInteger();
        List<Future<Integer>> answered = new ArrayList<>();
        try (ExecutorService threads = Executors.newVirtualThreadPerTaskExecutor()) {
            for (int client = 0; client < clients; client++) {
                answered.add(threads.submit(() -> {
                    int own = 0;
                    while (!deadline.isOver()) {
                        int first = next.getAndAdd(ON_ONE_CONNECTION);
                        int end = Math.min(requests, first + ON_ONE_CONNECTION);
                        if (first >= end) {
                            break;
                        }
                        ask(port, first, end);
                        own += end - first;
                    }
                    return own;
                }));
            }
        }
        int all = 0;
        for (Future<Integer> each : answered) {
            if (each.state() == Future.State.FAILED) {
                throw new ExecutionException(each.exceptionNow());
            }
            all += each.resultNow();
        }
        return all;
    }

    private static InstanceSet set(Instance.Role role, URI address) {
        InstanceSet set = new InstanceSet(role, List.of(), RouterConfig.Limits.DEFAULT.maxPerInstance());
        set.add(Instance.standIn(role, address, new PeerAddress(address.getHost(), address.getPort())));
        return set;
    }

    /**
     * Answers as an instance would, on either leg: events one by one or together, on a connection that is kept or closed. The router
     * meets whole heads and parts of answers, and opens connections, as it does later.
     */
    private void answer(HttpServerRequest request) {
        HttpServerResponse response = request.response();
        if (request.method().equals(HttpMethod.GET)) {
            response.end(PARAMS);
            return;
        }
        if (legs.getAndIncrement() % 5 == 0) {
            response.putHeader(HttpHeaders.CONNECTION, HttpHeaders.CLOSE);
        }
        request.body().onSuccess(body -> {
            if (body.toString().contains(WHOLE)) {
                response.putHeader(HttpHeaders.CONTENT_TYPE, "application/json").end(PARAMS);
            } else {
                response.setChunked(true).putHeader(HttpHeaders.CONTENT_TYPE, "text/event-stream; charset=utf-8");
                // Of every number of events one stream by one write and one by many.
                int stream = streams.getAndIncrement();
                stream(response, 1 << stream / 2 % 6, stream % 2 == 0);
            }
        });
    }

    private void stream(HttpServerResponse response, int events, boolean together) {
        if (events == 0) {
            response.end(LAST);
        } else if (together) {
            Buffer all = Buffer.buffer();
            for (int i = 0; i < events; i++) {
                all.appendBuffer(EVENT);
            }
            response.end(all.appendString(LAST));
        } else {
            response.write(EVENT).onSuccess(_ -> stream(response, events - 1, false));
        }
    }

    /** Sends the requests of these numbers on one connection. */
    private static void ask(int port, int first, int end) throws IOException {
        try (Socket socket = new Socket()) {
            socket.connect(new InetSocketAddress(LOOPBACK, port), (int) EACH.toMillis());
            socket.setSoTimeout((int) EACH.toMillis());
            for (int number = first; number < end; number++) {
                socket.getOutputStream().write(request(number));
                requireWhole(socket.getInputStream());
            }
        }
    }

    private static byte[] request(int number) {
        String words = "word ".repeat(number % 8 == 0 ? LONG : SHORT);
        String body = """
                {"model":"warm-up","messages":[{"role":"user","content":"%s"}],"stream":true,\
                "stream_options":{"include_usage":true},"max_tokens":4,"n":1}""".formatted(words);
        return ("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                        + "Content-Length: " + body.length() + "\r\n\r\n" + body)
                .getBytes(StandardCharsets.UTF_8);
    }

    /** Reads to the end of an answer. */
    private static void requireWhole(InputStream in) throws IOException {
        byte[] answer = new byte[64 << 10];
        int length = 0;
        while (length < END.length || !Arrays.equals(answer, length - END.length, length, END, 0, END.length)) {
            int read = in.read(answer, length, answer.length - length);
            if (read <= 0) {
                String text = new String(answer, 0, length, StandardCharsets.UTF_8);
                throw new IOException(
                        "a request was answered: " + text.lines().findFirst().orElse(""));
            }
            length += read;
        }
        if (!new String(answer, 0, length, StandardCharsets.UTF_8).startsWith("HTTP/1.1 200")) {
            throw new IOException("a request was not answered with 200");
        }
    }
}
