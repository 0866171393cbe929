package baton.engine.model;

import baton.engine.kernel.AttentionScores;
import baton.engine.model.Batch.Chunk;
import baton.engine.model.Batch.Group;
import baton.kv.KvCache;
import baton.kv.KvLayout;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import org.bytedeco.pytorch.DoubleOptional;
import org.bytedeco.pytorch.LongOptional;
import org.bytedeco.pytorch.Scalar;
import org.bytedeco.pytorch.Tensor;
import org.bytedeco.pytorch.TensorOptional;
import org.bytedeco.pytorch.global.torch;
import org.bytedeco.pytorch.global.torch.ScalarType;

/*
 * Shapes. H query heads, G key/value heads, R = H / G query heads that share one, D head dim.
 *
 * Keys are never repeated for the R queries that share them. A sequence's first chunk attends, if it is long, with batch = G, heads = R
 * and the head stride of the keys being 0. Any other is cut into runs of rows, each with a mask, and the R queries of a row stand as rows of one
 * head: only with many rows does PyTorch's flash kernel for CPUs take large tiles, which are faster. Single tokens are taken together: batch = G,
 * heads = sequences, and the R queries stand where query positions would, so a sequence's keys are read once for all of them.
 * Fewer queries than the matrix unit takes attend in fp32, for which the kernel is much faster than for bf16 without that unit.
 *
 * PyTorch's operator knows neither caps of scores nor sinks: with these the products are separate operators, in fp32.
 */

/** Attention by LibTorch's {@code scaled_dot_product_attention}, of keys and values that are copied together from the paged cache. */
final class SdpaAttention implements Attention {
    /** Rows of a later chunk that share one mask. */
    private static final int MASKED_ROWS = 512;

    /**
     * Queries of a head that are taken together where rows are fewer, R of each: enough for the kernel's large tiles. Their mask is R
     * times as large, so more rows stay unstacked: with 512 it gains little.
     */
    private static final int STACKED_ROWS = 1024;

    /** Rows from which on the kernel takes large tiles by itself, and leaves out keys that are later than all queries of a tile. */
    private static final int LARGE_TILE_ROWS = 768;

    /**
     * Queries from which on the bf16 kernel of attention uses the processor's matrix unit. With fewer fp32 is far faster; with half as
     * many it pays to fill up with zeros.
     */
    private static final int FLASH_ROWS = 64;

    private static final short BF16_MINUS_INFINITY = (short) 0xff80;

    /** Attention is computed over multiples of this many positions: it has kernels by length, which are kept, and a mask is cheaper. */
    private static final int CONTEXT_STEP = 64;

    private static final int COPIED_ROWS = 32;

    /** Bytes that a thread copies at once: fewer are copied sooner than another thread has begun. */
    private static final int COPIED_BYTES = 64 << 10;

    private final ModelConfig config;
    private final KvCache cache;
    private final KvLayout layout;
    private final ScalarType type;
    private final ScalarType cacheType;
    private final OmpTeam team;
    private final AttentionScores scores;
    private final DoubleOptional scoreScale;
    private final TensorOptional none;
    private final int queryElements;

    /** The number of positions that a token attends to, by layer. */
    private final int[] reach;

    /**
     * @param type of queries and of the attended values
     * @param owned owns the objects that are made at the start
     */
    SdpaAttention(
            ModelConfig config,
            AttentionScores scores,
            KvCache cache,
            ScalarType type,
            OmpTeam team,
            int[] reach,
            Weights.Owned owned) {
        this.config = config;
        this.cache = cache;
        this.layout = cache.layout();
        this.type = type;
        this.cacheType = LibTorch.scalarType(layout.dtype());
        this.team = team;
        this.reach = reach.clone();
        this.scores = scores;
        this.scoreScale = LibTorch.keep(new DoubleOptional(scores.scale()), owned);
        this.none = LibTorch.keep(new TensorOptional(), owned);
        this.queryElements = config.heads() * config.headDim();
    }

    @Override
    public Pass begin(Batch batch, Optional<long[]> tailRows, Matrix queries, Matrix attended, Arena scratch) {
        return new Step(batch, tailRows, LibTorch.tensor(queries), LibTorch.tensor(attended), scratch);
    }

    @Override
    public void close() {}

    /** One forward pass: buffers and masks that all its layers share. */
    private final class Step implements Pass {
        private final Batch batch;
        private final Tensor queries;
        private final Tensor attended;
        private final int longest;
        private final Map<Integer, Plan> plans = new HashMap<>();
        private final Optional<Plan> tail;

