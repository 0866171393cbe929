package baton.engine.model;

import baton.engine.model.Linear.Biased;
import baton.engine.model.ModelConfig.Variant;
import baton.engine.model.ModelKernels.Norm;
import baton.kv.DType;
import baton.kv.safetensors.TensorInfo;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Optional;
import java.util.function.Consumer;
import java.util.function.Supplier;
import org.bytedeco.javacpp.Pointer;
import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch.ScalarType;

/** A model's weights as the forward pass uses them: in huge pages, in the type of computation, and fused where one input goes through several. */
final class Weights {
    final Matrix embedding;
    final List<LayerWeights> layers;
    final Norm finalNorm;

    /** The output projection to this rank's part of the vocabulary, [tokens, hidden]; only the last stage has it. */
    final Optional<Linear> head;

    /** By position: the cosines of a head's D/2 pairs, then their sines, [positions, D]. */
    final Matrix rope;

    private Weights(Loader loader, int maxPositions, Optional<Weights> shared) throws IOException {
        ModelConfig config = loader.config;
        embedding = shared.isPresent() ? shared.get().embedding : loader.embedding();
        layers = new ArrayList<>();
        for (int i = 0; i < config.layers(); i++) {
            layers.add(loader.layer("model.layers." + (loader.shard.layers().first() + i) + "."));
        }
        finalNorm = loader.norm("model.norm.weight");
        head = loader.shard.isLastStage() ? Optional.of(loader.head(embedding)) : Optional.empty();
        rope = shared.isPresent() ? shared.get().rope : loader.rope(maxPositions);
    }

    /** @param shared another rank's weights, whose embedding and rotation this one uses too */
    static Weights load(
            Checkpoint checkpoint,
            Shard shard,
            DType dtype,
            ModelKernels kernels,
            OperatorTimes times,
            int maxPositions,
            Arena arena,
            Owned owned,
            Optional<Weights> shared)
            throws IOException {
        Loader loader = new Loader(checkpoint, shard, shard.config(), dtype, kernels, times, arena, owned);
        return new Weights(loader, maxPositions, shared);
    }

    /**
     * @param projection queries of all heads, then key and value of each key/value head in turn
     * @param headNorms of queries and keys before they are rotated
     */
    record LayerWeights(
            Norm attentionNorm,
            Linear projection,
            Optional<HeadNorms> headNorms,
            Linear output,
            Norm feedForwardNorm,
            Linear gate,
            Linear up,
            Linear down) {}

    /** Weights of the norms of each head, [D]. */
    record HeadNorms(Norm queries, Norm keys) {}

    /** Native objects to free together. */
    static final class Owned implements AutoCloseable {
        private final Deque<Pointer> pointers = new ArrayDeque<>();
        private long bytes;

        /** Counts memory that is held as long as these objects. */
        void count(long more) {
            bytes += more;
        }

        /** Bytes counted. */
        long bytes() {
            return bytes;
        }

