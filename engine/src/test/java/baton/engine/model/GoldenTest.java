package baton.engine.model;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.within;

import baton.engine.model.KernelChoice.Kind;
import baton.kv.DType;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.OptionalInt;
import java.util.stream.IntStream;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;

/** Tiny-ledger gives its recorded answers, however its tokens are cut into steps. */
class GoldenTest {
    private static final int WHOLE = Integer.MAX_VALUE;
    private static final double FP32_LOGIT_TOLERANCE = 1e-3;

    private static List<Golden> goldens = List.of();

    /** Prompts of 6 to 1,868 tokens, for the other ways to compute them. */
    private static List<Golden> some = List.of();

    /** All prompts whole and at once in fp32. */
    private static List<Replay.Sequence> exact = List.of();

    @BeforeAll
    static void read() throws IOException {
        goldens = Golden.all();
        assertThat(goldens).hasSize(24);
        try (ModelRunner runner = load(DType.F32, 16, 3000)) {
            exact = replay(runner, goldens, WHOLE, WHOLE);
        }
        some = IntStream.of(3, 7, 11, 15, 19, 23).mapToObj(goldens::get).toList();
    }

    @Test
    void firstLogitsInFp32() {
        double worst = 0;
        for (int i = 0; i < goldens.size(); i++) {
            Golden golden = goldens.get(i);
            float[] first = exact.get(i).logits.getFirst();
            for (int rank = 0; rank < golden.topIds().length; rank++) {
                double difference = Math.abs(first[golden.topIds()[rank]] - golden.topLogits()[rank]);
                worst = Math.max(worst, difference);
                assertThat((double) first[golden.topIds()[rank]])
                        .as("%s rank %d", golden.name(), rank)
                        .isCloseTo(golden.topLogits()[rank], within(FP32_LOGIT_TOLERANCE));
            }
        }
        System.out.printf("fp32: first-step top-5 logits differ by at most %.2g%n", worst);
        assertTokens("fp32", goldens, exact, 1e-3);
    }

    @ParameterizedTest(name = "chunks of {0}, {1} tokens a step, blocks of {2}")
    @CsvSource({"257, 512, 32", "64, 300, 16", "7, 100, 16"})
    void greedyTokensInFp32(int chunk, int budget, int blockSize) throws IOException {
        try (ModelRunner runner = load(DType.F32, blockSize, 3000)) {
            assertTokens("fp32", some, replay(runner, some, chunk, budget), 1e-3);
        }
    }

    @Test
    void oneSequenceAtATimeInFp32() throws IOException {
        try (ModelRunner runner = load(DType.F32, 16, 3000)) {
            List<Replay.Sequence> replayed = new ArrayList<>();
            for (Golden golden : some) {
                Replay replay = new Replay(runner, false);
                replayed.addAll(replay.add(List.of(golden)));
                replay.run(WHOLE, WHOLE);
            }
            assertTokens("fp32", some, replayed, 1e-3);
        }
    }

    @ParameterizedTest(name = "chunks of {0}, {1} tokens a step, blocks of {2}, quantization {3}")
    @CsvSource({"2147483647, 2147483647, 16, NONE", "257, 512, 32, NONE", "2147483647, 2147483647, 16, INT8"})
    void greedyTokensInBf16(int chunk, int budget, int blockSize, Quantization quantization) throws IOException {
        try (ModelRunner runner = load(DType.BF16, quantization, blockSize, 3000)) {
            List<Golden> asked = chunk == WHOLE && quantization == Quantization.NONE ? goldens : some;
            assertBf16(quantization, asked, replay(runner, asked, chunk, budget));
        }
    }

    @ParameterizedTest(name = "{0} tensor ranks, {1} stages")
    @CsvSource({"2, 2"})
    void greedyTokensOfRanksInBf16(int tensorSize, int pipelineSize) throws IOException {
        try (ModelRunner ranks = RanksTest.load(DType.BF16, 16, 3000, tensorSize, pipelineSize)) {
            assertBf16(Quantization.NONE, some, replay(ranks, some, WHOLE, WHOLE));
        }
    }

    /** Kernels that are not chosen on this processor, too: a few prompts, at once and in chunks. */
    @Tag("named-kernels")
    @ParameterizedTest(name = "{0}, {1}")
    @CsvSource({
        "AMX, BF16",
        "AVX512_BF16, BF16",
        "AVX512, BF16",
        "AVX512, F16",
        "AVX512, F32",
        "AVX2, BF16",
        "AVX2, F16",
        "AVX2, F32"
    })
    void greedyTokensOfAllKernels(Kind kind, DType dtype) throws IOException {
        assertGreedyTokens(kind, dtype);
    }

    /** These are slow. */
    @Tag("thorough")
    @ParameterizedTest
    @EnumSource(names = {"F32", "BF16"})
    void greedyTokensOfLibTorchsKernels(DType dtype) throws IOException {
        assertGreedyTokens(Kind.LIBTORCH, dtype);
    }

