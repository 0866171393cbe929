package baton.engine.core;

import baton.engine.model.Logits;
import baton.engine.model.ModelConfig;
import baton.engine.model.ModelRunner;
import baton.kv.DType;
import baton.kv.KvCache;
import baton.kv.KvFence;
import baton.kv.KvLayout;
import baton.kv.ModelFingerprint;
import baton.kv.connector.HiddenState;
import baton.transfer.Region;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;

/** Takes the place of a model: has a KV cache of the given layout, computes nothing, and all tokens are equally probable. */
final class StandInRunner implements ModelRunner {
    static final int VOCABULARY = 64;

    private static final int HIDDEN = 8;

    private final ModelFingerprint fingerprint;
    private final ModelConfig config;
    private final Arena arena = Arena.ofShared();
    private final KvCache cache;

    StandInRunner(ModelFingerprint fingerprint, KvLayout layout, int blocks) {
        this.fingerprint = fingerprint;
        this.config = new ModelConfig(
                "stand-in",
                VOCABULARY,
                HIDDEN,
                HIDDEN,
                layout.layers(),
                layout.kvHeads(),
                layout.kvHeads(),
                layout.headDim(),
                Integer.MAX_VALUE,
                1e-5,
                1e4,
                Optional.empty(),
                true,
                DType.F32);
        Region region = Region.allocate(arena, blocks * layout.blockBytes(), "a warm-up");
        List<String> layers = IntStream.range(0, layout.layers())
                .mapToObj(layer -> "layers." + layer)
                .toList();
        this.cache = new KvCache(region.asPool(), layout, blocks, layers);
    }

    @Override
    public ModelConfig config() {
        return config;
    }

    @Override
    public ModelFingerprint fingerprint() {
        return fingerprint;
    }

    @Override
    public KvCache cache() {
        return cache;
    }

    @Override
    public Logits forward(List<SequenceSlice> slices, LayerHooks hooks) {
        hooks.begin();
        for (int layer = 0; layer < cache.layout().layers(); layer++) {
            hooks.beforeLayer(layer).await();
            hooks.afterLayer(layer, KvFence.PASSED);
        }
        hooks.hiddenWanted()
                .forEach(slice ->
                        hooks.hidden(slice, new HiddenState(DType.F32, MemorySegment.ofArray(new float[HIDDEN]))));
        return new Zeros(slices.stream().mapToInt(SequenceSlice::logits).sum());
    }

    @Override
    public boolean takes(HiddenState state) {
        return state.data().byteSize() == (long) HIDDEN * Float.BYTES;
    }

    @Override
    public void close() {
        arena.close();
    }

    private record Zeros(int rows, MemorySegment row) implements Logits {
        Zeros(int rows) {
            this(rows, MemorySegment.ofArray(new float[VOCABULARY]));
        }

        @Override
        public int vocabularySize() {
            return VOCABULARY;
        }

        @Override
        public MemorySegment row(int index) {
            return row;
        }

        @Override
        public int argmax(int index) {
            return 0;
        }

        @Override
        public void close() {}
    }
}
