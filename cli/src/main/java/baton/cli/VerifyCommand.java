package baton.cli;

import java.io.IOException;
import java.io.PrintWriter;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Locale;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Spec;

/** {@code baton verify}. */
@Command(
        name = "verify",
        description =
                "Asks a fleet of any OpenAI servers the same prompts first, again, beside streams that are broken off, and after other prompts, and compares tokens and log probabilities with those of one instance that computes the prompts itself. Exits with 1 if an answer is wrong or does not come.",
        mixinStandardHelpOptions = true)
final class VerifyCommand implements Callable<Integer> {
    @Spec
    private CommandSpec spec;

    @Option(names = "--url", required = true, description = "The fleet: a router, or a server.")
    private URI url;

    @Option(
            names = "--reference",
            paramLabel = "URL",
            description =
                    "An instance that computes the prompts itself, as it gets no hand-over; one of the fleet will do (default: answers of the fleet are compared with its first ones).")
    private @Nullable URI reference;

    @Option(names = "--api-key-file", description = "A file with the API key of both (default: none).")
    private @Nullable Path apiKeyFile;

    @Option(names = "--prompts", defaultValue = "50", description = "Prompts (default: ${DEFAULT-VALUE}).")
    private int prompts;

    @Option(
            names = "--records",
            defaultValue = "40",
            description = "Lines of a prompt, of about 10 tokens (default: ${DEFAULT-VALUE}).")
    private int records;

    @Option(names = "--tokens", defaultValue = "16", description = "Tokens of an answer (default: ${DEFAULT-VALUE}).")
    private int tokens;

    @Option(
            names = "--concurrency",
            defaultValue = "4",
            description = "Requests to the fleet at once (default: ${DEFAULT-VALUE}).")
    private int concurrency;

    @Option(
            names = "--tolerance",
            defaultValue = "0.5",
            description =
                    "By how much log probabilities may differ; where two answers part, how far apart the two best tokens may be (default: ${DEFAULT-VALUE}; 0.01 is enough between fp32 instances).")
    private double tolerance;

    @Option(names = "--seed", description = "Makes the prompts of another run again (default: random).")
    private @Nullable Long seed;

    private void requireHttp(String option, URI server) {
        if (server.getHost() == null || !Set.of("http", "https").contains(String.valueOf(server.getScheme()))) {
            throw new ParameterException(spec.commandLine(), option + " is '" + server + "', must be http://host:port");
        }
    }

    @Override
    public Integer call() throws IOException, InterruptedException {
        if (prompts < 1 || records < 2 || tokens < 1 || concurrency < 1 || !(tolerance >= 0)) {
            throw new ParameterException(
                    spec.commandLine(),
                    "--prompts, --tokens and --concurrency must be at least 1, --records 2 and --tolerance 0; they are %d, %d, %d, %d and %s"
                            .formatted(prompts, tokens, concurrency, records, tolerance));
        }
        requireHttp("--url", url);
        if (reference != null) {
            requireHttp("--reference", reference);
        }
        Optional<String> key = apiKeyFile == null
                ? Optional.empty()
                : Optional.of(Files.readString(apiKeyFile).strip());
        long number = seed == null ? System.nanoTime() & 0xffffff : seed;
        FleetVerification.Result result = new FleetVerification(
                        url,
                        Optional.ofNullable(reference),
                        key,
                        prompts,
                        records,
                        tokens,
                        concurrency,
                        tolerance,
                        number)
                .run();
        PrintWriter out = spec.commandLine().getOut();
        result.findings().forEach(out::println);
        out.printf(
                Locale.ROOT,
                "%d answers compared (--seed %d): %d wrong or missing, %d part where two tokens are about equally likely; in all others log probabilities differ by at most %.4f%n",
                result.compared(),
                number,
                result.findings().size(),
                result.close(),
                result.greatest());
        out.flush();
        return result.isRight() ? 0 : 1;
    }
}
