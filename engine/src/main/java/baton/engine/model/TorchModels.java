package baton.engine.model;

import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.KvLayout;
import java.io.IOException;
import java.util.OptionalInt;

/** Makes model runners of checkpoints. */
public final class TorchModels {
    private TorchModels() {}

    /** The same without quantisation. */
    public static ModelRunner load(
            Checkpoint checkpoint, DType dtype, KvLayout layout, int blocks, OptionalInt threads, int maxPositions)
            throws IOException {
        return load(checkpoint, dtype, Quantization.NONE, layout, blocks, threads, maxPositions);
    }

    /**
     * Loads a checkpoint's weights into memory of their own and allocates the KV pool; the checkpoint may be closed afterwards.
     *
     * @param dtype type to compute in and to keep weights in that are not quantised, bf16 or fp32
     * @param quantization how matrices are kept
     * @param layout of the KV pool: the model's layers, heads and head dim, in bf16 or fp32; see {@link ModelConfig#kvLayout}. Keys
     *     and values are rounded to its type before anything attends to them
     * @param blocks blocks in the KV pool
     * @param threads threads to compute with, in this process as a whole; empty: one for each processor
     * @param maxPositions positions a sequence may have
     * @throws ConfigException naming what does not fit
     * @throws IOException if the weights cannot be read
     * @throws IllegalStateException if LibTorch cannot be loaded or memory is refused
     */
    public static ModelRunner load(
            Checkpoint checkpoint,
            DType dtype,
            Quantization quantization,
            KvLayout layout,
            int blocks,
            OptionalInt threads,
            int maxPositions)
            throws IOException {
        ModelConfig config = checkpoint.config();
        if (dtype == DType.F16) {
            throw ConfigException.unsupported("dtype", dtype.torchName(), "bfloat16, float32");
        }
        if (layout.dtype() == DType.F16) {
            throw ConfigException.unsupported("kv_cache_dtype", layout.dtype().torchName(), "auto, bfloat16, float32");
        }
        KvLayout wanted = config.kvLayout(layout.blockSize(), layout.dtype());
        if (!layout.equals(wanted)) {
            throw new ConfigException(
                    "layout", "is %s, the model needs %s".formatted(layout.describe(), wanted.describe()));
        }
        if (blocks <= 0) {
            throw new ConfigException("blocks", "is " + blocks + ", must be positive");
        }
        if (maxPositions <= 0) {
            throw new ConfigException("max_model_len", "is " + maxPositions + ", must be positive");
        }
        int threadCount = LibTorch.load(threads);
        return DecoderRunner.load(checkpoint, dtype, quantization, layout, blocks, threadCount, maxPositions);
    }
}
