package baton.server;

import static org.assertj.core.api.Assertions.assertThat;

import baton.server.output.VllmScript;
import java.net.http.HttpResponse;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import tools.jackson.databind.JsonNode;

/**
 * Chat requests of all shapes have the token ids of vLLM 0.32's own renderer, and those that it refuses are refused. The environment variable
 * {@code BATON_VLLM} names the Python environment that vLLM is installed in; {@code -Dtests.chats=N} makes N random requests for each template.
 */
@Tag("peers")
@Timeout(600)
class VllmChatTest {
    private static final int CHATS = Integer.getInteger("tests.chats", 40);
    private static final long SEED = Long.getLong("tests.seed", 1);

    @TempDir
    Path directory;

    @Test
    void promptsAreThoseOfVllm() throws Exception {
        List<String> wrong = new ArrayList<>();
        int answered = 0;
        try (ServerFixture fixture = new ServerFixture(
                config -> config.trustRequestChatTemplate(true).toolCallParser("hermes"))) {
            fixture.engine.answers("x");
            for (JsonNode each :
                    VllmScript.cases(VllmChatTest.class, "vllm_chat.py", directory, FakeEngine.MODEL, CHATS, SEED)) {
                String body = each.path("body").asString();
                HttpResponse<String> response = fixture.post("/v1/chat/completions", body);
                boolean isAnswered = response.statusCode() == 200;
                int[] prompt =
                        isAnswered ? fixture.engine.nextSubmitted().request.prompt() : new int[0];
                String expected;
                boolean isRight;
                if (each.has("ids")) {
                    answered++;
                    int[] ids = each.path("ids")
                            .valueStream()
                            .mapToInt(JsonNode::asInt)
                            .toArray();
                    expected = shown(fixture, ids);
                    isRight = Arrays.equals(prompt, ids)
                            || !isAnswered && each.path("strict").asBoolean();
                } else {
                    expected = each.path("error").asString();
                    isRight = !isAnswered || each.path("lenient").asBoolean();
                }
                isRight &= isAnswered || response.statusCode() == 400;
                if (!isRight) {
                    String found = isAnswered ? shown(fixture, prompt) : response.statusCode() + " " + response.body();
                    wrong.add(body + "\n  vLLM   " + expected + "\n  Baton  " + found);
                }
            }
        }
        System.out.println("Requests that vLLM answers: " + answered + ", -Dtests.seed=" + SEED);
        assertThat(answered).isGreaterThan(CHATS);
        assertThat(String.join("\n", wrong))
                .as("%d requests differ", wrong.size())
                .isEmpty();
    }

    private static String shown(ServerFixture fixture, int[] ids) {
        return fixture.engine.tokenizer().decode(ids, false);
    }
}
