package baton.server;

import static org.assertj.core.api.Assertions.assertThat;

import baton.server.output.VllmScript;
import java.net.http.HttpResponse;
import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ObjectNode;

/** The answers of {@code /render} have the fields of vLLM 0.32's own, with its values. {@code BATON_VLLM} names the environment with vLLM. */
@Tag("peers")
@Timeout(600)
class VllmRenderTest {
    @TempDir
    Path directory;

    @Test
    void answersAreThoseOfVllm() throws Exception {
        List<JsonNode> cases = VllmScript.cases(VllmRenderTest.class, "vllm_render.py", directory, FakeEngine.MODEL);
        assertThat(cases).hasSizeGreaterThan(50);
        try (ServerFixture fixture = new ServerFixture()) {
            for (JsonNode each : cases) {
                String body = each.path("body").asString();
                HttpResponse<String> response = fixture.post(each.path("path").asString(), body);
                if (each.has("error")) {
                    assertThat(response.statusCode())
                            .as(body)
                            .isEqualTo(each.path("error").asInt());
                    continue;
                }
                JsonNode answer = ServerFixture.json(response);
                assertThat(shown(answer)).as(body).isEqualTo(shown(each.get("answer")));
            }
        }
    }

    /** Without nulls, a model's name that the request left out, and fields of only one of the versions. */
    private static JsonNode shown(JsonNode answer) {
        for (JsonNode request : answer.isArray() ? answer : List.of(answer)) {
            ObjectNode fields = (ObjectNode) request;
            fields.remove(List.of("model", "output_mode"));
            fields.properties().removeIf(field -> field.getValue().isNull());
        }
        return answer;
    }
}
