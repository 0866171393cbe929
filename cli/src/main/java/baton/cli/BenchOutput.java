package baton.cli;

import baton.bench.frame.Layout;
import java.io.IOException;
import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.Spec;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.JsonNodeFactory;
import tools.jackson.databind.node.ObjectNode;

/** Output of a bench command: progress to standard error, the report to standard output, figures to the file of {@code --json}. */
final class BenchOutput {
    @Spec(Spec.Target.MIXEE)
    private CommandSpec spec;

    @Option(names = "--json", paramLabel = "FILE", description = "Write the figures to this file too.")
    private @Nullable Path json;

    /** A measurement that writes its figures while it goes on. */
    interface Measurement {
        void run(ObjectNode figures) throws IOException, InterruptedException;
    }

    /**
     * Measures, and shows the figures. Of a measurement that fails the figures until then are shown.
     *
     * @param layout shows them
     */
    ObjectNode measure(Layout layout, Measurement measurement) throws IOException, InterruptedException {
        return measure(layout::text, measurement);
    }

    /** @param text the report; empty if nothing was measured */
    ObjectNode measure(Function<JsonNode, String> text, Measurement measurement)
            throws IOException, InterruptedException {
        ObjectNode figures = JsonNodeFactory.instance.objectNode();
        try {
            measurement.run(figures);
        } finally {
            String report = text.apply(figures);
            show(report);
            if (!report.isEmpty()) {
                save(figures);
            }
        }
        return figures;
    }

    void progress(String line) {
        PrintWriter err = spec.commandLine().getErr();
        err.println(line);
        err.flush();
    }

    void show(String report) {
        PrintWriter out = spec.commandLine().getOut();
        out.print(report);
        out.flush();
    }

    /** Writes figures to the file of {@code --json}, if one was named. */
    void save(JsonNode figures) throws IOException {
        write(json, figures.toPrettyString() + "\n");
    }

    /** Writes a file if one was named. */
    static void write(@Nullable Path file, String text) throws IOException {
        if (file != null) {
            Files.writeString(file, text);
        }
    }
}
