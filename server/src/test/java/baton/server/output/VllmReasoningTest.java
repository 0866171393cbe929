package baton.server.output;

import static org.assertj.core.api.Assertions.assertThat;

import baton.server.output.ReasoningFormat.Start;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import tools.jackson.databind.JsonNode;

/**
 * Random outputs in random pieces are divided as vLLM 0.32's own parsers divide them. The environment variable {@code BATON_VLLM} names the Python
 * environment that vLLM is installed in; {@code -Dtests.outputs=N} makes N outputs for each parser.
 */
@Tag("peers")
@Timeout(600)
class VllmReasoningTest {
    private static final int OUTPUTS = Integer.getInteger("tests.outputs", 200);
    private static final long SEED = Long.getLong("tests.seed", 1);

    @TempDir
    Path directory;

    @Test
    void outputsAreDividedAsByVllm() throws Exception {
        Random random = new Random(SEED);
        List<String> wrong = new ArrayList<>();
        List<JsonNode> cases = VllmScript.cases(
                VllmReasoningTest.class,
                "vllm_reasoning.py",
                directory,
                Path.of(System.getProperty("baton.root", "."), "models", "tiny-ledger"),
                OUTPUTS,
                SEED);
        for (JsonNode each : cases) {
            String name = each.path("parser").asString();
            OutputParser parser = ReasoningFormat.named(name)
                    .parser(
                            new Start(name.equals("gpt_oss") ? "<|start|>assistant" : "assistant\n", true),
                            OutputParser.plain());
            String text = each.path("text").asString();
            List<Piece> all = new ArrayList<>();
            for (int at = 0; at < text.length(); ) {
                int end = Math.min(text.length(), at + 1 + random.nextInt(8));
                all.addAll(parser.add(text.substring(at, end)));
                at = end;
            }
            all.addAll(parser.end());
            OutputPieces pieces = new OutputPieces(all);
            List<String> calls = pieces.calls().stream()
                    .map(call -> call.begin().orElseThrow().name() + call.arguments())
                    .toList();
            List<String> expectedCalls =
                    each.path("calls").valueStream().map(JsonNode::asString).toList();
            if (!pieces.reasoning().orElse("").equals(each.path("reasoning").asString(""))
                    || !pieces.content().equals(each.path("content").asString(""))
                    || !calls.equals(expectedCalls)) {
                wrong.add(each + "\n  Baton " + all);
            }
        }
        assertThat(cases).hasSize(4 * OUTPUTS);
        assertThat(String.join("\n", wrong))
                .as("%d outputs differ, -Dtests.seed=%d", wrong.size(), SEED)
                .isEmpty();
    }
}
