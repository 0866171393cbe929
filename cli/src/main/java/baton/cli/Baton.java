package baton.cli;

import baton.cluster.JavaCommand;
import baton.kv.ConfigException;
import baton.kv.JsonObjectArgs;
import baton.kv.KvEventsConfig;
import baton.kv.KvTransferConfig;
import baton.transfer.nixl.NixlExit;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.AccessDeniedException;
import java.nio.file.NoSuchFileException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.function.Supplier;
import org.slf4j.LoggerFactory;
import picocli.CommandLine;
import picocli.CommandLine.Command;
import picocli.CommandLine.IVersionProvider;
import picocli.CommandLine.Model.OptionSpec;
import tools.jackson.databind.node.ObjectNode;

/** {@code baton}: the program. */
@Command(
        name = "baton",
        description = "Disaggregated prefill/decode serving of language models on the JVM.",
        mixinStandardHelpOptions = true,
        versionProvider = Baton.Version.class)
public final class Baton {
    /** The least usable heap. The JVM counts a part of {@code -Xmx32m} as not usable. */
    private static final long LEAST_HEAP = 24 << 20;

    /** Options of benchmarks that may be below 0: fields of requests, and a seed. */
    private static final Set<String> SIGNED = Set.of("--seed", "--top-k", "--frequency-penalty", "--presence-penalty");

    private static final String OVERRIDE_GENERATION = "--override-generation-config";

    private static final String SERVE = "serve";

    /** Commands that start an instance, or several at once. A router's code is slow until it is compiled: under load it needs that soon. */
    private static final Set<String> SERVERS = Set.of(SERVE, "up", "demo");

    private record Subcommand(String name, Supplier<Object> maker) {}

    /** The subcommands in the order of the help, where {@code serve} is the last. */
    private static final List<Subcommand> SUBCOMMANDS = List.of(
            new Subcommand("route", RouteCommand::new),
            new Subcommand("drain", DrainCommand::new),
            new Subcommand("demo", DemoCommand::new),
            new Subcommand("up", UpCommand::new),
            new Subcommand("bench", BenchCommand::new),
            new Subcommand("plan", PlanCommand::new),
            new Subcommand("kv-files", KvFilesCommand::new),
            new Subcommand("kv-server", KvServerCommand::new),
            new Subcommand("doctor", DoctorCommand::new),
            new Subcommand("verify", VerifyCommand::new),
            new Subcommand("aot-training", AotTrainingCommand::new));

    private Baton() {}

    /** Ends the process with 0, with 1 if the command failed, or with 2 if it was called wrongly. */
    public static void main(String[] args) {
        int status;
        try {
            requireHeap();
            if (args.length > 0 && SERVERS.contains(args[0])) {
                CompilerThreads.stepBackOptimizing();
            }
            NixlExit.atShutdown();
            // As baton.messages.http does: a POST, too, is sent again if its connection was used before and has ended
            // without an answer.
            System.setProperty("jdk.httpclient.enableAllMethodRetry", "true");
            status = run(args);
        } catch (Throwable e) {
            System.err.println("baton: " + describe(e));
            status = 1;
            if (e instanceof OutOfMemoryError) {
                // An orderly end needs memory too, and says so in a line of its own.
                Runtime.getRuntime().halt(status);
            }
        }
        // A server's threads must not keep a failed or finished command alive.
        System.exit(status);
    }

    /** Before classes are loaded that need more than there is, wherever that then shows. */
    private static void requireHeap() {
        long heap = Runtime.getRuntime().maxMemory();
        if (heap < LEAST_HEAP) {
            throw new OutOfMemoryError("-Xmx allows a heap of " + (heap >> 20) + " MiB, must allow at least 32 MiB");
        }
    }

    /** One line for an exception that no command expects. */
    private static String describe(Throwable e) {
        String said =
                String.valueOf(e.getMessage() == null ? e : e.getMessage()).replaceAll("\\s+", " ");
        return switch (e) {
            case OutOfMemoryError _ ->
                "out of memory: " + said
                        + "; BATON_JAVA_OPTS=-Xmx1g gives the heap more, ulimit -v and -u the process and its threads";
            case LinkageError _ ->
                "a class or library cannot be loaded: " + said
                        + "; a process needs at least 256 open files (ulimit -n) and all jars of the installation";
            case IllegalStateException _ -> said;
            default -> e.getClass().getSimpleName() + ": " + said;
        };
    }

