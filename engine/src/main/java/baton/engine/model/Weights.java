package baton.engine.model;

import baton.engine.model.Linear.Dense;
import baton.engine.model.ModelConfig.Llama3RopeScaling;
import baton.kv.DType;
import baton.store.safetensors.TensorInfo;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Optional;
import org.bytedeco.javacpp.Pointer;
import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.DoubleOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptional;
import org.bytedeco.pytorch.global.torch.ScalarType;

/** A model's weights as the forward pass wants them: in huge pages, in the type of computation, and fused where they meet. */
final class Weights {
    final Tensor embedding;
    final List<LayerWeights> layers;
    final TensorOptional finalNorm;

    /** The output projection to this rank's part of the vocabulary, [tokens, hidden]; only the last stage has it. */
    final Optional<Linear> head;

    /** By position: cosines for all D elements of a head, sines for the first half, the negated sines. [positions, 2D]. */
    final Tensor rope;

    final DoubleOptional eps;
    final DoubleOptional defaultScale;
    final TensorOptional none;

    private Weights(Loader loader, int maxPositions, Optional<Weights> shared) throws IOException {
        ModelConfig config = loader.config;
        long hidden = config.hiddenSize();
        embedding = shared.isPresent()
                ? shared.get().embedding
                : loader.matrix(hidden, List.of("model.embed_tokens.weight"));
        layers = new ArrayList<>();
        for (int i = 0; i < config.layers(); i++) {
            layers.add(loader.layer("model.layers." + (loader.shard.layers().first() + i) + "."));
        }
        finalNorm = loader.vector("model.norm.weight");
        head = loader.shard.isLastStage() ? Optional.of(loader.head(embedding)) : Optional.empty();
        rope = shared.isPresent() ? shared.get().rope : loader.rope(maxPositions);
        eps = loader.owned.add(new DoubleOptional(config.rmsNormEps()));
        defaultScale = loader.owned.add(new DoubleOptional());
        none = loader.owned.add(new TensorOptional());
    }

    /** @param shared another rank's weights, whose embedding and rotation this one uses too */
    static Weights load(
            Checkpoint checkpoint,
            Shard shard,
            DType dtype,
            int maxPositions,
            Arena arena,
            Owned owned,
            Optional<Weights> shared)
            throws IOException {
        return new Weights(new Loader(checkpoint, shard, shard.config(), dtype, arena, owned), maxPositions, shared);
    }

    /**
     * @param projection queries of all heads, then key and value of each key/value head in turn
     * @param gateUp the gate's rows, then the up projection's
     */
    record LayerWeights(
            TensorOptional attentionNorm,
            Linear projection,
            Linear output,
            TensorOptional feedForwardNorm,
            Linear gateUp,
            Linear down) {}

    /** Native objects to free together. */
    static final class Owned implements AutoCloseable {
        private final Deque<Pointer> pointers = new ArrayDeque<>();

        <P extends Pointer> P add(P pointer) {
            pointers.push(pointer);
            return pointer;
        }

        @Override
        public void close() {
            while (!pointers.isEmpty()) {
                pointers.pop().close();
            }
        }
    }

