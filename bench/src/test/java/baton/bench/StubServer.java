package baton.bench;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.locks.LockSupport;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/** An HTTP server on a free port that answers completions as a test wants it to. */
final class StubServer implements AutoCloseable {
    private static final JsonMapper JSON = JsonMapper.builder().build();

    private final HttpServer server;
    private final ExecutorService threads = Executors.newCachedThreadPool();

    /** The server's answers. */
    interface Completions {
        void answer(JsonNode request, Reply reply) throws IOException;
    }

    StubServer(Completions completions) {
        try {
            server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        server.createContext("/v1/models", exchange -> new Reply(exchange).whole(200, "{\"data\": [{\"id\": \"m\"}]}"));
        server.createContext("/v1/completions", exchange -> {
            try (exchange) {
                completions.answer(JSON.readTree(exchange.getRequestBody().readAllBytes()), new Reply(exchange));
            }
        });
        server.setExecutor(threads);
        server.start();
    }

    /** One that streams as many tokens as it is asked for, each that long after the one before. */
    static Completions tokens(Duration each) {
        return (request, reply) -> {
            reply.begin();
            int tokens = request.path("max_tokens").asInt();
            for (int i = 0; i < tokens; i++) {
                LockSupport.parkNanos(each.toNanos());
                reply.event("{\"choices\": [{\"text\": \"x\", \"finish_reason\": null}]}");
            }
            reply.event("{\"choices\": [{\"text\": \"\", \"finish_reason\": \"length\"}]}");
            reply.event("{\"choices\": [], \"usage\": {\"prompt_tokens\": %d, \"completion_tokens\": %d}}"
                    .formatted(request.path("prompt").size(), tokens));
            reply.event("[DONE]");
        };
    }

    String url() {
        return "http://127.0.0.1:" + server.getAddress().getPort();
    }

    @Override
    public void close() {
        server.stop(0);
        threads.close();
    }

    /** An answer, whole or as a stream. */
    record Reply(HttpExchange exchange) {
        void whole(int status, String body) throws IOException {
            byte[] bytes = body.getBytes(StandardCharsets.UTF_8);
            exchange.sendResponseHeaders(status, bytes.length);
            exchange.getResponseBody().write(bytes);
            exchange.close();
        }

        void begin() throws IOException {
            exchange.sendResponseHeaders(200, 0);
        }

        void event(String data) throws IOException {
            OutputStream body = exchange.getResponseBody();
            body.write(("data: " + data + "\n\n").getBytes(StandardCharsets.UTF_8));
            body.flush();
        }
    }
}
