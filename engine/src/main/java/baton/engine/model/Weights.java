package baton.engine.model;

import baton.engine.model.Linear.Biased;
import baton.engine.model.Linear.Dense;
import baton.engine.model.ModelConfig.Variant;
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

    /** The output projection, [vocabulary, hidden]. */
    final Linear head;

    /** By position: cosines for all D elements of a head, sines for the first half, the negated sines. [positions, 2D]. */
    final Tensor rope;

    final DoubleOptional eps;
    final DoubleOptional defaultScale;
    final TensorOptional none;

    private Weights(Loader loader, int maxPositions) throws IOException {
        ModelConfig config = loader.config;
        long hidden = config.hiddenSize();
        embedding = loader.matrix(hidden, List.of("model.embed_tokens.weight"));
        layers = new ArrayList<>();
        for (int i = 0; i < config.layers(); i++) {
            layers.add(loader.layer("model.layers." + i + "."));
        }
        finalNorm = loader.vector("model.norm.weight");
        head = new Dense(config.tiedEmbeddings() ? embedding : loader.matrix(hidden, List.of("lm_head.weight")));
        rope = loader.rope(maxPositions);
        eps = loader.owned.add(new DoubleOptional(config.rmsNormEps()));
        defaultScale = loader.owned.add(new DoubleOptional());
        none = loader.owned.add(new TensorOptional());
    }

    static Weights load(Checkpoint checkpoint, DType dtype, int maxPositions, Arena arena, Owned owned)
            throws IOException {
        return new Weights(new Loader(checkpoint, dtype, arena, owned), maxPositions);
    }

    /**
     * @param projection queries of all heads, then key and value of each key/value head in turn
     * @param headNorms of queries and keys before they are rotated
     * @param gateUp the gate's rows, then the up projection's
     */
    record LayerWeights(
            TensorOptional attentionNorm,
            Linear projection,
            Optional<HeadNorms> headNorms,
            Linear output,
            TensorOptional feedForwardNorm,
            Linear gateUp,
            Linear down) {}

    /** Weights of the norms of each head, [D]. */
    record HeadNorms(TensorOptional queries, TensorOptional keys) {}

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

    private record Loader(Checkpoint checkpoint, ModelConfig config, DType dtype, Arena arena, Owned owned) {
        Loader(Checkpoint checkpoint, DType dtype, Arena arena, Owned owned) {
            this(checkpoint, checkpoint.config(), dtype, arena, owned);
        }

        LayerWeights layer(String prefix) throws IOException {
            long hidden = config.hiddenSize();
            Variant variant = config.variant();
            String attention = prefix + "self_attn.";
            Linear projection = new Dense(projection(attention));
            Linear output = linear((long) config.heads() * config.headDim(), attention + "o_proj.weight");
            Linear gateUp = linear(hidden, prefix + "mlp.gate_proj.weight", prefix + "mlp.up_proj.weight");
            Linear down = linear(config.intermediateSize(), prefix + "mlp.down_proj.weight");
            if (variant.projectionBias()) {
                projection = new Biased(projection, projectionBias(attention));
            }
            if (variant.outputBias()) {
                output = new Biased(output, bias(attention + "o_proj.bias"));
            }
            if (variant.feedForwardBias()) {
                gateUp = new Biased(gateUp, bias(prefix + "mlp.gate_proj.bias", prefix + "mlp.up_proj.bias"));
                down = new Biased(down, bias(prefix + "mlp.down_proj.bias"));
            }
            return new LayerWeights(
                    vector(prefix + "input_layernorm.weight"),
                    projection,
                    variant.headNorms()
                            ? Optional.of(new HeadNorms(
                                    vector(attention + "q_norm.weight"), vector(attention + "k_norm.weight")))
                            : Optional.empty(),
                    output,
                    vector(prefix + "post_attention_layernorm.weight"),
                    gateUp,
                    down);
        }

        /** The vectors one after the other. */
        private Tensor bias(String... names) throws IOException {
            long elements = 0;
            for (String name : names) {
                elements += checkpoint.info(name).elements();
            }
            Tensor bias = allocate(elements);
            long at = 0;
            for (String name : names) {
                try (PointerScope _ = new PointerScope()) {
                    Tensor source = source(name);
                    bias.narrow(0, at, source.size(0)).copy_(source);
                    at += source.size(0);
                }
            }
            return bias;
        }

        private Linear linear(long columns, String... names) throws IOException {
            return new Dense(matrix(columns, List.of(names)));
        }

        /** The tensors' rows one after the other. */
        Tensor matrix(long columns, List<String> names) throws IOException {
            long rows = 0;
            for (String name : names) {
                rows += checkpoint.info(name).elements() / columns;
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
            Tensor vector = allocate(checkpoint.info(name).elements());
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

        /** In the order of the fused projection's columns. */
        private Tensor projectionBias(String prefix) throws IOException {
            long head = config.headDim();
            long queries = config.heads() * head;
            Tensor bias = allocate(queries + 2L * config.kvHeads() * head);
            try (PointerScope _ = new PointerScope()) {
                bias.narrow(0, 0, queries).copy_(source(prefix + "q_proj.bias"));
                Tensor pairs =
                        bias.narrow(0, queries, 2L * config.kvHeads() * head).view(config.kvHeads(), 2, head);
                pairs.select(1, 0).copy_(source(prefix + "k_proj.bias").view(config.kvHeads(), head));
                pairs.select(1, 1).copy_(source(prefix + "v_proj.bias").view(config.kvHeads(), head));
            }
            return bias;
        }

        Tensor rope(int positions) {
            int head = config.headDim();
            int half = head / 2;
            double[] frequencies = Rope.frequencies(config);
            double amplitude = Rope.amplitude(config);
            try (Arena scratch = Arena.ofConfined()) {
                MemorySegment values = scratch.allocate(2L * positions * head * Float.BYTES, Float.BYTES);
                for (int position = 0; position < positions; position++) {
                    long row = 2L * position * head;
                    for (int i = 0; i < half; i++) {
                        // The angle is rounded to fp32 as the model's makers' code does it.
                        float angle = position * (float) frequencies[i];
                        float cos = (float) (amplitude * Math.cos(angle));
                        float sin = (float) (amplitude * Math.sin(angle));
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

        private Tensor source(String name) throws IOException {
            TensorInfo info = checkpoint.info(name);
            DType stored = Checkpoint.dtypeOf(info).orElseThrow();
            long[] shape = info.shape().stream().mapToLong(Long::longValue).toArray();
            return LibTorch.over(checkpoint.data(name), LibTorch.scalarType(stored), shape);
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
}
