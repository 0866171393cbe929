package baton.cli;

import baton.cluster.JavaCommand;
import baton.kv.ConfigException;
import baton.kv.JsonObjectArgs;
import baton.kv.KvEventsConfigArgs;
import baton.kv.KvTransferConfigArgs;
import baton.transfer.nixl.NixlExit;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.AccessDeniedException;
import java.nio.file.NoSuchFileException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import picocli.CommandLine;
import picocli.CommandLine.Command;
import picocli.CommandLine.IVersionProvider;

/** {@code baton}: the program. */
@Command(
        name = "baton",
        description = "Disaggregated prefill/decode serving of language models on the JVM.",
        mixinStandardHelpOptions = true,
        versionProvider = Baton.Version.class,
        subcommands = {
            RouteCommand.class,
            DemoCommand.class,
            UpCommand.class,
            BenchCommand.class,
            PlanCommand.class,
            KvFilesCommand.class,
            KvServerCommand.class,
            DoctorCommand.class,
            AotTrainingCommand.class
        })
public final class Baton {
    private static final String OVERRIDE_GENERATION = "--override-generation-config";

    private Baton() {}

    /** Ends the process with 0, with 1 if the command failed, or with 2 if it was called wrongly. */
    public static void main(String[] args) {
        NixlExit.atShutdown();
        // As baton.messages.http does: a POST, too, goes again whose connection was used before and has ended without
        // an answer.
        System.setProperty("jdk.httpclient.enableAllMethodRetry", "true");
        int status = run(args);
        // A server's threads must not keep a failed or finished command alive.
        System.exit(status);
    }

    /** Runs Baton in a process like this one. */
    static JavaCommand command() {
        return JavaCommand.likeThisProcess(Baton.class.getName());
    }

    static int run(String... args) {
        ServeCommand serve = new ServeCommand();
        CommandLine command = commandLine(serve);
        try {
            return command.execute(withoutConfigs(serve, args));
        } catch (ConfigException e) {
            command.getErr().println("baton: " + e.getMessage());
            return command.getCommandSpec().exitCodeOnInvalidInput();
        }
    }

    /**
     * Takes the options that are whole configurations out of a command line.
     *
     * @param serve is given the configurations
     * @return the other arguments, with hyphens in their names
     * @throws ConfigException if a configuration cannot be used
     */
    static String[] withoutConfigs(ServeCommand serve, String... args) {
        String[] rest = withHyphens(args);
        if (rest.length == 0 || !rest[0].equals("serve")) {
            return rest;
        }
        KvTransferConfigArgs kvTransfer = KvTransferConfigArgs.parse(List.of(rest));
        serve.kvTransfer(kvTransfer.config());
        KvEventsConfigArgs kvEvents = KvEventsConfigArgs.parse(kvTransfer.rest());
        serve.kvEvents(kvEvents.config());
        JsonObjectArgs generation = JsonObjectArgs.parse(OVERRIDE_GENERATION, _ -> false, kvEvents.rest());
        // Of many forms one is left, which is parsed as an option like any other.
        List<String> others = new ArrayList<>(generation.rest());
        generation.object().ifPresent(object -> others.add(1, OVERRIDE_GENERATION + "=" + object));
        return others.toArray(String[]::new);
    }

    static CommandLine commandLine(ServeCommand serve) {
        return new CommandLine(new Baton())
                .addSubcommand(serve)
                .setExecutionExceptionHandler((exception, command, parsed) -> {
                    String message = switch (exception) {
                        case ConfigException e -> String.valueOf(e.getMessage());
                        case IOException e -> describe(e);
                        case UncheckedIOException e -> describe(Objects.requireNonNull(e.getCause()));
                        case CommandFailedException e -> String.valueOf(e.getMessage());
                        default -> throw exception;
                    };
                    command.getErr().println("baton: " + message);
                    return exception instanceof ConfigException
                            ? command.getCommandSpec().exitCodeOnInvalidInput()
                            : command.getCommandSpec().exitCodeOnExecutionException();
                })
                .setParameterExceptionHandler((exception, wrong) -> {
                    CommandLine command = exception.getCommandLine();
                    command.getErr().println("baton: " + exception.getMessage());
                    if (!CommandLine.UnmatchedArgumentException.printSuggestions(exception, command.getErr())) {
                        command.getErr()
                                .println("Try '" + command.getCommandSpec().qualifiedName() + " --help'.");
                    }
                    return command.getCommandSpec().exitCodeOnInvalidInput();
                });
    }

    /** vLLM takes {@code --max_model_len} for {@code --max-model-len}; so does this. Values stay as they are. */
    private static String[] withHyphens(String[] args) {
        return Arrays.stream(args)
                .map(arg -> {
                    if (!arg.startsWith("--")
                            || arg.startsWith("--kv-transfer-config")
                            || arg.startsWith("--kv_transfer_config")
                            || arg.startsWith("--kv-events-config")
                            || arg.startsWith("--kv_events_config")
                            || arg.startsWith("--override-generation-config")
                            || arg.startsWith("--override_generation_config")) {
                        return arg;
                    }
                    int end = arg.indexOf('=');
                    String name = end < 0 ? arg : arg.substring(0, end);
                    return name.replace('_', '-') + arg.substring(name.length());
                })
                .toArray(String[]::new);
    }

    private static String describe(IOException e) {
        return switch (e) {
            // The message of these is only the file's name.
            case NoSuchFileException missing -> missing.getFile() + ": no such file";
            case AccessDeniedException denied -> denied.getFile() + ": access denied";
            default -> e.getMessage() == null ? e.toString() : e.getMessage();
        };
    }

    /** The version that the build wrote into the jar. */
    static final class Version implements IVersionProvider {
        @Override
        public String[] getVersion() {
            return new String[] {"baton " + current()};
        }

        static String current() {
            String version = Baton.class.getPackage().getImplementationVersion();
            return version == null ? "unpackaged" : version;
        }
    }
}