        Step(Batch batch, Optional<long[]> tailRows, Tensor queries, Tensor attended, Arena scratch) {
            this.batch = batch;
            this.queries = queries;
            this.attended = attended;
            // Plain loops here and below: after a forward pass nothing of a stream's machinery is in the caches any
            // more.
            int most = 0;
            for (Group group : batch.groups()) {
                most = Math.max(most, group.longest());
            }
            for (Chunk chunk : batch.chunks()) {
                most = Math.max(most, chunk.context());
            }
            longest = most;
            for (int each : reach) {
                int window = Math.min(each, longest);
                if (!plans.containsKey(window)) {
                    plans.put(window, plan(window, scratch));
                }
            }
            tail = tailRows.map(this::tail);
        }

        @Override
        public void attend(int layer) {
            attend(layer, plan(layer));
        }

        @Override
        public void attendTail(int layer) {
            attend(layer, tail.orElseThrow());
        }

        private void attend(int layer, Plan plan) {
            for (GroupStep group : plan.groups) {
                SdpaAttention.this.attend(layer, group, this);
            }
            for (ChunkStep chunk : plan.chunks) {
                SdpaAttention.this.attend(layer, chunk, this);
            }
        }

        private Plan plan(int layer) {
            return Objects.requireNonNull(plans.get(Math.min(reach[layer], longest)));
        }

        private Plan plan(int window, Arena scratch) {
            List<GroupStep> groups = new ArrayList<>(batch.groups().size());
            for (Group group : batch.groups()) {
                groups.add(groupStep(group, window, scratch));
            }
            List<ChunkStep> chunks = new ArrayList<>(batch.chunks().size());
            for (Chunk chunk : batch.chunks()) {
                chunks.add(chunkStep(chunk, 0, window));
            }
            return new Plan(groups, chunks);
        }

        /** The plan of the rows from the first wanted one of each chunk on, in the last layer. */
        private Plan tail(long[] rows) {
            int layer = config.layers() - 1;
            if (rows.length == 0) {
                return new Plan(List.of(), List.of());
            }
            List<ChunkStep> chunks = new ArrayList<>();
            for (Chunk chunk : batch.chunks()) {
                int first = chunk.firstOf(rows);
                if (first < chunk.length()) {
                    chunks.add(chunkStep(chunk, first, Math.min(reach[layer], longest)));
                }
            }
            return new Plan(plan(layer).groups, chunks);
        }

        private GroupStep groupStep(Group group, int window, Arena scratch) {
            long[] shape = {config.kvHeads(), group.size(), padded(group.longest()), layout.entryElements()};
            Tensor gathered = LibTorch.empty(cacheType, shape);
            Tensor floats = cacheType == ScalarType.Float ? gathered : LibTorch.empty(ScalarType.Float, shape);
            return new GroupStep(group, mask(group, window, scratch), gathered, floats);
        }

        /** @param first the first row that attends, from the chunk's beginning */
        private ChunkStep chunkStep(Chunk chunk, int first, int window) {
            // A run begins anywhere and its positions are padded from there.
            int positions = padded(chunk.context()) + CONTEXT_STEP;
            return new ChunkStep(
                    chunk,
                    runs(chunk, first, window),
                    LibTorch.empty(cacheType, config.kvHeads(), positions, layout.entryElements()));
        }

        /** Zero for the last positions of a sequence, minus infinity elsewhere, as [1, sequences, 1, padded context]. */
        private TensorOptional mask(Group group, int window, Arena scratch) {
            int padded = padded(group.longest());
            boolean needed = false;
            for (int context : group.contexts()) {
                needed |= context < padded || context > window;
            }
            if (!needed) {
                return new TensorOptional();
            }
            // Comes as zeros.
            MemorySegment memory = scratch.allocate(ValueLayout.JAVA_FLOAT, (long) group.size() * padded);
            for (int i = 0; i < group.size(); i++) {
                long start = (long) i * padded;
                int context = group.contexts()[i];
                for (int position = 0; position < context - window; position++) {
                    memory.setAtIndex(ValueLayout.JAVA_FLOAT, start + position, Float.NEGATIVE_INFINITY);
                }
                for (int position = context; position < padded; position++) {
                    memory.setAtIndex(ValueLayout.JAVA_FLOAT, start + position, Float.NEGATIVE_INFINITY);
                }
            }
            return new TensorOptional(LibTorch.over(memory, ScalarType.Float, 1, group.size(), 1, padded));
        }

