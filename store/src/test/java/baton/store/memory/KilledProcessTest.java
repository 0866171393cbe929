package baton.store.memory;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.kv.BlockHash;
import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.memory.MappableMemory;
import java.io.BufferedReader;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Processes that share memory and are killed while they store: the others read right values, and no room is lost. */
class KilledProcessTest {
    private static final int SLOTS = 64;
    private static final int KEYS = 200;
    /** More with {@code -Dtests.kills}. */
    private static final int KILLS = Integer.getInteger("tests.kills", 1);

    @TempDir
    private Path directory;

    private static HostMemoryStore open(Path directory, Eviction eviction) throws IOException {
        return HostMemoryStore.open(
                SharedValues.FORMAT,
                HostMemorySettings.of(SLOTS * SharedValues.FORMAT.valueBytes())
                        .withEviction(eviction)
                        .withThreads(0)
                        .withShared(Optional.of(new SharedMemory(directory, "killed"))),
                Ticker.system());
    }

    /** Has a slot half filled and a value pinned, then stores and reads keys until it is killed. */
    static final class Writer {
        private Writer() {}

        public static void main(String[] args) throws IOException {
            Random random = new Random(Long.parseLong(args[2]));
            try (HostMemoryStore store = open(Path.of(args[0]), Eviction.valueOf(args[1]))) {
                int own = KEYS + 100 + Integer.parseInt(args[2]);
                SharedValues.put(store, SharedValues.keys(own, own + 1));
                store.pin(SharedValues.key(own));
                store.reserve(SharedValues.keys(own + 1000, own + 1001), new int[1]);
                System.out.println("ready");
                while (true) {
                    work(store, random);
                }
            }
        }
    }

    private static void work(HostMemoryStore store, Random random) {
        int first = random.nextInt(KEYS);
        List<BlockHash> keys = SharedValues.keys(first, first + random.nextInt(1, 9));
        if (random.nextInt(3) == 0) {
            SharedValues.requireRight(store, keys, SharedValues.ANY);
        } else {
            SharedValues.put(store, keys);
        }
    }

    private void start(Eviction eviction, int seed, List<Process> processes) throws IOException {
        Process process = new ProcessBuilder(
                        Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                        "--enable-native-access=ALL-UNNAMED",
                        "-XX:TieredStopAtLevel=1",
                        "-Xmx64m",
                        "-cp",
                        System.getProperty("java.class.path"),
                        Writer.class.getName(),
                        directory.toString(),
                        eviction.name(),
                        String.valueOf(seed))
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
        processes.add(process);
        BufferedReader out = process.inputReader(StandardCharsets.UTF_8);
        Deadline deadline = Deadline.after(Ticker.system(), Duration.ofMinutes(2));
        while (!out.ready()) {
            assertThat(process.isAlive() && !deadline.isOver())
                    .as("the writer starts")
                    .isTrue();
            LockSupport.parkNanos(1_000_000);
        }
        assertThat(out.readLine()).isEqualTo("ready");
    }

    @ParameterizedTest
    @EnumSource
    void aKilledProcessLeavesRightValuesAndNoSlotBehind(Eviction eviction) throws Exception {
        assumeTrue(
                MappableMemory.whyNone().isEmpty(),
                () -> MappableMemory.whyNone().orElse(""));
        Random random = new Random(11);
        List<Process> processes = new ArrayList<>();
        try (HostMemoryStore store = open(directory, eviction)) {
            start(eviction, 0, processes);
            for (int kill = 1; kill <= KILLS; kill++) {
                start(eviction, kill, processes);
                long end = System.nanoTime() + TimeUnit.MICROSECONDS.toNanos(random.nextInt(40_000));
                do {
                    work(store, random);
                } while (System.nanoTime() < end);
                kill(processes.removeFirst());
                for (int i = 0; i < 20; i++) {
                    work(store, random);
                }
                assertThat(processes).as("the other writer").allMatch(Process::isAlive);
            }
            processes.forEach(KilledProcessTest::kill);
            processes.clear();
            SharedValues.requireRight(store, SharedValues.keys(0, KEYS + 8), SharedValues.ANY);
            SharedValues.putAll(store, SharedValues.keys(2000, 2000 + SLOTS));
            SharedValues.requireRight(store, SharedValues.keys(2000, 2000 + SLOTS), SLOTS);
            SharedValues.putAll(store, SharedValues.keys(0, SLOTS / 2));
        } finally {
            processes.forEach(KilledProcessTest::kill);
        }
        try (HostMemoryStore store = open(directory, eviction)) {
            SharedValues.requireRight(store, SharedValues.keys(0, SLOTS / 2), SLOTS / 2);
            assertThat(store.used()).isEqualTo(SLOTS);
            SharedValues.putAll(store, SharedValues.keys(1000, 1000 + SLOTS));
            SharedValues.requireRight(store, SharedValues.keys(1000, 1000 + SLOTS), SLOTS);
        }
    }

    private static void kill(Process process) {
        process.destroyForcibly();
        try {
            assertThat(process.waitFor(120, TimeUnit.SECONDS)).isTrue();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException(e);
        }
    }
}
