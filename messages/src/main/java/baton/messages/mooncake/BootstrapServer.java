package baton.messages.mooncake;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.WebGuard;
import baton.messages.MessageException;
import baton.messages.PeerAccess;
import baton.messages.PeerAddress;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import com.sun.net.httpserver.Headers;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A registry of prefill ranks, as vLLM's {@code MooncakeBootstrapServer} (mooncake/mooncake_utils.py): {@code POST /register} with a
 * {@link RankRegistration}, {@code GET /query} for the {@link EngineTable}. A registration may be repeated; one that contradicts another
 * gets status 400.
 */
final class BootstrapServer implements MooncakeExchange.Registry {
    private static final Logger log = LoggerFactory.getLogger(BootstrapServer.class);
    private static final int MOST_BYTES = 16 << 10;
    private static final int MOST_RANKS = 65_536;
    private static final int BACKLOG = 128;

    private final HttpServer server;
    private final PeerAccess access;
    private final WebGuard webGuard;
    private final ExecutorService threads = Executors.newVirtualThreadPerTaskExecutor();

    @GuardedBy("this")
    private final Map<Integer, EngineTable.Engine> engines = new TreeMap<>();

    @GuardedBy("this")
    private int ranks;

    BootstrapServer(String host, int port, PeerAccess access) throws MessageException {
        this.access = access;
        this.webGuard = WebGuard.of(host, false, List.of());
        try {
            server = HttpServer.create(new InetSocketAddress(host, port), BACKLOG);
        } catch (IOException | IllegalArgumentException e) {
            throw new MessageException(
                    "the bootstrap server cannot listen on " + host + ":" + port + ": " + e.getMessage(), e);
        }
        server.setExecutor(threads);
        server.createContext("/register", exchange -> serve(exchange, "POST"));
        server.createContext("/query", exchange -> serve(exchange, "GET"));
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

    private void serve(HttpExchange exchange, String method) throws IOException {
        try (exchange) {
            if (judge(exchange) instanceof WebGuard.Verdict.Refused(int status, String message)) {
                answer(exchange, status, detail(message));
                return;
            }
            if (!access.admitsByAddress(exchange.getRemoteAddress().getAddress())) {
                access.refuse(String.valueOf(exchange.getRemoteAddress()), access.notAllowed());
                answer(exchange, 403, detail("not an allowed peer"));
            } else if (!exchange.getRequestMethod().equals(method)) {
                answer(exchange, 405, detail("Method Not Allowed"));
            } else if (method.equals("GET")) {
                answer(exchange, 200, table());
            } else {
                byte[] body = exchange.getRequestBody().readNBytes(MOST_BYTES + 1);
                if (body.length > MOST_BYTES) {
                    answer(exchange, 413, detail("a registration has at most " + MOST_BYTES + " bytes"));
                    return;
                }
                RankRegistration rank;
                try {
                    rank = RankRegistration.read(
                            JsonFields.parse("registration", new String(body, StandardCharsets.UTF_8)));
                } catch (ConfigException e) {
                    answer(exchange, 422, detail(String.valueOf(e.getMessage())));
                    return;
                }
                try {
                    register(rank);
                    answer(exchange, 200, "{\"status\":\"ok\"}");
                } catch (MessageException e) {
                    log.warn("a registration is refused: {}", e.getMessage());
                    answer(exchange, 400, detail(String.valueOf(e.getMessage())));
                }
            }
        }
    }

    private static String detail(String text) {
        return JsonFields.empty("answer").toJson().put("detail", text).toString();
    }

    private static void answer(HttpExchange exchange, int status, String json) throws IOException {
        byte[] bytes = json.getBytes(StandardCharsets.UTF_8);
        exchange.getResponseHeaders().set("Content-Type", "application/json");
        exchange.sendResponseHeaders(status, bytes.length);
        exchange.getResponseBody().write(bytes);
    }

    private synchronized String table() {
        return new EngineTable(engines).toJson();
    }

    @Override
    public synchronized void register(RankRegistration rank) throws MessageException {
        EngineTable.Engine engine =
                engines.getOrDefault(rank.dpRank(), new EngineTable.Engine(rank.engineId(), Map.of()));
        if (!engine.id().equals(rank.engineId())) {
            throw new MessageException("Engine ID mismatch for dp_rank=%d: expected %s, got %s"
                    .formatted(rank.dpRank(), engine.id(), PeerAddress.shown(rank.engineId())));
        }
        Map<Integer, PeerAddress> stages = engine.workers().getOrDefault(rank.tpRank(), Map.of());
        PeerAddress known = stages.get(rank.ppRank());
        if (known != null) {
            if (known.equals(rank.addr())) {
                return;
            }
            throw new MessageException(
                    "Worker with dp_rank=%d, tp_rank=%d, pp_rank=%d is already registered at tcp://%s, but still want to register at %s"
                            .formatted(rank.dpRank(), rank.tpRank(), rank.ppRank(), known, rank.url()));
        }
        if (++ranks > MOST_RANKS) {
            throw new MessageException("there are " + MOST_RANKS + " registrations already");
        }
        Map<Integer, Map<Integer, PeerAddress>> workers = new TreeMap<>(engine.workers());
        Map<Integer, PeerAddress> more = new TreeMap<>(stages);
        more.put(rank.ppRank(), rank.addr());
        workers.put(rank.tpRank(), more);
        engines.put(rank.dpRank(), new EngineTable.Engine(engine.id(), workers));
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
