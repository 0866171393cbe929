package baton.cuda.kernel;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.DType;
import java.util.Comparator;
import java.util.Random;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class SamplingOpsTest {
    private static final long SEED = Long.getLong("tests.seed", 11);
    private static final float NONE = Float.NEGATIVE_INFINITY;

    private final TestDevice device = new TestDevice();
    private final Functions functions = new Functions(device.gpu(), SamplingOps.kernels());
    private final SamplingOps kernels = new SamplingOps(device.gpu(), functions);

    @AfterEach
    void close() {
        kernels.close();
        functions.close();
        device.close();
    }

    @ParameterizedTest
    @CsvSource({"1, 1, 1", "3, 5, 5", "2, 4096, 20", "3, 4097, 1", "2, 10007, 9", "1, 4200, 2048"})
    void theLargestInDescendingOrder(int rows, int columns, int count) {
        Random random = new Random(SEED);
        float[] logits = new float[rows * columns];
        for (int i = 0; i < logits.length; i++) {
            // Many are equal, some are no numbers.
            logits[i] = random.nextInt(20) == 0 ? Float.NaN : random.nextInt(-500, 500) / 8f;
        }
        long ids = device.room((long) rows * count * Integer.BYTES);
        long values = device.room((long) rows * count * Float.BYTES);
        kernels.top(device.stream(), device.put(DType.F32, rows, 1, columns, logits), count, ids, values);
        int[] found = device.ints(ids, rows * count);
        float[] foundValues = device.floats(DType.F32, values, rows * count);
        for (int row = 0; row < rows; row++) {
            int start = row * columns;
            int[] expected = IntStream.range(0, columns)
                    .boxed()
                    .sorted(Comparator.comparing(
                            (Integer i) -> Float.isNaN(logits[start + i]) ? NONE : logits[start + i] + 0f,
                            Comparator.reverseOrder()))
                    .limit(count)
                    .mapToInt(Integer::intValue)
                    .toArray();
            for (int i = 0; i < count; i++) {
                int at = row * count + i;
                float logit = logits[start + expected[i]];
                assertThat(found[at]).as("number %d of row %d", i, row).isEqualTo(expected[i]);
                assertThat(foundValues[at]).isEqualTo(Float.isNaN(logit) ? NONE : logit);
            }
        }
    }

    @Test
    void argmaxOfRowsWithAndWithoutNumbers() {
        float nan = Float.NaN;
        float most = Float.POSITIVE_INFINITY;
        float[] logits = {
            nan, nan, nan, //
            NONE, NONE, NONE, nan, -3, -2, -0f, 0, nan, 1, most, 2
        };
        long ids = device.room(5 * Integer.BYTES);
        long values = device.room(5 * Float.BYTES);
        kernels.argmax(device.stream(), device.put(DType.F32, 5, 1, 3, logits), ids, values);
        assertThat(device.ints(ids, 5)).containsExactly(0, 0, 2, 0, 1);
        assertThat(device.floats(DType.F32, values, 5)).containsExactly(NONE, NONE, -2, 0, most);
    }

    @Test
    void moreThanThereAreAreRefused() {
        assertThatThrownBy(() -> kernels.top(device.stream(), device.room(DType.F32, 1, 1, 3), 4, 0, 0))
                .hasMessageContaining("count=4");
    }
}
