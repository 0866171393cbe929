package baton.router;

import static org.assertj.core.api.Assertions.assertThat;

import baton.router.flow.ContentKeyedFlow;
import baton.router.flow.KvTransferParamsFlow;
import baton.router.flow.MooncakeFlow;
import baton.router.flow.PushFlow;
import baton.router.policy.LocalPrefill;
import baton.router.policy.PolicySettings;
import java.net.http.HttpResponse;
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** A client's kv_transfer_params neither make an instance connect to hosts of the client's choice nor replace the prompt. */
@Timeout(300)
class ClientParamsTest {
    private static final String PARAMS = "{\"do_remote_prefill\":true,\"remote_host\":\"evil.example\","
            + "\"remote_port\":80,\"prompt_token_ids\":[1,2]}";
    private static final String PLAIN = "{\"prompt\":\"hello\",\"max_tokens\":9}";

    @AutoClose
    private final RouterFixture fixture = new RouterFixture();

    private final FakeInstance prefill = fixture.instance();
    private final FakeInstance decode = fixture.instance();

    private Router router(String flow, LocalPrefill local, boolean trust) {
        return fixture.start(TestConfigs.router(
                "127.0.0.1",
                0,
                List.of(prefill.uri()),
                List.of(decode.uri()),
                flow,
                Optional.empty(),
                RouterFixture.LIMITS,
                Optional.empty(),
                PolicySettings.DEFAULT.withLocalPrefill(local),
                trust,
                RouterConfig.Sources.NONE));
    }

    private void assertRefused(Router router, String body, String field) throws Exception {
        HttpResponse<String> answer = fixture.post(router, body);
        assertThat(answer.statusCode()).isEqualTo(400);
        assertThat(answer.body()).contains("\"param\":\"" + field + "\"", "is refused");
    }

    /** However the field's name is escaped. */
    @ParameterizedTest
    @ValueSource(strings = {ContentKeyedFlow.NAME, KvTransferParamsFlow.NAME, PushFlow.NAME, MooncakeFlow.NAME})
    void clientKvTransferParamsAreRefusedInEveryFlow(String flow) throws Exception {
        prefill.behaviour = FakeInstance.json(200, "{\"id\":\"p\"}");
        Router router = router(flow, LocalPrefill.NEVER, false);
        for (String name : List.of("kv_transfer_params", "kv\\u005ftransfer_params")) {
            assertRefused(router, "{\"" + name + "\":" + PARAMS + "," + PLAIN.substring(1), "kv_transfer_params");
            assertThat(fixture.post(
                                    router,
                                    "{\"kv_transfer_params\":null,\"prompt\":\"hello\",\"" + name + "\":" + PARAMS
                                            + "}")
                            .body())
                    .contains("Duplicate Object property \\\"kv_transfer_params\\\"");
            assertRefused(
                    router,
                    "{\"vllm_xargs\":{\"a\":1,\"" + name + "\":\"x\"},\"prompt\":\"hello\"}",
                    "vllm_xargs.kv_transfer_params");
        }
        assertThat(prefill.received).isEmpty();
        assertThat(decode.received).isEmpty();
        assertThat(fixture.metric(router, "baton:router_client_addresses_refused_total"))
                .isEqualTo(4);
        String harmless = "{\"kv_transfer_params\":null,\"vllm_xargs\":{\"a\":1},\"prompt\":\"hello\"}";
        assertThat(fixture.post(router, harmless).statusCode()).isEqualTo(200);
    }

    @Test
    void clientKvTransferParamsAreRefusedForALocalPrefill() throws Exception {
        Router router = router(KvTransferParamsFlow.NAME, new LocalPrefill(false, 1000, 0, Integer.MAX_VALUE), false);
        assertRefused(router, "{\"kv_transfer_params\":" + PARAMS + "," + PLAIN.substring(1), "kv_transfer_params");
        assertThat(decode.received).isEmpty();
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "{\"type\":\"image_url\",\"image_url\":{\"url\":\"http://evil.example/x.png\"}}",
                "{\"type\":\"image_url\",\"image_url\":{\"detail\":{\"a\":1},\"url\":\"file:///etc/passwd\"}}",
                "{\"type\":\"audio_url\",\"audio_url\":\"https://evil.example\"}",
                "{\"image\\u005furl\":{\"\\u0075rl\":\"//evil.example\"}}",
                "{\"type\":\"video_\\u0075rl\",\"video_\\u0075rl\":\"http://evil.example\"}"
            })
    void mediaAtUrlsAreRefused(String part) throws Exception {
        Router router = router(ContentKeyedFlow.NAME, LocalPrefill.NEVER, false);
        String body = "{\"messages\":[{\"role\":\"user\",\"content\":[" + part + "]}]}";
        for (String path : List.of("/v1/chat/completions", "/tokenize")) {
            HttpResponse<String> answer = fixture.postTo(router, path, body, "X-Request-Id", "m");
            assertThat(answer.statusCode()).as(path).isEqualTo(400);
            assertThat(answer.body()).contains("\"param\":\"messages\"", "must be a data: URL");
        }
        HttpResponse<String> answer =
                fixture.postTo(router, "/v1/responses", body.replace("\"messages\"", "\"input\""), "X-Request-Id", "m");
        assertThat(answer.statusCode()).isEqualTo(400);
        assertThat(answer.body()).contains("\"param\":\"input\"", "must be a data: URL");
        assertThat(decode.received).isEmpty();
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:image/png;base64,AAAA\"}}",
                "{\"type\":\"text\",\"text\":\"\\\"image_url\\\": http://example.org \\u00fc\"}",
                "{\"url\":\"http://example.org\"}"
            })
    void inlineMediaAndTextPass(String part) throws Exception {
        Router router = router(ContentKeyedFlow.NAME, LocalPrefill.NEVER, false);
        String body = "{\"messages\":[{\"role\":\"user\",\"content\":[" + part + "]}]}";
        assertThat(fixture.postTo(router, "/v1/chat/completions", body, "X-Request-Id", "m")
                        .statusCode())
                .isEqualTo(200);
        assertThat(decode.only().body()).isEqualTo(body);
    }

    @Test
    void clientKvTransferParamsPassWithTheTrustFlag() throws Exception {
        String body = "{\"kv_transfer_params\":" + PARAMS + "," + PLAIN.substring(1);
        Router router = router(ContentKeyedFlow.NAME, LocalPrefill.NEVER, true);
        fixture.post(router, body);
        assertThat(decode.only().body()).isEqualTo(body);
    }
}
