package baton.cli;

import baton.cli.doctor.Examination;
import baton.cli.doctor.Host;
import java.io.PrintWriter;
import java.nio.file.Path;
import java.util.Optional;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;
import picocli.CommandLine.Spec;

/** {@code baton doctor}. */
@Command(
        name = "doctor",
        description =
                "Says whether a model is supported and what it would need here, what this machine has, what Baton chooses on it, and what to change. Exits with 1 if the model is refused or Baton cannot run here.",
        mixinStandardHelpOptions = true)
final class DoctorCommand implements Callable<Integer> {
    @Spec
    private CommandSpec spec;

    @Parameters(
            index = "0",
            arity = "0..1",
            paramLabel = "MODEL_DIR",
            description = "Checkpoint or GGUF file; config.json alone is enough (default: the embedded tiny-ledger).")
    private @Nullable Path model;

    @Option(names = "--json", description = "Print JSON.")
    private boolean json;

    @Override
    public Integer call() {
        Examination found = Examination.of(Host.here(), Models.orEmbedded(Optional.ofNullable(model)));
        PrintWriter out = spec.commandLine().getOut();
        if (json) {
            out.println(found.json().toPrettyString());
        } else {
            found.lines().forEach(out::println);
        }
        out.flush();
        return found.isRunnable() ? 0 : 1;
    }
}
