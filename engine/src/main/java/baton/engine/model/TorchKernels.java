package baton.engine.model;

import baton.engine.kernel.ParallelFor;
import baton.engine.model.JavaRowKernels.NormWeights;
import baton.engine.model.Linear.Dense;
import baton.engine.model.Linear.Packed;
import baton.engine.model.Weights.Owned;
import baton.kv.DType;
import baton.kv.KvCache;
import baton.kv.KvLayout;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Optional;
import java.util.function.Consumer;
import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.IValue;
import org.bytedeco.pytorch.LongOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch.ScalarType;

/** LibTorch's operators and, in bf16, oneDNN's packed products. */
final class TorchKernels implements ModelKernels {
    /** Rows that a thread copies at once. */
    private static final int COPIED_ROWS = 32;

    private final DType dtype;
    private final ScalarType type;
    private final OmpTeam team;
    private final JavaRowKernels rowMath;
    private final Arena arena;
    private final Owned owned;
    private final Optional<OneDnn> oneDnn;
    private final Blas blas;

    /** @param dtype of weights and activations */
    TorchKernels(DType dtype, OmpTeam team, Arena arena, Owned owned) {
        this.dtype = dtype;
        this.type = LibTorch.scalarType(dtype);
        this.team = team;
        this.rowMath = new JavaRowKernels(dtype, team);
        this.arena = arena;
        this.owned = owned;
        this.oneDnn = OneDnn.find(type, owned);
        this.blas = Blas.loaded(team.size());
    }

    @Override
    public DType activations() {
        return dtype;
    }

    @Override
    public ParallelFor threads() {
        return team;
    }

    @Override
    public int torchThreads() {
        return team.size();
    }

    @Override
    public int padded(int rows) {
        return Batch.padded(rows);
    }

    /** LibTorch's memory ends with its tensors. */
    @Override
    public RowMemory.Scope scope() {
        return () -> {};
    }

    @Override
    public Matrix rows(long rows, long columns) {
        return Matrix.of(LibTorch.empty(type, rows, columns));
    }

    @Override
    public Matrix inputs(long rows, long columns) {
        return rows(rows, columns);
    }

    @Override
    public Matrix asInputs(Matrix rows) {
        return rows;
    }

    @Override
    public Linear linear(Consumer<Tensor> filler, long rows, long columns) {
        if (oneDnn.isEmpty()) {
            MemorySegment memory = HugePages.allocate(arena, rows * columns * dtype.bytes(), "weights");
            owned.count(memory.byteSize());
            Tensor matrix = owned.add(LibTorch.over(memory, type, rows, columns));
            filler.accept(matrix);
            return new Dense(matrix, blas);
        }
        try (PointerScope _ = new PointerScope()) {
            Tensor matrix = LibTorch.empty(type, rows, columns);
            filler.accept(matrix);
            owned.count(rows * columns * dtype.bytes());
            OneDnn packing = oneDnn.get();
            return new Packed(packing, owned.add(new IValue(packing.pack(matrix))));
        }
    }

    /** Packed once more where packing is: all of it is read for each token. */
    @Override
    public Linear shared(Tensor matrix) {
        return oneDnn.isEmpty()
                ? new Dense(matrix, blas)
                : linear(copy -> copy.copy_(matrix), matrix.size(0), matrix.size(1));
    }

    @Override
    public Norm norm(float[] weights, double eps) {
        NormWeights split = NormWeights.of(weights);
        return (from, to) -> rowMath.norm(from, to, split, eps);
    }

    @Override
    public void rotate(Heads queries, Heads turned, Heads keys, int headDim, MemorySegment table) {
        rowMath.rotate(queries, turned, keys, headDim, table);
    }

    @Override
    public void save(int layer, Matrix pairs, KvCache cache, Batch batch, int first, int count) {
        KvLayout layout = cache.layout();
        Matrix stored = Matrix.of(pairs.part(0, count).tensor().to(LibTorch.scalarType(layout.dtype())));
        long entry = layout.entryBytes();
        long rowBytes = stored.stride() * layout.dtype().bytes();
        MemorySegment rows = stored.memory();
        team.parallelFor(count, COPIED_ROWS, (_, begin, end) -> {
            for (int i = begin; i < end; i++) {
                long from = i * rowBytes;
                long to = cache.layerStart(batch.block(first + i), layer) + batch.slot(first + i) * entry;
                for (int head = 0; head < layout.kvHeads(); head++) {
                    MemorySegment.copy(rows, from + head * entry, cache.host(), to + head * layout.headBytes(), entry);
                }
            }
        });
    }

    @Override
    public long[] largest(MemorySegment logits, int rows, int columns) {
        Tensor best = LibTorch.over(logits, ScalarType.Float, rows, columns).argmax(new LongOptional(1), false);
        return LibTorch.memory(best, (long) rows * Long.BYTES).toArray(ValueLayout.JAVA_LONG);
    }

    @Override
    public void close() {}

    @Override
    public Attention attention(ModelConfig config, KvCache cache, int[] reach) {
        return new SdpaAttention(config, cache, type, team, reach, owned);
    }
}
