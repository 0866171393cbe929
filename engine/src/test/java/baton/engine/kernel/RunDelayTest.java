package baton.engine.kernel;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(300)
class RunDelayTest {
    private static final Path OF_CALLER = Path.of("/proc/thread-self/schedstat");
    private static final int THREADS_PER_PROCESSOR = 3;

    @Test
    void threadsThatShareProcessorsWait() throws Exception {
        assumeTrue(Files.exists(OF_CALLER), "there is no " + OF_CALLER);
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

    /** One after the other; the second still asks when the first has ended. */
    @Test
    void eachThreadGetsItsOwn() throws Exception {
        assumeTrue(Files.exists(OF_CALLER), "there is no " + OF_CALLER);
        try (RunDelay delay = new RunDelay()) {
            assertIsOfCaller(delay);
            FutureTask<Boolean> another = new FutureTask<>(() -> {
                assertIsOfCaller(delay);
                return true;
            });
            Thread.ofPlatform().start(another);
            another.get(120, TimeUnit.SECONDS);
            assertIsOfCaller(delay);
        }
    }

    private static void assertIsOfCaller(RunDelay delay) throws IOException {
        long before = readDelay();
        long told = delay.getAsLong();
        assertThat(told).isBetween(before, readDelay());
    }

    private static long readDelay() throws IOException {
        return Long.parseLong(Files.readString(OF_CALLER).split(" ")[1]);
    }
}
