package baton.router.policy;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.within;

import java.util.Random;
import org.junit.jupiter.api.Test;

class LeastSquaresTest {
    private final Random random = new Random(1);

    /** The second and the fourth feature are the same, as of prompts of which nothing is cached. */
    private double[] sample() {
        double kib = 1 + random.nextInt(64);
        return new double[] {1, kib, random.nextInt(4), kib};
    }

    private static double value(double[] features, double factor) {
        return factor * (3 + 2 * features[1] + 5 * features[2]);
    }

    @Test
    void changesAreFittedAfterManySamplesAlthoughFeaturesVaryTogether() {
        LeastSquares model = new LeastSquares(4);
        for (int i = 0; i < 20_000; i++) {
            double[] features = sample();
            model.learn(features, value(features, 1));
        }
        double[] asked = {1, 10, 1, 10};
        assertThat(model.predict(asked)).isCloseTo(28, within(0.01));
        for (int i = 0; i < 1400; i++) {
            double[] features = sample();
            model.learn(features, value(features, 3));
        }
        assertThat(model.predict(asked)).isCloseTo(84, within(1.0));
    }

    @Test
    void aFeatureThatDoesNotVaryAndSamplesThatAreNotFiniteDoNoHarm() {
        LeastSquares model = new LeastSquares(2);
        for (int i = 0; i < 5000; i++) {
            model.learn(new double[] {1, 7}, 21);
            model.learn(new double[] {1, Double.NaN}, 1);
            model.learn(new double[] {1, 7}, Double.POSITIVE_INFINITY);
        }
        assertThat(model.samples()).isEqualTo(5000);
        assertThat(model.predict(new double[] {1, 7})).isCloseTo(21, within(0.01));
    }
}
