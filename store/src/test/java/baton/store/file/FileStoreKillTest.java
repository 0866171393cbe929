package baton.store.file;

import static baton.store.file.StoredValues.TICKER;
import static baton.store.file.StoredValues.format;
import static baton.store.file.StoredValues.keys;
import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.Deadline;
import baton.store.BlockStore;
import baton.store.StoreFormat;
import baton.store.StoreTask;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.foreign.Arena;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** A process that is killed while it writes. {@code -Dtests.file_kills=100} for more than one. */
class FileStoreKillTest {
    private static final int KILLS = Integer.getInteger("tests.file_kills", 1);
    private static final int KEYS = 48;

    /** 2.5 MB each: several pieces. */
    private static final StoreFormat FORMAT = format(320);

    @TempDir
    Path root;

    /** The process: says that it writes, and writes and deletes until it is killed. */
    static final class Writer {
        private Writer() {}

        public static void main(String[] args) throws IOException {
            FileStoreSettings settings = FileStoreSettings.of("root", Path.of(args[0]));
            for (boolean first = true; ; first = false) {
                try (BlockStore store = FileBlockStore.open(settings, FORMAT, TICKER);
                        Arena arena = Arena.ofShared()) {
                    StoreTask task = StoredValues.start(store, arena, keys(0, KEYS), StoredValues.soon());
                    if (first) {
                        System.out.println("writes");
                    }
                    StoredValues.over(task);
                }
                clear(settings.root());
            }
        }
    }

    @Test
    void aProcessThatIsKilledWhileItWritesLeavesNothingThatIsReadAsAValue() throws Exception {
        Random random = new Random(3);
        int found = 0;
        int cut = 0;
        for (int kill = 0; kill < KILLS; kill++) {
            writeAndKill(random.nextInt(KEYS / 2));
            cut += files(".tmp");
            try (FileBlockStore store = FileBlockStore.open(FileStoreSettings.of("root", root), FORMAT, TICKER)) {
                // Compares the values read, too.
                found += StoredValues.get(store, keys(0, KEYS)).size();
                assertThat(StoredValues.failures(store).keySet()).isSubsetOf("get/absent");
            }
            clear(root);
        }
        assertThat(found + cut).as("files that were written or being written").isPositive();
    }

    /** Kills a writer when that many files are complete, which it goes on from at once. */
    private void writeAndKill(int complete) throws IOException, InterruptedException {
        Process process = new ProcessBuilder(List.of(
                        ProcessHandle.current().info().command().orElseThrow(),
                        "-cp",
                        System.getProperty("java.class.path"),
                        "-Xmx256m",
                        "-XX:TieredStopAtLevel=1",
                        Writer.class.getName(),
                        root.toString()))
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
        try {
            Deadline soon = StoredValues.soon();
            BufferedReader out = process.inputReader();
            while (!out.ready()) {
                assertThat(process.isAlive() && !soon.isOver())
                        .as("the writer starts")
                        .isTrue();
                LockSupport.parkNanos(1_000_000);
            }
            assertThat(out.readLine()).isEqualTo("writes");
            while (files(".bin") < complete) {
                assertThat(soon.isOver()).as("the writer hangs").isFalse();
                Thread.onSpinWait();
            }
        } finally {
            process.destroyForcibly();
        }
        assertThat(process.waitFor(120, TimeUnit.SECONDS)).isTrue();
    }

    private int files(String suffix) throws IOException {
        try (Stream<Path> files = Files.walk(root)) {
            return (int) files.filter(file -> file.toString().endsWith(suffix)).count();
        } catch (UncheckedIOException e) {
            // The writer removes directories.
            return 0;
        }
    }

    private static void clear(Path root) throws IOException {
        List<Path> files = new ArrayList<>();
        try (Stream<Path> walk = Files.walk(root)) {
            walk.filter(Files::isRegularFile).forEach(files::add);
        }
        for (Path file : files) {
            Files.delete(file);
        }
    }
}