    private record Loader(
            Checkpoint checkpoint, Shard shard, ModelConfig config, DType dtype, Arena arena, Owned owned) {
        Linear head(Tensor embedding) throws IOException {
            if (!config.tiedEmbeddings()) {
                return linear(config.hiddenSize(), "lm_head.weight");
            }
            Shard.Range tokens = shard.vocabulary();
            return new Dense(owned.add(embedding.narrow(0, tokens.first(), tokens.count())));
        }

        LayerWeights layer(String prefix) throws IOException {
            long hidden = config.hiddenSize();
            return new LayerWeights(
                    vector(prefix + "input_layernorm.weight"),
                    new Dense(projection(prefix + "self_attn.")),
                    linear((long) config.heads() * config.headDim(), prefix + "self_attn.o_proj.weight"),
                    vector(prefix + "post_attention_layernorm.weight"),
                    linear(hidden, prefix + "mlp.gate_proj.weight", prefix + "mlp.up_proj.weight"),
                    linear(config.intermediateSize(), prefix + "mlp.down_proj.weight"));
        }

        private Linear linear(long columns, String... names) throws IOException {
            return new Dense(matrix(columns, List.of(names)));
        }

        /** The tensors' rows one after the other. */
        Tensor matrix(long columns, List<String> names) throws IOException {
            long rows = 0;
            for (String name : names) {
                rows += elements(name) / columns;
            }
            Tensor matrix = allocate(rows, columns);
            long at = 0;
            for (String name : names) {
                try (PointerScope _ = new PointerScope()) {
                    Tensor source = source(name);
                    matrix.narrow(0, at, source.size(0)).copy_(source);
                    at += source.size(0);
                }
            }
            return matrix;
        }

        TensorOptional vector(String name) throws IOException {
            Tensor vector = allocate(elements(name));
            try (PointerScope _ = new PointerScope()) {
                vector.copy_(source(name));
            }
            return owned.add(new TensorOptional(vector));
        }

        private Tensor projection(String prefix) throws IOException {
            long hidden = config.hiddenSize();
            long head = config.headDim();
            long queries = config.heads() * head;
            Tensor matrix = allocate(queries + 2L * config.kvHeads() * head, hidden);
            try (PointerScope _ = new PointerScope()) {
                matrix.narrow(0, 0, queries).copy_(source(prefix + "q_proj.weight"));
                Tensor pairs =
                        matrix.narrow(0, queries, 2L * config.kvHeads() * head).view(config.kvHeads(), 2, head, hidden);
                pairs.select(1, 0).copy_(source(prefix + "k_proj.weight").view(config.kvHeads(), head, hidden));
                pairs.select(1, 1).copy_(source(prefix + "v_proj.weight").view(config.kvHeads(), head, hidden));
            }
            return matrix;
        }

        Tensor rope(int positions) {
            int head = config.headDim();
            int half = head / 2;
            double[] frequencies = ropeFrequencies(config);
            try (Arena scratch = Arena.ofConfined()) {
                MemorySegment values = scratch.allocate(2L * positions * head * Float.BYTES, Float.BYTES);
                for (int position = 0; position < positions; position++) {
                    long row = 2L * position * head;
                    for (int i = 0; i < half; i++) {
                        // The angle is rounded to fp32 as the model's makers' code does it.
                        float angle = position * (float) frequencies[i];
                        float cos = (float) Math.cos(angle);
                        float sin = (float) Math.sin(angle);
                        values.setAtIndex(ValueLayout.JAVA_FLOAT, row + i, cos);
                        values.setAtIndex(ValueLayout.JAVA_FLOAT, row + half + i, cos);
                        values.setAtIndex(ValueLayout.JAVA_FLOAT, row + head + i, sin);
                        values.setAtIndex(ValueLayout.JAVA_FLOAT, row + head + half + i, -sin);
                    }
                }
                Tensor table = allocate(positions, 2L * head);
                try (PointerScope _ = new PointerScope()) {
                    table.copy_(LibTorch.over(values, ScalarType.Float, positions, 2L * head));
                }
                return table;
            }
        }

        private long elements(String name) throws IOException {
            try (PointerScope _ = new PointerScope()) {
                return source(name).numel();
            }
        }

        /** This rank's part of a tensor. */
        private Tensor source(String name) throws IOException {
            TensorInfo info = checkpoint.info(name);
            DType stored = Checkpoint.dtypeOf(info).orElseThrow();
            long[] shape = info.shape().stream().mapToLong(Long::longValue).toArray();
            return shard.part(name, LibTorch.over(checkpoint.data(name), LibTorch.scalarType(stored), shape));
        }

        private Tensor allocate(long... shape) {
            long elements = 1;
            for (long size : shape) {
                elements *= size;
            }
            MemorySegment memory = Pages.allocate(arena, elements * dtype.bytes(), "weights");
            return owned.add(LibTorch.over(memory, LibTorch.scalarType(dtype), shape));
        }
    }

    /** Radians per position of each pair of a head. */
    static double[] ropeFrequencies(ModelConfig config) {
        double[] frequencies = new double[config.headDim() / 2];
        for (int i = 0; i < frequencies.length; i++) {
            double frequency = Math.pow(config.ropeTheta(), -2.0 * i / config.headDim());
            frequencies[i] = config.ropeScaling().isPresent()
                    ? stretched(frequency, config.ropeScaling().get())
                    : frequency;
        }
        return frequencies;
    }

    private static double stretched(double frequency, Llama3RopeScaling scaling) {
        double wavelength = 2 * Math.PI / frequency;
        double turns = scaling.originalMaxPositions() / wavelength;
        if (turns < scaling.lowFreqFactor()) {
            return frequency / scaling.factor();
        }
        if (turns > scaling.highFreqFactor()) {
            return frequency;
        }
        double share = (turns - scaling.lowFreqFactor()) / (scaling.highFreqFactor() - scaling.lowFreqFactor());
        return (1 - share) * frequency / scaling.factor() + share * frequency;
    }
}
