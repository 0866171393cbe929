package baton.engine.model;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.model.KernelChoice.Kind;
import baton.kv.DType;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.stream.IntStream;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/**
 * With kernels of machine code a token's logits are the same bits whether its prompt was computed at once or in chunks, alone or beside
 * other sequences, behind cached blocks or cold: so a seeded request gets the same answer each time.
 */
class BatchInvarianceTest {
    @ParameterizedTest(name = "{0}, {1}, quantization {2}")
    @CsvSource({
        "AMX, BF16, NONE",
        "AMX, BF16, INT8",
        "AVX512_BF16, BF16, NONE",
        "AVX512_BF16, BF16, INT8",
        "AVX512, BF16, NONE",
        "AVX512, F32, NONE",
        "AVX512, BF16, INT8",
        "AVX2, BF16, NONE",
        "AVX2, BF16, INT8"
    })
    void logitsDoNotDependOnTheBatch(Kind kind, DType dtype, Quantization quantization) throws IOException {
        List<Golden> few = Golden.all().stream()
                .filter(golden -> golden.prompt().length < 500)
                .limit(4)
                .toList();
        assertThat(few).hasSize(4);
        try (ModelRanks ranks = ModelKernelsOf.tinyLedger(kind, dtype, quantization)) {
            assertInvariant(ranks, few);
        }
    }

    /** Which tokens share an expert with one another depends on the batch. */
    @ParameterizedTest(name = "{0}, {1}, quantization {2}")
    @CsvSource({
        "AMX, BF16, NONE",
        "AMX, BF16, INT8",
        "AVX512_BF16, BF16, NONE",
        "AVX512, F32, NONE",
        "AVX512, BF16, INT8",
        "AVX2, BF16, NONE",
        "AVX2, F32, INT8"
    })
    void logitsOfExpertsDoNotDependOnTheBatch(Kind kind, DType dtype, Quantization quantization) throws Exception {
        Random random = new Random(7);
        List<Golden> few = IntStream.of(3, 44, 111, 150)
                .mapToObj(length -> new Golden(
                        "random-" + length,
                        random.ints(length, 0, 192).toArray(),
                        random.ints(6, 0, 192).toArray(),
                        new double[0],
                        new int[0],
                        new double[0]))
                .toList();
        for (String name : List.of("qwen3-moe", "qwen2-moe", "mixtral")) {
            try (ModelRanks ranks = ModelKernelsOf.load(FamiliesTest.checkpoint(name), kind, dtype, quantization)) {
                assertInvariant(ranks, few);
            }
        }
    }

    private static void assertInvariant(ModelRanks ranks, List<Golden> few) {
        List<Replay.Sequence> alone = new ArrayList<>();
        for (Golden golden : few) {
            Replay replay = new Replay(ranks.first(), true);
            alone.addAll(replay.add(List.of(golden)));
            replay.run(Integer.MAX_VALUE, Integer.MAX_VALUE);
        }
        for (int chunk : new int[] {1, 37, 150}) {
            Replay replay = new Replay(ranks.first(), true);
            List<Replay.Sequence> together = replay.add(few);
            replay.run(chunk, 400);
            for (int i = 0; i < few.size(); i++) {
                for (int step = 0; step < few.get(i).output().length; step++) {
                    assertThat(together.get(i).logits.get(step))
                            .as("chunks of %d, %s[%d]", chunk, few.get(i).name(), step)
                            .isEqualTo(alone.get(i).logits.get(step));
                }
            }
        }
    }
}
