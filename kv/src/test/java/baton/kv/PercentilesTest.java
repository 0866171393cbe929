package baton.kv;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.assertj.core.api.Assertions.within;

import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class PercentilesTest {
    /** Values of {@code numpy.percentile}. */
    @ParameterizedTest
    @CsvSource({
        "7, 0, 7",
        "7, 90, 7",
        "7, 100, 7",
        "1 3, 0, 1",
        "1 3, 50, 2",
        "1 3, 90, 2.8",
        "1 3, 100, 3",
        "1 2 3 4 5 6 7 8 9 10, 90, 9.1",
        "1 2 3 4 5 6 7 8 9 10, 99.9, 9.991",
        "1 2 3 4, 25, 1.75"
    })
    void betweenTwoValuesAPercentileIsInterpolated(String values, double rank, double expected) {
        double[] sorted = List.of(values.split(" ")).stream()
                .mapToDouble(Double::parseDouble)
                .toArray();
        assertThat(Percentiles.of(sorted, rank)).isCloseTo(expected, within(1e-12));
    }

    @Test
    void theMedianNeedsNoOrder() {
        assertThat(Percentiles.median(List.of(9.0, 1.0, 4.0))).isEqualTo(4);
        assertThat(Percentiles.median(List.of(9.0, 1.0, 4.0, 5.0))).isEqualTo(4.5);
        assertThatThrownBy(() -> Percentiles.median(List.of())).hasMessage("there are no values");
    }
}
