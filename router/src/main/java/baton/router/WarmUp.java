package baton.router;

import baton.kv.Ticker;
import baton.messages.PeerAddress;
import baton.router.flow.HandoffFlow;
import baton.router.metrics.RouterMetrics;
import baton.router.policy.PolicySettings;
import baton.router.upstream.Instance;
import baton.router.upstream.InstanceSet;
import baton.router.upstream.Instances;
import io.vertx.core.DeploymentOptions;
import io.vertx.core.Vertx;
import io.vertx.core.buffer.Buffer;
import io.vertx.core.http.HttpMethod;
import io.vertx.core.http.HttpServer;
import io.vertx.core.http.HttpServerRequest;
import io.vertx.core.http.HttpServerResponse;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeoutException;

/**
 * Sends requests through event loops like the router's to a stand-in for instances, all in this process: classes are loaded and code
 * is compiled before the first client's request. No instance gets a request, and the router's metrics and log do not show any.
 */
final class WarmUp {
    private static final Duration EACH = Duration.ofSeconds(5);
    static final int REQUESTS = 24;
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

    private static final String EVENT =
            "data: {\"id\": \"warm-up\", \"choices\": [{\"index\": 0, \"delta\": {\"content\": \"word\"}}]}\n\n";

    private final Vertx vertx;
    private final HandoffFlow flow;
    private final Ticker ticker;

    WarmUp(Vertx vertx, HandoffFlow flow, Ticker ticker) {
        this.vertx = vertx;
        this.flow = flow;
        this.ticker = ticker;
    }

    /**
     * Sends {@value #REQUESTS} requests, or as many as there is time for.
     *
     * @return how many were answered
     * @throws IOException if an answer is not as expected
     */
    int run(Duration atMost) throws IOException, ExecutionException, TimeoutException {
        long end = ticker.nanos() + atMost.toNanos();
        HttpServer standIn = vertx.createHttpServer().requestHandler(this::answer);
        Router.await(standIn.listen(0, LOOPBACK.getHostAddress()), EACH);
        URI address = URI.create("http://" + LOOPBACK.getHostAddress() + ":" + standIn.actualPort());
        RouterConfig config = new RouterConfig(
                LOOPBACK.getHostAddress(),
                0,
                List.of(address),
                List.of(address),
                flow.name(),
                Optional.empty(),
                RouterConfig.Limits.DEFAULT,
                Optional.of(new RouterConfig.Registry(
                        LOOPBACK.getHostAddress(),
                        0,
                        EACH,
                        RouterConfig.Registry.DEFAULT_MAX_INSTANCES,
                        RouterConfig.Registry.PRIVATE_NETWORKS)),
                PolicySettings.DEFAULT);
        Instances instances = new Instances(set(Instance.Role.PREFILL, address), set(Instance.Role.DECODE, address));
        RouterContext context = RouterContext.create(
                vertx,
                config,
                instances,
                ticker,
                new RouterContext.Guards(Optional.empty(), RouterTls.none(vertx)),
                Optional.empty(),
                false);
        try (RouterMetrics metrics = context.metrics()) {
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
            int port = verticles.getFirst().port();
            int answered = 0;
            while (answered < REQUESTS && ticker.nanos() - end < 0) {
                ask(port, answered);
                answered++;
            }
            metrics.scrape();
            return answered;
        }
    }

    private static InstanceSet set(Instance.Role role, URI address) {
        InstanceSet set = new InstanceSet(role, List.of(), RouterConfig.Limits.DEFAULT.maxPerInstance());
        set.add(Instance.standIn(role, address, new PeerAddress(address.getHost(), address.getPort())));
        return set;
    }

    /** Answers as an instance would, on either leg. */
    private void answer(HttpServerRequest request) {
        HttpServerResponse response = request.response();
        if (request.method().equals(HttpMethod.GET)) {
            response.end(PARAMS);
            return;
        }
        request.body().onSuccess(body -> {
            if (body.toString().contains(WHOLE)) {
                response.putHeader("Content-Type", "application/json").end(PARAMS);
            } else {
                response.setChunked(true).putHeader("Content-Type", "text/event-stream; charset=utf-8");
                for (int i = 0; i < 4; i++) {
                    response.write(Buffer.buffer(EVENT));
                }
                response.end("data: [DONE]\n\n");
            }
        });
    }

    private static void ask(int port, int number) throws IOException {
        byte[] body =
                """
                {"model":"warm-up","messages":[{"role":"user","content":"%s"}],"stream":true,\
                "stream_options":{"include_usage":true},"max_tokens":4,"n":1}""".formatted("word ".repeat(number % 4 == 0 ? LONG : SHORT)).getBytes(StandardCharsets.UTF_8);
        String head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                + "Connection: close\r\nContent-Length: " + body.length + "\r\n\r\n";
        try (Socket socket = new Socket()) {
            socket.connect(new InetSocketAddress(LOOPBACK, port), (int) EACH.toMillis());
            socket.setSoTimeout((int) EACH.toMillis());
            socket.getOutputStream().write(head.getBytes(StandardCharsets.UTF_8));
            socket.getOutputStream().write(body);
            String answer = new String(socket.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
            if (!answer.startsWith("HTTP/1.1 200") || !answer.contains("[DONE]")) {
                throw new IOException(
                        "a request was answered: " + answer.lines().findFirst().orElse(""));
            }
        }
    }
}
