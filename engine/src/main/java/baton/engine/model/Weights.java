package baton.engine.model;

import baton.engine.model.Linear.Biased;
import baton.engine.model.ModelKernels.Norm;
import baton.engine.model.Recipe.Part;
import baton.engine.model.Recipe.Rotation;
import baton.kv.DType;
import baton.kv.safetensors.TensorInfo;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
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

    /** By rotation and position: the cosines of a head's D/2 pairs, then their sines, [positions, D]. */
    final Map<Rotation, Matrix> rotations;

    private Weights(Loader loader, int maxPositions, Optional<Weights> shared) throws IOException {
        ModelConfig config = loader.config;
        embedding = shared.isPresent() ? shared.get().embedding : loader.embedding();
        layers = new ArrayList<>();
        for (int i = 0; i < config.layers(); i++) {
            layers.add(loader.layer(loader.shard.layers().first() + i));
        }
        finalNorm = loader.norm("model.norm.weight");
        head = loader.shard.isLastStage() ? Optional.of(loader.head(embedding)) : Optional.empty();
        rotations = new HashMap<>();
        for (Rotation rotation : config.recipe().rotations()) {
            Optional<Matrix> known = shared.map(weights -> weights.rotations.get(rotation));
            rotations.put(rotation, known.isPresent() ? known.get() : loader.rope(rotation, maxPositions));
        }
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

        LayerWeights layer(int number) throws IOException {
            Recipe recipe = config.recipe();
            String prefix = "model.layers." + number + ".";
            Linear projection = projection(prefix);
            return new LayerWeights(
                    norm(prefix, Part.ATTENTION_NORM),
                    recipe.biased().contains(Part.QUERIES)
                            ? new Biased(projection, projectionBias(prefix))
                            : projection,
                    recipe.has(Part.QUERY_NORM)
                            ? Optional.of(new HeadNorms(norm(prefix, Part.QUERY_NORM), norm(prefix, Part.KEY_NORM)))
                            : Optional.empty(),
                    linear(prefix, Part.OUTPUT, "o_proj"),
                    norm(prefix, Part.FEED_FORWARD_NORM),
                    linear(prefix, Part.GATE, "gate_proj"),
                    linear(prefix, Part.UP, "up_proj"),
                    linear(prefix, Part.DOWN, "down_proj"));
        }

        private Norm norm(String prefix, Part part) throws IOException {
            return norm(prefix + config.recipe().weight(part));
        }

        /** @param operator name of the product among the operators that are timed */
        private Linear linear(String prefix, Part part, String operator) throws IOException {
            try (PointerScope _ = new PointerScope()) {
                Linear matrix = linear(operator, weight(prefix, part));
                if (!config.recipe().biased().contains(part)) {
                    return matrix;
                }
                Tensor source = bias(prefix, part);
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
                try (PointerScope _ = new PointerScope()) {
                    return linear(HEAD, shard.vocabulary(source(HEAD + ".weight")));
                }
            }
            Shard.Range tokens = shard.vocabulary();
            Tensor matrix =
                    owned.add(embedding.part(tokens.first(), tokens.count()).tensor());
            return timed(HEAD, matrix.numel(), () -> kernels.shared(matrix));
        }

        private Linear linear(String operator, Tensor source) {
            return timed(
                    operator,
                    source.numel(),
                    () -> kernels.linear(matrix -> matrix.copy_(source), source.size(0), source.size(1)));
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
                Tensor q = weight(prefix, Part.QUERIES);
                Tensor k = weight(prefix, Part.KEYS);
                Tensor v = weight(prefix, Part.VALUES);
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
                bias.narrow(0, 0, queries).copy_(bias(prefix, Part.QUERIES));
                Tensor pairs =
                        bias.narrow(0, queries, 2L * config.kvHeads() * head).view(config.kvHeads(), 2, head);
                pairs.select(1, 0).copy_(bias(prefix, Part.KEYS).view(config.kvHeads(), head));
                pairs.select(1, 1).copy_(bias(prefix, Part.VALUES).view(config.kvHeads(), head));
            }
            return bias;
        }

        Matrix rope(Rotation rotation, int positions) {
            int head = config.headDim();
            int half = head / 2;
            double[] frequencies = Rope.frequencies(rotation, head);
            double amplitude = Rope.amplitude(rotation);
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

        /** This rank's part of a weight, for the caller's scope. */
        private Tensor weight(String prefix, Part part) throws IOException {
            return share(part, source(prefix + config.recipe().weight(part)));
        }

        private Tensor bias(String prefix, Part part) throws IOException {
            return share(part, source(prefix + config.recipe().bias(part)));
        }

        private Tensor share(Part part, Tensor tensor) {
            ModelConfig model = shard.model();
            long rows = part.shape(model).getFirst();
            return shard.part(part, tensor.narrow(0, model.recipe().firstRow(part, model), rows));
        }

        /** A tensor of the checkpoint, for the caller's scope. */
        private Tensor source(String name) throws IOException {
            TensorInfo info = checkpoint.info(name);
            DType stored = Checkpoint.dtypeOf(info).orElseThrow();
            long[] shape = info.shape().stream().mapToLong(Long::longValue).toArray();
            return LibTorch.over(checkpoint.data(name), LibTorch.scalarType(stored), shape);
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
