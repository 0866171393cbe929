package baton.engine.model;

import baton.kv.DType;
import baton.kv.ModelFingerprint;
import java.io.IOException;
import java.util.OptionalInt;

/**
 * How a checkpoint is loaded.
 *
 * @param dtype type to compute in and to keep weights in that are not quantised: bf16, fp16 or fp32
 * @param quantization how matrices are kept
 * @param cacheDtype type of the KV pools' elements: bf16, fp16, fp32 or fp8 (e4m3); keys and values are rounded to it before they are attended to
 * @param blockSize tokens in a block of the KV pools
 * @param blocks blocks in each KV pool
 * @param threads threads for each rank to compute with; empty: one for each processor
 * @param maxPositions positions a sequence may have
 * @param tensorParallelSize ranks that share the heads
 * @param pipelineParallelSize stages that share the layers
 * @param mappable whether other processes can map the KV pools
 * @param hybrid whether layers with a window keep only the blocks that it reaches, in groups of their own
 */
public record ModelOptions(
        DType dtype,
        Quantization quantization,
        DType cacheDtype,
        int blockSize,
        int blocks,
        OptionalInt threads,
        int maxPositions,
        int tensorParallelSize,
        int pipelineParallelSize,
        boolean mappable,
        boolean hybrid) {
    /**
     * The fingerprint of a checkpoint's keys and values. Another type of computation, quantised weights and other factors of LongRoPE give other
     * ones, as another model does.
     */
    public ModelFingerprint fingerprint(Checkpoint checkpoint) throws IOException {
        String factors = checkpoint
                .config()
                .longRope()
                .map(longRope -> " long_factors=" + longRope.isLong(maxPositions))
                .orElse("");
        return checkpoint
                .fingerprint()
                .derived("dtype=%s quantization=%s%s".formatted(dtype.torchName(), quantization.label(), factors));
    }

    /** A model in one rank: its KV pool has the type of its computation and is private to this process. */
    public static ModelOptions oneRank(
            DType dtype, Quantization quantization, int blockSize, int blocks, OptionalInt threads, int maxPositions) {
        return new ModelOptions(
                dtype, quantization, dtype, blockSize, blocks, threads, maxPositions, 1, 1, false, false);
    }
}
