package baton.engine.model;

import baton.engine.kernel.Activation;
import baton.engine.model.ModelConfig.Llama3RopeScaling;
import baton.engine.model.Recipe.Everything;
import baton.engine.model.Recipe.Experts;
import baton.engine.model.Recipe.LayerAttention;
import baton.engine.model.Recipe.Rotation;
import baton.kv.DType;
import baton.kv.safetensors.SafetensorsWriter;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.Set;

/** Writes checkpoints of any shape with random weights, for measuring speed, which does not depend on their values. */
public final class RandomCheckpoint {
    private static final double STANDARD_DEVIATION = 0.02;

    /** Values drawn before they repeat, if a checkpoint has so many; prime, so that the rows of a matrix differ. */
    private static final int DRAWN = 4_194_301;

    private RandomCheckpoint() {}

    /** The shape of Llama-3.2-1B. */
    public static ModelConfig llama1b() {
        return new ModelConfig(
                "random-llama-1b",
                128256,
                2048,
                8192,
                16,
                32,
                8,
                64,
                131072,
                1e-5,
                500000,
                Optional.of(new Llama3RopeScaling(32, 1, 4, 8192)),
                true,
                DType.BF16);
    }

    /** Four layers of the shape of OLMoE-1B-7B, with 8 of 64 experts for each token, in Qwen 3's form. */
    public static ModelConfig experts() {
        int layers = 4;
        LayerAttention attention = new LayerAttention(new Everything(), new Rotation(10000, Optional.empty()));
        Experts experts = new Experts(64, 8, true, 1024, 0, Activation.SILU);
        Recipe recipe = Recipe.usual(
                "Qwen3MoeForCausalLM",
                Collections.nCopies(layers, attention),
                Recipe.with(DecoderFamily.NORMED_HEADS, DecoderFamily.QWEN_EXPERTS),
                Set.of(),
                Collections.nCopies(layers, experts));
        return new ModelConfig(
                "random-8-of-64-experts", 32768, 2048, 1024, 16, 16, 128, 4096, 1e-5, true, DType.BF16, recipe);
    }

    /**
     * Makes {@code directory} with config.json and model.safetensors in {@code config.dtype()}: norms are one, all else is normal
     * with standard deviation 0.02, the same for the same seed.
     *
     * @throws IllegalArgumentException if the type is fp16
     */
    public static void write(Path directory, ModelConfig config, long seed) throws IOException {
        if (config.dtype() == DType.F16) {
            throw new IllegalArgumentException("dtype=float16 is not supported");
        }
        Files.createDirectories(directory);
        Files.writeString(
                directory.resolve("config.json"), CheckpointConfig.write(config).toPrettyString());
        Map<String, List<Long>> shapes = Checkpoint.tensorShapes(config);
        try (Arena arena = Arena.ofConfined()) {
            long elements = shapes.values().stream()
                    .mapToLong(RandomCheckpoint::elements)
                    .sum();
            MemorySegment drawn = draw((int) Math.min(DRAWN, elements), config.dtype(), seed, arena);
            List<SafetensorsWriter.Tensor> tensors = new ArrayList<>();
            long start = 0;
            for (Map.Entry<String, List<Long>> shape : shapes.entrySet()) {
                boolean norm = shape.getKey().endsWith("norm.weight");
                long bytes = elements(shape.getValue()) * config.dtype().bytes();
                long from = start;
                long length = bytes;
                tensors.add(new SafetensorsWriter.Tensor(
                        shape.getKey(),
                        config.dtype().safetensorsName(),
                        shape.getValue(),
                        () -> norm ? ones(config.dtype(), length) : repeated(drawn, from, length)));
                // The next tensor goes on where this one ended.
                start = (start + bytes) % drawn.byteSize();
            }
            SafetensorsWriter.write(directory.resolve("model.safetensors"), Map.of("format", "pt"), tensors);
        }
    }

    private static long elements(List<Long> shape) {
        return shape.stream().reduce(1L, (a, b) -> a * b);
    }

    private static MemorySegment draw(int count, DType dtype, long seed, Arena arena) {
        Random random = new Random(seed);
        MemorySegment drawn = arena.allocate((long) count * dtype.bytes());
        for (int i = 0; i < count; i++) {
            set(drawn, dtype, i, (float) (random.nextGaussian() * STANDARD_DEVIATION));
        }
        return drawn;
    }

    private static MemorySegment ones(DType dtype, long bytes) {
        MemorySegment ones = Arena.ofAuto().allocate(bytes);
        for (long i = 0; i < bytes / dtype.bytes(); i++) {
            set(ones, dtype, i, 1);
        }
        return ones;
    }

    private static MemorySegment repeated(MemorySegment drawn, long from, long bytes) {
        MemorySegment result = Arena.ofAuto().allocate(bytes);
        long at = 0;
        long source = from;
        while (at < bytes) {
            long run = Math.min(drawn.byteSize() - source, bytes - at);
            MemorySegment.copy(drawn, source, result, at, run);
            at += run;
            source = 0;
        }
        return result;
    }

    private static void set(MemorySegment memory, DType dtype, long index, float value) {
        if (dtype == DType.F32) {
            memory.setAtIndex(ValueLayout.JAVA_FLOAT, index, value);
        } else {
            // Half of the last place added before cutting rounds to nearest.
            memory.setAtIndex(
                    ValueLayout.JAVA_SHORT, index, (short) ((Float.floatToRawIntBits(value) + 0x8000) >>> 16));
        }
    }
}
