package baton.cli;

import static org.assertj.core.api.Assertions.assertThat;

import baton.bench.frame.Layout;
import java.io.IOException;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.Callable;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import picocli.CommandLine;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;

class BenchOutputTest {
    @TempDir
    private Path directory;

    /** Measures so many cases and fails at the next. */
    @Command
    private record Failing(int cases, @Mixin BenchOutput output) implements Callable<Integer> {
        @Override
        public Integer call() throws IOException, InterruptedException {
            Layout layout = new Layout().head("figures of {model}").each("cases", new Layout().line("case {.}"));
            output.measure(layout, figures -> {
                figures.put("model", "m").putArray("cases");
                for (int i = 0; i < cases; i++) {
                    figures.withArray("cases").add(i);
                }
                throw new IOException("the server ended");
            });
            return 0;
        }
    }

    private static String run(int cases, Path json) {
        StringWriter out = new StringWriter();
        StringWriter err = new StringWriter();
        int status = new CommandLine(new Failing(cases, new BenchOutput()))
                .setOut(new PrintWriter(out))
                .setErr(new PrintWriter(err))
                .execute("--json", json.toString());
        assertThat(status).isEqualTo(1);
        assertThat(err.toString()).contains("the server ended");
        return out.toString();
    }

    @Test
    void aMeasurementThatFailsIsShownAsFarAsItHasCome() throws IOException {
        Path json = directory.resolve("figures.json");
        assertThat(run(2, json)).isEqualTo("figures of m\ncase 0\ncase 1\n");
        assertThat(Files.readString(json)).contains("\"cases\"");
    }

    @Test
    void nothingIsShownOfAMeasurementThatFailsBeforeItsFirstFigure() {
        Path json = directory.resolve("figures.json");
        assertThat(run(0, json)).isEmpty();
        assertThat(json).doesNotExist();
    }
}
