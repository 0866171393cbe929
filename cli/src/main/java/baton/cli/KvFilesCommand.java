package baton.cli;

import baton.kv.ConfigException;
import baton.store.FileOperations;
import baton.store.file.FileStoreSettings;
import baton.store.file.KvFiles;
import java.io.IOException;
import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.ITypeConverter;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;
import picocli.CommandLine.Spec;
import picocli.CommandLine.TypeConversionException;

/** {@code baton kv-files}: KV caches in directories. */
@Command(
        name = "kv-files",
        description =
                "Lists and removes KV cache files: those of fs tiers, also vLLM's, and of SharedStorageConnector.",
        mixinStandardHelpOptions = true,
        synopsisSubcommandLabel = "COMMAND",
        subcommands = {KvFilesCommand.Gc.class, KvFilesCommand.Ls.class})
final class KvFilesCommand {
    private static KvFiles in(Path directory) {
        if (!Files.isDirectory(directory)) {
            throw new ConfigException("DIR", "is " + directory + ", which is not a directory");
        }
        return new KvFiles(directory, FileOperations.SYSTEM, KvFiles.Scope.ALL);
    }

    private static String size(long bytes) {
        return bytes < 1 << 20
                ? String.format(Locale.ROOT, "%.1f KiB", bytes / (double) (1 << 10))
                : bytes < 1 << 30
                        ? String.format(Locale.ROOT, "%.1f MiB", bytes / (double) (1 << 20))
                        : String.format(Locale.ROOT, "%.1f GiB", bytes / (double) (1 << 30));
    }

    private static String age(Instant used, Instant now) {
        Duration age = Duration.between(used, now);
        return age.toDays() > 0
                ? age.toDays() + "d"
                : age.toHours() > 0 ? age.toHours() + "h" : Math.max(0, age.toMinutes()) + "m";
    }

    /** {@code baton kv-files gc}. */
    @Command(
            name = "gc",
            description = "Removes KV cache files that were not used for longest, and abandoned temporary files.",
            mixinStandardHelpOptions = true,
            sortOptions = false)
    static final class Gc implements Callable<Integer> {
        @Spec
        private CommandSpec spec;

        @Parameters(paramLabel = "DIR", description = "The tier's root_dir, or shared_storage_path.")
        private Path directory;

        @Option(
                names = "--max-size",
                paramLabel = "SIZE",
                converter = HumanSize.AsLong.class,
                description = "Remove until there is no more, as 10GB.")
        private @Nullable Long maxSize;

        @Option(
                names = "--max-age",
                paramLabel = "TIME",
                converter = Age.class,
                description = "Remove files that were not used for longer, as 7d, 12h or 30m.")
        private @Nullable Duration maxAge;

        @Option(names = "--dry-run", description = "Only print the files to remove.")
        private boolean dryRun;

        @Override
        public Integer call() throws IOException {
            Instant now = Instant.now();
            PrintWriter out = spec.commandLine().getOut();
            FileStoreSettings.Limits limits = new FileStoreSettings.Limits(
                    maxSize == null ? OptionalLong.empty() : OptionalLong.of(maxSize), Optional.ofNullable(maxAge));
            String removed = dryRun ? "would remove" : "removed";
            KvFiles.Collected result = in(directory)
                    .collect(
                            new KvFiles.Request(limits, 1, dryRun, now),
                            file -> out.printf(
                                    "%s %s (%s, %s, unused for %s)%n",
                                    removed,
                                    file.path(),
                                    file.kind().label(),
                                    size(file.bytes()),
                                    age(file.used(), now)),
                            () -> false);
            out.printf(
                    "%s %d, %s; %d left, %s%n",
                    removed, result.removed(), size(result.removedBytes()), result.left(), size(result.leftBytes()));
            out.flush();
            if (result.failed() > 0) {
                throw new CommandFailedException(result.failed() + " could not be removed");
            }
            return 0;
        }
    }

    /** {@code baton kv-files ls}. */
    @Command(
            name = "ls",
            description = "Prints how many KV cache files there are, by kind and model.",
            mixinStandardHelpOptions = true,
            sortOptions = false)
    static final class Ls implements Callable<Integer> {
        @Spec
        private CommandSpec spec;

        @Parameters(paramLabel = "DIR", description = "The tier's root_dir, or shared_storage_path.")
        private Path directory;

        private record Sum(long files, long bytes, Instant oldest, Instant newest) {
            Sum plus(Sum other) {
                return new Sum(
                        files + other.files,
                        bytes + other.bytes,
                        oldest.isBefore(other.oldest) ? oldest : other.oldest,
                        newest.isAfter(other.newest) ? newest : other.newest);
            }
        }

        @Override
        public Integer call() throws IOException {
            Map<String, Sum> sums = new TreeMap<>();
            in(directory).forEach(file -> {
                sums.merge(
                        "%-15s %s".formatted(file.kind().label(), file.model()).stripTrailing(),
                        new Sum(1, file.bytes(), file.used(), file.used()),
                        Sum::plus);
                return true;
            });
            Instant now = Instant.now();
            PrintWriter out = spec.commandLine().getOut();
            out.printf("%9s  %10s  %-12s  %s%n", "files", "size", "unused for", "kind, model");
            sums.forEach((name, sum) -> out.printf(
                    "%9d  %10s  %-12s  %s%n",
                    sum.files, size(sum.bytes), age(sum.newest, now) + " to " + age(sum.oldest, now), name));
            out.flush();
            return 0;
        }
    }

    /** A time as {@code 7d}, {@code 12h}, {@code 30m} or {@code 90s}. */
    static final class Age implements ITypeConverter<Duration> {
        private static final Pattern FORM = Pattern.compile("(\\d{1,9})([smhdw])");

        @Override
        public Duration convert(String value) {
            Matcher matcher = FORM.matcher(value.strip());
            if (!matcher.matches()) {
                throw new TypeConversionException("'" + value + "' is not a time such as 90s, 30m, 12h, 7d or 2w");
            }
            long number = Long.parseLong(matcher.group(1));
            return switch (matcher.group(2)) {
                case "s" -> Duration.ofSeconds(number);
                case "m" -> Duration.ofMinutes(number);
                case "h" -> Duration.ofHours(number);
                case "d" -> Duration.ofDays(number);
                default -> Duration.ofDays(7 * number);
            };
        }
    }
}
