package baton.engine.model;

import baton.engine.model.ModelRunner.LayerHooks;
import baton.engine.model.ModelRunner.SequenceSlice;
import baton.kv.DType;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.OptionalInt;
import java.util.stream.IntStream;

/** Prints prefill and decode speed of a checkpoint, made if missing: {@code SpeedMain DIRECTORY DTYPE THREADS}. */
final class SpeedMain {
    private SpeedMain() {}

    public static void main(String[] args) throws IOException {
        DType dtype = DType.parse("dtype", args[1]);
        if (!Files.exists(Path.of(args[0]))) {
            RandomCheckpoint.write(Path.of(args[0]), RandomCheckpoint.llama1b(), 1);
        }
        System.out.println(MachineLimits.measure(OptionalInt.of(Integer.parseInt(args[2]))));
        try (Checkpoint checkpoint = Checkpoint.open(Path.of(args[0]));
                ModelRunner runner = TorchModels.load(
                        checkpoint,
                        dtype,
                        checkpoint.config().kvLayout(16, dtype),
                        8 * 128 + 8,
                        OptionalInt.of(Integer.parseInt(args[2])),
                        2048)) {
            long parameters = checkpoint.config().parameters();
            for (int length : new int[] {512, 2047}) {
                double seconds = best(5, () -> forward(runner, List.of(slice(0, 0, length))));
                System.out.printf(
                        "prefill %d: %.1f ms, %.0f tokens/s, %.2f TFLOP/s in weights%n",
                        length, seconds * 1e3, length / seconds, 2e-12 * parameters * length / seconds);
            }
            for (int batch : new int[] {1, 8}) {
                for (int context : new int[] {128, 1024}) {
                    List<SequenceSlice> slices = new ArrayList<>();
                    for (int sequence = 0; sequence < batch; sequence++) {
                        slices.add(slice(sequence, context, 1));
                    }
                    double seconds = best(10, () -> forward(runner, slices));
                    System.out.printf(
                            "decode batch %d at %d: %.2f ms, %.1f GB/s of weights%n",
                            batch, context, seconds * 1e3, 1e-9 * parameters * dtype.bytes() / seconds);
                }
            }
        }
    }

    private static SequenceSlice slice(int sequence, int start, int length) {
        int[] tokens = IntStream.range(0, length).map(i -> 5 + i % 1000).toArray();
        return new SequenceSlice(
                tokens,
                start,
                IntStream.range(128 * sequence, 128 * sequence + 128).toArray(),
                1);
    }

    private static void forward(ModelRunner runner, List<SequenceSlice> slices) {
        runner.forward(slices, LayerHooks.NONE).close();
    }

    private static double best(int times, Runnable work) {
        double best = Double.MAX_VALUE;
        for (int i = 0; i < times + 2; i++) {
            long start = System.nanoTime();
            work.run();
            best = Math.min(best, (System.nanoTime() - start) * 1e-9);
        }
        return best;
    }
}
