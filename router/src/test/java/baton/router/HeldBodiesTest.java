package baton.router;

import static org.assertj.core.api.Assertions.assertThat;

import baton.router.flow.KvTransferParamsFlow;
import baton.router.policy.LocalPrefill;
import baton.router.policy.PolicySettings;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.parallel.Isolated;

/** How many copies of a request's body the router keeps while its answer is streamed. */
@Isolated("It measures the heap.")
class HeldBodiesTest {
    private static final int STREAMS = 64;
    private static final int BODY_BYTES = 200_000;
    private static final String EVENT = "data: {}\n\n";

    @AutoClose
    private final RouterFixture fixture = new RouterFixture();

    @Test
    void aStreamHoldsOneBody() throws Exception {
        FakeInstance prefill = fixture.instance();
        prefill.behaviour = FakeInstance.json(200, "{\"kv_transfer_params\":{\"remote_port\":1},\"choices\":[]}");
        FakeInstance decode = fixture.instance();
        decode.behaviour = (_, response) -> FakeInstance.events(response, EVENT);
        Router router = fixture.start(TestConfigs.router(
                "127.0.0.1",
                0,
                List.of(prefill.uri()),
                List.of(decode.uri()),
                KvTransferParamsFlow.NAME,
                Optional.empty(),
                TestConfigs.limits(
                        Duration.ofSeconds(5),
                        Duration.ofSeconds(60),
                        Duration.ofSeconds(60),
                        Duration.ofSeconds(1),
                        Duration.ofSeconds(5),
                        1 << 20,
                        100),
                Optional.empty(),
                PolicySettings.DEFAULT));
        String body = "{\"prompt\":\"" + "a".repeat(BODY_BYTES) + "\",\"stream\":true}";
        List<RawClient> clients = new ArrayList<>();
        try {
            long before = heldHeap();
            for (int i = 0; i < STREAMS; i++) {
                RawClient client = new RawClient(router.port());
                clients.add(client);
                assertThat(client.post("/v1/completions", body).readUntil(EVENT))
                        .startsWith("HTTP/1.1 200")
                        .endsWith(EVENT);
                prefill.received.clear();
                decode.received.clear();
            }
            // The decode instance of this test has a body too, in a buffer of up to twice its size.
            long bodies = (heldHeap() - before) / ((long) STREAMS * BODY_BYTES);
            assertThat(bodies).isLessThanOrEqualTo(4);
        } finally {
            for (RawClient client : clients) {
                client.close();
            }
        }
    }

    @Test
    void promptsWithAnAnswerHoldNoBody() throws Exception {
        int prompts = 60;
        FakeInstance prefill = fixture.instance();
        FakeInstance decode = fixture.instance();
        decode.behaviour = (received, response) -> {
            if (!received.body().contains("\"prompt\":\"last\"")) {
                response.end(RouterFixture.ANSWER);
            }
        };
        Router router = fixture.router(
                KvTransferParamsFlow.NAME, List.of(prefill), List.of(decode), Optional.empty(), LocalPrefill.NEVER);
        String body =
                "{\"prompt\":[" + "\"a\",".repeat(prompts) + "\"last\"],\"user\":\"" + "a".repeat(BODY_BYTES) + "\"}";
        try (RawClient client = new RawClient(router.port())) {
            long before = heldHeap();
            client.post("/v1/completions", body);
            fixture.awaitMetric(router, "baton:router_requests_total{outcome=\"ok\"}", prompts);
            prefill.received.clear();
            decode.received.clear();
            long bodies = (heldHeap() - before) / BODY_BYTES;
            assertThat(bodies).isLessThan(prompts / 2);
        }
    }

    private static long heldHeap() {
        Runtime runtime = Runtime.getRuntime();
        System.gc();
        return runtime.totalMemory() - runtime.freeMemory();
    }
}
