package baton.cli;

import java.io.IOException;
import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.Spec;
import tools.jackson.databind.JsonNode;

/** Output of a bench command: progress to standard error, the report to standard output, figures to the file of {@code --json}. */
final class BenchOutput {
    @Spec(Spec.Target.MIXEE)
    private CommandSpec spec;

    @Option(names = "--json", paramLabel = "FILE", description = "Write the figures to this file too.")
    private @Nullable Path json;

    void progress(String line) {
        PrintWriter err = spec.commandLine().getErr();
        err.println(line);
        err.flush();
    }

    PrintWriter out() {
        return spec.commandLine().getOut();
    }

    /** Writes the figures if a file was named. */
    void write(JsonNode figures) throws IOException {
        if (json != null) {
            Files.writeString(json, figures.toPrettyString() + "\n");
        }
    }
}
