package baton.bench;

import static org.assertj.core.api.Assertions.assertThat;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.time.Duration;
import java.util.concurrent.atomic.AtomicBoolean;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** A turn begins when the processors' idle time grows, as the file of the kernel's counts says. */
class SystemRestTest {
    @TempDir
    Path directory;

    /** Writes counts that grow until {@code ended}, mostly of used or of idle time. */
    private Thread counting(Path stat, AtomicBoolean busy, AtomicBoolean ended) throws IOException {
        write(stat, 0, 0);
        return Thread.ofPlatform().start(() -> {
            long used = 0;
            long idle = 0;
            try {
                while (!ended.get()) {
                    used += busy.get() ? 95 : 2;
                    idle += busy.get() ? 5 : 98;
                    write(stat, used, idle);
                }
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        });
    }

    private void write(Path stat, long used, long idle) throws IOException {
        Path next = directory.resolve("next");
        Files.writeString(next, "cpu  %d 0 0 %d 0 0 0 0 0 0\ncpu0 1 2 3 4\n".formatted(used, idle));
        Files.move(next, stat, StandardCopyOption.ATOMIC_MOVE);
    }

    @Test
    void waitsUntilTheProcessorsAreIdle() throws Exception {
        Path stat = directory.resolve("stat");
        AtomicBoolean busy = new AtomicBoolean(true);
        AtomicBoolean ended = new AtomicBoolean();
        Thread counting = counting(stat, busy, ended);
        try {
            assertThat(new SystemRest(stat).await(Duration.ofMillis(500))).isFalse();
            busy.set(false);
            assertThat(new SystemRest(stat).await(Duration.ofSeconds(60))).isTrue();
        } finally {
            ended.set(true);
            counting.join();
        }
    }

    @Test
    void nothingIsWaitedForWithoutCounts() throws IOException {
        assertThat(new SystemRest(directory.resolve("none")).await(Duration.ofSeconds(60)))
                .isTrue();
    }
}
