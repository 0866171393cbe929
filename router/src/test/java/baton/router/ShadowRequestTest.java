package baton.router;

import static org.assertj.core.api.Assertions.assertThat;

import baton.router.ShadowComparison.Verdict;
import baton.router.flow.KvTransferParamsFlow;
import baton.router.policy.LocalPrefill;
import baton.testkit.Await;
import io.vertx.core.http.HttpServerResponse;
import java.util.List;
import java.util.Optional;
import java.util.function.BiConsumer;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

@Timeout(300)
class ShadowRequestTest {
    private static final String GREEDY =
            "{\"prompt\":\"hello\",\"temperature\":0,\"stream\":true,\"stream_options\":{}}";
    private static final String STREAM =
            "data: {\"choices\":[{\"text\":\"an \"}]}\n\ndata: {\"choices\":[{\"text\":\"answer\"}]}\n\ndata: [DONE]\n\n";

    @AutoClose
    private final RouterFixture fixture = new RouterFixture();

    private final FakeInstance prefill = fixture.instance();
    private final FakeInstance decode = fixture.instance();

    private Router router(double share) {
        return fixture.start(RouterFixture.config(
                        KvTransferParamsFlow.NAME,
                        List.of(prefill),
                        List.of(decode),
                        Optional.empty(),
                        LocalPrefill.NEVER)
                .withLimits(RouterFixture.LIMITS.withShadowShare(share)));
    }

    private static String second(String text, double margin) {
        return "{\"choices\":[{\"text\":\"%s\",\"logprobs\":{\"tokens\":[\"an \",\"%s\"],\"top_logprobs\":[{\"an \":-0.1,\"b\":-9},{\"x\":-1,\"y\":%s}]}}]}"
                .formatted(text, text.substring(3), -1 - margin);
    }

    private static BiConsumer<FakeInstance.Received, HttpServerResponse> answers(String alone) {
        return (request, response) -> {
            if (request.body().contains("shadow-")) {
                FakeInstance.json(alone.isEmpty() ? 500 : 200, alone).accept(request, response);
            } else {
                FakeInstance.events(response, STREAM).end();
            }
        };
    }

    private void awaitCount(Router router, String result) throws Exception {
        Await.until(
                result,
                RouterFixture.SOON,
                () -> fixture.metric(router, "baton:router_shadow_requests_total{result=\"" + result + "\"}") == 1);
    }

    @ParameterizedTest
    @CsvSource({"an answer, 5, equal", "an other, 5, different", "an other, 0.1, close", "'', 0, failed"})
    void answersAreCompared(String text, double margin, String result) throws Exception {
        decode.behaviour = answers(text.isEmpty() ? "" : second(text, margin));
        Router router = router(1);
        assertThat(fixture.post(router, GREEDY).body()).isEqualTo(STREAM);
        awaitCount(router, result);
        assertThat(prefill.received).hasSize(1);
        assertThat(decode.received).hasSize(2);
        assertThat(decode.received.getLast().body())
                .contains("\"temperature\":0", "\"cache_salt\":\"shadow-", "\"logprobs\":2")
                .doesNotContain("stream", "kv_transfer_params");
        assertThat(decode.received.getLast().headers().get("X-Request-Id")).endsWith("-shadow");
    }

    @Test
    void onlyGreedyAnswersAreComputedTwice() throws Exception {
        decode.behaviour = answers(second("an answer", 1));
        Router router = router(1);
        for (String body : List.of(
                "{\"prompt\":\"hello\"}",
                "{\"prompt\":\"hello\",\"temperature\":0.5}",
                "{\"prompt\":\"hello\",\"temperature\":0,\"n\":2}")) {
            assertThat(fixture.post(router, body).statusCode()).isEqualTo(200);
        }
        assertThat(fixture.post(router, GREEDY).statusCode()).isEqualTo(200);
        awaitCount(router, "equal");
        assertThat(decode.received).hasSize(5);
    }

    @Test
    void noneIsWithoutAShare() throws Exception {
        decode.behaviour = answers(second("an answer", 1));
        Router router = router(0);
        assertThat(fixture.post(router, GREEDY).statusCode()).isEqualTo(200);
        assertThat(fixture.post(router, GREEDY).statusCode()).isEqualTo(200);
        assertThat(decode.received).hasSize(2);
    }

    @Test
    void chatsAndToolCallsAreRead() {
        String first =
                "data: {\"choices\":[{\"delta\":{\"content\":\"so: \"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"function\":{\"arguments\":\"{}\"}}]}}]}\n\ndata: [DONE]\n\n";
        String second =
                "{\"choices\":[{\"message\":{\"content\":\"so: \",\"tool_calls\":[{\"function\":{\"arguments\":\"%s\"}}]},\"logprobs\":{\"content\":[{\"token\":\"so: \",\"top_logprobs\":[{\"logprob\":-0.1},{\"logprob\":-3}]},{\"token\":\"{}\",\"top_logprobs\":[{\"logprob\":-0.5},{\"logprob\":-2.5}]}]}}]}";
        assertThat(ShadowComparison.of(first, second.formatted("{}")).verdict()).isEqualTo(Verdict.EQUAL);
        ShadowComparison other = ShadowComparison.of(first, second.formatted("[]"));
        assertThat(other).isEqualTo(new ShadowComparison(Verdict.DIFFERENT, 4, 2));
    }
}
