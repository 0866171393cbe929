package baton.cuda.kernel;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.within;

import baton.kv.DType;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

class ExpertOpsTest {
    private final Random random = new Random(11);

    @AutoClose
    private final TestDevice device = new TestDevice();

    @ParameterizedTest
    @ValueSource(ints = {1, 5, 255, 700})
    void listsHaveTheChoicesOfEachExpert(int tokens) {
        int experts = 7;
        // No token chooses the fifth one.
        int[] choices =
                random.ints(tokens * 2L, 0, experts).map(e -> e == 4 ? 6 : e).toArray();
        try (GpuKernels kernels = new GpuKernels(device.gpu(), DType.F32)) {
            long lists = device.room(ExpertOps.listBytes(tokens, 2, experts));
            kernels.experts().group(device.stream(), device.put(choices), tokens, 2, experts, lists);
            List<Integer> expected = new ArrayList<>();
            int[] starts = new int[experts + 1];
            for (int expert = 0; expert < experts; expert++) {
                int own = expert;
                IntStream.range(0, choices.length)
                        .filter(i -> choices[i] == own)
                        .forEach(expected::add);
                starts[expert + 1] = expected.size();
            }
            assertThat(device.ints(lists, starts.length)).isEqualTo(starts);
            assertThat(device.ints(lists + 4L * starts.length, choices.length))
                    .isEqualTo(expected.stream().mapToInt(i -> i).toArray());
        }
    }

    @ParameterizedTest
    @CsvSource({
        "BF16, 1, 24, 40",
        "BF16, 9, 33, 72",
        "F16, 40, 17, 520",
        "BF16, 150, 70, 72",
        "F32, 11, 20, 33",
        "BF16, 11, 20, 33"
    })
    void productsAreThoseOfTheExpertsThatWereChosen(DType type, int tokens, int outputs, int inputs) {
        int experts = 3;
        int chosen = 2;
        // Most tokens choose the last one first.
        int[] choices = random.ints((long) tokens * chosen, -4, experts)
                .map(e -> e < 0 ? experts - 1 : e)
                .toArray();
        try (GpuKernels kernels = new GpuKernels(device.gpu(), type)) {
            ExpertOps ops = kernels.experts();
            long lists = device.room(ExpertOps.listBytes(tokens, chosen, experts));
            ops.group(device.stream(), device.put(choices), tokens, chosen, experts, lists);
            float[] in = TestDevice.numbers(random, type, tokens * chosen * inputs);
            Weight[] weights = new Weight[experts];
            for (int i = 0; i < experts; i++) {
                float[] numbers = TestDevice.numbers(random, type, outputs * inputs);
                float[] bias = TestDevice.numbers(random, DType.F32, outputs);
                weights[i] = new Weight(
                        device.put(type, outputs, 1, inputs, numbers).address(),
                        type,
                        outputs,
                        inputs,
                        device.put(bias));
            }
            long table = device.put(IntStream.range(0, experts)
                    .mapToLong(i -> weights[i].address())
                    .toArray());
            long biases = device.put(IntStream.range(0, experts)
                    .mapToLong(i -> weights[i].bias())
                    .toArray());
            for (boolean inputPerChoice : new boolean[] {false, true}) {
                DeviceRows rows = device.put(type, inputPerChoice ? tokens * chosen : tokens, 1, inputs, in);
                for (long bias : new long[] {0, biases}) {
                    DeviceRows out = device.room(DType.F32, tokens * chosen, 1, outputs);
                    Weight all = new Weight(table, type, outputs, inputs, bias);
                    ops.products(device.stream(), all, experts, lists, rows, out, chosen, inputPerChoice);
                    float[] results = device.floats(out);
                    for (int choice = 0; choice < choices.length; choice++) {
                        Weight own = weights[choices[choice]];
                        DeviceRows alone = device.room(DType.F32, 1, 1, outputs);
                        Weight same = bias == 0 ? new Weight(own.address(), type, outputs, inputs, 0) : own;
                        DeviceRows input = rows.rows(inputPerChoice ? choice : choice / chosen, 1);
                        kernels.products().product(device.stream(), same, input, alone, false);
                        float[] ofChoice = Arrays.copyOfRange(results, choice * outputs, (choice + 1) * outputs);
                        assertThat(ofChoice).isEqualTo(device.floats(alone));
                    }
                }
            }
        }
    }

    @ParameterizedTest
    @CsvSource({"1, 2, false, false", "5, 3, true, false", "7, 1, true, true"})
    void resultsAreAddedTimesTheirShares(int tokens, int chosen, boolean shared, boolean sharedShares) {
        int columns = 75;
        float[] results = TestDevice.numbers(random, DType.F32, tokens * chosen * columns);
        float[] shares = TestDevice.numbers(random, DType.F32, tokens * chosen);
        float[] ofShared = TestDevice.numbers(random, DType.F32, tokens * columns);
        float[] factors = TestDevice.numbers(random, DType.F32, tokens);
        float[] before = TestDevice.numbers(random, DType.F32, tokens * columns);
        try (GpuKernels kernels = new GpuKernels(device.gpu(), DType.F32)) {
            DeviceRows x = device.put(DType.F32, tokens, 1, columns, before);
            kernels.experts()
                    .combine(
                            device.stream(),
                            device.put(DType.F32, tokens * chosen, 1, columns, results),
                            device.put(shares),
                            shared ? device.put(ofShared) : 0,
                            sharedShares ? device.put(factors) : 0,
                            x);
            float[] after = device.floats(x);
            for (int i = 0; i < after.length; i++) {
                int token = i / columns;
                double sum = before[i];
                for (int j = 0; j < chosen; j++) {
                    int choice = token * chosen + j;
                    sum += (double) shares[choice] * results[choice * columns + i % columns];
                }
                sum += shared ? ofShared[i] * (double) (sharedShares ? factors[token] : 1) : 0;
                assertThat(after[i]).isCloseTo((float) sum, within(1e-6f));
            }
        }
    }
}
