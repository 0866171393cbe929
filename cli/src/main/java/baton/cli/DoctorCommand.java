package baton.cli;

import baton.cli.doctor.Examination;
import baton.cli.doctor.Host;
import java.io.IOException;
import java.io.PrintWriter;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Optional;
import java.util.Random;
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
                "Reports whether a model is supported, its needs here, this machine's features, Baton's choices on it, and the changes to make. Exits with 1 if the model is refused or Baton cannot run here. With --leak: whether clients of a server see each other's prompts.",
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

    @Option(
            names = "--leak",
            paramLabel = "URL",
            description =
                    "Measures whether a client of any OpenAI server can find out another client's prompts by the time that they take. Exits with 1 if so.")
    private @Nullable URI leak;

    @Option(
            names = "--leak-keys-file",
            description =
                    "The API key of the client that sends prompts, and on the next line that of the client that measures (default: none).")
    private @Nullable Path leakKeysFile;

    @Option(
            names = "--leak-trials",
            defaultValue = "100",
            description = "Prompts of each kind (default: ${DEFAULT-VALUE}).")
    private int leakTrials;

    @Option(
            names = "--leak-tokens",
            defaultValue = "512",
            description = "Tokens of a prompt (default: ${DEFAULT-VALUE}).")
    private int leakTokens;

    private int measureLeak(URI server) throws IOException {
        if (leakTrials < 10 || leakTokens < 1) {
            throw new CommandFailedException("--leak-trials must be 10 or more and --leak-tokens 1 or more, are "
                    + leakTrials + " and " + leakTokens);
        }
        List<String> keys = leakKeysFile == null ? List.of() : Files.readAllLines(leakKeysFile);
        if (leakKeysFile != null && keys.size() != 2) {
            throw new CommandFailedException("--leak-keys-file: " + leakKeysFile + " has " + keys.size()
                    + " lines, must have 2 with a key each");
        }
        CacheLeak.Result result = new CacheLeak(
                        server, keys.stream().findFirst(), keys.stream().skip(1).findFirst(), leakTrials, leakTokens)
                .measure(new Random());
        PrintWriter out = spec.commandLine().getOut();
        out.println(result);
        out.flush();
        return result.leaks() ? 1 : 0;
    }

    @Override
    public Integer call() throws IOException {
        if (leak != null) {
            return measureLeak(leak);
        }
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
