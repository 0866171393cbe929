package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.FreePorts;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The programs in {@code examples/} run. */
class ExamplesTest {
    private static final Path EXAMPLES = Program.ROOT.resolve("examples");

    @TempDir
    Path directory;

    /** Runs a command; its output, if it ends well. */
    private List<String> run(List<String> command, Map<String, String> environment)
            throws IOException, InterruptedException {
        Path output = directory.resolve("output");
        ProcessBuilder builder =
                new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(output.toFile());
        builder.environment().putAll(environment);
        Process process = builder.start();
        boolean ended = process.waitFor(5, TimeUnit.MINUTES);
        if (!ended) {
            process.descendants().forEach(ProcessHandle::destroyForcibly);
            process.destroyForcibly();
        }
        List<String> lines = Files.readAllLines(output, StandardCharsets.UTF_8);
        assertThat(ended).as("in time: %s", lines).isTrue();
        assertThat(process.exitValue()).as("%s", lines).isZero();
        return lines;
    }

    @Tag("thorough")
    @Test
    void twoProcessesStartedFromJava() throws Exception {
        List<String> lines = run(
                Program.java(
                        EXAMPLES.resolve("PyNcclOffline.java").toString(),
                        Instances.MODEL.toString(),
                        Integer.toString(FreePorts.inARow(2))),
                Map.of());
        assertThat(lines.stream().filter(line -> line.contains("taken over")))
                .hasSize(3)
                .allSatisfy(line -> assertThat(line).matches("([0-9]+) of \\1 prompt tokens taken over: .+"));
    }

    @Test
    void twoServersAndARouterStartedFromAScript() throws Exception {
        int ports = FreePorts.inARow(5);
        List<String> lines = run(
                List.of("bash", EXAMPLES.resolve("disaggregated_prefill.sh").toString()),
                Map.of(
                        "BATON",
                        String.join(" ", Program.baton(List.of())),
                        "MODEL",
                        Instances.MODEL.toString(),
                        "PREFILL_PORT",
                        Integer.toString(ports),
                        "DECODE_PORT",
                        Integer.toString(ports + 1),
                        "ROUTER_PORT",
                        Integer.toString(ports + 2),
                        "KV_PORT",
                        Integer.toString(ports + 3)));
        assertThat(lines).anySatisfy(line -> assertThat(line).contains("\"choices\""));
        assertThat(lines)
                .anySatisfy(line ->
                        assertThat(line).contains("external_kv_transfer").doesNotEndWith(" 0.0"))
                .anySatisfy(line -> assertThat(line).contains("local_compute").endsWith(" 0.0"));
    }
}
