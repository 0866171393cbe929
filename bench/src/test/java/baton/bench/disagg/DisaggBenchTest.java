package baton.bench.disagg;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.bench.disagg.DisaggBench.Plan;
import baton.kv.ConfigException;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

class DisaggBenchTest {
    private static final JsonMapper JSON = JsonMapper.builder().build();

    /** A server that takes words for tokens and sends one after each time. */
    private static final class Stub implements AutoCloseable {
        private final HttpServer server;
        private final ExecutorService threads = Executors.newVirtualThreadPerTaskExecutor();

        Stub(Duration each) throws IOException {
            server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
            server.createContext("/v1/models", exchange -> answer(exchange, "{\"data\": [{\"id\": \"m\"}]}"));
            server.createContext("/tokenize", exchange -> {
                String text = request(exchange).path("prompt").asString("");
                String tokens = text.isBlank()
                        ? ""
                        : IntStream.of(words(text)).mapToObj(String::valueOf).collect(Collectors.joining(","));
                answer(exchange, "{\"tokens\": [" + tokens + "]}");
            });
            server.createContext("/detokenize", exchange -> {
                String text = request(exchange)
                        .path("tokens")
                        .valueStream()
                        .map(JsonNode::asString)
                        .collect(Collectors.joining(" "));
                answer(exchange, "{\"prompt\": \"" + text + "\"}");
            });
            server.createContext("/v1/completions", exchange -> {
                int tokens = request(exchange).path("max_tokens").asInt();
                exchange.sendResponseHeaders(200, 0);
                try (OutputStream body = exchange.getResponseBody()) {
                    for (int i = 0; i < tokens; i++) {
                        LockSupport.parkNanos(each.toNanos());
                        body.write("data: {\"choices\": [{\"text\": \"x\"}]}\n\n".getBytes(StandardCharsets.UTF_8));
                        body.flush();
                    }
                    body.write("data: [DONE]\n\n".getBytes(StandardCharsets.UTF_8));
                }
            });
            server.setExecutor(threads);
            server.start();
        }

        private static int[] words(String text) {
            return List.of(text.strip().split(" ")).stream()
                    .mapToInt(
                            word -> Math.floorMod(word.matches("\\d+") ? Integer.parseInt(word) : word.hashCode(), 900))
                    .toArray();
        }

        private static JsonNode request(HttpExchange exchange) throws IOException {
            return JSON.readTree(exchange.getRequestBody().readAllBytes());
        }

        private static void answer(HttpExchange exchange, String json) throws IOException {
            byte[] bytes = json.getBytes(StandardCharsets.UTF_8);
            exchange.sendResponseHeaders(200, bytes.length);
            exchange.getResponseBody().write(bytes);
            exchange.close();
        }

        String url() {
            return "http://127.0.0.1:" + server.getAddress().getPort();
        }

        @Override
        public void close() {
            server.stop(0);
            threads.close();
        }
    }

    @Tag("thorough")
    @Test
    void twoEndpointsAreGivenTheSameLoads() throws Exception {
        Plan plan = new Plan(List.of(256), List.of(), List.of(4.0, 8.0), List.of(), 2, 1, Optional.empty());
        try (Stub colocated = new Stub(Duration.ofMillis(4));
                Stub disaggregated = new Stub(Duration.ofMillis(1))) {
            DisaggBench bench = new DisaggBench(plan, _ -> {});
            bench.run(colocated.url(), disaggregated.url());
            DisaggReport report = bench.report().orElseThrow();
            assertThat(report.cells()).hasSize(4);
            assertThat(report.cells()).allSatisfy(cell -> {
                assertThat(cell.failed()).isZero();
                assertThat(cell.promptTokens()).isEqualTo(256);
            });
            assertThat(report.cells().stream().map(cell -> cell.setup().disaggregated()))
                    .containsExactly(true, true, false, false);
            assertThat(report.cells().get(0).requests())
                    .isEqualTo(report.cells().get(2).requests())
                    .isLessThan(report.cells().get(1).requests());
            assertThat(report.cells().get(2).itl().p99()).isGreaterThan(0.003);
            assertThat(report.advice()).hasSize(2);
        }
    }

    @Test
    void requestsComeWithinTheTimeHoweverSlowTheirRateIs() throws Exception {
        MixedLoad load = new MixedLoad(300, 0.01, 2, 3, 5);
        MixedLoad.Mixed mixed = load.make((tokens, answer) ->
                new baton.bench.serve.Sample(JSON.createArrayNode().add(tokens), tokens, answer));
        assertThat(mixed.isLong()).containsOnlyOnce(true);
        assertThat(mixed.schedule().due()).isSorted();
        assertThat(mixed.schedule().due()[mixed.schedule().due().length - 1]).isLessThanOrEqualTo(5);
        assertThat(mixed.schedule().samples()).hasSize(3 + 10 + 1);
    }

    @Test
    void aNumberOutOfItsRangeIsRefusedByName() {
        assertThatThrownBy(() -> new Plan(List.of(100), List.of(), List.of(), List.of(), 1, 1, Optional.empty()))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("prompt-tokens")
                .hasMessageContaining("100");
        assertThatThrownBy(() -> new Plan(List.of(300), List.of(0.0), List.of(), List.of(), 1, 1, Optional.empty()))
                .hasMessageContaining("busy");
        assertThatThrownBy(() -> new Plan(List.of(300), List.of(), List.of(), List.of(), 0, 1, Optional.empty()))
                .hasMessageContaining("streams");
    }
}