        private List<Run> runs(Chunk chunk, int begin, int window) {
            int shared = config.heads() / config.kvHeads();
            boolean whole = begin == 0 && chunk.start() == 0 && chunk.length() <= window;
            if (whole && chunk.length() >= (shared == 1 ? FLASH_ROWS : LARGE_TILE_ROWS)) {
                int height = Batch.padded(chunk.length());
                return List.of(run(0, chunk.length(), height, 0, chunk.length(), false, type, none));
            }
            int most = Math.clamp(STACKED_ROWS / shared, FLASH_ROWS, MASKED_ROWS);
            List<Run> runs = new ArrayList<>();
            int rows;
            for (int first = begin; first < chunk.length(); first += rows) {
                int left = chunk.length() - first;
                boolean many = !whole && left >= MASKED_ROWS;
                rows = Math.min(many ? MASKED_ROWS : most, left);
                int start = chunk.start() + first;
                int from = Math.max(0, start + 1 - window);
                int positions = start + rows - from;
                int height = Batch.padded(rows);
                boolean stacked = !many && 2 * shared * height >= FLASH_ROWS;
                height = stacked ? Math.max(height, Math.ceilDiv(FLASH_ROWS, shared)) : height;
                ScalarType as = stacked || many ? type : ScalarType.Float;
                Tensor mask = mask(as, stacked ? shared : 1, rows, height, start - from, padded(positions), window);
                runs.add(run(first, rows, height, from, positions, stacked, as, new TensorOptional(mask)));
            }
            return runs;
        }

        private Run run(
                int first,
                int rows,
                int height,
                int from,
                int positions,
                boolean stacked,
                ScalarType type,
                TensorOptional mask) {
            long shared = config.heads() / config.kvHeads();
            Tensor own = LibTorch.empty(type, config.kvHeads(), shared, height, config.headDim());
            // The padding behind the rows is computed too: denormal numbers there would be slow.
            own.narrow(2, rows, own.size(2) - rows).zero_();
            return new Run(first, rows, from, padded(positions), stacked, mask, own);
        }

        /**
         * Minus infinity where a position is later than a row's or not within its window, zero elsewhere and in the padding behind the
         * rows: [copies * height, positions].
         *
         * @param copies of all rows, one after the other
         * @param own the first row's position
         */
        private Tensor mask(ScalarType as, int copies, int rows, int height, int own, int positions, int window) {
            Tensor mask = LibTorch.empty(as, (long) copies * height, positions).zero_();
            long width = (long) positions * mask.element_size();
            MemorySegment memory = LibTorch.memory(mask, width * copies * height);
            for (int row = 0; row < rows; row++) {
                MemorySegment of = memory.asSlice(row * width, width);
                minusInfinity(of, as, 0, own + row + 1 - window);
                minusInfinity(of, as, own + row + 1, positions);
                for (int copy = 1; copy < copies; copy++) {
                    MemorySegment.copy(of, 0, memory, ((long) copy * height + row) * width, width);
                }
            }
            return mask;
        }

        private static void minusInfinity(MemorySegment row, ScalarType as, int first, int end) {
            if (as == ScalarType.Float) {
                for (int i = first; i < end; i++) {
                    row.setAtIndex(ValueLayout.JAVA_FLOAT, i, Float.NEGATIVE_INFINITY);
                }
            } else {
                for (int i = first; i < end; i++) {
                    row.setAtIndex(ValueLayout.JAVA_SHORT, i, BF16_MINUS_INFINITY);
                }
            }
        }
    }

    /** The operands of attention in the layers that reach equally far. */
    private record Plan(List<GroupStep> groups, List<ChunkStep> chunks) {}

    /**
     * @param gathered place for a layer's entries of the group
     * @param floats place for them in fp32; unused if they are
     */
    private record GroupStep(Group group, TensorOptional mask, Tensor gathered, Tensor floats) {}

    /** @param gathered place for a layer's entries up to the chunk's last, by head: [G, context, 2D] */
    private record ChunkStep(Chunk chunk, List<Run> runs, Tensor gathered) {}

    /**
     * Rows of a chunk that attend together.
     *
     * @param first the first of them, from the chunk's beginning
     * @param from first position that any of them attends to
     * @param positions how many from there, padded
     * @param stacked the R queries of a row stand as rows of one head: together they are many enough for the fast kernel
     * @param mask minus infinity where a position is later than the row's or behind its window: [padded rows, positions], R times if
     *     stacked; none: the rows are a sequence's first and attend to all before them
     * @param own place for their queries by head, in the type to attend in: [G, R, padded rows, D]
     */
    private record Run(
            int first, int rows, int from, long positions, boolean stacked, TensorOptional mask, Tensor own) {}

