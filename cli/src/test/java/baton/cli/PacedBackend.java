package baton.cli;

import baton.engine.backend.CpuBackend;
import baton.engine.backend.ModelBackend;
import baton.engine.model.Checkpoint;
import baton.engine.model.DTypeChoice;
import baton.engine.model.Device;
import baton.engine.model.Logits;
import baton.engine.model.ModelConfig;
import baton.engine.model.ModelOptions;
import baton.engine.model.ModelRanks;
import baton.engine.model.ModelRunner;
import baton.engine.model.ModelRunner.LayerHooks;
import baton.engine.model.ModelRunner.SequenceSlice;
import baton.engine.model.ProductRates;
import baton.engine.model.Quantization;
import baton.kv.DType;
import baton.testkit.Forwarding;
import java.io.File;
import java.io.IOException;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.concurrent.locks.LockSupport;

/**
 * Computes as the processor's backend does, in steps that take as long as a device would take, of which each instance has one: it waits until a
 * step's time is over, so the processors of the tests' machine are idle for the most part. Only processes with {@link Pace#options} find it.
 */
public final class PacedBackend implements ModelBackend {
    private static final String PACE = "tests.pace";

    private final ModelBackend cpu = new CpuBackend();

    @Override
    public Optional<String> whyNot(Device device) {
        return System.getProperty(PACE) == null ? Optional.of("no pace is set") : Optional.empty();
    }

    @Override
    public int preference() {
        return 1;
    }

    @Override
    public DTypeChoice dtype(Optional<DType> configured, ModelConfig model, Quantization quantization) {
        return cpu.dtype(configured, model, quantization);
    }

    @Override
    public long memoryBytes() {
        return cpu.memoryBytes();
    }

    @Override
    public long blockBytes(
            ModelConfig model,
            int blockSize,
            DType cacheDtype,
            int tensorParallelSize,
            int pipelineParallelSize,
            boolean hybrid) {
        return cpu.blockBytes(model, blockSize, cacheDtype, tensorParallelSize, pipelineParallelSize, hybrid);
    }

    @Override
    public double weightBytes(ModelConfig model, DType dtype, Quantization quantization) {
        return cpu.weightBytes(model, dtype, quantization);
    }

    @Override
    public ProductRates measure(ModelConfig model, DType dtype, Quantization quantization) throws IOException {
        return cpu.measure(model, dtype, quantization);
    }

    @Override
    public ModelRanks load(Checkpoint checkpoint, ModelOptions options) throws IOException {
        Pace pace = Pace.parse(System.getProperty(PACE, ""));
        ModelRanks ranks = cpu.load(checkpoint, options);
        return new ModelRanks(
                ranks.runners().stream().map(inner -> paced(inner, pace)).toList(),
                ranks.tensorParallelSize(),
                ranks.pipelineParallelSize(),
                ranks.layout());
    }

    /**
     * The time of a step.
     *
     * @param millis of each step
     * @param perPromptToken milliseconds more
     * @param perSequence that has a token computed; milliseconds more
     */
    record Pace(double millis, double perPromptToken, double perSequence) {
        static Pace parse(String text) {
            double[] rates = Arrays.stream(text.split(","))
                    .mapToDouble(Double::parseDouble)
                    .toArray();
            return new Pace(rates[0], rates[1], rates[2]);
        }

        /** Options of the JVM of an instance with this pace. */
        String[] options() {
            List<String> jvm = Program.command().jvm();
            String classes = Arrays.stream(System.getProperty("java.class.path").split(File.pathSeparator))
                    .filter(part -> part.endsWith("test-classes"))
                    .findFirst()
                    .orElseThrow();
            return new String[] {
                "-D%s=%s,%s,%s".formatted(PACE, millis, perPromptToken, perSequence),
                "--class-path=%s:%s:%s".formatted(jvm.get(jvm.indexOf("-cp") + 1), classes, classes + "/paced")
            };
        }

        double step(int promptTokens, int sequences) {
            return millis + perPromptToken * promptTokens + perSequence * sequences;
        }

        @Override
        public String toString() {
            return String.format(
                    Locale.ROOT,
                    "%.1f ms + %.2f ms for a prompt token + %.2f ms for a sequence",
                    millis,
                    perPromptToken,
                    perSequence);
        }
    }

    @SuppressWarnings({"UnusedMethod", "EffectivelyPrivate"}) // called by Forwarding
    private static ModelRunner paced(ModelRunner inner, Pace pace) {
        return Forwarding.to(ModelRunner.class, inner, new Object() {
            public Logits forward(List<SequenceSlice> slices, LayerHooks hooks) {
                long start = System.nanoTime();
                Logits logits = inner.forward(slices, hooks);
                int promptTokens = slices.stream()
                        .mapToInt(slice -> slice.tokens().length)
                        .filter(tokens -> tokens > 1)
                        .sum();
                int sequences = (int) slices.stream()
                        .filter(slice -> slice.tokens().length < 2)
                        .count();
                long end = start + (long) (1e6 * pace.step(promptTokens, sequences));
                for (long left = end - System.nanoTime(); left > 0; left = end - System.nanoTime()) {
                    LockSupport.parkNanos(left);
                }
                return logits;
            }
        });
    }
}
