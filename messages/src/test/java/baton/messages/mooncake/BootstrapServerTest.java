package baton.messages.mooncake;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.JsonFields;
import baton.messages.MessageException;
import baton.messages.PeerAccess;
import baton.messages.PeerAddress;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

@Timeout(300)
class BootstrapServerTest {
    private static final String HOST = "127.0.0.1";
    private static final Duration TIMEOUT = Duration.ofSeconds(30);

    @AutoClose
    private final MooncakeExchange exchange =
            new SystemExchange(PeerAccess.everyone(), Executors.newVirtualThreadPerTaskExecutor());

    private MooncakeExchange.Registry registry;

    @BeforeEach
    void start() throws MessageException {
        registry = exchange.serve(HOST, 0);
    }

    private static RankRegistration rank(String engine, int tp, int pp, int port) {
        return new RankRegistration(engine, 0, tp, pp, new PeerAddress("10.0.0.1", port));
    }

    private PeerAddress address() {
        return new PeerAddress(HOST, registry.port());
    }

    private String url(String path) {
        return "http://" + address() + path;
    }

    private HttpResponse<String> post(String body) throws Exception {
        return post(body, "X-Nothing", "1");
    }

    private HttpResponse<String> post(String body, String... headers) throws Exception {
        try (HttpClient client = HttpClient.newHttpClient()) {
            return client.send(
                    HttpRequest.newBuilder(URI.create(url("/register")))
                            .timeout(TIMEOUT)
                            .headers(headers)
                            .POST(HttpRequest.BodyPublishers.ofString(body))
                            .build(),
                    HttpResponse.BodyHandlers.ofString());
        }
    }

    /** Registrations and answers are vLLM's JSON. */
    @Test
    void ranksRegisterAndAreFound() throws Exception {
        registry.register(rank("e", 1, 0, 2000));
        exchange.register(
                        new PeerAddress(HOST, registry.port()),
                        List.of(rank("e", 0, 0, 1000), rank("e", 0, 1, 1001)),
                        TIMEOUT)
                .get(120, TimeUnit.SECONDS);
        try (HttpClient client = HttpClient.newHttpClient()) {
            assertThat(client.send(
                                    HttpRequest.newBuilder(URI.create(url("/query")))
                                            .timeout(TIMEOUT)
                                            .build(),
                                    HttpResponse.BodyHandlers.ofString())
                            .body())
                    .isEqualTo(
                            "{\"0\":{\"engine_id\":\"e\",\"worker_addr\":{\"0\":{\"0\":\"tcp://10.0.0.1:1000\",\"1\":\"tcp://10.0.0.1:1001\"},\"1\":{\"0\":\"tcp://10.0.0.1:2000\"}}}}");
        }
        assertThat(exchange.query(address(), TIMEOUT).get(120, TimeUnit.SECONDS))
                .isEqualTo(new EngineTable(Map.of(
                        0,
                        new EngineTable.Engine(
                                "e",
                                Map.of(
                                        0,
                                        Map.of(
                                                0,
                                                new PeerAddress("10.0.0.1", 1000),
                                                1,
                                                new PeerAddress("10.0.0.1", 1001)),
                                        1,
                                        Map.of(0, new PeerAddress("10.0.0.1", 2000)))))));
    }

    @Test
    void aRegistrationMayBeRepeatedButNotContradicted() throws Exception {
        registry.register(rank("e", 0, 0, 1000));
        assertThat(post(rank("e", 0, 0, 1000).toJson()).body()).isEqualTo("{\"status\":\"ok\"}");
        HttpResponse<String> moved = post(rank("e", 0, 0, 1001).toJson());
        assertThat(moved.statusCode()).isEqualTo(400);
        assertThat(moved.body()).contains("is already registered at tcp://10.0.0.1:1000");
        HttpResponse<String> other = post(rank("other", 1, 0, 1002).toJson());
        assertThat(other.statusCode()).isEqualTo(400);
        assertThat(other.body()).contains("Engine ID mismatch for dp_rank=0: expected e, got other");
        assertThatThrownBy(() -> exchange.register(address(), List.of(rank("other", 1, 0, 1002)), TIMEOUT)
                        .get(120, TimeUnit.SECONDS))
                .hasMessageContaining("status 400")
                .hasMessageContaining("Engine ID mismatch");
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "{}|addr",
                "nonsense|registration",
                "{\"engine_id\":\"e\",\"engine_id\":\"f\"}|engine_id",
                "{\"engine_id\":\"e\",\"dp_rank\":0,\"tp_rank\":-1,\"pp_rank\":0,\"addr\":\"tcp://h:1\"}|tp_rank",
                "{\"engine_id\":\"e\",\"dp_rank\":0,\"tp_rank\":0,\"pp_rank\":0,\"addr\":\"h:1\"}|must be tcp://host:port"
            })
    void aMalformedRegistrationIsRefusedByItsField(String body, String named) throws Exception {
        HttpResponse<String> answer = post(body);
        assertThat(answer.statusCode()).isEqualTo(422);
        assertThat(answer.body()).contains(named);
    }

    @Test
    void aWebPageRegistersNothing() throws Exception {
        for (String origin : List.of("https://evil.example", "null")) {
            assertThat(post(rank("e", 0, 0, 1000).toJson(), "Origin", origin).statusCode())
                    .isEqualTo(403);
        }
        assertThat(exchange.query(address(), TIMEOUT).get(120, TimeUnit.SECONDS))
                .isEqualTo(new EngineTable(Map.of()));
    }

    @Test
    void theRegistryOfInstancesWithASecretIsSealed(@TempDir Path directory) throws Exception {
        Path secret = Files.writeString(directory.resolve("secret"), "0123456789abcdef");
        PeerAccess access = PeerAccess.of(
                JsonFields.parse("extra", "{\"kv_auth_secret_file\": \"" + secret + "\"}"), "host", HOST, List.of());
        try (MooncakeExchange sealed = new SystemExchange(access, Executors.newVirtualThreadPerTaskExecutor())) {
            registry = sealed.serve(HOST, 0);
            sealed.register(address(), List.of(rank("e", 0, 0, 1000)), TIMEOUT).get(120, TimeUnit.SECONDS);
            assertThat(sealed.query(address(), TIMEOUT)
                            .get(120, TimeUnit.SECONDS)
                            .engines())
                    .containsEntry(
                            0, new EngineTable.Engine("e", Map.of(0, Map.of(0, new PeerAddress("10.0.0.1", 1000)))));
            assertThatThrownBy(() -> sealed.register(address(), List.of(rank("other", 1, 0, 1002)), TIMEOUT)
                            .get(120, TimeUnit.SECONDS))
                    .hasMessageContaining("status 400")
                    .hasMessageContaining("Engine ID mismatch");
            assertThatThrownBy(() -> post(rank("e", 1, 0, 1001).toJson())).isInstanceOf(IOException.class);
            assertThatThrownBy(() -> exchange.query(address(), TIMEOUT).get(120, TimeUnit.SECONDS))
                    .hasMessageContaining(address().toString());
        }
    }

    @Test
    void aRegistryThatIsGoneIsAskedThreeTimesAndThenGivenUp() throws Exception {
        PeerAddress gone = address();
        registry.close();
        assertThatThrownBy(() -> exchange.query(gone, TIMEOUT).get(120, TimeUnit.SECONDS))
                .hasMessageContaining(gone.toString());
    }
}
