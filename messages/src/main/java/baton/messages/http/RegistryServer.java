package baton.messages.http;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.WebGuard;
import baton.messages.MessageException;
import baton.messages.PeerAccess;
import baton.messages.SideChannel;
import com.sun.net.httpserver.Headers;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/** A small HTTP server through which instances find each other. It serves only peers that {@link PeerAccess} admits. */
public final class RegistryServer implements SideChannel.Listener {
    private static final int MOST_BYTES = 16 << 10;
    private static final int BACKLOG = 128;

    private final HttpServer server;
    private final PeerAccess access;
    private final WebGuard webGuard;
    private final ExecutorService threads = Executors.newVirtualThreadPerTaskExecutor();

    /**
     * A request.
     *
     * @param query behind the path's question mark, without escapes; empty if there is none
     * @param body at most 16 KiB
     */
    public record Request(String query, String body) {
        /** The last value of a parameter of the query. */
        public Optional<String> parameter(String name) {
            Optional<String> found = Optional.empty();
            for (String each : query.split("&", -1)) {
                if (each.startsWith(name + "=")) {
                    found = Optional.of(each.substring(name.length() + 1));
                }
            }
            return found;
        }
    }

    /**
     * An answer.
     *
     * @param json the body
     */
    public record Answer(int status, String json) {
        public static Answer ok(String json) {
            return new Answer(200, json);
        }

        /** {@code {"detail": text}}. */
        public static Answer detail(int status, String text) {
            return new Answer(
                    status,
                    JsonFields.empty("answer").toJson().put("detail", text).toString());
        }
    }

    /** Answers requests of one method and path; any thread. */
    @FunctionalInterface
    public interface Handler {
        /** @throws ConfigException if the request is malformed */
        Answer answer(Request request);

        /** Answers as {@link #answer} does, or with status 422 if the request is malformed. */
        default Answer answerOrReject(Request request) {
            try {
                return answer(request);
            } catch (ConfigException e) {
                return Answer.detail(422, String.valueOf(e.getMessage()));
            }
        }
    }

    /**
     * Listens.
     *
     * @param port 0 for any free one
     * @param handlers by method and path, as in {@code "GET /query"}; each path has one method
     * @throws MessageException if the address cannot be had
     */
    public RegistryServer(String host, int port, PeerAccess access, Map<String, Handler> handlers)
            throws MessageException {
        this.access = access;
        this.webGuard = WebGuard.of(host, false, List.of());
        try {
            server = HttpServer.create(new InetSocketAddress(host, port), BACKLOG);
        } catch (IOException | IllegalArgumentException e) {
            throw new MessageException(
                    "the bootstrap server cannot listen on " + host + ":" + port + ": " + e.getMessage(), e);
        }
        server.setExecutor(threads);
        handlers.forEach((name, handler) -> {
            String[] parts = name.split(" ", 2);
            server.createContext(parts[1], exchange -> serve(exchange, parts[0], handler));
        });
        server.start();
    }

    private WebGuard.Verdict judge(HttpExchange exchange) {
        Headers headers = exchange.getRequestHeaders();
        return webGuard.judge(new WebGuard.Request(
                exchange.getRequestMethod(),
                exchange.getProtocol().equals("HTTP/1.1"),
                headers.getOrDefault("Host", List.of()),
                headers.getOrDefault("Origin", List.of()),
                Optional.ofNullable(headers.getFirst("Sec-Fetch-Site")),
                Optional.empty(),
                Optional.empty()));
    }

    private void serve(HttpExchange exchange, String method, Handler handler) throws IOException {
        try (exchange) {
            Answer answer = answer(exchange, method, handler);
            byte[] bytes = answer.json().getBytes(StandardCharsets.UTF_8);
            exchange.getResponseHeaders().set("Content-Type", "application/json");
            exchange.sendResponseHeaders(answer.status(), bytes.length);
            exchange.getResponseBody().write(bytes);
        }
    }

    private Answer answer(HttpExchange exchange, String method, Handler handler) throws IOException {
        if (judge(exchange) instanceof WebGuard.Verdict.Refused(int status, String message)) {
            return Answer.detail(status, message);
        }
        if (!access.admitsByAddress(exchange.getRemoteAddress().getAddress())) {
            access.refuse(String.valueOf(exchange.getRemoteAddress()), access.notAllowed());
            return Answer.detail(403, "not an allowed peer");
        }
        if (!exchange.getRequestMethod().equals(method)) {
            return Answer.detail(405, "Method Not Allowed");
        }
        byte[] body = exchange.getRequestBody().readNBytes(MOST_BYTES + 1);
        if (body.length > MOST_BYTES) {
            return Answer.detail(413, "a request has at most " + MOST_BYTES + " bytes");
        }
        String query = Optional.ofNullable(exchange.getRequestURI().getQuery()).orElse("");
        return handler.answerOrReject(new Request(query, new String(body, StandardCharsets.UTF_8)));
    }

    @Override
    public int port() {
        return server.getAddress().getPort();
    }

    @Override
    public void close() {
        server.stop(0);
        threads.shutdownNow();
    }
}
