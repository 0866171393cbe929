package baton.bench;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.within;

import java.time.Duration;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.Test;

/** Pauses are the leaps of the clock between two looks. */
class ProcessorPausesTest {
    private static final long MILLI = 1_000_000;

    @Test
    void leapsOfMoreThanAMillisecondAreCountedAndAddedUp() {
        AtomicLong looks = new AtomicLong();
        AtomicLong now = new AtomicLong();
        // Every hundredth look comes 4 ms after the one before, every fiftieth 1 ms, the others 0.1 ms.
        ProcessorPauses found = ProcessorPauses.onThisThread(Duration.ofSeconds(1), () -> {
            long look = looks.incrementAndGet();
            return now.addAndGet(look % 100 == 0 ? 4 * MILLI : look % 50 == 0 ? MILLI : MILLI / 10);
        });
        assertThat(found.pauses()).isEqualTo((int) (looks.get() / 100));
        assertThat(found.lost()).isCloseTo(0.004 * found.pauses(), within(1e-9));
        assertThat(found.seconds()).isBetween(1.0, 1.005);
        assertThat(found.share()).isCloseTo(found.lost() / found.seconds(), within(1e-9));
    }

    @Test
    void allProcessorsAreLookedAtForThatLong() throws Exception {
        ProcessorPauses found = ProcessorPauses.look(Duration.ofMillis(20));
        assertThat(found.seconds())
                .isGreaterThanOrEqualTo(0.02 * Runtime.getRuntime().availableProcessors());
    }

    @Test
    void thoseOfTwoLooksAreOneShareOfTheirTime() {
        ProcessorPauses both = new ProcessorPauses(2, 3, 0.01).plus(new ProcessorPauses(2, 5, 0.03));
        assertThat(both.perSecond()).isCloseTo(2.0, within(1e-9));
        assertThat(both.share()).isCloseTo(0.01, within(1e-9));
        assertThat(ProcessorPauses.NONE.share()).isZero();
    }
}
