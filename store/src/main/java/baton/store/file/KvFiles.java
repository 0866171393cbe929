package baton.store.file;

import baton.kv.BlockHash;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.store.FileOperations;
import baton.store.prompt.PromptEntry;
import java.io.IOException;
import java.nio.file.NoSuchFileException;
import java.nio.file.NotDirectoryException;
import java.nio.file.Path;
import java.nio.file.attribute.BasicFileAttributes;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import tools.jackson.databind.json.JsonMapper;

/**
 * The KV files in a directory: values in the structure of {@link FsPathLayout}, of Baton and of vLLM, and entries of
 * {@link baton.store.prompt.SharedStorage}. Other files are not seen: a directory of values needs a {@code config.json} that has the
 * digest in the directory's name. Symbolic links are not followed.
 *
 * <p>A file's last use is when it was last read or changed, as the file system knows; the stores set it when they read.
 *
 * @param root may be in use by any number of processes
 */
public record KvFiles(Path root, FileOperations files, Scope scope) {
    private static final Logger log = LoggerFactory.getLogger(KvFiles.class);

    /** A temporary file that nothing was added to for this long has no writer any more. */
    static final Duration ABANDONED_AFTER = Duration.ofHours(1);

    /** An entry that has not changed for this long is not being written: vLLM writes entries file by file in place. */
    private static final Duration SETTLED_AFTER = Duration.ofMinutes(5);

    private static final JsonMapper MAPPER = JsonMapper.builder().build();
    private static final Pattern VALUES = Pattern.compile("(.*_([0-9a-f]{12}))_r\\d+");
    private static final Pattern PREFIX = Pattern.compile("[0-9a-f]{3}");
    private static final Pattern GROUP = Pattern.compile("[0-9a-f]{2}_g\\d+");
    private static final Pattern VALUE = Pattern.compile("[0-9a-f]{16,128}\\.bin");
    private static final Pattern TEMPORARY = Pattern.compile("[0-9a-f]{16,128}\\.bin_[0-9a-f]+\\.tmp");

    /** Which files. */
    public enum Scope {
        BATON_VALUES,
        ALL
    }

    /** The kind of a file. */
    public enum Kind {
        /** A value of Baton's. */
        BATON_VALUE("Baton fs"),
        /** A value of vLLM's fs tier. */
        VLLM_VALUE("vLLM fs"),
        /** A prompt's directory of safetensors files. */
        PROMPT("shared storage"),
        /** A file that is being written, or was when its writer ended. */
        TEMPORARY("temporary");

        private final String label;

        Kind(String label) {
            this.label = label;
        }

        public String label() {
            return label;
        }
    }

    /**
     * A file, or an entry's directory.
     *
     * @param model the writer's name of the model; empty if the file has none
     * @param used its last use
     */
    public record KvFile(Kind kind, String model, Path path, long bytes, Instant used) {}

    /**
     * The files to be removed.
     *
     * @param fill if there is more than {@code limits.maxBytes}, this part of it is left
     * @param dryRun nothing is removed, only reported
     */
    public record Request(FileStoreSettings.Limits limits, double fill, boolean dryRun, Instant now) {}

    /**
     * The files that were removed.
     *
     * @param failed files that could not be removed
     */
    public record Collected(long removed, long removedBytes, long left, long leftBytes, long failed) {}

    /** The key of a file, if it is a value of that format. */
    static Optional<BlockHash> key(KvFile file, FsPathLayout layout) {
        Path path = file.path;
        return file.kind == Kind.BATON_VALUE
                        && path.getNameCount() >= 4
                        && path.getName(path.getNameCount() - 4).toString().equals(layout.values(0))
                ? Optional.of(FsPathLayout.hash(path.getFileName().toString()))
                : Optional.empty();
    }

    /** Looks at a file. */
    @FunctionalInterface
    public interface Visitor<T> {
        /** @return false to end the walk */
        boolean visit(T file) throws IOException;
    }

    static boolean isTemporary(String name) {
        return TEMPORARY.matcher(name).matches();
    }

