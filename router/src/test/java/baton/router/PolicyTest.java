package baton.router;

import static org.assertj.core.api.Assertions.assertThat;

import baton.router.flow.ContentKeyedFlow;
import baton.router.policy.LocalPrefill;
import baton.router.policy.PolicySettings;
import java.net.http.HttpResponse;
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Which instances requests over HTTP go to. */
@Timeout(300)
class PolicyTest {
    private static final int RECORDED = 10_000;

    @AutoClose
    private final RouterFixture fixture = new RouterFixture();

    private final List<FakeInstance> prefills = List.of(fixture.instance(), fixture.instance(), fixture.instance());
    private final List<FakeInstance> decodes = List.of(fixture.instance(), fixture.instance(), fixture.instance());

    private Router router(String policy, LocalPrefill local) {
        return fixture.start(TestConfigs.router(
                "127.0.0.1",
                0,
                RouterFixture.uris(prefills),
                RouterFixture.uris(decodes),
                ContentKeyedFlow.NAME,
                Optional.empty(),
                RouterFixture.LIMITS,
                Optional.empty(),
                new PolicySettings(policy, policy, RECORDED, local)));
    }

    private static String chat(int conversation, int turns) {
        StringBuilder messages = new StringBuilder();
        for (int i = 0; i <= turns; i++) {
            messages.append(i == 0 ? "" : ",")
                    .append("{\"role\":\"user\",\"content\":\"%d of %d %s\"}"
                            .formatted(i, conversation, "word ".repeat(120)));
        }
        return "{\"messages\":[" + messages + "],\"stream\":false}";
    }

    private static String servedBy(HttpResponse<String> response) {
        assertThat(response.statusCode()).isEqualTo(200);
        return response.headers().firstValue("X-Baton-Prefill").orElse("-") + " "
                + response.headers().firstValue("X-Baton-Decode").orElse("-");
    }

    @Test
    void turnsOfAConversationGoWhereItsFirstTurnWent() throws Exception {
        Router router = router("prefix", LocalPrefill.NEVER);
        for (int conversation = 0; conversation < 6; conversation++) {
            String first = servedBy(fixture.post(router, chat(conversation, 0)));
            for (int turn = 1; turn < 4; turn++) {
                assertThat(servedBy(fixture.post(router, chat(conversation, turn))))
                        .isEqualTo(first);
            }
        }
        assertThat(prefills).allSatisfy(prefill -> assertThat(prefill.received).hasSizeGreaterThanOrEqualTo(4));
        assertThat(fixture.metric(router, "baton:router_choices_total{role=\"prefill\",why=\"prefix\"}"))
                .isEqualTo(18);
        assertThat(fixture.metric(router, "baton:router_choices_total{role=\"prefill\",why=\"load\"}"))
                .isEqualTo(6);
        double all = fixture.metric(router, "baton:router_prompt_bytes_total{role=\"decode\",which=\"all\"}");
        double known = fixture.metric(router, "baton:router_prompt_bytes_total{role=\"decode\",which=\"known\"}");
        assertThat(known / all).isBetween(0.4, 0.75);
    }

    @Test
    void aPromptThatDecodeHasIsNotSentToPrefill() throws Exception {
        Router router = router("prefix", new LocalPrefill(false, 0, 1000, Integer.MAX_VALUE));
        HttpResponse<String> first = fixture.post(router, chat(1, 3));
        assertThat(first.headers().firstValue("X-Baton-Local-Prefill")).isEmpty();
        HttpResponse<String> second = fixture.post(router, chat(1, 4));
        assertThat(second.headers().firstValue("X-Baton-Local-Prefill")).contains("cached");
        assertThat(second.headers().firstValue("X-Baton-Decode"))
                .isEqualTo(first.headers().firstValue("X-Baton-Decode"));
        HttpResponse<String> longer = fixture.post(router, chat(1, 12));
        assertThat(longer.headers().firstValue("X-Baton-Local-Prefill")).isEmpty();
    }

    @Test
    void requestsOfASessionStayTogetherUntilTheirInstanceIsGone() throws Exception {
        Router router = router("session", LocalPrefill.NEVER);
        String first = servedBy(fixture.post(router, chat(0, 0), "X-Session-Id", "s"));
        for (int i = 1; i < 5; i++) {
            assertThat(servedBy(fixture.post(router, chat(i, 0), "X-Session-Id", "s")))
                    .isEqualTo(first);
        }
        FakeInstance serving = prefills.stream()
                .filter(prefill -> first.startsWith(prefill.uri().toString()))
                .findFirst()
                .orElseThrow();
        serving.close();
        String moved = servedBy(fixture.post(router, chat(0, 0), "X-Session-Id", "s"));
        assertThat(moved).isNotEqualTo(first);
        assertThat(servedBy(fixture.post(router, chat(1, 0), "X-Session-Id", "s")))
                .isEqualTo(moved);
    }
}