    /** Runs Baton in a process like this one. */
    static JavaCommand command() {
        return JavaCommand.likeThisProcess(Baton.class.getName());
    }

    static int run(String... args) {
        ServeCommand serve = new ServeCommand();
        CommandLine command = commandLine(serve, Arrays.stream(args).findFirst());
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
        if (rest.length == 0 || !rest[0].equals(SERVE)) {
            return rest;
        }
        JsonObjectArgs<KvTransferConfig> kvTransfer = KvTransferConfig.fromArgs(List.of(rest));
        serve.kvTransfer(kvTransfer.config());
        JsonObjectArgs<KvEventsConfig> kvEvents = KvEventsConfig.fromArgs(kvTransfer.rest());
        serve.kvEvents(kvEvents.config());
        JsonObjectArgs<ObjectNode> generation = JsonObjectArgs.parse(OVERRIDE_GENERATION, _ -> false, kvEvents.rest());
        // Of many forms one is left, which is parsed as an option like any other.
        List<String> others = new ArrayList<>(generation.rest());
        generation.config().ifPresent(object -> others.add(1, OVERRIDE_GENERATION + "=" + object));
        return others.toArray(String[]::new);
    }

    /** The command line with all subcommands. */
    static CommandLine commandLine(ServeCommand serve) {
        return commandLine(serve, Optional.empty());
    }

    /**
     * With the named subcommand, or all if none has the name: picocli reads the annotations of each that it is given, which takes half a second
     * of processor time for all.
     */
    private static CommandLine commandLine(ServeCommand serve, Optional<String> name) {
        List<Subcommand> all = new ArrayList<>(SUBCOMMANDS);
        all.add(new Subcommand(SERVE, () -> serve));
        List<Subcommand> named = all.stream()
                .filter(subcommand -> Optional.of(subcommand.name).equals(name))
                .toList();
        CommandLine program = new CommandLine(new Baton());
        for (Subcommand subcommand : named.isEmpty() ? all : named) {
            program.addSubcommand(subcommand.name, subcommand.maker.get());
        }
        return program.setExecutionStrategy(parsed -> {
                    requireNumbers(parsed);
                    return new CommandLine.RunLast().execute(parsed);
                })
                .setExecutionExceptionHandler((exception, command, parsed) -> {
                    String message = switch (exception) {
                        case ConfigException e -> String.valueOf(e.getMessage());
                        case IOException e -> describe(e);
                        case UncheckedIOException e -> describe(Objects.requireNonNull(e.getCause()));
                        case CommandFailedException e -> String.valueOf(e.getMessage());
                        default -> {
                            LoggerFactory.getLogger(Baton.class).debug("a command failed", exception);
                            yield describe((Throwable) exception);
                        }
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

    /**
     * Checks numbers that have no check of their own: none is infinite or no number, and benchmarks have none below 0 but those that a
     * request may have.
     */
    private static void requireNumbers(CommandLine.ParseResult parsed) {
        CommandLine command = parsed.asCommandLineList().getLast();
        boolean isBench = command.getCommandSpec().qualifiedName().startsWith("baton bench ");
        for (OptionSpec option : command.getParseResult().matchedOptions()) {
            if (!(option.getValue() instanceof Number number)) {
                continue;
            }
            double value = number.doubleValue();
            boolean isTooSmall = isBench && value < 0 && !SIGNED.contains(option.longestName());
            if (!Double.isFinite(value) || isTooSmall) {
                ConfigException refusal = new ConfigException(
                        option.longestName(),
                        "is %s, must be a number%s".formatted(number, isBench ? " of at least 0" : ""));
                throw new CommandLine.ExecutionException(command, String.valueOf(refusal.getMessage()), refusal);
            }
        }
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
