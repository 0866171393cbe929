package baton.transfer.mooncake;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.transfer.Region;
import baton.transfer.TransferAgent;
import baton.transfer.TransferAgentContract;
import baton.transfer.TransferException;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.foreign.Arena;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** The contract of every agent, with a metadata server that answers as Mooncake's do. */
class MetadataServerContractTest extends TransferAgentContract {
    private final Map<String, byte[]> values = new ConcurrentHashMap<>();
    private final List<MooncakeAgent> named = new ArrayList<>();
    private final HttpServer server;

    MetadataServerContractTest() {
        try {
            server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        server.createContext("/metadata", this::answer);
        server.start();
    }

    @AfterEach
    void stop() {
        named.forEach(MooncakeAgent::close);
        server.stop(0);
    }

    /** Keys stay as they are encoded, as in {@code mooncake_master}'s server. */
    private void answer(HttpExchange exchange) throws IOException {
        String key = exchange.getRequestURI().getRawQuery().substring("key=".length());
        byte[] body = exchange.getRequestBody().readAllBytes();
        int status = 200;
        byte[] answer = {};
        switch (exchange.getRequestMethod()) {
            case "GET" -> {
                answer = values.getOrDefault(key, new byte[0]);
                status = answer.length == 0 ? 404 : 200;
            }
            case "PUT" -> {
                if (key.contains("rpc_meta") && values.containsKey(key)) {
                    status = 400;
                } else {
                    values.put(key, body);
                }
            }
            case "DELETE" -> status = values.remove(key) == null ? 404 : 200;
            default -> status = 405;
        }
        exchange.sendResponseHeaders(status, answer.length == 0 ? -1 : answer.length);
        exchange.getResponseBody().write(answer);
        exchange.close();
    }

    private MooncakeAgentSettings settings(Optional<String> cluster, Optional<String> segment) {
        URI address = URI.create("http://127.0.0.1:" + server.getAddress().getPort() + "/metadata");
        return MooncakeAgentSettings.at("127.0.0.1").withMetadata(new MetadataSource.Http(address, cluster, segment));
    }

    @Override
    protected TransferAgent open(String prefix) throws TransferException {
        return MooncakeAgent.open(settings(Optional.empty(), Optional.empty()));
    }

    @Override
    protected Region allocate(Arena arena, long bytes) {
        return new Region(arena.allocate(bytes, 64), Optional.empty());
    }

    @Test
    void aNameIsOneEnginesAndFreeAfterItsEnd() throws TransferException {
        MooncakeAgentSettings settings = settings(Optional.of("blue"), Optional.of("node/1"));
        MooncakeAgent first = MooncakeAgent.open(settings);
        named.add(first);
        assertThat(first.name()).isEqualTo("node/1");
        assertThat(values).containsKeys("mooncake%2Fblue%2Frpc_meta%2Fnode%2F1", "mooncake%2Fblue%2Fnode%2F1");
        assertThatThrownBy(() -> MooncakeAgent.open(settings))
                .isInstanceOf(TransferException.class)
                .hasMessageContainingAll(
                        "mooncake/blue/rpc_meta/node/1",
                        "curl -X DELETE",
                        "?key=mooncake%2Fblue%2Frpc_meta%2Fnode%2F1");
        // The one that was refused has not taken the name from the first.
        assertThat(values).containsKey("mooncake%2Fblue%2Frpc_meta%2Fnode%2F1");
        first.close();
        assertThat(values.keySet()).noneMatch(key -> key.contains("blue"));
        named.add(MooncakeAgent.open(settings));
    }

    @Test
    void refusalsOfTheServerAreReported() {
        server.removeContext("/metadata");
        assertThatThrownBy(() -> open("none"))
                .isInstanceOf(TransferException.class)
                .hasMessageContainingAll("status=404", "mooncake/rpc_meta/127.0.0.1:");
    }
}
