package baton.bench.serve;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.assertj.core.api.Assertions.within;

import baton.bench.serve.Arrivals.Ramp;
import baton.bench.serve.Arrivals.Strategy;
import baton.kv.ConfigException;
import java.util.Optional;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class ArrivalsTest {
    private static final int MANY = 200_000;

    @Test
    void anInfiniteRateIsAllAtOnce() {
        Arrivals arrivals = new Arrivals(Double.POSITIVE_INFINITY, 1, Optional.empty());
        assertThat(arrivals.due(5, 1)).containsOnly(0);
        assertThat(arrivals.isScheduled()).isFalse();
    }

    @Test
    void infiniteBurstinessIsEqualDistances() {
        assertThat(new Arrivals(4, Double.POSITIVE_INFINITY, Optional.empty()).due(4, 1))
                .containsExactly(0.25, 0.5, 0.75, 1);
    }

    @Test
    void theLastRequestIsDueWhenTheRateSays() {
        assertThat(new Arrivals(50, 1, Optional.empty()).due(200, 3)[199]).isCloseTo(4, within(1e-9));
    }

    @Test
    void theSameSeedGivesTheSameTimes() {
        Arrivals arrivals = new Arrivals(3, 0.7, Optional.empty());
        assertThat(arrivals.due(50, 9)).containsExactly(arrivals.due(50, 9)).isNotEqualTo(arrivals.due(50, 10));
    }

    @ParameterizedTest
    @ValueSource(doubles = {0.3, 1, 4})
    void distancesAreGammaDistributedWithTheBurstinessAsShape(double burstiness) {
        double[] due = new Arrivals(10, burstiness, Optional.empty()).due(MANY, 5);
        double[] distances =
                IntStream.range(1, MANY).mapToDouble(i -> due[i] - due[i - 1]).toArray();
        double mean = moment(distances, 0, 1);
        assertThat(mean).isCloseTo(0.1, within(1e-3));
        // Coefficient of variation and skewness of a gamma distribution.
        double deviation = Math.sqrt(moment(distances, mean, 2));
        assertThat(deviation / mean).isCloseTo(1 / Math.sqrt(burstiness), within(0.03));
        assertThat(moment(distances, mean, 3) / Math.pow(deviation, 3))
                .isCloseTo(2 / Math.sqrt(burstiness), within(0.25));
    }

    private static double moment(double[] values, double around, int power) {
        double sum = 0;
        for (double value : values) {
            sum += Math.pow(value - around, power);
        }
        return sum / values.length;
    }

    @Test
    void aRampGrowsFromItsStartToItsEnd() {
        Ramp linear = new Ramp(Strategy.LINEAR, 2, 10);
        assertThat(linear.rate(0, 5)).isEqualTo(2);
        assertThat(linear.rate(2, 5)).isEqualTo(6);
        assertThat(linear.rate(4, 5)).isEqualTo(10);
        Ramp exponential = new Ramp(Strategy.EXPONENTIAL, 1, 16);
        assertThat(exponential.rate(2, 5)).isCloseTo(4, within(1e-12));
        double[] due = new Arrivals(Double.POSITIVE_INFINITY, Double.POSITIVE_INFINITY, Optional.of(linear)).due(3, 1);
        assertThat(due).containsExactly(new double[] {0.5, 0.5 + 1 / 6.0, 0.5 + 1 / 6.0 + 0.1}, within(1e-12));
    }

    @Test
    void valuesOutOfRangeAreRefusedByName() {
        assertThatThrownBy(() -> new Arrivals(0, 1, Optional.empty()))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("request-rate");
        assertThatThrownBy(() -> new Arrivals(1, Double.NaN, Optional.empty())).hasMessageContaining("burstiness");
        assertThatThrownBy(() -> new Ramp(Strategy.LINEAR, 0, 2)).hasMessageContaining("ramp-up-start-rps");
        assertThatThrownBy(() -> new Ramp(Strategy.LINEAR, 3, 2)).hasMessageContaining("ramp-up-end-rps");
        Ramp ramp = new Ramp(Strategy.LINEAR, 1, 2);
        assertThatThrownBy(() -> new Arrivals(5, 1, Optional.of(ramp))).hasMessageContaining("ramp-up-strategy");
    }
}
