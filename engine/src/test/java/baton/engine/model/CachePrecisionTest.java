package baton.engine.model;

import static org.assertj.core.api.Assertions.assertThat;

import baton.engine.text.Tokenizer;
import baton.kv.DType;
import baton.testkit.RealModels;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.OptionalInt;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/**
 * The effect of the KV cache's type on the first logits of SmolLM2, beside a cache of fp32, over prompts cut out of this project's pages:
 * 40 of them, of 16 to 640 tokens. Prints the figures of serving.md.
 */
@Tag("real")
class CachePrecisionTest {
    private static final int PROMPTS = 40;

    @Test
    void firstLogitsOfSmolLm2() throws IOException {
        Path directory = RealModels.SMOLLM2.assumeCheckpoint();
        List<Golden> prompts = prompts(directory);
        List<float[]> exact = logits(directory, DType.F32, prompts);
        for (DType type : List.of(DType.F16, DType.BF16, DType.F8_E4M3)) {
            List<float[]> rounded = logits(directory, type, prompts);
            double sum = 0;
            double largest = 0;
            long count = 0;
            int same = 0;
            for (int i = 0; i < prompts.size(); i++) {
                for (int id = 0; id < exact.get(i).length; id++) {
                    double difference = Math.abs(rounded.get(i)[id] - exact.get(i)[id]);
                    sum += difference;
                    largest = Math.max(largest, difference);
                    count++;
                }
                same += best(rounded.get(i)) == best(exact.get(i)) ? 1 : 0;
            }
            System.out.printf(
                    "KV cache in %s: first logits of %d prompts differ from those in float32 by %.2g on average, %.2g at most; %d have the same best token%n",
                    type.torchName(), prompts.size(), sum / count, largest, same);
            assertThat(same).as("prompts with the same best token").isGreaterThanOrEqualTo(PROMPTS * 3 / 4);
        }
    }

    private static List<Golden> prompts(Path directory) throws IOException {
        List<Golden> prompts = new ArrayList<>();
        Path docs = Path.of(System.getProperty("baton.root", ".."), "docs");
        try (Tokenizer tokenizer = Tokenizer.load(directory);
                Stream<Path> files = Files.list(docs)) {
            for (Path page : files.filter(file -> file.toString().endsWith(".md"))
                    .sorted()
                    .toList()) {
                int[] tokens = tokenizer.encode(Files.readString(page), false);
                int length = 16 * (prompts.size() + 1);
                for (int at = 0;
                        at + length <= tokens.length && prompts.size() < PROMPTS && at < 4 * length;
                        at += length) {
                    int[] prompt = Arrays.copyOfRange(tokens, at, at + length);
                    prompts.add(new Golden("", prompt, new int[1], new double[0], new int[0], new double[0]));
                    length = 16 * (prompts.size() + 1);
                }
            }
        }
        assertThat(prompts).hasSize(PROMPTS);
        return prompts;
    }

    private static List<float[]> logits(Path directory, DType cached, List<Golden> prompts) throws IOException {
        try (Checkpoint checkpoint = Checkpoint.open(directory);
                ModelRunner runner = CpuModels.load(
                        checkpoint,
                        DType.F32,
                        checkpoint.config().kvLayout(16, cached),
                        1000,
                        OptionalInt.empty(),
                        1024)) {
            Replay replay = new Replay(runner, true);
            List<Replay.Sequence> sequences = replay.add(prompts);
            replay.run(1024, 2048);
            return sequences.stream()
                    .map(sequence -> sequence.logits.getFirst())
                    .toList();
        }
    }

    private static int best(float[] logits) {
        int best = 0;
        for (int id = 0; id < logits.length; id++) {
            best = logits[id] > logits[best] ? id : best;
        }
        return best;
    }
}
