package baton.engine.model;

import baton.engine.kernel.AttentionScores;
import baton.engine.kernel.Kernels;
import baton.engine.kernel.PagedAttention;
import baton.engine.kernel.PagedAttention.Span;
import baton.engine.kernel.PanelMatrix;
import baton.engine.kernel.ParallelFor;
import baton.engine.kernel.RowKernels;
import baton.engine.kernel.Rows;
import baton.engine.kernel.ThreadTeam;
import baton.engine.kernel.WeightType;
import baton.engine.model.Batch.Chunk;
import baton.engine.model.Batch.Group;
import baton.engine.model.Weights.Owned;
import baton.kv.DType;
import baton.kv.KvCache;
import baton.kv.KvGroups;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/**
 * Kernels of machine code, see {@code baton.engine.kernel}: weights in their own type. Rows that are multiplied are bf16 where weights are in
 * pairs, everything else is fp32.
 */
final class PanelKernels implements ModelKernels {
    /**
     * Bytes between rows. A product reads some rows side by side: if they were a multiple of 4 KiB apart, as they mostly are, all of
     * them would have to go into the same few places of the first cache.
     */
    private static final long GAP_BYTES = 64;

    /** Bytes of a mapping for matrices of {@link #LEAST_TOGETHER_BYTES} to half of it. */
    private static final long TOGETHER_BYTES = 64L << 20;

    private static final long LEAST_TOGETHER_BYTES = 256L << 10;

    private final Kernels kernels;
    private final DType dtype;
    private final WeightType weightType;
    private final ThreadTeam team;
    private final Arena arena;
    private final Owned owned;
    private final PanelMatrix.Scratch scratch;
    private final RowKernels rowKernels;
    private final RowMemory rowMemory = new RowMemory();

    /** The free part of the last such mapping. */
    private MemorySegment together = MemorySegment.NULL;

    /**
     * @param dtype of weights that are not quantised
     * @param weightType how weights are kept; in pairs only where a matrix can be
     */
    PanelKernels(Kernels kernels, DType dtype, WeightType weightType, ThreadTeam team, Arena arena, Owned owned) {
        this.kernels = kernels;
        this.dtype = dtype;
        this.weightType = weightType;
        this.team = team;
        this.arena = arena;
        this.owned = owned;
        this.scratch = new PanelMatrix.Scratch(kernels, team.size(), arena);
        this.rowKernels = new RowKernels(kernels, team, arena);
    }

    @Override
    public DType activations() {
        return DType.F32;
    }

    @Override
    public ParallelFor threads() {
        return team.forUnevenPieces();
    }

    @Override
    public int padded(int rows) {
        return rows;
    }

    @Override
    public RowMemory.Scope pass() {
        return scope();
    }

    @Override
    public RowMemory.Scope scope() {
        return rowMemory.scope();
    }

    @Override
    public Matrix rows(long rows, long columns) {
        return rows(rows, columns, DType.F32);
    }

    private Matrix rows(long rows, long columns, DType type) {
        long stride = columns + GAP_BYTES / type.bytes();
        MemorySegment memory = rowMemory.take(rows * stride * type.bytes());
        return Matrix.dense(memory, rows, stride, type).columns(0, columns);
    }

    @Override
    public Matrix inputs(long rows, long columns) {
        return rows(rows, columns, inputType(columns));
    }

    @Override
    public Matrix asInputs(Matrix rows) {
        if (rows.type() == inputType(rows.columns())) {
            return rows;
        }
        Matrix inputs = inputs(rows.rows(), rows.columns());
        rows.convert(inputs, team);
        return inputs;
    }

    private DType inputType(long columns) {
        return weightType(columns).inPairs() ? DType.BF16 : DType.F32;
    }

    /** The type of weights of matrices with so many inputs. */
    private WeightType weightType(long inputs) {
        if (weightType.inPairs() && !PanelMatrix.takesPairs(kernels, Math.toIntExact(inputs))) {
            return weightType.hasScales() ? WeightType.INT8 : WeightType.BF16;
        }
        return weightType;
    }

    @Override
    public Linear linear(List<Matrix> parts, Optional<float[]> bias) {
        return linear(parts, bias, weightType(parts.getFirst().columns()));
    }

    @Override
    public Linear unquantised(List<Matrix> parts, Optional<float[]> bias) {
        WeightType type = switch (weightType(parts.getFirst().columns())) {
            case INT8 -> WeightType.of(dtype);
            case INT8_PAIRS -> WeightType.BF16_PAIRS;
            case WeightType other -> other;
        };
        return linear(parts, bias, type);
    }

    /** Numbers of MXFP4 stay packed where bf16 would be in pairs: the products are the same. */
    private Linear linear(List<Matrix> parts, Optional<float[]> bias, WeightType weightType) {
        boolean mayPack = weightType == WeightType.BF16_PAIRS && PanelPacking.beginsAsMxfp4(parts.getFirst());
        return (mayPack ? packed(parts, bias, WeightType.MXFP4_PAIRS) : Optional.<Linear>empty())
                .or(() -> packed(parts, bias, weightType))
                .orElseThrow();
    }