        <P extends Pointer> P add(P pointer) {
            // It outlives the scope that it may have been made in.
            pointer.retainReference();
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
            Checkpoint checkpoint,
            Shard shard,
            ModelConfig config,
            DType dtype,
            ModelKernels kernels,
            OperatorTimes times,
            Arena arena,
            Owned owned) {
        private static final String HEAD = "lm_head";

        LayerWeights layer(String prefix) throws IOException {
            Variant variant = config.variant();
            String attention = prefix + "self_attn.";
            Linear projection = projection(attention);
            return new LayerWeights(
                    norm(prefix + "input_layernorm.weight"),
                    variant.projectionBias() ? new Biased(projection, projectionBias(attention)) : projection,
                    variant.headNorms()
                            ? Optional.of(
                                    new HeadNorms(norm(attention + "q_norm.weight"), norm(attention + "k_norm.weight")))
                            : Optional.empty(),
                    linear(attention, "o_proj", variant.outputBias()),
                    norm(prefix + "post_attention_layernorm.weight"),
                    linear(prefix + "mlp.", "gate_proj", variant.feedForwardBias()),
                    linear(prefix + "mlp.", "up_proj", variant.feedForwardBias()),
                    linear(prefix + "mlp.", "down_proj", variant.feedForwardBias()));
        }

        private Linear linear(String prefix, String name, boolean bias) throws IOException {
            Linear matrix = linear(prefix, name);
            if (!bias) {
                return matrix;
            }
            try (PointerScope _ = new PointerScope()) {
                Tensor source = source(prefix + name + ".bias");
                Tensor vector = allocate(LibTorch.scalarType(dtype), source.numel());
                vector.copy_(source);
                return new Biased(matrix, vector);
            }
        }

        Matrix embedding() throws IOException {
            try (PointerScope _ = new PointerScope()) {
                Tensor matrix = allocate(LibTorch.scalarType(dtype), config.vocabularySize(), config.hiddenSize());
                matrix.copy_(source("model.embed_tokens.weight"));
                return Matrix.of(matrix);
            }
        }

        Linear head(Matrix embedding) throws IOException {
            if (!config.tiedEmbeddings()) {
                return linear("", HEAD);
            }
            Shard.Range tokens = shard.vocabulary();
            Tensor matrix =
                    owned.add(embedding.part(tokens.first(), tokens.count()).tensor());
            return timed(HEAD, matrix.numel(), () -> kernels.shared(matrix));
        }

        private Linear linear(String prefix, String name) throws IOException {
            try (PointerScope _ = new PointerScope()) {
                Tensor source = source(prefix + name + ".weight");
                return timed(
                        name,
                        source.numel(),
                        () -> kernels.linear(matrix -> matrix.copy_(source), source.size(0), source.size(1)));
            }
        }

        private Linear timed(String name, long elements, Supplier<Linear> maker) {
            long before = owned.bytes();
            Linear matrix = maker.get();
            long bytes = owned.bytes() - before;
            return times.timed(name, matrix, elements, bytes > 0 ? bytes : elements * dtype.bytes());
        }

        Norm norm(String name) throws IOException {
            try (PointerScope _ = new PointerScope()) {
                // Rounded to the type that the model computes in, as in a checkpoint of that type.
                Tensor floats = source(name).to(LibTorch.scalarType(dtype)).to(ScalarType.Float);
                MemorySegment memory = LibTorch.memory(floats, floats.numel() * Float.BYTES);
                return kernels.norm(memory.toArray(ValueLayout.JAVA_FLOAT_UNALIGNED), config.rmsNormEps());
            }
        }

        private Linear projection(String prefix) throws IOException {
            long hidden = config.hiddenSize();
            long head = config.headDim();
            long queries = config.heads() * head;
            long pairRows = 2L * config.kvHeads() * head;
            try (PointerScope _ = new PointerScope()) {
                Tensor q = source(prefix + "q_proj.weight");
                Tensor k = source(prefix + "k_proj.weight");
                Tensor v = source(prefix + "v_proj.weight");
                Consumer<Tensor> filler = matrix -> {
                    matrix.narrow(0, 0, queries).copy_(q);
                    Tensor pairs = matrix.narrow(0, queries, pairRows).view(config.kvHeads(), 2, head, hidden);
                    pairs.select(1, 0).copy_(k.view(config.kvHeads(), head, hidden));
                    pairs.select(1, 1).copy_(v.view(config.kvHeads(), head, hidden));
                };
                long rows = queries + pairRows;
                return timed("qkv_proj", rows * hidden, () -> kernels.linear(filler, rows, hidden));
            }
        }

        /** In the order of the fused projection's columns. */
        private Tensor projectionBias(String prefix) throws IOException {
            long head = config.headDim();
            long queries = config.heads() * head;
            Tensor bias = allocate(LibTorch.scalarType(dtype), queries + 2L * config.kvHeads() * head);
            try (PointerScope _ = new PointerScope()) {
                bias.narrow(0, 0, queries).copy_(source(prefix + "q_proj.bias"));
                Tensor pairs =
                        bias.narrow(0, queries, 2L * config.kvHeads() * head).view(config.kvHeads(), 2, head);
                pairs.select(1, 0).copy_(source(prefix + "k_proj.bias").view(config.kvHeads(), head));
                pairs.select(1, 1).copy_(source(prefix + "v_proj.bias").view(config.kvHeads(), head));
            }
            return bias;
        }

        Matrix rope(int positions) {
            int head = config.headDim();
            int half = head / 2;
            double[] frequencies = Rope.frequencies(config);
            double amplitude = Rope.amplitude(config);
            try (Arena scratch = Arena.ofConfined()) {
                MemorySegment values = scratch.allocate((long) positions * head * Float.BYTES, Float.BYTES);
                for (int position = 0; position < positions; position++) {
                    long row = (long) position * head;
                    for (int i = 0; i < half; i++) {
                        // The angle is rounded to fp32 as the model's makers' code does it.
                        float angle = position * (float) frequencies[i];
                        values.setAtIndex(ValueLayout.JAVA_FLOAT, row + i, (float) (amplitude * Math.cos(angle)));
                        values.setAtIndex(
                                ValueLayout.JAVA_FLOAT, row + half + i, (float) (amplitude * Math.sin(angle)));
                    }
                }
                try (PointerScope _ = new PointerScope()) {
                    Tensor table = allocate(LibTorch.scalarType(kernels.activations()), positions, head);
                    table.copy_(LibTorch.over(values, ScalarType.Float, positions, head));
                    return Matrix.of(table);
                }
            }
        }

        /** This rank's part of a tensor of the checkpoint, for the caller's scope. */
        private Tensor source(String name) throws IOException {
            TensorInfo info = checkpoint.info(name);
            DType stored = Checkpoint.dtypeOf(info).orElseThrow();
            long[] shape = info.shape().stream().mapToLong(Long::longValue).toArray();
            return shard.part(name, LibTorch.over(checkpoint.data(name), LibTorch.scalarType(stored), shape));
        }

        private Tensor allocate(ScalarType type, long... shape) {
            long elements = 1;
            for (long size : shape) {
                elements *= size;
            }
            long bytes = elements * (type == ScalarType.Float ? Float.BYTES : dtype.bytes());
            MemorySegment memory = HugePages.allocate(arena, bytes, "weights");
            owned.count(bytes);
            return owned.add(LibTorch.over(memory, type, shape));
        }
    }
}
