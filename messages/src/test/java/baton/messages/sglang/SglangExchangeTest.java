package baton.messages.sglang;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.Ticker;
import baton.messages.PeerAccess;
import baton.messages.PeerAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Executors;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

@Timeout(300)
class SglangExchangeTest {
    private static final String HOST = "127.0.0.1";
    private static final Duration TIMEOUT = Duration.ofSeconds(60);
    private static final PrefillTopology TOPOLOGY =
            new PrefillTopology(1, 1, 1, 1, Optional.of(16), Optional.empty(), true, PrefillTopology.EARLY);

    @AutoClose
    private final SglangExchange exchange =
            new SglangExchange(PeerAccess.everyone(), Executors.newVirtualThreadPerTaskExecutor(), Ticker.system());

    @Test
    void aRegistryHasItsTopologyAndRanksOfBothFamiliesOfAddresses() throws Exception {
        PeerAddress rank = new PeerAddress("::1", 7000);
        int port = exchange.serve(HOST, 0, TOPOLOGY, Map.of(List.of(0, 0), rank));
        PeerAddress registry = new PeerAddress(HOST, port);
        assertThat(exchange.topology(registry, TIMEOUT).join()).isEqualTo(TOPOLOGY);
        assertThat(exchange.rank(registry, 0, 0, 0, TIMEOUT).join()).isEqualTo(rank);
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "GET  | /route                                                                                   |                            | 422",
                "GET  | /route?prefill_dp_rank=x&prefill_cp_rank=0&target_tp_rank=0&target_pp_rank=0             |                            | 422",
                "GET  | /route?prefill_dp_rank=99999&prefill_cp_rank=-1&target_tp_rank=0&target_pp_rank=0        |                            | 404",
                "POST | /route                                                                                   | {}                         | 405",
                "POST | /register_dp_rank                                                                        | [                          | 422",
                "POST | /register_dp_rank                                                                        | {\"dp_rank\": 1}           | 422",
                "POST | /query_dp_ranks                                                                          | {}                         | 422",
                "POST | /query_dp_ranks                                                                          | {\"bootstrap_rooms\": 5}   | 422",
                "POST | /query_dp_ranks                                                                          | {\"bootstrap_rooms\": [{}]} | 422",
                "POST | /query_dp_ranks                                                                          | {\"bootstrap_rooms\": [5]} | 200",
            })
    void questionsThatARegistryCannotAnswerGetAStatus(String method, String path, String body, int status)
            throws Exception {
        int port = exchange.serve(HOST, 0, TOPOLOGY, Map.of());
        HttpRequest request = HttpRequest.newBuilder(URI.create("http://" + HOST + ":" + port + path))
                .timeout(TIMEOUT)
                .method(
                        method,
                        body == null ? HttpRequest.BodyPublishers.noBody() : HttpRequest.BodyPublishers.ofString(body))
                .build();
        try (HttpClient client = HttpClient.newHttpClient()) {
            HttpResponse<String> answer = client.send(request, HttpResponse.BodyHandlers.ofString());
            assertThat(answer.statusCode()).as(answer.body()).isEqualTo(status);
        }
    }
}
