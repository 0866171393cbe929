package baton.router;

import static org.assertj.core.api.Assertions.assertThat;

import baton.router.body.BodyMemory;
import baton.router.flow.ContentKeyedFlow;
import baton.router.flow.KvTransferParamsFlow;
import baton.router.flow.MooncakeFlow;
import baton.router.flow.PushFlow;
import baton.router.policy.LocalPrefill;
import baton.router.policy.PolicySettings;
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** A client's kv_transfer_params neither make an instance connect to hosts of the client's choice nor replace the prompt. */
@Timeout(60)
class ClientParamsTest {
    private static final String PARAMS = "{\"do_remote_prefill\":true,\"remote_host\":\"evil.example\","
            + "\"remote_port\":80,\"prompt_token_ids\":[1,2]}";
    private static final String PLAIN = "{\"prompt\":\"hello\",\"max_tokens\":9}";

    private final RouterFixture fixture = new RouterFixture();
    private final FakeInstance prefill = fixture.instance();
    private final FakeInstance decode = fixture.instance();

    @AfterEach
    void stopAll() throws Exception {
        fixture.close();
    }

    private Router router(String flow, LocalPrefill local, boolean trust) {
        return router(flow, local, trust, RouterFixture.LIMITS);
    }

    private Router router(String flow, LocalPrefill local, boolean trust, RouterConfig.Limits limits) {
        return fixture.start(new RouterConfig(
                "127.0.0.1",
                0,
                List.of(prefill.uri()),
                List.of(decode.uri()),
                flow,
                Optional.empty(),
                limits,
                Optional.empty(),
                PolicySettings.DEFAULT.withLocalPrefill(local),
                trust,
                RouterConfig.Sources.NONE));
    }

    /** However the field's name is escaped. */
    @ParameterizedTest
    @ValueSource(strings = {ContentKeyedFlow.NAME, KvTransferParamsFlow.NAME, PushFlow.NAME, MooncakeFlow.NAME})
    void clientKvTransferParamsAreDroppedInEveryFlow(String flow) throws Exception {
        prefill.behaviour = FakeInstance.json(200, "{\"id\":\"p\"}");
        Router router = router(flow, LocalPrefill.NEVER, false);
        for (String name : List.of("kv_transfer_params", "kv\\u005ftransfer_params")) {
            String twice = "{\"" + name + "\":" + PARAMS + ",\"prompt\":\"hello\",\"max_tokens\":9,\"" + name + "\":"
                    + PARAMS + "}";
            assertThat(fixture.post(router, twice).statusCode()).isEqualTo(200);
            assertThat(decode.received.getLast().body()).isEqualTo(PLAIN);
            assertThat(prefill.received.getLast().body()).doesNotContain("evil", "prompt_token_ids");
        }
        assertThat(fixture.metric(router, "baton:router_client_kv_params_dropped_total"))
                .isEqualTo(2);
        assertThat(fixture.metric(router, "baton:router_handoffs_total{params=\"none\"}"))
                .isEqualTo(2);
    }

    @Test
    void clientKvTransferParamsAreDroppedForALocalPrefill() throws Exception {
        Router router = router(KvTransferParamsFlow.NAME, LocalPrefill.of(false, 1000), false);
        fixture.post(router, "{\"kv_transfer_params\":" + PARAMS + "," + PLAIN.substring(1));
        assertThat(decode.only().body()).isEqualTo(PLAIN);
    }

    @Test
    void clientKvTransferParamsPassWithTheTrustFlag() throws Exception {
        String body = "{\"kv_transfer_params\":" + PARAMS + "," + PLAIN.substring(1);
        Router router = router(ContentKeyedFlow.NAME, LocalPrefill.NEVER, true);
        fixture.post(router, body);
        assertThat(decode.only().body()).isEqualTo(body);
    }

    /** The body sent to instances is shorter than the one counted. */
    @Test
    void bodyMemoryIsReleasedAfterKvTransferParamsAreDropped() throws Exception {
        RouterConfig.Limits limits = new RouterConfig.Limits(
                RouterFixture.LIMITS.connect(),
                RouterFixture.LIMITS.prefill(),
                RouterFixture.LIMITS.idle(),
                RouterFixture.LIMITS.probeInterval(),
                RouterFixture.LIMITS.drain(),
                2000,
                RouterFixture.LIMITS.maxInFlight());
        Router router = router(ContentKeyedFlow.NAME, LocalPrefill.NEVER, false, limits);
        String body = "{\"kv_transfer_params\":{\"pad\":\"" + "x".repeat(1900) + "\"}," + PLAIN.substring(1);
        for (int i = 0; i < 2 * BodyMemory.BODIES; i++) {
            assertThat(fixture.post(router, body).statusCode()).isEqualTo(200);
        }
    }
}