    private static void assertGreedyTokens(Kind kind, DType dtype) throws IOException {
        List<Golden> few = goldens.stream()
                .filter(golden -> golden.prompt().length < 500)
                .limit(4)
                .toList();
        assertThat(few).hasSize(4);
        try (ModelRanks ranks = ModelKernelsOf.tinyLedger(kind, dtype, Quantization.NONE)) {
            Replay replay = new Replay(ranks.first(), false);
            List<Replay.Sequence> replayed = replay.add(few);
            replay.run(150, 400);
            double resolution = dtype == DType.F32 ? 1e-3 : 0.5;
            for (int i = 0; i < few.size(); i++) {
                for (int step = 0; step < few.get(i).output().length; step++) {
                    if (few.get(i).margins()[step] > resolution) {
                        assertThat(replayed.get(i).chosen.get(step))
                                .as("%s[%d]", few.get(i).name(), step)
                                .isEqualTo(few.get(i).output()[step]);
                    }
                }
            }
        }
    }

    private static void assertBf16(Quantization quantization, List<Golden> asked, List<Replay.Sequence> replayed) {
        double sum = 0;
        double worst = 0;
        long count = 0;
        for (int i = 0; i < asked.size(); i++) {
            Golden golden = asked.get(i);
            for (int step = 0; step < golden.output().length; step++) {
                float[] expected = exact.get(goldens.indexOf(golden)).logits.get(step);
                float[] actual = replayed.get(i).logits.get(step);
                for (int id = 0; id < expected.length; id++) {
                    double difference = actual[id] - expected[id];
                    sum += difference * difference;
                    worst = Math.max(worst, Math.abs(difference));
                    count++;
                }
            }
        }
        double rms = Math.sqrt(sum / count);
        System.out.printf("bf16, %s: logits differ from fp32 by %.3f rms, %.3f at most%n", quantization, rms, worst);
        // A margin is a difference of two logits, each off by its own error: six standard deviations of that.
        double resolution = 6 * Math.sqrt(2) * rms;
        double[] margins = asked.stream()
                .flatMapToDouble(golden -> Arrays.stream(golden.margins()).limit(golden.output().length))
                .toArray();
        long clear =
                Arrays.stream(margins).filter(margin -> margin >= resolution).count();
        System.out.printf("%d of %d steps are clear%n", clear, margins.length);
        // Eight bits for a weight resolve less than bf16 activations alone.
        double least = quantization == Quantization.NONE ? 0.75 : 0.5;
        assertThat(clear).as("steps that are clear").isGreaterThan((long) (least * margins.length));
        assertTokens("bf16", asked, replayed, resolution);
    }

    @ParameterizedTest(name = "{0} tensor ranks, {1} stages")
    @CsvSource({"2, 1", "8, 1", "1, 4", "2, 2"})
    void greedyTokensOfRanksInFp32(int tensorSize, int pipelineSize) throws IOException {
        try (ModelRunner ranks = RanksTest.load(DType.F32, 16, 3000, tensorSize, pipelineSize)) {
            assertTokens("fp32, ranks", some, replay(ranks, some, 257, 512), 1e-3);
        }
    }

    private static void assertTokens(
            String what, List<Golden> asked, List<Replay.Sequence> replayed, double resolution) {
        List<String> excepted = new ArrayList<>();
        List<String> wrong = new ArrayList<>();
        for (int i = 0; i < asked.size(); i++) {
            Golden golden = asked.get(i);
            assertThat(replayed.get(i).chosen).as(golden.name()).hasSameSizeAs(golden.output());
            for (int step = 0; step < golden.output().length; step++) {
                int chosen = replayed.get(i).chosen.get(step);
                if (chosen != golden.output()[step]) {
                    String where = "%s[%d] margin %.4f".formatted(golden.name(), step, golden.margins()[step]);
                    (golden.margins()[step] < resolution ? excepted : wrong).add(where);
                }
            }
        }
        System.out.printf("%s: another token within the arithmetic's resolution: %s%n", what, excepted);
        assertThat(wrong).isEmpty();
    }

    private static List<Replay.Sequence> replay(ModelRunner runner, List<Golden> asked, int chunk, int budget) {
        Replay replay = new Replay(runner, true);
        List<Replay.Sequence> sequences = replay.add(asked);
        replay.run(chunk, budget);
        return sequences;
    }

    private static ModelRunner load(DType dtype, int blockSize, int blocks) throws IOException {
        return load(dtype, Quantization.NONE, blockSize, blocks);
    }

    private static ModelRunner load(DType dtype, Quantization quantization, int blockSize, int blocks)
            throws IOException {
        try (Checkpoint checkpoint = Checkpoint.open(Golden.TINY_LEDGER)) {
            return CpuModels.load(
                    checkpoint,
                    dtype,
                    quantization,
                    checkpoint.config().kvLayout(blockSize, dtype),
                    blocks,
                    OptionalInt.of(1),
                    checkpoint.config().maxPositions());
        }
    }
}
