package baton.engine.model;

import baton.engine.kernel.AttentionScores;
import baton.engine.kernel.ParallelFor;
import baton.engine.model.JavaRowKernels.NormWeights;
import baton.engine.model.TorchLinear.Biased;
import baton.engine.model.TorchLinear.Dense;
import baton.engine.model.TorchLinear.Packed;
import baton.engine.model.Weights.Owned;
import baton.kv.DType;
import baton.kv.KvCache;
import baton.kv.KvLayout;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.List;
import java.util.Optional;
import org.bytedeco.javacpp.PointerScope;
import org.bytedeco.pytorch.IValue;
import org.bytedeco.pytorch.InferenceMode;
import org.bytedeco.pytorch.LongOptional;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.global.torch;
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
    public int padded(int rows) {
        return Batch.padded(rows);
    }

    @Override
    public RowMemory.Scope pass() {
        // OpenMP keeps the number by calling thread.
        torch.set_num_threads(team.size());
        InferenceMode mode = new InferenceMode(true);
        RowMemory.Scope scope = scope();
        return () -> {
            scope.close();
            mode.close();
        };
    }

    @Override
    public RowMemory.Scope scope() {
        PointerScope scope = new PointerScope();
        return scope::close;
    }

    @Override
    public Matrix rows(long rows, long columns) {
        return LibTorch.matrix(LibTorch.empty(type, rows, columns));
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
    public Linear linear(List<Matrix> parts, Optional<float[]> bias) {
        try (PointerScope _ = new PointerScope()) {
            TorchLinear matrix = packed(parts);
            return bias.<TorchLinear>map(values -> new Biased(matrix, kept(values)))
                    .orElse(matrix);
        }
    }

    @Override
    public Linear unquantised(List<Matrix> parts, Optional<float[]> bias) {
        return linear(parts, bias);
    }

    private TorchLinear packed(List<Matrix> parts) {
        long rows = parts.stream().mapToLong(Matrix::rows).sum();
        long columns = parts.getFirst().columns();
        MemorySegment memory = oneDnn.isPresent()
                ? MemorySegment.NULL
                : HugePages.allocate(arena, rows * columns * dtype.bytes(), "weights");
        Tensor matrix = oneDnn.isPresent()
                ? LibTorch.empty(type, rows, columns)
                : LibTorch.keep(LibTorch.over(memory, type, rows, columns), owned);
        long filled = 0;
        for (Matrix part : parts) {
            matrix.narrow(0, filled, part.rows()).copy_(LibTorch.tensor(part));
            filled += part.rows();
        }
        owned.count(rows * columns * dtype.bytes());
        return oneDnn.<TorchLinear>map(
                        packing -> new Packed(packing, LibTorch.keep(new IValue(packing.pack(matrix)), owned)))
                .orElseGet(() -> new Dense(matrix, blas));
    }

    private Tensor kept(float[] values) {
        Tensor floats = LibTorch.empty(ScalarType.Float, values.length);
        LibTorch.memory(floats, (long) values.length * Float.BYTES).copyFrom(MemorySegment.ofArray(values));
        return LibTorch.keep(floats.to(type), owned);
    }

    /** Packed once more where packing is: all of it is read for each token. */
    @Override
    public Linear shared(Matrix matrix) {
        return oneDnn.isEmpty()
                ? new Dense(LibTorch.keep(LibTorch.tensor(matrix), owned), blas)
                : linear(List.of(matrix), Optional.empty());
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
    public void save(int layer, Matrix entries, KvCache cache, Batch batch, int first, int count) {
        KvLayout layout = cache.layout();
        Matrix stored =
                LibTorch.matrix(LibTorch.tensor(entries.part(0, count)).to(LibTorch.scalarType(layout.dtype())));
        int group = cache.groups().groupOf(layer);
        long entry = layout.entryBytes();
        long rowBytes = stored.stride() * layout.dtype().bytes();
        MemorySegment rows = stored.memory();
        team.parallelFor(count, COPIED_ROWS, (_, begin, end) -> {
            for (int i = begin; i < end; i++) {
                long from = i * rowBytes;
                long to = cache.layerStart(batch.block(group, first + i), layer) + batch.slot(first + i) * entry;
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
    public void close() {
        HugePages.giveBack();
    }

    @Override
    public Attention attention(ModelConfig config, AttentionScores scores, KvCache cache, int[] reach) {
        return new SdpaAttention(config, scores, cache, type, team, reach, owned);
    }
}
