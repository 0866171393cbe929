package baton.server.output;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/** A Python script of a test class that uses vLLM's own classes. */
public final class VllmScript {
    private static final JsonMapper JSON = JsonMapper.builder().build();

    private VllmScript() {}

    /**
     * The lines of the script's output that begin with {@code case}, as JSON.
     *
     * @param test class beside the script
     * @param directory for the script and its output
     */
    public static List<JsonNode> cases(Class<?> test, String name, Path directory, Object... arguments)
            throws Exception {
        String environment = System.getenv("BATON_VLLM");
        assumeTrue(environment != null, "BATON_VLLM is not set: it names a Python environment with vLLM 0.32");
        Path script = directory.resolve(name);
        try (InputStream in = Objects.requireNonNull(test.getResourceAsStream(name))) {
            Files.copy(in, script);
        }
        Path out = directory.resolve("out");
        ProcessBuilder command = new ProcessBuilder(
                Stream.concat(Stream.of(Path.of(environment, "bin/python"), script), Stream.of(arguments))
                        .map(Object::toString)
                        .toList());
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
                .map(line -> JSON.readTree(line.substring("case ".length())))
                .toList();
    }
}
