package baton.store.prompt;

import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.Ticker;
import baton.store.FileOperations;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.nio.channels.ClosedByInterruptException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.attribute.BasicFileAttributes;
import java.nio.file.attribute.FileTime;
import java.time.Duration;
import java.time.Instant;
import java.util.Collections;
import java.util.EnumSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A directory of KV cache entries in the file form of vLLM's ExampleConnector (formerly SharedStorageConnector): an entry
 * is a directory {@code <root>/<name>} with a file {@code <layer name>.safetensors} for each layer, each holding one tensor
 * {@code kv_cache}.
 *
 * <h2>Shape</h2>
 *
 * {@code [tokens, kv_heads, 2*head_dim]}, within which keys and values lie as a {@link TensorLayout} says. Also read is vLLM's
 * earlier {@code [2, tokens, kv_heads, head_dim]}, all keys and then all values.
 *
 * <h2>Complete or absent</h2>
 *
 * A writer fills a temporary directory beside the entries, under a name that no reader looks for, and renames it. So an entry
 * of this class is complete from the moment it exists. Entries of other programs may not be: a reader checks that every
 * layer's file is there and has the size, shape and element type it must have. Writers of the same entry may race: the
 * first complete entry stays, later ones are discarded; a directory of that name that is not complete is moved aside and replaced.
 *
 * <h2>Compatible and intact</h2>
 *
 * The files' {@code __metadata__}, which vLLM ignores, holds {@code baton.model} (the fingerprint), {@code baton.dtype},
 * {@code baton.layout} and {@code baton.crc32c} (of the tensor's bytes). An entry of another model is not found; bytes that
 * do not fit their checksum are an error. A file without these keys is foreign: neither its shape nor its name shows how keys
 * and values lie in it or which model they are of. It is taken only if {@link Layouts#foreign} says how, and unproven then.
 *
 * <p>Nothing is mapped into memory, because an access to a mapped file that another process has truncated ends the JVM. Symbolic
 * links below the root are not followed. Thread-safe.
 */
public final class SharedStorage {
    private static final Logger log = LoggerFactory.getLogger(SharedStorage.class);

    static final String SUFFIX = ".safetensors";
    static final String TEMPORARY_PREFIX = ".baton-tmp-";

    /** A temporary directory that nothing has been added to for this long has no writer any more. */
    private static final Duration ABANDONED_AFTER = Duration.ofHours(1);

    private static final long DISTRUST_NANOS = Duration.ofMinutes(1).toNanos();
    private static final int REMEMBERED = 1024;

    private final Path root;
    private final Format format;
    private final Layouts layouts;
    private final FileOperations files;
    private final LayerFiles layerFiles;
    private final Ticker ticker;
    private final Set<StorageException.Fault> loggedFaults =
            Collections.synchronizedSet(EnumSet.noneOf(StorageException.Fault.class));
    private final Map<String, String> loggedIncompatible = remembering();
    private final Map<String, Distrusted> distrusted = remembering();
    private final AtomicBoolean loggedForeign = new AtomicBoolean();
    private final AtomicLong sweepDue;

    /**
     * A directory as a setting gives it.
     *
     * @param field the setting, for errors
     * @throws ConfigException if {@code text} cannot be the root of a storage
     */
    public static Path root(String field, String text) {
        if (text.isBlank()) {
            throw new ConfigException(field, "must not be empty");
        }
        Path root = ConfigException.path(field, text);
        if (Files.exists(root) && !Files.isDirectory(root)) {
            throw new ConfigException(field, "is " + root + ", which is not a directory");
        }
        return root;
    }

    /**
     * Makes the directory unless it exists, and checks that entries can be written to it.
     *
     * @param field the setting, for errors
     * @throws ConfigException if not
     */
    public static void requireWritable(String field, Path root) {
        Path probe = root.resolve(TEMPORARY_PREFIX + UUID.randomUUID());
        try {
            Files.createDirectories(root);
            Files.createDirectory(probe);
            Files.delete(probe);
        } catch (IOException e) {
            throw new ConfigException(
                    field, "is %s, which cannot be written to: %s".formatted(root, StorageException.describe(e)), e);
        }
    }

    /** Files as vLLM's GPU backends lay them out are written, and foreign ones are not taken. */
    public SharedStorage(Path root, Format format, Ticker ticker) {
        this(root, format, new Layouts(Optional.empty(), TensorLayout.GPU), ticker, FileOperations.SYSTEM);
    }

    /** @param root need not exist; the first write makes it */
    public SharedStorage(Path root, Format format, Layouts layouts, Ticker ticker, FileOperations files) {
        this.root = root;
        this.format = format;
        this.layouts = layouts;
        this.files = files;
        this.layerFiles = new LayerFiles(format, layouts, files);
        this.ticker = ticker;
        this.sweepDue = new AtomicLong(ticker.nanos());
    }

    /**
     * The format that all entries of one model have in common.
     *
     * @param layerNames names of the layers, in order; the files' names
     * @param kvHeads key/value heads
     * @param headDim elements of one key, and of one value
     * @param dtype type of the elements
     * @param model hex fingerprint of the computation that fills the cache
     * @param latent of each token and layer one vector of {@code headDim} elements, which is key and value
     */
    public record Format(List<String> layerNames, int kvHeads, int headDim, DType dtype, String model, boolean latent) {
        public Format {
            layerNames = List.copyOf(layerNames);
        }

        /** The format of keys and values. */
        public Format(List<String> layerNames, int kvHeads, int headDim, DType dtype, String model) {
            this(layerNames, kvHeads, headDim, dtype, model, false);
        }

        /** The shape of a file's tensor. */
        List<Long> shape(int tokens) {
            return latent
                    ? List.of((long) tokens, (long) headDim)
                    : List.of((long) tokens, (long) kvHeads, 2L * headDim);
        }

        /** Bytes of one layer of {@code tokens} tokens. */
        public long layerBytes(int tokens) {
            return shape(tokens).stream().reduce((long) dtype.bytes(), Math::multiplyExact);
        }
    }

    /**
     * How files' tensors are laid out.
     *
     * @param foreign those of files without this class's metadata; if empty, such files are not taken
     * @param written those of files that are written
     */
    public record Layouts(Optional<TensorLayout> foreign, TensorLayout written) {}

    /**
     * An entry that was complete and compatible when it was found.
     *
     * @param identity of this very directory; another one under the same name is another entry
     * @param proven whether the files name this model; false of foreign ones
     */
    public record Entry(String name, int tokens, Object identity, boolean proven) {}

    /** The result of {@link #find}. */
    public sealed interface Lookup {
        record Found(Entry entry) implements Lookup {}

        record Absent() implements Lookup {}

        /** Incomplete, malformed or known to be corrupt: a writer replaces it. */
        record Broken(String reason) implements Lookup {}

        /** The entry is of another model, element type or layout: it stays. */
        record Incompatible(String reason) implements Lookup {}

        /** Has files without a description of their content: it stays. */
        record Foreign(String reason) implements Lookup {}
    }

    /** True if there is a directory of that name, whatever is in it. One system call. */
    public boolean exists(String name) {
        try {
            return files.attributes(root.resolve(name)).isDirectory();
        } catch (IOException _) {
            return false;
        }
    }

    /**
     * Checks the files of an entry, all but their data. Incompatibility is logged once for each entry; that there are foreign
     * files, once.
     */
    public Lookup find(String name, int tokens) {
        if (!exists(name)) {
            return new Lookup.Absent();
        }
        Path directory = root.resolve(name);
        try {
            Object identity = identity(directory);
            Distrusted bad = distrusted.get(name);
            if (bad != null && bad.identity.equals(identity) && ticker.nanos() - bad.since < DISTRUST_NANOS) {
                return new Lookup.Broken(directory + " was found to be bad");
            }
            boolean proven = true;
            for (String layerName : format.layerNames) {
                proven &= layerFiles.isProven(directory.resolve(layerName + SUFFIX), tokens);
            }
            if (!proven && loggedForeign.compareAndSet(false, true)) {
                log.warn(
                        "KV cache entry {} was not written by Baton. Such entries are taken for this model's, laid out as"
                                + " {}, as the settings say: neither is proven, and if one is wrong so are the answers",
                        directory,
                        layouts.foreign.orElseThrow().interior().settingName());
            }
            return new Lookup.Found(new Entry(name, tokens, identity, proven));
        } catch (IOException e) {
            String reason = StorageException.describe(e);
            return switch (StorageException.Fault.of(e)) {
                case FOREIGN -> {
                    if (loggedForeign.compareAndSet(false, true)) {
                        log.warn("KV cache entry {} is not used, nor is any other such: {}", directory, reason);
                    }
                    yield new Lookup.Foreign(reason);
                }
                case INCOMPATIBLE -> {
                    if (loggedIncompatible.put(name, reason) == null) {
                        log.warn("KV cache entry {} is not used: {}", directory, reason);
                    }
                    yield new Lookup.Incompatible(reason);
                }
                case MISSING, DAMAGED, DIGEST, NO_SPACE, DENIED, IO -> new Lookup.Broken(reason);
            };
        }
    }

    /**
     * Reads one layer and verifies its checksum.
     *
     * @param into native memory of {@code format.layerBytes(entry.tokens())}, filled as {@code [tokens, kv_heads, 2*head_dim]};
     *     undefined if this throws
     * @throws StorageException if the file is missing, damaged, foreign, of another model, or cannot be read
     */
    public void read(Entry entry, int layer, MemorySegment into) throws StorageException {
        Objects.checkFromIndexSize(0, format.layerBytes(entry.tokens()), into.byteSize());
        Path file = root.resolve(entry.name()).resolve(format.layerNames.get(layer) + SUFFIX);
        try {
            layerFiles.read(file, entry.tokens(), into);
        } catch (IOException e) {
            throw e instanceof StorageException known ? known : new StorageException("cannot read " + file, e);
        }
    }

    /** Marks an entry with bad data: for a while it counts as broken, unless it is replaced. */
    public void distrust(Entry entry) {
        distrusted.put(entry.name(), new Distrusted(entry.identity(), ticker.nanos()));
    }

    /**
     * Starts to write an entry. The first call, and from time to time a later one, deletes the temporary directories of writers that are gone.
     *
     * @throws StorageException if the temporary directory cannot be made; logged once for each cause
     */
    public Writer write(String name, int tokens) throws StorageException {
        Path temporary = temporary();
        try {
            files.createDirectories(root);
            // Not createTempDirectory: other users' instances must be able to read the entry.
            files.createDirectory(temporary);
        } catch (IOException e) {
            throw failed(temporary, e);
        }
        long due = sweepDue.get();
        long now = ticker.nanos();
        if (now - due >= 0 && sweepDue.compareAndSet(due, now + ABANDONED_AFTER.toNanos())) {
            removeAbandoned(files.now());
        }
        return new Writer(name, tokens, temporary);
    }

    /** Writes one entry; used by one thread. Closing it without {@link #commit} leaves nothing behind. */
    public final class Writer implements AutoCloseable {
        private final String name;
        private final int tokens;
        private final Path temporary;
        private boolean open = true;

        private Writer(String name, int tokens, Path temporary) {
            this.name = name;
            this.tokens = tokens;
            this.temporary = temporary;
        }

        /**
         * Writes the file of a layer.
         *
         * @param plain {@code [tokens, kv_heads, 2*head_dim]}, the key and then the value of each token and head, native
         * @throws StorageException if that fails; the temporary files are gone then; logged once for each cause
         */
        public void layer(int layer, MemorySegment plain) throws StorageException {
            if (plain.byteSize() != format.layerBytes(tokens)) {
                throw new IllegalArgumentException(
                        "plain has %d bytes, expected %d".formatted(plain.byteSize(), format.layerBytes(tokens)));
            }
            Path file = temporary.resolve(format.layerNames.get(layer) + SUFFIX);
            try {
                layerFiles.write(file, tokens, plain);
            } catch (IOException e) {
                close();
                throw failed(file, e);
            }
        }

        /**
         * Makes the entry visible, all at once. All layers must have been written.
         *
         * @return true if the entry is this one; false if another writer's entry is there already, which stays
         * @throws StorageException if it cannot be renamed; the temporary files are gone then; logged once for each cause
         */
        public boolean commit() throws StorageException {
            Path entry = root.resolve(name);
            try {
                // A few times, as other writers may replace the same broken entry at the same time.
                for (int attempt = 1; ; attempt++) {
                    try {
                        files.move(temporary, entry);
                        open = false;
                        loggedFaults.clear();
                        return true;
                    } catch (FileSystemException e) {
                        if (attempt == 5) {
                            throw e;
                        }
                        switch (find(name, tokens)) {
                            case Lookup.Found _, Lookup.Incompatible _, Lookup.Foreign _ -> {
                                return false;
                            }
                            case Lookup.Broken _, Lookup.Absent _ -> moveAside(entry);
                        }
                    }
                }
            } catch (IOException e) {
                throw failed(entry, e);
            } finally {
                close();
            }
        }

        /** Deletes the written files, unless they were committed. */
        @Override
        public void close() {
            if (open) {
                open = false;
                delete(temporary);
            }
        }

        private void moveAside(Path entry) throws IOException {
            Path aside = temporary();
            try {
                files.move(entry, aside);
                log.info("replacing broken KV cache entry {}", entry);
                delete(aside);
            } catch (NoSuchFileException e) {
                log.debug("nothing is in the way of {}", entry, e);
            }
        }
    }

    private record Distrusted(Object identity, long since) {}

    private Path temporary() {
        return root.resolve(TEMPORARY_PREFIX + UUID.randomUUID());
    }

    private void removeAbandoned(Instant now) {
        try {
            for (Path path : files.list(root, TEMPORARY_PREFIX)) {
                FileTime modified = files.attributes(path).lastModifiedTime();
                if (modified.toInstant().isBefore(now.minus(ABANDONED_AFTER)) && delete(path)) {
                    log.info("deleted {}, which its writer had abandoned", path);
                }
            }
        } catch (NoSuchFileException e) {
            log.debug("{} was finished meanwhile", e.getFile());
        } catch (IOException e) {
            log.warn("cannot look for abandoned temporary directories in {}: {}", root, e.toString());
        }
    }

    private Object identity(Path directory) throws IOException {
        BasicFileAttributes attributes = files.attributes(directory);
        return List.of(String.valueOf(attributes.fileKey()), attributes.lastModifiedTime());
    }

    private StorageException failed(Path path, IOException cause) {
        StorageException failure = new StorageException("cannot write " + path, cause);
        boolean cancelled = cause instanceof ClosedByInterruptException;
        if (!cancelled && loggedFaults.add(failure.fault())) {
            log.error(
                    "{}; KV cache entries are not stored in {} until this is resolved, and this is not logged again"
                            + " before one is stored",
                    failure.getMessage(),
                    root);
        }
        return failure;
    }

    private boolean delete(Path path) {
        try {
            files.deleteTree(path);
            return true;
        } catch (IOException e) {
            log.warn("cannot delete temporary directory {}: {}", path, e.toString());
            return false;
        }
    }

    /** A small thread-safe map that drops its oldest entries. */
    private static <V> Map<String, V> remembering() {
        return Collections.synchronizedMap(new LinkedHashMap<>() {
            @Override
            protected boolean removeEldestEntry(Map.Entry<String, V> eldest) {
                return size() > REMEMBERED;
            }
        });
    }
}
