package baton.bench;

import baton.engine.model.ModelConfig;
import baton.engine.model.RandomCheckpoint;
import baton.kv.TemporaryDirectory;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ObjectNode;

/** A checkpoint with random weights, in a temporary directory for as long as it is used. */
public final class RandomModel {
    private static final int BYTES = 256;

    private RandomModel() {}

    /** Uses a checkpoint. */
    public interface Use<T> {
        T with(Path directory) throws IOException;
    }

    /** Writing took longer than it was allowed to. */
    public static final class TooSlowException extends IOException {
        TooSlowException(String message) {
            super(message);
        }
    }

    /**
     * Writes one of that shape and uses it.
     *
     * @param atMost how long writing may take
     * @throws TooSlowException if it takes longer
     * @throws IOException if there is no room for it, or from {@code use}
     */
    public static <T> T with(ModelConfig config, Duration atMost, Consumer<String> progress, Use<T> use)
            throws IOException {
        try (TemporaryDirectory temporary = TemporaryDirectory.create("baton-bench")) {
            // However the process ends: gigabytes are not to stay behind.
            Thread onExit = Thread.ofPlatform().unstarted(temporary::close);
            Runtime.getRuntime().addShutdownHook(onExit);
            try {
                requireRoom(temporary.path(), config);
                // A checkpoint is named after its directory.
                Path directory = temporary.path().resolve(config.name());
                progress.accept(String.format(
                        Locale.ROOT,
                        "writing a random checkpoint of %,d M parameters to %s",
                        config.parameters() / 1_000_000,
                        directory));
                write(directory, config, atMost);
                return use.with(directory);
            } finally {
                forget(onExit);
            }
        }
    }

    private static void write(Path directory, ModelConfig config, Duration atMost) throws IOException {
        // Closing waits until the thread has stopped writing, so that its files can be deleted.
        try (ExecutorService writer = Executors.newSingleThreadExecutor()) {
            Future<?> written = writer.submit(() -> {
                RandomCheckpoint.write(directory, config, 1);
                writeTokenizer(directory.resolve("tokenizer.json"), config.vocabularySize());
                return true;
            });
            try {
                written.get(atMost.toNanos(), TimeUnit.NANOSECONDS);
            } catch (TimeoutException e) {
                throw new TooSlowException(String.format(
                        Locale.ROOT,
                        "writing a checkpoint of %.1f GB took longer than %.0f s",
                        bytes(config) / 1e9,
                        atMost.toMillis() / 1e3));
            } catch (ExecutionException e) {
                if (e.getCause() instanceof IOException cause) {
                    throw cause;
                }
                throw new IllegalStateException(e.getCause());
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                throw new IOException("interrupted while a checkpoint was written", e);
            } finally {
                // An interrupt closes the file that it writes.
                writer.shutdownNow();
            }
        }
    }

    /** A byte-level vocabulary of as many words: each byte, so that it can encode any text, and then numbers. */
    private static void writeTokenizer(Path file, int vocabularySize) throws IOException {
        JsonMapper json = JsonMapper.builder().build();
        ObjectNode root = json.createObjectNode().put("version", "1.0");
        root.putArray("added_tokens");
        for (String part : List.of("pre_tokenizer", "decoder")) {
            root.putObject(part)
                    .put("type", "ByteLevel")
                    .put("add_prefix_space", false)
                    .put("trim_offsets", false);
        }
        ObjectNode model = root.putObject("model").put("type", "BPE");
        ObjectNode vocabulary = model.putObject("vocab");
        for (int id = 0; id < vocabularySize; id++) {
            vocabulary.put(id < BYTES ? ofByte(id) : "\u0120" + id, id);
        }
        model.putArray("merges");
        Files.writeString(file, json.writeValueAsString(root));
    }

    /** The character that stands for a byte in byte-level vocabularies (GPT-2's): itself, or where that is not visible one from 256 on. */
    private static String ofByte(int value) {
        int hidden = 0;
        for (int each = 0; each < value; each++) {
            hidden += isVisible(each) ? 0 : 1;
        }
        return Character.toString(isVisible(value) ? value : BYTES + hidden);
    }

    private static boolean isVisible(int latin1) {
        return latin1 > ' ' && latin1 < 0x7f || latin1 > 0xa0 && latin1 != 0xad;
    }

    private static long bytes(ModelConfig config) {
        return config.parameters() * config.dtype().bytes();
    }

    private static void requireRoom(Path directory, ModelConfig config) throws IOException {
        long needed = bytes(config) + (64L << 20);
        long free = Files.getFileStore(directory).getUsableSpace();
        if (free < needed) {
            throw new IOException(
                    "the random checkpoint needs %.1f GB for a moment, %s has %.1f GB free; set java.io.tmpdir to another directory, or leave the model out"
                            .formatted(needed / 1e9, directory.getParent(), free / 1e9));
        }
    }

    private static void forget(Thread onExit) {
        try {
            Runtime.getRuntime().removeShutdownHook(onExit);
        } catch (IllegalStateException e) {
            // The process is ending, and the hook runs or has run.
        }
    }
}
