package baton.engine.backend;

import baton.engine.model.Checkpoint;
import baton.engine.model.DTypeChoice;
import baton.engine.model.Device;
import baton.engine.model.ModelConfig;
import baton.engine.model.ModelOptions;
import baton.engine.model.ModelRanks;
import baton.engine.model.ProductRates;
import baton.engine.model.Quantization;
import baton.kv.DType;
import java.io.IOException;
import java.util.Optional;

/**
 * Computes models. Backends are found by {@link java.util.ServiceLoader}; an implementation needs a public constructor without
 * parameters that does no work.
 */
public interface ModelBackend {
    /**
     * Why models cannot be computed by this backend if that device is asked for.
     *
     * @return empty if they can
     */
    Optional<String> whyNot(Device device);

    /** The backend for a device that it can compute on: of several GPUs for the one with its number. */
    default ModelBackend on(Device device) {
        return this;
    }

    /**
     * Why a model cannot be computed by this backend, on any device.
     *
     * @param ranks that share it
     * @return empty if it can, or if the other methods name the obstacle
     */
    default Optional<String> whyNot(ModelConfig model, Quantization quantization, int ranks) {
        return Optional.empty();
    }

    /** The backend of the highest preference computes, of those that can. The CPU's is 0. */
    int preference();

    /**
     * The type to compute in.
     *
     * @param configured empty: the best one for the model
     * @throws baton.kv.ConfigException if the backend cannot compute the model
     */
    DTypeChoice dtype(Optional<DType> configured, ModelConfig model, Quantization quantization);

    /** Bytes that KV pools can have at most. */
    long memoryBytes();

    /**
     * Bytes of one block in the pools of all ranks together.
     *
     * @param hybrid as in {@link ModelOptions}
     * @throws baton.kv.ConfigException if the model cannot be shared like this
     */
    long blockBytes(
            ModelConfig model,
            int blockSize,
            DType cacheDtype,
            int tensorParallelSize,
            int pipelineParallelSize,
            boolean hybrid);

    /**
     * Bytes of a model's weights when they are loaded, about.
     *
     * @throws baton.kv.ConfigException if the backend cannot compute the model
     */
    double weightBytes(ModelConfig model, DType dtype, Quantization quantization);

    /**
     * Measures products with weights of a model that is not loaded, in about a second.
     *
     * @throws baton.kv.ConfigException if the backend cannot compute the model
     * @throws IllegalStateException if the backend cannot be loaded, or memory is refused
     */
    ProductRates measure(ModelConfig model, DType dtype, Quantization quantization) throws IOException;

    /**
     * Loads a checkpoint's weights, shared out among ranks, and allocates the KV pools; the checkpoint may be closed afterwards.
     *
     * @throws baton.kv.ConfigException naming the part that does not fit
     * @throws IOException if the weights cannot be read
     * @throws IllegalStateException if the backend cannot be loaded, or memory is refused
     */
    ModelRanks load(Checkpoint checkpoint, ModelOptions options) throws IOException;

    /** Why {@link #loadLibrary} would fail for want of classes; empty if they are there, or it needs none. Loads nothing. */
    default Optional<String> whyNoLibrary() {
        return Optional.empty();
    }

    /**
     * Loads the native library that computes some models, as loading such a model does.
     *
     * @return its state; empty if the backend has no such library
     * @throws IllegalStateException if it cannot be loaded here, naming the missing requirement
     */
    default Optional<String> loadLibrary() {
        return Optional.empty();
    }

    /**
     * Loads and computes in a way that leaves nothing behind that would slow down a model that is loaded later.
     *
     * @throws IOException from {@code work}
     */
    default <T> T apart(Work<T> work) throws IOException {
        return work.run();
    }

    /** Something to compute. */
    interface Work<T> {
        T run() throws IOException;
    }
}
