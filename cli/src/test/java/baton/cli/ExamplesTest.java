package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.kv.FreePorts;
import baton.testkit.Await;
import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
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

    /** Clients ask for a record: OpenAI's, LangChain4j's AI service after it has called a tool, Spring AI's entity. */
    @Tag("thorough")
    @Test
    void recordsFromClientsOfOthers() throws Exception {
        assumeTrue(
                Stream.of(System.getenv("PATH").split(File.pathSeparator))
                        .anyMatch(place -> Files.isExecutable(Path.of(place, "mvn"))),
                "there is no mvn on the PATH");
        int port = FreePorts.inARow(1);
        Path log = directory.resolve("up");
        Process up = new ProcessBuilder(Program.baton(List.of(
                        "up",
                        Instances.MODEL.toString(),
                        "--port",
                        Integer.toString(port),
                        "--instance-option=--enable-auto-tool-choice",
                        "--instance-option=--tool-call-parser=hermes")))
                .redirectErrorStream(true)
                .redirectOutput(log.toFile())
                .start();
        try {
            Await.until(
                    Duration.ofMinutes(3),
                    () -> "baton up said " + log,
                    () -> Files.readString(log).contains("Ctrl-C stops"));
            for (List<String> client :
                    List.of(List.of("clients", "OpenAi"), List.of("clients", "LangChain"), List.of("spring-ai", ""))) {
                Path project = directory.resolve(client.getFirst());
                run(
                        List.of("cp", "-r", EXAMPLES.resolve(client.getFirst()).toString(), directory.toString()),
                        Map.of());
                List<String> lines = run(
                        List.of(
                                "mvn",
                                "-B",
                                "-q",
                                "-f",
                                project.resolve("pom.xml").toString(),
                                "compile",
                                "exec:exec",
                                "-Dclient=" + client.getLast(),
                                "-Dendpoint=http://127.0.0.1:" + port + "/v1",
                                "-Dmodel=tiny-ledger"),
                        Map.of("JAVA_HOME", System.getProperty("java.home")));
                assertThat(lines)
                        .anySatisfy(line -> assertThat(line).matches("Home\\[town=[A-Z]+, certain=(true|false)]"));
                assertThat(lines.stream().filter(line -> line.matches("The facts about (HOMES|SHIPS) were asked for.")))
                        .hasSize(client.getLast().equals("LangChain") ? 1 : 0);
            }
        } finally {
            up.destroy();
            assertThat(up.waitFor(1, TimeUnit.MINUTES)).isTrue();
        }
    }
}