    /**
     * Looks at all in the directories of groups of one directory of values; nothing if that does not exist.
     *
     * @return false if the visitor has ended the walk
     */
    static boolean forEachValueFile(Path values, FileOperations files, Visitor<Path> visitor) throws IOException {
        for (Path prefix : directories(values, PREFIX, files)) {
            for (Path group : directories(prefix, GROUP, files)) {
                for (Path file : list(group, files)) {
                    if (!visitIfThere(file, visitor)) {
                        return false;
                    }
                }
            }
        }
        return true;
    }

    private static <T> boolean visitIfThere(T file, Visitor<T> visitor) throws IOException {
        try {
            return visitor.visit(file);
        } catch (NoSuchFileException e) {
            log.debug("{} is gone", e.getFile());
            return true;
        }
    }

    private static List<Path> directories(Path parent, Pattern name, FileOperations files) throws IOException {
        List<Path> found = new ArrayList<>();
        for (Path child : list(parent, files)) {
            if (name.matcher(name(child)).matches() && isDirectory(child, files)) {
                found.add(child);
            }
        }
        return found;
    }

    private static boolean isDirectory(Path path, FileOperations files) throws IOException {
        try {
            return files.attributes(path).isDirectory();
        } catch (NoSuchFileException e) {
            return false;
        }
    }

    private static List<Path> list(Path directory, FileOperations files) throws IOException {
        try {
            return files.list(directory, "");
        } catch (NoSuchFileException | NotDirectoryException e) {
            return List.of();
        }
    }

    private static String name(Path path) {
        return path.getFileName().toString();
    }

    /** Looks at all KV files, and at temporary ones. */
    public boolean forEach(Visitor<KvFile> visitor) throws IOException {
        for (Path child : list(root, files)) {
            if (!isDirectory(child, files)) {
                continue;
            }
            Matcher values = VALUES.matcher(name(child));
            boolean goOn = true;
            if (values.matches()) {
                Optional<Config> config = config(values.group(1), values.group(2));
                if (config.isPresent() && (scope == Scope.ALL || config.get().kind == Kind.BATON_VALUE)) {
                    goOn = forEachValueFile(child, files, file -> visitValue(config.get(), file, visitor));
                }
            } else if (scope == Scope.ALL) {
                Optional<KvFile> entry = entry(child);
                goOn = entry.isEmpty() || visitIfThere(entry.get(), visitor);
            }
            if (!goOn) {
                return false;
            }
        }
        return true;
    }

    private boolean visitValue(Config config, Path file, Visitor<KvFile> visitor) throws IOException {
        Kind kind;
        if (isTemporary(name(file))) {
            kind = Kind.TEMPORARY;
        } else if (VALUE.matcher(name(file)).matches()) {
            kind = config.kind;
        } else {
            return true;
        }
        BasicFileAttributes attributes = files.attributes(file);
        return !attributes.isRegularFile()
                || visitor.visit(new KvFile(kind, config.model, file, attributes.size(), used(attributes)));
    }

    private static Instant used(BasicFileAttributes attributes) {
        Instant modified = attributes.lastModifiedTime().toInstant();
        Instant read = attributes.lastAccessTime().toInstant();
        return read.isAfter(modified) ? read : modified;
    }

    /** A directory's {@code config.json}. */
    private record Config(Kind kind, String model) {}

    /** Empty if the digest in the directory's name is not that of its fields. */
    private Optional<Config> config(String directory, String digits) throws IOException {
        Path file = root.resolve(directory, FsPathLayout.CONFIG);
        try {
            JsonFields fields = JsonFields.parse(name(file), StoreDirectory.read(file, files));
            Map<?, ?> tree = MAPPER.convertValue(fields.toJson(), Map.class);
            if (!FsPathLayout.ofFields(stringKeys(tree)).directory().endsWith(digits)) {
                return Optional.empty();
            }
            Kind kind = fields.string(FsPathLayout.ENGINE).orElse("").equals(FsPathLayout.BATON)
                    ? Kind.BATON_VALUE
                    : Kind.VLLM_VALUE;
            return Optional.of(new Config(kind, fields.string("model_name").orElse("")));
        } catch (ConfigException | NoSuchFileException e) {
            log.debug("{} is not looked at: {}", directory, e.toString());
            return Optional.empty();
        }
    }

    private static Map<String, ?> stringKeys(Map<?, ?> fields) {
        return fields.entrySet().stream()
                .collect(Collectors.toMap(entry -> String.valueOf(entry.getKey()), Map.Entry::getValue));
    }

