package baton.cuda.kernel;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.DType;
import java.util.Random;
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
    @CsvSource({"1, 1", "3, 5", "2, 4096", "3, 4097", "2, 10007", "1, 70000"})
    void theFirstOfTheLargest(int rows, int columns) {
        Random random = new Random(SEED);
        float[] logits = new float[rows * columns];
        for (int i = 0; i < logits.length; i++) {
            // Many are equal, some are no numbers.
            logits[i] = random.nextInt(20) == 0 ? Float.NaN : random.nextInt(-500, 500) / 8f;
        }
        long ids = device.room((long) rows * Integer.BYTES);
        long values = device.room((long) rows * Float.BYTES);
        kernels.argmax(device.stream(), device.put(DType.F32, rows, 1, columns, logits), ids, values);
        int[] found = device.ints(ids, rows);
        float[] foundValues = device.floats(DType.F32, values, rows);
        for (int row = 0; row < rows; row++) {
            int expected = 0;
            float largest = NONE;
            for (int i = 0; i < columns; i++) {
                if (logits[row * columns + i] > largest) {
                    largest = logits[row * columns + i];
                    expected = i;
                }
            }
            assertThat(found[row]).as("row %d", row).isEqualTo(expected);
            assertThat(foundValues[row]).isEqualTo(largest);
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
    void logitsOfAnotherTypeAreRefused() {
        assertThatThrownBy(() -> kernels.argmax(device.stream(), device.room(DType.BF16, 1, 1, 3), 0, 0))
                .hasMessageContaining("must be F32");
    }
}
