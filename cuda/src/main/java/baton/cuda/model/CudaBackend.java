package baton.cuda.model;

import baton.cuda.driver.CublasLt;
import baton.cuda.driver.CudaException;
import baton.cuda.driver.Driver;
import baton.cuda.driver.Gpu;
import baton.cuda.driver.NativeDriver;
import baton.cuda.driver.NativeDriver.Search;
import baton.cuda.kernel.AttentionOps;
import baton.engine.backend.ModelBackend;
import baton.engine.model.Checkpoint;
import baton.engine.model.DTypeChoice;
import baton.engine.model.Device;
import baton.engine.model.ModelConfig;
import baton.engine.model.ModelOptions;
import baton.engine.model.ModelRanks;
import baton.engine.model.ProductRates;
import baton.engine.model.Quantization;
import baton.kv.ConfigException;
import baton.kv.DType;
import java.io.IOException;
import java.util.NoSuchElementException;
import java.util.Optional;
import java.util.function.Supplier;

/** Computes on an NVIDIA GPU. */
public final class CudaBackend implements ModelBackend {
    /** Beside weights, for a small KV cache, the driver, kernels and activations. */
    private static final long LEAST_BYTES = 256L << 20;

    private final Supplier<Search> driver;
    private final int ordinal;

    public CudaBackend() {
        this(NativeDriver::find);
    }

    /** @param driver asked for when the backend is used */
    public CudaBackend(Supplier<Search> driver) {
        this(driver, 0);
    }

    /** @param ordinal of the device among those that {@code CUDA_VISIBLE_DEVICES} leaves */
    private CudaBackend(Supplier<Search> driver, int ordinal) {
        this.driver = driver;
        this.ordinal = ordinal;
    }

    @Override
    public CudaBackend on(Device device) {
        return new CudaBackend(driver, device.number());
    }

    @Override
    public Optional<String> whyNot(Device device) {
        if (device.kind() == Device.Kind.CPU) {
            return Optional.of("the backend for NVIDIA GPUs computes on no processor");
        }
        return switch (driver.get()) {
            case Search.Absent(String why) -> Optional.of(why + "; " + NativeDriver.REMEDY);
            case Search.Found(Driver found) -> {
                int devices = found.deviceCount();
                if (device.number() >= devices) {
                    yield Optional.of("there are %d GPUs, numbered from 0; CUDA_VISIBLE_DEVICES may hide others"
                            .formatted(devices));
                }
                Driver.DeviceInfo info = found.device(device.number());
                yield info.capability() >= Driver.LEAST_CAPABILITY
                        ? Optional.empty()
                        : Optional.of("%s has compute capability %d.%d, kernels need 8.0 (Ampere) or newer"
                                .formatted(info.name(), info.capability() / 10, info.capability() % 10));
            }
        };
    }

    private Driver driver() {
        return switch (driver.get()) {
            case Search.Absent(String why) -> throw new IllegalStateException(why + "; " + NativeDriver.REMEDY);
            case Search.Found(Driver found) -> found;
        };
    }

    /** A library for large products, which computes with the memory of a device that exists. */
    private Optional<CublasLt> library() {
        if (!(driver() instanceof NativeDriver)) {
            return Optional.empty();
        }
        try {
            return Optional.of(CublasLt.load(System.getenv()));
        } catch (NoSuchElementException _) {
            return Optional.empty();
        }
    }

    @Override
    public int preference() {
        return 10;
    }

    @Override
    public DTypeChoice dtype(Optional<DType> configured, ModelConfig model, Quantization quantization) {
        require(model, quantization, 1);
        return configured
                .map(dtype -> new DTypeChoice(dtype, "as configured"))
                .orElseGet(() -> new DTypeChoice(model.dtype(), "the checkpoint's"));
    }

    @Override
    public Optional<String> whyNot(ModelConfig model, Quantization quantization, int ranks) {
        return whyNever(model, quantization, ranks).or(() -> whyNoMemory(model));
    }

    private Optional<String> whyNoMemory(ModelConfig model) {
        double wanted = weightBytes(model, model.dtype(), Quantization.NONE) + LEAST_BYTES;
        try {
            long free = memoryBytes();
            return wanted <= free
                    ? Optional.empty()
                    : Optional.of("it needs about %.0f MiB of the GPU's memory, of which %d MiB are free"
                            .formatted(wanted / (1 << 20), free >> 20));
        } catch (CudaException e) {
            return Optional.of("the GPU cannot be used: " + e.getMessage());
        }
    }

    /** Reasons that hold on any device. */
    private static Optional<String> whyNever(ModelConfig model, Quantization quantization, int ranks) {
        if (quantization != Quantization.NONE) {
            return Optional.of(
                    "the backend for cuda keeps no weights of quantization '%s'".formatted(quantization.label()));
        }
        if (model.headDim() % AttentionOps.HEAD_MULTIPLE != 0) {
            return Optional.of("the backend for cuda computes heads of a multiple of %d elements, not of head_dim=%d"
                    .formatted(AttentionOps.HEAD_MULTIPLE, model.headDim()));
        }
        return ranks == 1
                ? Optional.empty()
                : Optional.of(
                        "the backend for cuda does not share a model among %d ranks: tensor_parallel_size and pipeline_parallel_size must be 1"
                                .formatted(ranks));
    }

    private static void require(ModelConfig model, Quantization quantization, int ranks) {
        whyNever(model, quantization, ranks).ifPresent(why -> {
            throw new ConfigException("device", "is 'cuda', but %s; allowed: cpu".formatted(why));
        });
    }

    @Override
    public long memoryBytes() {
        try (Gpu gpu = new Gpu(driver(), ordinal)) {
            return gpu.freeBytes();
        }
    }

    @Override
    public long blockBytes(
            ModelConfig model,
            int blockSize,
            DType cacheDtype,
            int tensorParallelSize,
            int pipelineParallelSize,
            boolean hybrid) {
        require(model, Quantization.NONE, tensorParallelSize * pipelineParallelSize);
        return model.kvLayout(model.kvGroups(hybrid), blockSize, cacheDtype).blockBytes();
    }

    @Override
    public double weightBytes(ModelConfig model, DType dtype, Quantization quantization) {
        require(model, quantization, 1);
        return (double) model.parameters() * dtype.bytes();
    }

    @Override
    public ProductRates measure(ModelConfig model, DType dtype, Quantization quantization) throws IOException {
        require(model, quantization, 1);
        try (Gpu gpu = new Gpu(driver(), ordinal)) {
            return ProductMeasurement.measure(gpu, dtype);
        }
    }

    @Override
    public ModelRanks load(Checkpoint checkpoint, ModelOptions options) throws IOException {
        int ranks = options.tensorParallelSize() * options.pipelineParallelSize();
        require(checkpoint.config(), options.quantization(), ranks);
        try {
            return ModelRanks.of(CudaRunner.load(new Gpu(driver(), ordinal), library(), checkpoint, options));
        } catch (CudaException e) {
            if (!e.isOutOfMemory()) {
                throw e;
            }
            throw new ConfigException(
                    "kv_cache_memory_bytes",
                    "gives a KV cache of %d blocks, which the GPU has no room for beside weights of %.0f MiB: %s; give less, or use --device cpu"
                            .formatted(
                                    options.blocks(),
                                    weightBytes(checkpoint.config(), options.dtype(), Quantization.NONE) / (1 << 20),
                                    e.getMessage()));
        }
    }
}
