package baton.engine.kernel;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class RunDelayTest {
    private static final int THREADS_PER_PROCESSOR = 3;

    @Test
    void threadsThatShareProcessorsWait() throws Exception {
        assumeTrue(Files.exists(Path.of("/proc/thread-self/schedstat")), "this system does not tell run delays");
        AtomicLong waited = new AtomicLong();
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < THREADS_PER_PROCESSOR * Runtime.getRuntime().availableProcessors(); i++) {
            threads.add(Thread.ofPlatform().start(() -> {
                try (RunDelay delay = new RunDelay()) {
                    long before = delay.getAsLong();
                    long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(500);
                    while (System.nanoTime() < end) {
                        Thread.onSpinWait();
                    }
                    waited.addAndGet(delay.getAsLong() - before);
                }
            }));
        }
        for (Thread thread : threads) {
            thread.join();
        }
        assertThat(waited.get()).isGreaterThan(TimeUnit.MILLISECONDS.toNanos(200));
    }

    @Test
    void eachThreadIsToldItsOwn() throws Exception {
        assumeTrue(Files.exists(Path.of("/proc/thread-self/schedstat")), "this system does not tell run delays");
        try (RunDelay delay = new RunDelay()) {
            AtomicLong ofAnother = new AtomicLong(-1);
            Thread another = Thread.ofPlatform().start(() -> ofAnother.set(delay.getAsLong()));
            another.join();
            long before = delay.getAsLong();
            assertThat(delay.getAsLong()).isGreaterThanOrEqualTo(before);
            assertThat(ofAnother.get()).isNotNegative();
        }
    }
}