    private void attend(int layer, GroupStep groupStep, Step step) {
        Group group = groupStep.group;
        long head = config.headDim();
        long shared = config.heads() / config.kvHeads();
        long padded = padded(group.longest());
        gather(layer, group.blockTables(), group.contexts(), padded, groupStep.gathered);
        Tensor floats = cacheType == ScalarType.Float ? groupStep.gathered : groupStep.floats.copy_(groupStep.gathered);
        long[] shape = {config.kvHeads(), group.size(), padded, head};
        long entry = layout.entryElements();
        long[] strides = {group.size() * padded * entry, padded * entry, entry, 1};
        Tensor keys = floats.as_strided(shape, strides, new LongOptional(0));
        Tensor values = floats.as_strided(shape, strides, new LongOptional(layout.valueOffset()));
        long[] rowsShape = {config.kvHeads(), group.size(), shared, head};
        long[] rowsStrides = {shared * head, queryElements, head, 1};
        LongOptional offset = new LongOptional((long) group.offset() * queryElements);
        Tensor own = step.queries.as_strided(rowsShape, rowsStrides, offset).to(ScalarType.Float);
        Tensor result = attention(layer, new long[] {1, shared, 1}, own, keys, values, groupStep.mask, false);
        step.attended.as_strided(rowsShape, rowsStrides, offset).copy_(result);
    }

    /**
     * The sequences' cached entries of a layer, [G, sequences, padded, 2D]. Entries beyond a sequence's context are zero: such slots
     * may hold anything, NaN too, which no mask stops. Copied here and not by index_select, which first makes the whole layer of
     * the pool contiguous.
     */
    private void gather(int layer, List<int[][]> blockTables, int[] contexts, long padded, Tensor gathered) {
        int sequences = contexts.length;
        int group = cache.groups().groupOf(layer);
        long entry = layout.entryBytes();
        MemorySegment memory = LibTorch.memory(gathered, (long) config.kvHeads() * sequences * padded * entry);
        int together = (int) Math.max(1, COPIED_BYTES / (padded * entry));
        team.parallelFor(sequences * config.kvHeads(), together, (_, first, end) -> {
            for (int each = first; each < end; each++) {
                int sequence = each % sequences;
                int head = each / sequences;
                long used = contexts[sequence] * entry;
                long to = each * padded * entry;
                int block = 0;
                for (long at = 0; at < used; at += layout.headBytes()) {
                    long from = cache.layerStart(blockTables.get(sequence)[group][block++], layer)
                            + head * layout.headBytes();
                    MemorySegment.copy(cache.host(), from, memory, to + at, Math.min(layout.headBytes(), used - at));
                }
                memory.asSlice(to + used, padded * entry - used).fill((byte) 0);
            }
        });
    }

    private void attend(int layer, ChunkStep chunkStep, Step step) {
        Chunk chunk = chunkStep.chunk;
        long head = config.headDim();
        long shared = config.heads() / config.kvHeads();
        long positions = chunkStep.gathered.size(1);
        gather(
                layer,
                List.<int[][]>of(chunk.blockTables()),
                new int[] {chunk.context()},
                positions,
                chunkStep.gathered);
        long[] rowsStrides = {shared * head, head, queryElements, 1};
        long entry = layout.entryElements();
        long[] strides = {entry * positions, 0, entry, 1};
        for (Run run : chunkStep.runs) {
            Tensor source = chunkStep.gathered.to(run.own.scalar_type());
            long[] shape = {config.kvHeads(), run.stacked ? 1 : shared, run.positions, head};
            long start = entry * run.from;
            Tensor keys = source.as_strided(shape, strides, new LongOptional(start));
            Tensor values = source.as_strided(shape, strides, new LongOptional(start + layout.valueOffset()));
            long[] rowsShape = {config.kvHeads(), shared, run.rows, head};
            LongOptional rows = new LongOptional((long) (chunk.offset() + run.first) * queryElements);
            copyRows(step.queries.as_strided(rowsShape, rowsStrides, rows), run.own);
            boolean causal = !run.mask.has_value();
            Tensor own = run.stacked ? run.own.view(config.kvHeads(), 1, -1, head) : run.own;
            long[] heads = run.stacked ? new long[] {1, shared * run.own.size(2), 1} : new long[] {shared, 1, 1};
            Tensor result =
                    attention(layer, heads, own, keys, values, run.mask, causal).reshape(run.own.sizes());
            copyRows(result.narrow(2, 0, run.rows), step.attended.as_strided(rowsShape, rowsStrides, rows));
        }
    }

