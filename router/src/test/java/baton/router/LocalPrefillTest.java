package baton.router;

import static org.assertj.core.api.Assertions.assertThat;

import baton.router.flow.ContentKeyedFlow;
import baton.router.flow.KvTransferParamsFlow;
import baton.router.flow.PushFlow;
import baton.router.policy.LocalPrefill;
import java.net.http.HttpResponse;
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Prompts that are left to the decode instance. */
@Timeout(300)
class LocalPrefillTest {
    private static final String BODY = "{\"prompt\":\"hello\",\"max_tokens\":9,\"stream\":false}";

    @AutoClose
    private final RouterFixture fixture = new RouterFixture();

    private final FakeInstance prefill = fixture.instance();
    private final FakeInstance decode = fixture.instance();

    private Router router(String flow, List<FakeInstance> prefills, LocalPrefill policy) {
        return fixture.router(flow, prefills, List.of(decode), Optional.empty(), policy);
    }

    private void assertLocal(Router router, HttpResponse<String> response, String reason) {
        assertThat(response.statusCode()).isEqualTo(200);
        assertThat(response.body()).isEqualTo(RouterFixture.ANSWER);
        assertThat(response.headers().firstValue("X-Baton-Local-Prefill")).contains(reason);
        assertThat(response.headers().firstValue("X-Baton-Prefill")).isEmpty();
        assertThat(response.headers().firstValue("X-Baton-Decode"))
                .contains(decode.uri().toString());
        assertThat(decode.received.getLast().body()).isEqualTo(BODY);
        assertThat(fixture.metric(router, "baton:router_local_prefills_total{reason=\"" + reason + "\"}"))
                .isEqualTo(1);
    }

    @ParameterizedTest
    @ValueSource(strings = {ContentKeyedFlow.NAME, KvTransferParamsFlow.NAME, PushFlow.NAME})
    void localPrefillFollowsTwoFailedPrefillLegs(String flow) throws Exception {
        FakeInstance other = fixture.instance();
        FakeInstance third = fixture.instance();
        for (FakeInstance failing : List.of(prefill, other, third)) {
            failing.behaviour = FakeInstance.json(500, "{}");
        }
        List<FakeInstance> prefills = List.of(prefill, other, third);
        Router router = router(flow, prefills, new LocalPrefill(true, 0, 0, Integer.MAX_VALUE));
        assertLocal(router, fixture.post(router, BODY), "failed");
        assertThat(prefills.stream().mapToInt(each -> each.received.size()).sum())
                .isEqualTo(2);
        assertThat(decode.received).hasSize(1);

        Router strict = router(flow, prefills, LocalPrefill.NEVER);
        assertThat(fixture.post(strict, BODY).statusCode()).isEqualTo(502);
        assertThat(decode.received).hasSize(1);
    }

    @Test
    void localPrefillIsUsedWithoutAPrefillInstance() throws Exception {
        prefill.health = 503;
        Router router =
                router(KvTransferParamsFlow.NAME, List.of(prefill), new LocalPrefill(true, 0, 0, Integer.MAX_VALUE));
        assertLocal(router, fixture.post(router, BODY), "unavailable");
        assertThat(prefill.received).isEmpty();

        Router strict = router(KvTransferParamsFlow.NAME, List.of(prefill), LocalPrefill.NEVER);
        HttpResponse<String> refused = fixture.post(strict, BODY);
        assertThat(refused.statusCode()).isEqualTo(503);
        assertThat(refused.body()).contains("no healthy prefill instance");
    }

    @Test
    void localPrefillDoesNotFollowA4xxOfPrefill() throws Exception {
        prefill.behaviour = FakeInstance.json(400, "{\"error\":{\"message\":\"too long\"}}");
        Router router =
                router(ContentKeyedFlow.NAME, List.of(prefill), new LocalPrefill(true, 0, 0, Integer.MAX_VALUE));
        assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(400);
        assertThat(decode.received).isEmpty();
    }

    @Test
    void localPrefillIsUsedForShortPrompts() throws Exception {
        prefill.behaviour = FakeInstance.json(200, "{\"id\":\"p\"}");
        // "hello" has seven bytes with its quotes.
        Router router =
                router(ContentKeyedFlow.NAME, List.of(prefill), new LocalPrefill(false, 8, 0, Integer.MAX_VALUE));
        assertLocal(router, fixture.post(router, BODY), "short");
        assertThat(prefill.received).isEmpty();

        HttpResponse<String> longer = fixture.post(router, "{\"prompt\":\"hello!\"}");
        assertThat(longer.headers().firstValue("X-Baton-Local-Prefill")).isEmpty();
        assertThat(prefill.received).hasSize(1);
        HttpResponse<String> chat = fixture.post(router, "{\"messages\":[{\"role\":\"user\"}]}");
        assertThat(chat.headers().firstValue("X-Baton-Local-Prefill")).isEmpty();
        assertThat(prefill.received).hasSize(2);
    }

    @Test
    void localPrefillIsRetriedOnAnotherDecodeInstance() throws Exception {
        FakeInstance other = fixture.instance();
        Router router = fixture.router(
                ContentKeyedFlow.NAME,
                List.of(prefill),
                List.of(other, decode),
                Optional.empty(),
                new LocalPrefill(false, 1000, 0, Integer.MAX_VALUE));
        other.behaviour = FakeInstance.json(503, "{}");
        assertLocal(router, fixture.post(router, BODY), "short");
    }
}
