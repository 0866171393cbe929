package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.within;

import baton.cli.Instances.Instance;
import baton.cli.Program.Ended;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.io.TempDir;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/** {@code baton plan}. */
class PlanTest {
    /** A millisecond for each token of a prompt, 20 ms for a step. */
    private static final String PROFILE = """
            {"name": "machine", "units": 1, "max_sequences": 64, "seconds_per_context_token": 0, "mixed": 1,
             "prefill_seconds": [{"tokens": 0, "seconds": 0}, {"tokens": 1000, "seconds": 1}],
             "step_seconds": [{"sequences": 1, "seconds": 0.02}],
             "handoff_seconds": {"NixlConnector": [{"tokens": 1, "seconds": 0.01}]}}
            """;

    @RegisterExtension
    static final Instances INSTANCES = new Instances();

    @TempDir
    private Path directory;

    private Path profile() throws Exception {
        return Files.writeString(directory.resolve("profile.json"), PROFILE);
    }

    @Test
    void theReportNamesFleetsTheirGoodputAndWhetherToDisaggregate() throws Exception {
        Path json = directory.resolve("plan.json");
        Ended result = Program.run(List.of(
                "plan",
                "--profile",
                profile().toString(),
                "--units",
                "2",
                "--prompt-tokens",
                "900,1100",
                "--output-tokens",
                "50",
                "--ttft",
                "4",
                "--itl",
                "0.03",
                "--requests",
                "40",
                "--json",
                json.toString()));
        assertThat(result.status()).as(result.err()).isZero();
        assertThat(result.out())
                .contains("2 colocated, budget", "1P1D, NixlConnector", "prompt tokens", "Disaggregate (");
        JsonNode figures = JsonMapper.builder().build().readTree(Files.readString(json));
        assertThat(figures.path("plans")).hasSize(2);
        assertThat(figures.path("plans").path(1).path("goodput").asDouble()).isBetween(0.5, 1.3);
    }

    @Test
    void aFleetThatIsNamedIsPredicted() throws Exception {
        Ended result = Program.inThisProcess(
                "plan",
                "--profile",
                profile().toString(),
                "--prompt-tokens",
                "100",
                "--output-tokens",
                "10",
                "--fleet",
                "1P1D",
                "--fleet",
                "1/512",
                "--rate",
                "0.01",
                "--requests",
                "40");
        assertThat(result.status()).as(result.err()).isZero();
        assertThat(result.out().lines().filter(line -> line.startsWith("1P1D, NixlConnector")))
                .singleElement()
                .asString()
                .contains("100.0 %", "0.1300", "0.0200");
    }

    @Test
    void wrongSettingsAreRefusedByName() throws Exception {
        String file = profile().toString();
        assertRefused(List.of("plan", "--profile", file, "--units", "0"), "units: is 0, must be at least 1");
        assertRefused(
                List.of("plan", "--profile", file, "--fleet", "0P1D", "--rate", "1"),
                "fleet: is '0P1D', must be as 2P1D");
        assertRefused(
                List.of("plan", "--profile", file, "--fleet", "1P1D", "--connector", "X", "--rate", "1"),
                "connector: unsupported value 'X'; allowed: NixlConnector");
        assertRefused(
                List.of("plan", "--profile", file, "--url", "http://127.0.0.1:1"),
                "fleet: is given 0 times; --url needs the one fleet there");
    }

    private static void assertRefused(List<String> arguments, String message) {
        Ended result = Program.inThisProcess(arguments.toArray(String[]::new));
        assertThat(result.status()).isNotZero();
        assertThat(result.err()).contains(message);
    }

    @Test
    @Tag("thorough")
    void aMeasuredProfileIsPlannedWith() throws Exception {
        Path measured = directory.resolve("measured.json");
        Ended result =
                Program.run(List.of("plan", "measure", "--times", "1", "--name", "here", "--out", measured.toString()));
        assertThat(result.status()).as(result.err()).isZero();
        Ended planned = Program.run(List.of(
                "plan", "--profile", measured.toString(), "--fleet", "1P1D", "--rate", "0.1", "--requests", "40"));
        assertThat(planned.status()).as(planned.err()).isZero();
        assertThat(planned.out()).contains("1P1D, NixlConnector");

        Path json = directory.resolve("check.json");
        Instance instance = INSTANCES.serve("instance", "--max-num-batched-tokens", "256");
        Ended checked = Program.run(List.of(
                "plan",
                "--profile",
                measured.toString(),
                "--fleet",
                "1/256",
                "--url",
                instance.url().toString(),
                "--prompt-tokens",
                "64",
                "--output-tokens",
                "4",
                "--ttft",
                "0.5",
                "--seconds",
                "2",
                "--json",
                json.toString()));
        assertThat(checked.status()).as(checked.err()).isZero();
        assertThat(checked.out()).contains("1 colocated, budget 256: predicted", "measured");
        JsonNode figures = JsonMapper.builder().build().readTree(Files.readString(json));
        double goodput = figures.path("measured").asDouble();
        assertThat(figures.path("error").asDouble())
                .isCloseTo(figures.path("predicted").asDouble() / goodput - 1, within(1e-9));
        List<JsonNode> tried = figures.path("tried").valueStream().toList();
        assertThat(tried)
                .anySatisfy(rate -> {
                    assertThat(rate.path("rate").asDouble()).isLessThanOrEqualTo(goodput);
                    assertThat(rate.path("well_served").asDouble()).isGreaterThanOrEqualTo(0.9);
                })
                .anySatisfy(rate -> {
                    assertThat(rate.path("rate").asDouble()).isGreaterThanOrEqualTo(goodput);
                    assertThat(rate.path("well_served").asDouble()).isLessThan(0.9);
                });
    }
}
