package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cli.Program.Ended;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/** {@code baton bench disagg}. */
class BenchDisaggTest {
    @TempDir
    private Path directory;

    @Test
    @Tag("thorough")
    void aColocatedAndADisaggregatedSetupOfTheTinyModelAreMeasuredAndAPageIsWritten() throws Exception {
        Path json = directory.resolve("figures.json");
        Path page = directory.resolve("page.html");
        Ended ended = Program.run(List.of(
                "bench",
                "disagg",
                "--model",
                Instances.MODEL.toString(),
                "--prompt-tokens",
                "600",
                "--max-num-batched-tokens",
                "128",
                "--rates",
                "2",
                "--seconds",
                "3",
                "--json",
                json.toString(),
                "--html",
                page.toString()));
        assertThat(ended.status()).as(ended.err()).isZero();
        assertThat(ended.out()).contains("| disaggregated (1P1D) | 600 |", "| colocated, chunks of 128 | 600 |");
        JsonNode figures = JsonMapper.builder().build().readTree(Files.readString(json));
        assertThat(figures.path("cells")
                        .valueStream()
                        .map(cell -> cell.path("failed").asInt()))
                .containsExactly(0, 0);
        assertThat(figures.path("advice").asString()).contains("isaggregate");
        assertThat(Files.readString(page)).contains("<svg", "</html>");
    }

    @ParameterizedTest
    @CsvSource({
        "--colocated-url,http://127.0.0.1:1,disagg-url",
        "--prompt-tokens,12,prompt-tokens",
        "--busy,0,busy",
        "--rates,-1,rates",
        "--max-num-batched-tokens,0,max-num-batched-tokens",
        "--streams,0,streams"
    })
    void anOptionThatIsWrongIsRefusedByName(String option, String value, String named) {
        StringWriter err = new StringWriter();
        int status = Baton.commandLine(new ServeCommand())
                .setErr(new PrintWriter(err))
                .execute("bench", "disagg", option, value);
        assertThat(status).as(err.toString()).isEqualTo(2);
        assertThat(err.toString()).contains(named);
    }
}