    private Optional<KvFile> entry(Path directory) throws IOException {
        Optional<PromptEntry> entry = PromptEntry.of(directory, files);
        return entry.map(found -> new KvFile(
                found.temporary() ? Kind.TEMPORARY : Kind.PROMPT, "", directory, found.bytes(), found.used()));
    }

    /**
     * Removes files that were not used for too long, and those that were not used for longest as long as there are too many bytes; and
     * temporary files that were abandoned.
     *
     * @param removed takes each file that is removed, or would be
     * @param stop asked now and then, whether to end
     */
    public Collected collect(Request request, Consumer<KvFile> removed, BooleanSupplier stop) throws IOException {
        return new Collection(this, request, removed, stop).run();
    }

    /** One collection: a walk that removes old files, and another one if the remaining ones are too many. */
    private static final class Collection {
        private final KvFiles in;
        private final Request request;
        private final Consumer<KvFile> listener;
        private final BooleanSupplier stop;
        private final List<Use> uses = new ArrayList<>();
        private long left;
        private long leftBytes;
        private long removed;
        private long removedBytes;
        private long failed;

        /** The last use of a remaining file. */
        private record Use(Instant at, long bytes) {}

        Collection(KvFiles in, Request request, Consumer<KvFile> listener, BooleanSupplier stop) {
            this.in = in;
            this.request = request;
            this.listener = listener;
            this.stop = stop;
        }

        Collected run() throws IOException {
            in.forEach(this::removeIfOld);
            long most = request.limits.maxBytes().orElse(Long.MAX_VALUE);
            if (leftBytes > most && !stop.getAsBoolean()) {
                removeUnused((long) (most * request.fill));
            }
            return new Collected(removed, removedBytes, left, leftBytes, failed);
        }

        private boolean removeIfOld(KvFile file) throws IOException {
            if (file.kind == Kind.TEMPORARY) {
                if (Duration.between(file.used, request.now).compareTo(ABANDONED_AFTER) > 0) {
                    remove(file);
                }
            } else {
                left++;
                leftBytes += file.bytes;
                if (isOld(file)) {
                    remove(file);
                } else {
                    uses.add(new Use(file.used, file.bytes));
                }
            }
            return !stop.getAsBoolean();
        }

        private boolean isOld(KvFile file) {
            return request.limits
                    .maxAge()
                    .map(most -> Duration.between(file.used, request.now).compareTo(most) > 0)
                    .orElse(false);
        }

        private void removeUnused(long most) throws IOException {
            uses.sort(Comparator.comparing(Use::at));
            long remaining = leftBytes;
            Instant until = Instant.MIN;
            for (int i = 0; i < uses.size() && remaining > most; i++) {
                remaining -= uses.get(i).bytes;
                until = uses.get(i).at;
            }
            Instant last = until;
            in.forEach(file -> {
                if (file.kind != Kind.TEMPORARY && !isOld(file) && !file.used.isAfter(last)) {
                    remove(file);
                }
                return leftBytes > most && !stop.getAsBoolean();
            });
        }

        private void remove(KvFile file) {
            try {
                if (file.kind == Kind.PROMPT && !mayRemove(file)) {
                    return;
                }
                if (!request.dryRun) {
                    delete(file);
                }
            } catch (NoSuchFileException e) {
                log.debug("{} was removed by another process", file.path);
            } catch (IOException e) {
                failed++;
                log.warn("cannot remove {}: {}", file.path, e.toString());
                return;
            }
            if (file.kind != Kind.TEMPORARY) {
                left--;
                leftBytes -= file.bytes;
            }
            removed++;
            removedBytes += file.bytes;
            listener.accept(file);
        }

        private boolean mayRemove(KvFile file) throws IOException {
            Optional<PromptEntry> entry = PromptEntry.of(file.path, in.files);
            return entry.isPresent()
                    && Duration.between(entry.get().changed(), request.now).compareTo(SETTLED_AFTER) > 0
                    && entry.get().isKvCache(in.files);
        }

        private void delete(KvFile file) throws IOException {
            if (in.files.attributes(file.path).isDirectory()) {
                PromptEntry.remove(file.path, in.files);
            } else {
                in.files.delete(file.path);
            }
        }
    }
}
