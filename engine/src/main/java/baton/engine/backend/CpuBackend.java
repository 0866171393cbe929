package baton.engine.backend;

import baton.engine.model.Checkpoint;
import baton.engine.model.CpuModels;
import baton.engine.model.DTypeChoice;
import baton.engine.model.Device;
import baton.engine.model.ModelConfig;
import baton.engine.model.ModelOptions;
import baton.engine.model.ModelRanks;
import baton.engine.model.ProductRates;
import baton.engine.model.Quantization;
import baton.kv.DType;
import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.util.Optional;

/** Computes on this machine's processors, with pools in host memory. */
public final class CpuBackend implements ModelBackend {
    @Override
    public Optional<String> whyNot(Device device) {
        return device.kind() == Device.Kind.CUDA
                ? Optional.of("the processor's backend computes on no GPU")
                : Optional.empty();
    }

    @Override
    public int preference() {
        return 0;
    }

    @Override
    public DTypeChoice dtype(Optional<DType> configured, ModelConfig model, Quantization quantization) {
        return DTypeChoice.here(configured, model, quantization);
    }

    @Override
    public long memoryBytes() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getTotalMemorySize();
    }

    @Override
    public long blockBytes(
            ModelConfig model,
            int blockSize,
            DType cacheDtype,
            int tensorParallelSize,
            int pipelineParallelSize,
            boolean hybrid) {
        return CpuModels.blockBytes(model, blockSize, cacheDtype, tensorParallelSize, pipelineParallelSize, hybrid);
    }

    @Override
    public double weightBytes(ModelConfig model, DType dtype, Quantization quantization) {
        return CpuModels.weightBytes(model, dtype, quantization);
    }

    @Override
    public ProductRates measure(ModelConfig model, DType dtype, Quantization quantization) throws IOException {
        return CpuModels.measure(model, dtype, quantization);
    }

    @Override
    public ModelRanks load(Checkpoint checkpoint, ModelOptions options) throws IOException {
        return CpuModels.load(checkpoint, options);
    }

    @Override
    public Optional<String> whyNoLibrary() {
        return CpuModels.whyNoLibTorch();
    }

    @Override
    public Optional<String> loadLibrary() {
        return Optional.of("computes with %d threads".formatted(CpuModels.loadLibrary()));
    }

    @Override
    public <T> T apart(Work<T> work) throws IOException {
        return CpuModels.apart(work::run);
    }
}