    /** Empty if the type does not have the weights. */
    private Optional<Linear> packed(List<Matrix> parts, Optional<float[]> bias, WeightType weightType) {
        int inputs = parts.getFirst().columns();
        int outputs = parts.stream().mapToInt(Matrix::rows).sum();
        long padded = (long) Math.ceilDiv(outputs, kernels.panelWidth()) * kernels.panelWidth() * Float.BYTES;
        MemorySegment panels = panels(PanelMatrix.bytes(kernels, weightType, outputs, inputs));
        MemorySegment scales = weightType.hasScales() ? arena.allocate(padded, 64) : MemorySegment.NULL;
        MemorySegment biases = bias.map(values -> {
                    MemorySegment memory = arena.allocate(padded, 64);
                    return memory.copyFrom(MemorySegment.ofArray(values));
                })
                .orElse(MemorySegment.NULL);
        if (!new PanelPacking(kernels, weightType, dtype, parts).pack(panels, scales, team)) {
            return Optional.empty();
        }
        owned.count(panels.byteSize() + scales.byteSize() + biases.byteSize());
        return Optional.of(new PanelLinear(
                new PanelMatrix(
                        kernels,
                        team,
                        scratch,
                        new PanelMatrix.Weights(weightType, panels, scales, biases, outputs, inputs)),
                this));
    }

    /**
     * Allocates panels of zeros. Matrices of experts are many: as mappings of their own they would exceed the system's limit, and not use
     * huge pages.
     */
    private MemorySegment panels(long bytes) {
        if (bytes < LEAST_TOGETHER_BYTES || bytes > TOGETHER_BYTES / 2) {
            return HugePages.allocate(arena, bytes, "weights");
        }
        if (together.byteSize() < bytes) {
            together = HugePages.allocate(arena, TOGETHER_BYTES, "weights");
        }
        MemorySegment panels = together.asSlice(0, bytes);
        together = together.asSlice(Math.min(together.byteSize(), Math.ceilDiv(bytes, GAP_BYTES) * GAP_BYTES));
        return panels;
    }

    @Override
    public Linear shared(Matrix matrix) {
        return linear(List.of(matrix), Optional.empty());
    }

    @Override
    public Norm norm(float[] weights, double eps) {
        RowKernels.Norm norm = rowKernels.norm(weights, eps);
        return (from, to) -> norm.apply(bytes(from), bytes(to), from.rows());
    }

    @Override
    public void rotate(Heads queries, Heads turned, Heads keys, int headDim, MemorySegment table) {
        rowKernels.rotate(bytes(queries), bytes(turned), bytes(keys), headDim, table, queries.rows());
    }

    private static RowKernels.Heads bytes(Heads heads) {
        int element = heads.type().bytes();
        return new RowKernels.Heads(
                new Rows(heads.memory(), heads.rowStride() * element, heads.type()),
                heads.offset() * element,
                heads.heads(),
                heads.headStride() * element);
    }

    @Override
    public void save(int layer, Matrix entries, KvCache cache, Batch batch, int first, int count) {
        long head = (long) cache.layout().entryElements() * Float.BYTES;
        int group = cache.groups().groupOf(layer);
        RowKernels.Heads heads =
                new RowKernels.Heads(entries.inBytes(), 0, cache.layout().kvHeads(), head);
        rowKernels.save(layer, heads, count, cache, new RowKernels.Slots() {
            @Override
            public int block(int row) {
                return batch.block(group, first + row);
            }

            @Override
            public int slot(int row) {
                return batch.slot(first + row);
            }
        });
    }

    @Override
    public long[] largest(MemorySegment logits, int rows, int columns) {
        return rowKernels.largest(logits, rows, columns);
    }

    @Override
    public void close() {
        team.close();
        rowMemory.close();
    }

    @Override
    public Attention attention(ModelConfig config, AttentionScores scores, KvCache cache, int[] reach) {
        return new Paged(
                new PagedAttention(kernels, team, cache, config.heads(), scores, arena), cache.groups(), reach.clone());
    }

    /** Attention of batches by {@link PagedAttention}. */
    private record Paged(PagedAttention attention, KvGroups groups, int[] reach) implements Attention {
        @Override
        public Pass begin(Batch batch, Optional<long[]> tailRows, Matrix queries, Matrix attended, Arena scratch) {
            List<Spans> spans = new ArrayList<>(groups.size());
            for (int group = 0; group < groups.size(); group++) {
                spans.add(spans(batch, tailRows, group));
            }
            Rows from = queries.inBytes();
            Rows to = attended.inBytes();
            return new Pass() {
                @Override
                public void attend(int layer) {
                    attention.attend(layer, spans.get(groups.groupOf(layer)).all, reach[layer], from, to);
                }

                @Override
                public void attendTail(int layer) {
                    attention.attend(layer, spans.get(groups.groupOf(layer)).tail, reach[layer], from, to);
                }
            };
        }

        /** The sequences of a batch with the block tables of a group of layers. */
        private record Spans(List<Span> all, List<Span> tail) {}

        private static Spans spans(Batch batch, Optional<long[]> tailRows, int group) {
            List<Span> singles = new ArrayList<>();
            for (Group some : batch.groups()) {
                for (int i = 0; i < some.size(); i++) {
                    int[] blockTable = some.blockTables().get(i)[group];
                    singles.add(new Span(some.offset() + i, 1, some.contexts()[i] - 1, blockTable));
                }
            }
            List<Span> all = new ArrayList<>(singles);
            List<Span> tail = new ArrayList<>(singles);
            for (Chunk chunk : batch.chunks()) {
                all.add(span(chunk, 0, group));
                int first = tailRows.map(chunk::firstOf).orElse(chunk.length());
                if (first < chunk.length()) {
                    tail.add(span(chunk, first, group));
                }
            }
            return new Spans(all, tail);
        }

        private static Span span(Chunk chunk, int first, int group) {
            return new Span(
                    chunk.offset() + first, chunk.length() - first, chunk.start() + first, chunk.blockTables()[group]);
        }

        @Override
        public void close() {
            attention.close();
        }
    }
}
