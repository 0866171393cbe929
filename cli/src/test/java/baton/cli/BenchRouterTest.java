package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Program.Ended;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.StreamSupport;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/** {@code baton bench router}. */
class BenchRouterTest {
    @TempDir
    private Path directory;

    @Test
    @Tag("thorough")
    void twoThousandStreamsAtOnceThroughTheRouterAreEachWholeAndInOrder() throws Exception {
        Path json = directory.resolve("figures.json");
        Ended result = Program.run(List.of(
                "bench",
                "router",
                "--requests",
                "200",
                "--rounds",
                "1",
                "--memory-requests",
                "200",
                "--json",
                json.toString()));
        assertThat(result.status()).as(result.err()).isZero();
        JsonNode figures = JsonMapper.builder().build().readTree(Files.readString(json));
        assertThat(figures.path("streams").asInt()).isEqualTo(2000);
        assertThat(figures.path("streams_right").asInt()).isEqualTo(2000);
        assertThat(result.out())
                .contains("direct", "router", "added by the router", "did not run for more than a millisecond");
        JsonNode router = StreamSupport.stream(figures.path("cases").spliterator(), false)
                .filter(each -> each.path("name").asString().equals("router"))
                .findFirst()
                .orElseThrow();
        assertThat(router.path("p99_ms").asDouble()).isPositive();
        assertThat(router.path("direct_meanwhile_p50_ms").asDouble()).isPositive();
    }

    @Test
    void theIndexOfBlocksHoldsAllThatWereStored() throws Exception {
        Path json = directory.resolve("index.json");
        Ended result = Program.run(List.of("bench", "router", "--index", "20000", "--json", json.toString()));
        assertThat(result.status()).as(result.err()).isZero();
        JsonNode figures = JsonMapper.builder().build().readTree(Files.readString(json));
        assertThat(figures.path("blocks").asInt()).isEqualTo(20_000);
        assertThat(figures.path("bytes").asLong()).isBetween(20_000L * 29, 20_000L * 80);
        assertThat(result.out()).contains("index of 20,000 blocks");
    }

    @Test
    void aNumberOfStreamsThatIsNotPositiveIsRefusedByName() throws Exception {
        Ended result = Program.run(List.of("bench", "router", "--streams", "0"));
        assertThat(result.status()).isNotZero();
        assertThat(result.err()).contains("streams", "is 0", "must be positive");
    }
}
