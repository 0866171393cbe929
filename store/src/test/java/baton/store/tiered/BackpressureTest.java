package baton.store.tiered;

import static org.assertj.core.api.Assertions.assertThat;

import baton.store.tiered.Backpressure.Policy;
import baton.testkit.VirtualTicker;
import java.time.Duration;
import org.junit.jupiter.api.Test;

final class BackpressureTest {
    private static final long MIB = 1 << 20;

    private final VirtualTicker ticker = new VirtualTicker();

    private Backpressure backpressure(Policy policy) {
        return new Backpressure(new Backpressure.Settings(policy, 0.010, 0.002, 0.5, 3, 2, 1, 3), ticker);
    }

    private static int admitted(Backpressure backpressure, int asked) {
        int admitted = 0;
        for (int i = 0; i < asked; i++) {
            admitted += backpressure.admits() ? 1 : 0;
        }
        return admitted;
    }

    @Test
    void firstWritesNeverMakePressure() {
        Backpressure backpressure = backpressure(Policy.DROP);
        backpressure.written(1, MIB);
        backpressure.written(1, MIB);
        assertThat(backpressure.admits()).isTrue();
        backpressure.written(1, MIB);
        assertThat(backpressure.admits()).isFalse();
        assertThat(backpressure.average()).isEqualTo(1);
    }

    @Test
    void latencyIsOfAMebibyte() {
        Backpressure backpressure = backpressure(Policy.DROP);
        for (int i = 0; i < 5; i++) {
            backpressure.written(0.5, 100 * MIB);
        }
        assertThat(backpressure.average()).isEqualTo(0.005);
        assertThat(backpressure.admits()).isTrue();
    }

    @Test
    void throttlingDropsInProportionToTheExcess() {
        Backpressure backpressure = backpressure(Policy.THROTTLED);
        for (int i = 0; i < 3; i++) {
            backpressure.written(0.020, MIB);
        }
        // The excess is 1 of 2: half are dropped.
        assertThat(admitted(backpressure, 100)).isEqualTo(50);
        for (int i = 0; i < 20; i++) {
            backpressure.written(0.040, MIB);
        }
        assertThat(admitted(backpressure, 100)).isZero();
    }

    /** {@code ThrottledDropPolicy} of vLLM 0.33 adds the parts up. */
    @Test
    void threeOfFourAreDroppedAtThreeQuartersOfTheRamp() {
        Backpressure backpressure = backpressure(Policy.THROTTLED);
        for (int i = 0; i < 3; i++) {
            backpressure.written(0.025, MIB);
        }
        assertThat(admitted(backpressure, 100)).isEqualTo(25);
    }

    @Test
    void writesThatFailOneAfterTheOtherMakePressureThatEndsByItself() {
        Backpressure backpressure = backpressure(Policy.THROTTLED);
        backpressure.failed();
        backpressure.failed();
        backpressure.written(0.001, MIB);
        assertThat(backpressure.failures()).isZero();
        backpressure.failed();
        backpressure.failed();
        assertThat(admitted(backpressure, 10)).isEqualTo(10);
        backpressure.failed();
        assertThat(admitted(backpressure, 10)).isZero();
        // The average, 4 times the high watermark, is below it after two half-lives.
        ticker.advance(Duration.ofSeconds(5));
        assertThat(admitted(backpressure, 10)).isEqualTo(10);
        backpressure.failed();
        assertThat(admitted(backpressure, 10)).isZero();
    }

    @Test
    void pressureEndsBelowTheLowWatermarkAndThenEveryOtherWriteIsDroppedForAWhile() {
        Backpressure backpressure = backpressure(Policy.DROP);
        for (int i = 0; i < 3; i++) {
            backpressure.written(0.016, MIB);
        }
        assertThat(admitted(backpressure, 10)).isZero();
        backpressure.written(0, MIB);
        assertThat(backpressure.average()).isEqualTo(0.008);
        assertThat(admitted(backpressure, 10)).isZero();
        backpressure.written(0, MIB);
        backpressure.written(0, MIB);
        assertThat(admitted(backpressure, 10)).isEqualTo(5);
        ticker.advance(Duration.ofSeconds(1));
        assertThat(admitted(backpressure, 10)).isEqualTo(10);
    }

    @Test
    void withoutWritesPressureEndsByItself() {
        Backpressure backpressure = backpressure(Policy.DROP);
        for (int i = 0; i < 3; i++) {
            backpressure.written(0.016, MIB);
        }
        ticker.advance(Duration.ofSeconds(5));
        assertThat(admitted(backpressure, 10)).isZero();
        ticker.advance(Duration.ofSeconds(2));
        assertThat(admitted(backpressure, 10)).isEqualTo(5);
    }
}
