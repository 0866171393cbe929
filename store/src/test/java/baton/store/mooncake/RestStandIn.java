package baton.store.mooncake;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/**
 * A server on 127.0.0.1 that answers as Mooncake's REST service does: a put under a key that is there changes nothing, a leased object is
 * not removed. Its objects outlive its stop.
 */
public final class RestStandIn implements AutoCloseable {
    private static final JsonMapper JSON = new JsonMapper();

    /** Objects by their keys, as the text that was put. */
    public final Map<String, String> objects = new ConcurrentHashMap<>();

    /** Keys that were read or asked for: they cannot be removed. */
    public final Set<String> leased = ConcurrentHashMap.newKeySet();

    /** Objects that were delivered. */
    public final AtomicLong reads = new AtomicLong();

    /** Whether leases are given. */
    public volatile boolean leases;

    /** Puts are refused, as by a store without room. */
    public volatile boolean full;

    /** Every answer is this text, with status 200. */
    public volatile String nonsense = "";

    /** Before an answer. */
    public volatile long delayMillis;

    private final int port;
    private volatile CountDownLatch gate = new CountDownLatch(0);
    private HttpServer server;
    private ExecutorService threads;

    public RestStandIn() throws IOException {
        server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        port = server.getAddress().getPort();
        threads = Executors.newVirtualThreadPerTaskExecutor();
        serve();
    }

    public URI url() {
        return URI.create("http://127.0.0.1:" + port);
    }

    private void serve() {
        server.setExecutor(threads);
        server.createContext("/api/", this::handle);
        server.start();
    }

    /** Closes its port and all connections. */
    public void stop() {
        resume();
        server.stop(0);
        threads.close();
    }

    public void restart() throws IOException {
        server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), port), 0);
        threads = Executors.newVirtualThreadPerTaskExecutor();
        serve();
    }

    /** Answers nothing until {@link #resume}. */
    public void halt() {
        gate = new CountDownLatch(1);
    }

    public void resume() {
        gate.countDown();
    }

    private void handle(HttpExchange exchange) throws IOException {
        try (exchange) {
            byte[] body = exchange.getRequestBody().readAllBytes();
            if (!gate.await(60, TimeUnit.SECONDS)) {
                throw new IOException("halted for too long");
            }
            LockSupport.parkNanos(delayMillis * 1_000_000);
            String[] path = exchange.getRequestURI().getRawPath().split("/");
            if (!nonsense.isEmpty()) {
                answer(exchange, 200, nonsense);
                return;
            }
            String key = path.length > 3 ? URLDecoder.decode(path[3], StandardCharsets.UTF_8) : "";
            switch (exchange.getRequestMethod() + " " + path[2]) {
                case "PUT put" -> put(exchange, JSON.readTree(body));
                case "GET get" -> {
                    String value = objects.get(key);
                    lease(key);
                    reads.addAndGet(value == null ? 0 : 1);
                    answer(
                            exchange,
                            value == null ? 404 : 200,
                            value == null ? "{\"error\": \"Key not found\"}" : value);
                }
                case "GET exist" -> {
                    lease(key);
                    answer(exchange, 200, "{\"exists\": " + objects.containsKey(key) + "}");
                }
                case "DELETE remove" -> {
                    boolean removed = !leased.contains(key) && objects.remove(key) != null;
                    answer(exchange, removed ? 200 : 500, "{}");
                }
                default -> answer(exchange, 404, "");
            }
        } catch (InterruptedException _) {
            Thread.currentThread().interrupt();
        }
    }

    private void lease(String key) {
        if (leases && objects.containsKey(key)) {
            leased.add(key);
        }
    }

    private void put(HttpExchange exchange, JsonNode body) throws IOException {
        if (full) {
            answer(exchange, 500, "{\"error\": \"PUT operation failed\"}");
            return;
        }
        objects.putIfAbsent(body.path("key").asString(), body.path("value").asString());
        answer(exchange, 200, "{\"status\": \"success\"}");
    }

    private static void answer(HttpExchange exchange, int status, String text) throws IOException {
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        exchange.sendResponseHeaders(status, bytes.length == 0 ? -1 : bytes.length);
        exchange.getResponseBody().write(bytes);
    }

    @Override
    public void close() {
        stop();
    }
}
