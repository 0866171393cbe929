package baton.cuda.kernel;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.within;

import baton.engine.kernel.Activation;
import baton.engine.model.Recipe.Experts;
import baton.engine.model.Recipe.Routing;
import baton.kv.DType;
import java.util.Arrays;
import java.util.Random;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class ExpertRoutingTest {
    private static final long SEED = Long.getLong("tests.seed", 11);
    private static final int ROWS = 7;

    @ParameterizedTest
    @CsvSource({
        "8, 2, true, false, 1, 1, 1, 1, false",
        "60, 4, false, false, 1, 1, 1, 1, false",
        "128, 8, true, false, 1, 1, 1, 1, true",
        "16, 4, true, true, 1, 1, 1, 2.5, true",
        "160, 6, false, false, 8, 3, 1, 16, false",
        "64, 8, true, true, 8, 4, 2, 2.5, true",
        "5, 5, true, false, 1, 1, 1, 1, false",
        "33, 1, false, true, 3, 2, 2, 1, true"
    })
    void theExpertsOfTheCpu(
            int count,
            int chosen,
            boolean normalised,
            boolean independent,
            int groups,
            int chosenGroups,
            int summed,
            double factor,
            boolean corrected) {
        Routing routing = new Routing(independent, groups, chosenGroups, summed, factor);
        Experts kind = new Experts(count, chosen, normalised, 8, 8, Activation.SILU, routing);
        Random random = new Random(SEED);
        float[] correction = TestDevice.numbers(random, DType.F32, count);
        int columns = corrected ? count + 1 : count;
        float[] logits = TestDevice.numbers(random, DType.F32, ROWS * columns);
        for (int i = 0; i < logits.length; i++) {
            // Some are equal.
            logits[i] = Math.round(logits[i] * 40) / 10f;
        }
        Result result = route(kind, logits, columns, corrected ? correction : new float[0]);
        for (int row = 0; row < ROWS; row++) {
            float[] own = Arrays.copyOfRange(logits, row * columns, row * columns + count);
            double[] expected = expected(kind, own, corrected ? correction : new float[count]);
            int[] ids = Arrays.copyOfRange(result.chosen, row * chosen, (row + 1) * chosen);
            assertThat(ids)
                    .as("row %d", row)
                    .containsExactly(IntStream.range(0, count)
                            .filter(expert -> expected[expert] != 0)
                            .toArray());
            for (int i = 0; i < chosen; i++) {
                assertThat((double) result.shares[row * chosen + i])
                        .as("row %d expert %d", row, ids[i])
                        .isCloseTo(expected[ids[i]], within(2e-6 * factor));
            }
            double shared = corrected ? 1 / (1 + Math.exp(-logits[row * columns + count])) : 1;
            assertThat((double) result.sharedShares[row]).isCloseTo(shared, within(1e-6));
        }
    }

    /** A logit is no number, and so is the row's result. */
    @ParameterizedTest
    @CsvSource({"true, false", "false, false", "true, true"})
    void sharesAreNoNumbersIfALogitIsNone(boolean normalised, boolean independent) {
        Experts kind = new Experts(40, 3, normalised, 8, 0, Activation.SILU, new Routing(independent, 1, 1, 1, 1));
        float[] logits = TestDevice.numbers(new Random(SEED), DType.F32, ROWS * 40);
        logits[35] = Float.NaN;
        Arrays.fill(logits, 80, 120, Float.NaN);
        Result result = route(kind, logits, 40, new float[0]);
        for (int i = 0; i < result.shares.length; i++) {
            boolean isNone = i < 3 || i >= 6 && i < 9;
            assertThat(Float.isNaN(result.shares[i])).as("share %d", i).isEqualTo(isNone);
            assertThat(result.chosen[i]).isBetween(0, 39);
        }
    }

    @Test
    void noRowsAreRouted() {
        Experts kind = new Experts(4, 2, true, 8, 0, Activation.SILU, new Routing(false, 1, 1, 1, 1));
        try (TestDevice device = new TestDevice();
                ExpertRouting routing = new ExpertRouting(device.gpu())) {
            routing.route(device.stream(), new DeviceRows(0, DType.F32, 0, 4, 1, 0, 4), 0, kind, 0, 0, 0);
            device.stream().synchronize();
        }
    }

    private record Result(int[] chosen, float[] shares, float[] sharedShares) {}

    private static Result route(Experts kind, float[] logits, int columns, float[] correction) {
        try (TestDevice device = new TestDevice();
                ExpertRouting routing = new ExpertRouting(device.gpu())) {
            long chosen = device.room((long) ROWS * kind.chosen() * Integer.BYTES);
            long shares = device.room((long) ROWS * kind.chosen() * Float.BYTES);
            long sharedShares = kind.sharedWidth() > 0 ? device.room((long) ROWS * Float.BYTES) : 0;
            routing.route(
                    device.stream(),
                    device.put(DType.F32, ROWS, 1, columns, logits),
                    correction.length > 0 ? device.put(correction) : 0,
                    kind,
                    chosen,
                    shares,
                    sharedShares);
            return new Result(
                    device.ints(chosen, ROWS * kind.chosen()),
                    device.floats(DType.F32, shares, ROWS * kind.chosen()),
                    sharedShares == 0 ? new float[0] : device.floats(DType.F32, sharedShares, ROWS));
        }
    }

    /** Each expert's share, 0 if it is not chosen. */
    private static double[] expected(Experts kind, float[] logits, float[] correction) {
        Routing routing = kind.routing();
        int count = kind.count();
        double[] all = new double[count];
        double sum = 0;
        for (int i = 0; i < count; i++) {
            all[i] = routing.independent() ? 1 / (1 + Math.exp(-logits[i])) : Math.exp(logits[i]);
            sum += all[i];
        }
        double[] preferences = new double[count];
        for (int i = 0; i < count; i++) {
            double share = routing.independent() ? all[i] : logits[i];
            preferences[i] = share + correction[i];
        }
        int size = count / routing.groups();
        double[] sums = new double[routing.groups()];
        for (int group = 0; group < sums.length; group++) {
            double[] ofGroup = Arrays.copyOfRange(preferences, group * size, (group + 1) * size);
            Arrays.sort(ofGroup);
            sums[group] = Arrays.stream(ofGroup, size - routing.summed(), size).sum();
        }
        boolean[] isOpen = new boolean[routing.groups()];
        for (int i = 0; i < routing.chosenGroups(); i++) {
            int next = largest(sums);
            isOpen[next] = true;
            sums[next] = Double.NEGATIVE_INFINITY;
        }
        for (int i = 0; i < count; i++) {
            if (!isOpen[i / size]) {
                preferences[i] = Double.NEGATIVE_INFINITY;
            }
        }
        double[] shares = new double[count];
        double ofChosen = 0;
        for (int i = 0; i < kind.chosen(); i++) {
            int next = largest(preferences);
            preferences[next] = Double.NEGATIVE_INFINITY;
            shares[next] = all[next];
            ofChosen += all[next];
        }
        double divisor = kind.normalised() ? ofChosen : routing.independent() ? 1 : sum;
        for (int i = 0; i < count; i++) {
            shares[i] *= routing.factor() / divisor;
        }
        return shares;
    }

    private static int largest(double[] numbers) {
        int largest = 0;
        for (int i = 1; i < numbers.length; i++) {
            if (numbers[i] > numbers[largest]) {
                largest = i;
            }
        }
        return largest;
    }
}
