package baton.kv;

import static org.assertj.core.api.Assertions.assertThat;

import java.time.Duration;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class ProcessRestTest {
    @Test
    void itEndsOnceTheProcessHardlyUsesAProcessor() throws InterruptedException {
        AtomicInteger looks = new AtomicInteger();
        // Busy for five looks: more processor time between two of them than any has passed.
        ProcessRest.await(
                Duration.ofMinutes(5),
                () -> Duration.ofMinutes(Math.min(5, looks.getAndIncrement())).toNanos());
        assertThat(looks.get()).isEqualTo(8);
    }

    @Test
    void itEndsInTimeIfTheProcessStaysBusy() throws InterruptedException {
        AtomicInteger looks = new AtomicInteger();
        ProcessRest.await(
                Duration.ofMillis(100),
                () -> Duration.ofMinutes(looks.getAndIncrement()).toNanos());
        assertThat(looks.get()).isBetween(2, 6);
    }
}
