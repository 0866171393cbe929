package baton.cuda.model;

import baton.cuda.driver.Gpu;
import baton.cuda.kernel.DeviceRows;
import baton.cuda.kernel.Weight;
import baton.engine.kernel.ParallelFor;
import baton.engine.model.Checkpoint;
import baton.engine.model.Matrix;
import baton.engine.model.ModelOptions;
import baton.engine.model.Recipe.Rotation;
import baton.engine.model.Weights;
import baton.engine.model.Weights.Gated;
import baton.engine.model.Weights.LayerWeights;
import baton.engine.model.Weights.Routed;
import baton.kv.DType;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * A model's weights in a device's memory.
 *
 * @param embedding in the type of computation
 * @param rotations by position: cosines and sines of the pairs
 */
record DeviceWeights(
        DeviceRows embedding,
        List<Layer> layers,
        DeviceNorm finalNorm,
        Weight head,
        Map<Rotation, DeviceRows> rotations) {
    /**
     * A layer.
     *
     * @param sinks of each query head, in fp32; 0: there are none
     */
    record Layer(
            LayerWeights<Weight, DeviceNorm> weights,
            long sinks,
            Optional<Experts> experts,
            Optional<LatentHeads> latentHeads) {}

    /** The weights of latent attention, a matrix for each head. The addresses of weights are those of tables of addresses. */
    record LatentHeads(Weight keys, Weight values) {}

    /**
     * Experts that a router chooses. The addresses of their weights and biases are those of tables of addresses.
     *
     * @param correction a number for each, in fp32; 0: there is none
     */
    record Experts(long correction, Weight gate, Weight up, Weight down) {}

    static DeviceWeights load(
            Gpu gpu, Checkpoint checkpoint, ModelOptions options, ParallelFor threads, DeviceAllocations memory)
            throws IOException {
        try (Arena arena = Arena.ofShared();
                CudaPacking packing = new CudaPacking(gpu, options.dtype(), threads, memory)) {
            Weights<Weight, DeviceNorm> read = Weights.load(checkpoint, options, packing, arena);
            Weight head = read.head().orElseThrow();
            long embedding = checkpoint.config().tiedEmbeddings()
                    ? head.address()
                    : packing.upload(List.of(read.embedding()), options.dtype());
            List<Layer> layers = new ArrayList<>();
            for (LayerWeights<Weight, DeviceNorm> layer : read.layers()) {
                layers.add(new Layer(
                        layer,
                        layer.sinks().map(packing::upload).orElse(0L),
                        experts(layer, packing),
                        latentHeads(layer, packing)));
            }
            Map<Rotation, DeviceRows> rotations = new HashMap<>();
            read.rotations()
                    .forEach((rotation, table) ->
                            rotations.put(rotation, rows(packing.upload(List.of(table), DType.F32), DType.F32, table)));
            return new DeviceWeights(
                    rows(embedding, options.dtype(), read.embedding()), layers, read.finalNorm(), head, rotations);
        }
    }

    private static Optional<LatentHeads> latentHeads(LayerWeights<Weight, DeviceNorm> layer, CudaPacking packing) {
        return layer.latent()
                .map(latent -> new LatentHeads(together(latent.keys(), packing), together(latent.values(), packing)));
    }

    private static DeviceRows rows(long address, DType type, Matrix shape) {
        return DeviceRows.matrix(address, type, shape.rows(), shape.columns());
    }

    private static Optional<Experts> experts(LayerWeights<Weight, DeviceNorm> layer, CudaPacking packing) {
        if (!(layer.feedForward() instanceof Routed<Weight> routed)) {
            return Optional.empty();
        }
        List<Gated<Weight>> chosen = routed.experts().subList(0, routed.kind().count());
        return Optional.of(new Experts(
                routed.correction().map(packing::upload).orElse(0L),
                together(chosen.stream().map(Gated::gate).toList(), packing),
                together(chosen.stream().map(Gated::up).toList(), packing),
                together(chosen.stream().map(Gated::down).toList(), packing)));
    }

    private static Weight together(List<Weight> all, CudaPacking packing) {
        Weight first = all.getFirst();
        long biases = first.bias() == 0
                ? 0
                : packing.upload(all.stream().mapToLong(Weight::bias).toArray());
        long weights = packing.upload(all.stream().mapToLong(Weight::address).toArray());
        return new Weight(weights, first.type(), first.outputs(), first.inputs(), biases);
    }
}
