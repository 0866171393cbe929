package baton.cli;

import baton.engine.backend.CpuBackend;
import baton.engine.backend.ModelBackend;
import baton.engine.kernel.ParallelFor;
import baton.engine.model.Checkpoint;
import baton.engine.model.DTypeChoice;
import baton.engine.model.Device;
import baton.engine.model.Logits;
import baton.engine.model.ModelConfig;
import baton.engine.model.ModelOptions;
import baton.engine.model.ModelRanks;
import baton.engine.model.ModelRunner;
import baton.engine.model.ProductRates;
import baton.engine.model.Quantization;
import baton.kv.DType;
import baton.kv.KvCache;
import baton.kv.ModelFingerprint;
import baton.kv.connector.HiddenState;
import baton.testkit.RefusingMemory;
import java.io.IOException;
import java.util.List;
import java.util.Optional;

/** Computes as the processor's backend does, with pools that only the model can address. */
final class RefusingBackend implements ModelBackend {
    private final ModelBackend cpu = new CpuBackend();

    @Override
    public Optional<String> whyNot(Device device) {
        return Optional.empty();
    }

    @Override
    public int preference() {
        return 1;
    }

    @Override
    public DTypeChoice dtype(Optional<DType> configured, ModelConfig model, Quantization quantization) {
        return cpu.dtype(configured, model, quantization);
    }

    @Override
    public long memoryBytes() {
        return cpu.memoryBytes();
    }

    @Override
    public long blockBytes(
            ModelConfig model,
            int blockSize,
            DType cacheDtype,
            int tensorParallelSize,
            int pipelineParallelSize,
            boolean hybrid) {
        return cpu.blockBytes(model, blockSize, cacheDtype, tensorParallelSize, pipelineParallelSize, hybrid);
    }

    @Override
    public double weightBytes(ModelConfig model, DType dtype, Quantization quantization) {
        return cpu.weightBytes(model, dtype, quantization);
    }

    @Override
    public ProductRates measure(ModelConfig model, DType dtype, Quantization quantization) throws IOException {
        return cpu.measure(model, dtype, quantization);
    }

    @Override
    public ModelRanks load(Checkpoint checkpoint, ModelOptions options) throws IOException {
        ModelRanks ranks = cpu.load(checkpoint, options);
        return new ModelRanks(
                ranks.runners().stream().<ModelRunner>map(Runner::new).toList(),
                ranks.tensorParallelSize(),
                ranks.pipelineParallelSize(),
                ranks.layout());
    }

    private record Runner(ModelRunner inner, KvCache cache) implements ModelRunner {
        private Runner(ModelRunner inner) {
            this(
                    inner,
                    new KvCache(
                            new RefusingMemory(inner.cache().host()).memory(),
                            inner.cache().layout(),
                            inner.cache().blocks(),
                            inner.cache().layerNames(),
                            inner.cache().groups()));
        }

        @Override
        public ModelConfig config() {
            return inner.config();
        }

        @Override
        public ModelFingerprint fingerprint() {
            return inner.fingerprint();
        }

        @Override
        public Logits forward(List<SequenceSlice> slices, LayerHooks hooks) {
            return inner.forward(slices, hooks);
        }

        @Override
        public ParallelFor threads() {
            return inner.threads();
        }

        @Override
        public boolean takes(HiddenState state) {
            return inner.takes(state);
        }

        @Override
        public void close() {
            inner.close();
        }
    }
}
