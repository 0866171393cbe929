package baton.cli;

import baton.engine.backend.CpuBackend;
import baton.engine.backend.ModelBackend;
import baton.engine.model.Checkpoint;
import baton.engine.model.ModelOptions;
import baton.engine.model.ModelRanks;
import baton.engine.model.ModelRunner;
import baton.kv.KvCache;
import baton.testkit.Forwarding;
import baton.testkit.RefusingMemory;
import java.io.IOException;

/** The processor's backend, with pools that only the model can address. */
@SuppressWarnings({"UnusedMethod", "EffectivelyPrivate"}) // called by Forwarding
final class RefusingBackend {
    private RefusingBackend() {}

    static ModelBackend create() {
        ModelBackend cpu = new CpuBackend();
        return Forwarding.to(ModelBackend.class, cpu, new Object() {
            public ModelRanks load(Checkpoint checkpoint, ModelOptions options) throws IOException {
                ModelRanks ranks = cpu.load(checkpoint, options);
                return new ModelRanks(
                        ranks.runners().stream().map(RefusingBackend::runner).toList(),
                        ranks.tensorParallelSize(),
                        ranks.pipelineParallelSize(),
                        ranks.layout());
            }
        });
    }

    private static ModelRunner runner(ModelRunner inner) {
        KvCache host = inner.cache();
        KvCache cache = new KvCache(
                new RefusingMemory(host.host()).memory(),
                host.layout(),
                host.blocks(),
                host.layerNames(),
                host.groups());
        return Forwarding.to(ModelRunner.class, inner, new Object() {
            public KvCache cache() {
                return cache;
            }

            // As those of a device.
            public boolean comparesLoaded() {
                return false;
            }
        });
    }
}