    /** Copies rows by head, [G, R, rows, D]; {@code to} may have more. */
    private void copyRows(Tensor from, Tensor to) {
        long rows = from.size(2);
        if (from.scalar_type() != to.scalar_type() || from.stride(3) != 1 || to.stride(3) != 1) {
            to.narrow(2, 0, rows).copy_(from);
            return;
        }
        long element = from.element_size();
        long bytes = from.size(3) * element;
        long groups = from.size(0);
        long shared = from.size(1);
        MemorySegment source = memory(from);
        MemorySegment target = memory(to);
        long[] there = {from.stride(0) * element, from.stride(1) * element, from.stride(2) * element};
        long[] here = {to.stride(0) * element, to.stride(1) * element, to.stride(2) * element};
        team.parallelFor((int) rows, COPIED_ROWS, (_, first, end) -> {
            for (long row = first; row < end; row++) {
                for (long group = 0; group < groups; group++) {
                    for (long each = 0; each < shared; each++) {
                        long at = group * there[0] + each * there[1] + row * there[2];
                        long into = group * here[0] + each * here[1] + row * here[2];
                        MemorySegment.copy(source, at, target, into, bytes);
                    }
                }
            }
        });
    }

    /** The memory from the first to the last element of a tensor with gaps. */
    private static MemorySegment memory(Tensor tensor) {
        long elements = 1;
        for (int i = 0; i < tensor.dim(); i++) {
            elements += (tensor.size(i) - 1) * tensor.stride(i);
        }
        return LibTorch.memory(tensor, elements * tensor.element_size());
    }

    /** @param heads shape of numbers for each of the R heads beside the queries of a group */
    private Tensor attention(
            int layer, long[] heads, Tensor queries, Tensor keys, Tensor values, TensorOptional mask, boolean causal) {
        if (scores.cap().isEmpty() && !scores.hasSinks()) {
            return torch.scaled_dot_product_attention(queries, keys, values, mask, 0.0, causal, scoreScale, false);
        }
        long groups = queries.size(0);
        Tensor attended = queries.clone();
        for (long group = 0; group < groups; group++) {
            Tensor own = queries.select(0, group).to(ScalarType.Float);
            Tensor product = torch.matmul(
                    own.mul(new Scalar(scores.scale())),
                    keys.select(0, group).to(ScalarType.Float).transpose(-2, -1));
            scores.cap()
                    .ifPresent(cap -> product.mul_(new Scalar(1 / cap)).tanh_().mul_(new Scalar(cap)));
            if (mask.has_value()) {
                Tensor given = mask.get();
                product.add_(given.dim() == product.dim() + 1 ? given.select(0, 0) : given);
            } else if (causal) {
                Tensor later =
                        product.new_ones(product.size(-2), product.size(-1)).triu(1);
                product.masked_fill_(later.to(ScalarType.Bool), new Scalar(Double.NEGATIVE_INFINITY));
            }
            Tensor total = torch.logsumexp(product, new long[] {-1}, true);
            Tensor weights = product.sub_(scores.hasSinks() ? total.logaddexp(sinks(layer, group, heads)) : total)
                    .exp_();
            attended.select(0, group)
                    .copy_(torch.matmul(weights, values.select(0, group).to(ScalarType.Float)));
        }
        return attended;
    }

    /** The sinks of a group's heads, in the shape of the sums of rows, where those of a head may be neighbours. */
    private Tensor sinks(int layer, long group, long... shape) {
        int shared = config.heads() / config.kvHeads();
        int rows = Math.toIntExact(shape[0] * shape[1]);
        float[] sinks = new float[rows];
        for (int row = 0; row < rows; row++) {
            sinks[row] = scores.sinks().get(layer)[Math.toIntExact(group) * shared + row * shared / rows];
        }
        Tensor tensor = LibTorch.empty(ScalarType.Float, shape);
        LibTorch.memory(tensor, (long) rows * Float.BYTES).copyFrom(MemorySegment.ofArray(sinks));
        return tensor;
    }

    private static int padded(int positions) {
        return Math.ceilDiv(positions, CONTEXT_STEP) * CONTEXT_STEP;
    }
}
