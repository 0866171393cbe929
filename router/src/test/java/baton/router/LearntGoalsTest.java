package baton.router;

import static org.assertj.core.api.Assertions.assertThat;

import baton.router.flow.ContentKeyedFlow;
import baton.router.policy.LatencyGoals;
import baton.router.policy.LocalPrefill;
import baton.testkit.VirtualTicker;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** A router with goals in front of a prefill instance that is fast and a decode instance that computes prompts slowly. */
@Timeout(300)
class LearntGoalsTest {
    /** Of a prefill leg, however long the prompt is. */
    private static final int HAND_OVER_MILLIS = 60;

    private static final int LARGE = 16 << 10;

    @AutoClose
    private final RouterFixture fixture = new RouterFixture();

    /** The clock of the router. The instances' times pass on it only, however busy the machine is. */
    private final VirtualTicker ticker = new VirtualTicker();

    private final FakeInstance prefill = fixture.instance();
    private final FakeInstance decode = fixture.instance();

    @BeforeEach
    void behave() {
        prefill.behaviour = (request, response) -> {
            ticker.advance(Duration.ofMillis(HAND_OVER_MILLIS));
            FakeInstance.json(200, RouterFixture.ANSWER).accept(request, response);
        };
        decode.behaviour = (request, response) -> {
            // A prompt that was computed before has its id among those of the prefill instance.
            String id = request.headers().get("X-Request-Id");
            boolean computed = prefill.received.stream()
                    .anyMatch(each -> id.equals(each.headers().get("X-Request-Id")));
            // 20 ms for each KiB.
            ticker.advance(
                    Duration.ofMillis(computed ? 1 : Math.max(1, request.body().length() * 20 / 1024)));
            FakeInstance.events(response, "data: {\"choices\":[]}\n\n").end("data: [DONE]\n\n");
        };
    }

    private HttpResponse<String> ask(Router router, int bytes) throws Exception {
        HttpResponse<String> answer =
                fixture.post(router, "{\"stream\":true,\"prompt\":\"" + "x".repeat(bytes) + "\"}");
        assertThat(answer.statusCode()).isEqualTo(200);
        return answer;
    }

    private static Optional<String> local(HttpResponse<String> answer) {
        return answer.headers().firstValue("X-Baton-Local-Prefill");
    }

    @Test
    void shortPromptsGoToDecodeAndLongOnesToPrefillOnceTimesAreKnown() throws Exception {
        Router router = fixture.start(
                RouterFixture.config(
                        ContentKeyedFlow.NAME,
                        List.of(prefill),
                        List.of(decode),
                        Optional.empty(),
                        LocalPrefill.NEVER.withGoals(new LatencyGoals(
                                Optional.of(Duration.ofMillis(150)), Optional.of(Duration.ofSeconds(1))))),
                Optional.empty(),
                ticker);
        for (int i = 0; i < 36; i++) {
            // Each fourth goes to decode: sizes are spread over both ways.
            ask(router, i / 4 % 2 == 0 ? 64 : LARGE);
        }
        int localShort = 0;
        int localLong = 0;
        String explained = "";
        for (int i = 0; i < 10; i++) {
            localShort += local(ask(router, 64)).isPresent() ? 1 : 0;
            HttpResponse<String> large = ask(router, LARGE);
            if (local(large).isPresent()) {
                localLong++;
            } else {
                explained = fixture.get(
                                router,
                                "/v1/requests/"
                                        + large.headers()
                                                .firstValue("X-Request-Id")
                                                .orElseThrow() + "/explain",
                                "Accept",
                                "text/plain")
                        .body();
            }
        }
        // One may have gone the other way to learn.
        assertThat(localShort).isGreaterThanOrEqualTo(9);
        assertThat(localLong).isLessThanOrEqualTo(1);
        assertThat(explained)
                .contains("the first token is expected after", "KiB to compute", "goals first token 150.0 ms")
                .contains("only with prefill they are kept");
        assertThat(fixture.metric(router, "baton:router_goal_decisions_total{prefill=\"remote\",why=\"keeps\"}"))
                .isGreaterThanOrEqualTo(9);
        assertThat(fixture.metric(router, "baton:router_goal_decisions_total{prefill=\"local\",why=\"sooner\"}"))
                .isGreaterThanOrEqualTo(9);
        assertThat(fixture.metric(router, "baton:router_local_prefills_total{reason=\"goal\"}"))
                .isGreaterThanOrEqualTo(17);
    }
}
