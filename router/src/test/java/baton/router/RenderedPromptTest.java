package baton.router;

import static org.assertj.core.api.Assertions.assertThat;

import baton.router.flow.KvTransferParamsFlow;
import baton.router.policy.LocalPrefill;
import java.net.URI;
import java.net.http.HttpResponse;
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Two instances that make other tokens of the same request. */
@Timeout(300)
class RenderedPromptTest {
    private static final String CHAT = "/v1/chat/completions";

    @AutoClose
    private final RouterFixture fixture = new RouterFixture();

    private final FakeInstance prefill = fixture.instance();
    private final FakeInstance decode = fixture.instance();

    private Router router() {
        return fixture.router(
                KvTransferParamsFlow.NAME, List.of(prefill), List.of(decode), Optional.empty(), LocalPrefill.NEVER);
    }

    private static String usage(int promptTokens) {
        return "\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":%d}".formatted(promptTokens, promptTokens + 1);
    }

    private double differences(Router router) {
        return fixture.metric(router, "baton:router_prompts_differ_total");
    }

    @Test
    void theDecodeLegOfAChatHasTheTokenIdsOfThePrefillLeg() throws Exception {
        prefill.behaviour = FakeInstance.json(
                200,
                "{\"choices\":[{}],\"prompt_token_ids\":[5,6,7],\"kv_transfer_params\":{\"remote_port\":1}," + usage(3)
                        + "}");
        decode.behaviour = FakeInstance.json(200, "{\"choices\":[{}]," + usage(3) + "}");
        Router router = router();
        HttpResponse<String> answer =
                fixture.postTo(router, CHAT, "{\"messages\":[{\"role\":\"developer\"}],\"stream\":false}");
        assertThat(answer.body()).isEqualTo("{\"choices\":[{}]," + usage(3) + "}");
        assertThat(prefill.only().body()).contains("\"return_token_ids\":true");
        assertThat(decode.only().body())
                .isEqualTo("{\"messages\":[{\"role\":\"developer\"}],\"stream\":false,"
                        + "\"kv_transfer_params\":{\"remote_port\":1,\"prompt_token_ids\":[5,6,7]}}");
        assertThat(differences(router)).isZero();
    }

    /** As vLLM streams from 0.33 on: kv_transfer_params beside the finish_reason, the ids in the first event. */
    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            quoteCharacter = '`',
            value = {
                "/v1/chat/completions | {\"messages\":[{}],\"stream_options\":{\"include_usage\":false}} | {\"choices\":[{}],\"prompt_token_ids\":[5,6,7]} |"
                        + " {\"messages\":[{}],\"stream_options\":{\"include_usage\":false},\"kv_transfer_params\":{\"remote_port\":1,\"prompt_token_ids\":[5,6,7]}}",
                "/v1/completions | {\"prompt\":\"a\"} | {\"choices\":[{\"prompt_token_ids\":[5,6,7]}]} |"
                        + " {\"prompt\":[5,6,7],\"kv_transfer_params\":{\"remote_port\":1}}"
            })
    void aPrefillLegThatStreamsIsHandedOver(String path, String body, String first, String decoded) throws Exception {
        prefill.behaviour = (_, response) -> FakeInstance.events(
                        response,
                        "data: " + first + "\n\n",
                        "data: {\"choices\":[{\"finish_reason\":\"length\"}],\"kv_transfer_params\":{\"remote_port\":1}}\n\n",
                        "data: {\"choices\":[]," + usage(3) + "}\n\n",
                        "data: [DONE]\n\n")
                .end();
        decode.behaviour = FakeInstance.json(200, "{\"choices\":[{}]," + usage(3) + "}");
        Router router = fixture.start(TestConfigs.router(
                "127.0.0.1",
                0,
                List.of(URI.create(prefill.uri() + "?stream=true")),
                List.of(decode.uri()),
                KvTransferParamsFlow.NAME,
                Optional.empty(),
                RouterFixture.LIMITS));
        assertThat(fixture.postTo(router, path, body).statusCode()).isEqualTo(200);
        assertThat(prefill.only().body()).contains("\"stream\":true", "\"stream_options\":{\"include_usage\":true}");
        assertThat(decode.only().body()).isEqualTo(decoded);
        assertThat(differences(router)).isZero();
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "data: {\"choices\":[{}]}\n\n",
                "data: {\"error\":{\"message\":\"out of blocks\"}}\n\ndata: [DONE]\n\n"
            })
    void aPrefillLegWhoseStreamFailsIsRepeated(String events) throws Exception {
        FakeInstance other = fixture.instance();
        prefill.behaviour =
                (_, response) -> FakeInstance.events(response, events).end();
        other.behaviour = FakeInstance.json(200, "{\"choices\":[{}],\"kv_transfer_params\":{\"remote_port\":2}}");
        decode.behaviour = FakeInstance.json(200, "{\"choices\":[{}]}");
        Router router = fixture.router(
                KvTransferParamsFlow.NAME,
                List.of(prefill, other),
                List.of(decode),
                Optional.empty(),
                LocalPrefill.NEVER);
        assertThat(fixture.postTo(router, CHAT, "{\"messages\":[{}]}").statusCode())
                .isEqualTo(200);
        assertThat(decode.only().body()).contains("\"remote_port\":2");
    }

    /** A prefill instance that does not answer with the ids: only their number can be compared. */
    @ParameterizedTest
    @CsvSource({"160, 138, false, 1", "160, 138, true, 1", "138, 138, false, 0", "138, 138, true, 0"})
    void otherNumbersOfTokensAreCounted(int prefilled, int decoded, boolean streamed, int counted) throws Exception {
        prefill.behaviour = FakeInstance.json(200, "{\"choices\":[{}]," + usage(prefilled) + "}");
        decode.behaviour = streamed
                ? (_, response) -> FakeInstance.events(
                                response,
                                "data: {\"choices\":[{\"text\":\"\\\"prompt_tokens\\\": 7\"}]}\n\n",
                                "data: {\"choices\":[]," + usage(decoded) + "}\n\n",
                                "data: [DONE]\n\n")
                        .end()
                : FakeInstance.json(200, "{\"choices\":[{}]," + usage(decoded) + "}");
        Router router = router();
        assertThat(fixture.postTo(router, CHAT, "{\"messages\":[{}]}").statusCode())
                .isEqualTo(200);
        assertThat(differences(router)).isEqualTo(counted);
    }

    /** Answers of {@code /v1/responses} have other names for the same. */
    @Test
    void responsesAreHandedOverAndCounted() throws Exception {
        String usage =
                "\"usage\":{\"input_tokens\":%d,\"input_tokens_details\":{\"cached_tokens\":1},\"total_tokens\":9}";
        prefill.behaviour = FakeInstance.json(
                200, "{\"output\":[],\"kv_transfer_params\":{\"remote_port\":1}," + usage.formatted(7) + "}");
        decode.behaviour = (_, response) -> FakeInstance.events(
                        response, "event: response.completed\ndata: {\"response\":{" + usage.formatted(8) + "}}\n\n")
                .end();
        Router router = router();
        HttpResponse<String> answer =
                fixture.postTo(router, "/v1/responses", "{\"input\":\"a\",\"max_output_tokens\":9,\"stream\":true}");
        assertThat(answer.body()).startsWith("event: response.completed\ndata: ");
        assertThat(prefill.only().uri()).isEqualTo("/v1/responses");
        assertThat(prefill.only().body()).contains("\"max_output_tokens\":1,\"stream\":false");
        assertThat(decode.only().body())
                .isEqualTo("{\"input\":\"a\",\"max_output_tokens\":9,\"stream\":true,"
                        + "\"kv_transfer_params\":{\"remote_port\":1}}");
        assertThat(differences(router)).isEqualTo(1);
    }

    @Test
    void aStreamWithoutUsageIsNotCompared() throws Exception {
        prefill.behaviour = FakeInstance.json(200, "{\"choices\":[{}]," + usage(9) + "}");
        decode.behaviour = (_, response) -> FakeInstance.events(
                        response,
                        "data: {\"choices\":[{\"text\":\"\\\"prompt_tokens\\\": 7\"}]}\n\n",
                        "data: [DONE]\n\n")
                .end();
        Router router = router();
        assertThat(fixture.postTo(router, CHAT, "{\"messages\":[{}]}").statusCode())
                .isEqualTo(200);
        assertThat(differences(router)).isZero();
    }
}
