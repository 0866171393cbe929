package baton.server.output;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.server.output.ReasoningFormat.Start;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/**
 * Random outputs in random pieces are divided as vLLM 0.32's own parsers divide them. The environment variable {@code BATON_VLLM} names the Python
 * environment that vLLM is installed in; {@code -Dtests.outputs=N} makes N outputs for each parser.
 */
@Tag("peers")
@Timeout(600)
class VllmReasoningTest {
    private static final int OUTPUTS = Integer.getInteger("tests.outputs", 200);
    private static final long SEED = Long.getLong("tests.seed", 1);
    private static final JsonMapper MAPPER = JsonMapper.builder().build();

    @TempDir
    Path directory;

    @Test
    void outputsAreDividedAsByVllm() throws Exception {
        Random random = new Random(SEED);
        List<String> wrong = new ArrayList<>();
        List<JsonNode> cases = cases();
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

    private List<JsonNode> cases() throws Exception {
        String environment = System.getenv("BATON_VLLM");
        assumeTrue(environment != null, "BATON_VLLM is not set: it names a Python environment with vLLM 0.32");
        Path script = directory.resolve("vllm_reasoning.py");
        try (InputStream in =
                Objects.requireNonNull(VllmReasoningTest.class.getResourceAsStream("vllm_reasoning.py"))) {
            Files.copy(in, script);
        }
        Path out = directory.resolve("out");
        ProcessBuilder command = new ProcessBuilder(
                Path.of(environment, "bin/python").toString(),
                script.toString(),
                Path.of(System.getProperty("baton.root", "."), "models", "tiny-ledger")
                        .toString(),
                Integer.toString(OUTPUTS),
                Long.toString(SEED));
        command.environment().put("HF_HUB_OFFLINE", "1");
        command.environment().put("VLLM_NO_USAGE_STATS", "1");
        Process python = command.redirectOutput(out.toFile())
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
        try {
            assertThat(python.waitFor(400, TimeUnit.SECONDS)).isTrue();
        } finally {
            python.destroyForcibly();
        }
        assertThat(python.exitValue()).isZero();
        return Files.readAllLines(out).stream()
                .filter(line -> line.startsWith("case "))
                .map(line -> MAPPER.readTree(line.substring("case ".length())))
                .toList();
    }
}
