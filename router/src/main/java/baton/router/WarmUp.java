package baton.router;

import baton.messages.PeerAddress;
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
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Sends requests through event loops like the router's to a stand-in for instances, all within this process: what comes with first use
 * is done then. No instance hears of it, and nothing of it is in the router's metrics or log.
 */
final class WarmUp {
    private static final Duration EACH = Duration.ofSeconds(5);
    static final int REQUESTS = 24;
    /** Words of a request. */
    private static final int SHORT = 20;

    private static final int LONG = 2000;
    private static final InetAddress LOOPBACK = InetAddress.getLoopbackAddress();

    /** How the router has a prefill leg answered whole. */
    private static final String WHOLE = "\"stream\":false";

    private static final String PARAMS =
            "{\"kv_transfer_params\": {\"do_remote_prefill\": true, \"do_remote_decode\": false,"
                    + " \"remote_engine_id\": \"warm-up\", \"remote_host\": \"127.0.0.1\", \"remote_port\": 1, \"tp_size\": 1}}";

    private static final String EVENT =
            "data: {\"id\": \"warm-up\", \"choices\": [{\"index\": 0, \"delta\": {\"content\": \"word\"}}]}\n\n";

    private final Vertx vertx;
    private final HandoffFlow flow;

    WarmUp(Vertx vertx, HandoffFlow flow) {
        this.vertx = vertx;
        this.flow = flow;
    }

    /**
     * Sends requests until there is no time left.
     *
     * @return how many were answered
     * @throws IOException if one is answered badly
     */
    int run(Duration atMost) throws IOException, ExecutionException, TimeoutException {
        long end = System.nanoTime() + atMost.toNanos();
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
                        RouterConfig.Registry.DEFAULT_TTL,
                        RouterConfig.Registry.DEFAULT_MAX_INSTANCES,
                        RouterConfig.Registry.PRIVATE_NETWORKS)),
                RouterConfig.LocalPrefill.NEVER);
        InstanceSet prefills = set(Instance.Role.PREFILL, address);
        InstanceSet decodes = set(Instance.Role.DECODE, address);
        AtomicInteger running = new AtomicInteger();
        BodyMemory bodies = new BodyMemory(config.limits());
        try (RouterMetrics metrics = new RouterMetrics(prefills, decodes, running)) {
            HealthProbe probe = new HealthProbe(vertx, config, flow, metrics);
            List<RouterVerticle> verticles = new CopyOnWriteArrayList<>();
            Router.await(
                    vertx.deployVerticle(
                            () -> {
                                RouterVerticle verticle = new RouterVerticle(
                                        config, flow, prefills, decodes, probe, metrics, running, bodies, false);
                                verticles.add(verticle);
                                return verticle;
                            },
                            new DeploymentOptions()
                                    .setInstances(Runtime.getRuntime().availableProcessors())),
                    EACH);
            int port = verticles.getFirst().port();
            int answered = 0;
            while (answered < REQUESTS && System.nanoTime() - end < 0) {
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

    /** As an instance would, on either leg. */
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
