package baton.cuda.kernel;

import baton.cuda.driver.Gpu;
import baton.cuda.driver.Gpu.Stream;
import baton.cuda.ptx.PtxKernel;
import baton.kv.KvCache;
import baton.kv.KvLayout;
import java.util.ArrayList;
import java.util.List;

/**
 * Attention over a paged cache. Used by one stream at a time.
 *
 * <p>Sequences with few rows are computed in fp32 by {@link RowAttention}, as all are where the type of computation or the cache's is fp32, or
 * a block of threads has too little shared memory for a tile. Others
 * are computed on tensor cores by {@link TileAttention}. Both take positions in pieces that begin at fixed positions, and the choice depends on
 * the sequence's own rows: so a row's bits depend neither on other sequences nor on the number of blocks that compute it. They may depend on
 * whether few or many of its sequence's rows are computed at once.
 */
public final class AttentionOps implements AutoCloseable {
    /** The elements of a head are a multiple of this. */
    public static final int HEAD_MULTIPLE = AttentionShape.CHUNK;

    /** DeviceRows of sequences that are computed row by row. */
    static final int FEW_ROWS = 4;

    /** The limit of the partial results that blocks of threads leave for the kernel that combines them. */
    private static final long MOST_PARTIAL_BYTES = 128 << 20;

    private final Gpu gpu;
    private final int multiprocessors;
    private final Variants<AttentionShape> kernels;
    private final Scratch scratch;

    AttentionOps(Gpu gpu) {
        this(gpu, gpu.info().multiprocessors());
    }

    /** @param multiprocessors blocks of threads that are enough for the device */
    AttentionOps(Gpu gpu, int multiprocessors) {
        this.gpu = gpu;
        this.multiprocessors = multiprocessors;
        this.kernels = new Variants<>(gpu, AttentionOps::kernels);
        this.scratch = new Scratch(gpu);
    }

    static List<PtxKernel> kernels(AttentionShape shape) {
        List<PtxKernel> kernels = new ArrayList<>(List.of(
                RowAttention.kernel(shape, false), RowAttention.kernel(shape, true), RowAttention.together(shape)));
        if (TileAttention.suits(shape)) {
            kernels.add(TileAttention.kernel(shape, TileAttention.FEW_QUERIES));
            kernels.add(TileAttention.kernel(shape, TileAttention.MANY_QUERIES));
        }
        return kernels;
    }

    /**
     * Attends to the cached entries of positions up to each row's own.
     *
     * @param queries by row, of all heads, aligned to 8 elements
     * @param results as many, of any type
     * @param sequences address of four u32 for each: its first row, its number of rows, the position of the first row, and the index of its
     *     first entry in the block tables
     * @param blockTables address of u32, for each sequence from position 0 on, of the layer's group. Entries of blocks that no row attends to
     *     are not read
     * @param maxRows the most rows of a sequence, or more
     * @param maxContext the most positions of a sequence, or more
     * @param reach how many positions a row attends to at most, its own included
     * @param scale factor of the products of queries and keys
     * @param cap bound of scores, {@code cap * tanh(score / cap)}; 0: none
     * @param sinks address of an f32 for each head: the score of a position that has no value; 0: none
     */
    public void attend(
            Stream stream,
            DeviceRows queries,
            DeviceRows results,
            KvCache cache,
            int layer,
            long sequences,
            int sequenceCount,
            long blockTables,
            int maxRows,
            int maxContext,
            int reach,
            float scale,
            float cap,
            long sinks) {
        KvLayout layout = cache.layout();
        AttentionShape shape = shape(queries, results, layout, cap != 0, sinks != 0);
        Functions functions = kernels.of(shape);
        boolean onTiles = TileAttention.suits(shape)
                && TileAttention.sharedBytes(shape, TileAttention.FEW_QUERIES)
                        <= gpu.info().sharedBytes();
        AttentionInputs.Call call = new AttentionInputs.Call(
                queries,
                results,
                cache.memory().address() + cache.layerStart(0, layer),
                layout.blockBytes(),
                sequences,
                blockTables,
                sinks,
                reach,
                scale,
                cap);
        int fewRows = onTiles ? Math.min(FEW_ROWS, maxRows) : maxRows;
        int pieces = (int) Math.min(
                Math.ceilDiv(maxContext, RowAttention.PIECE),
                // They begin anywhere in a piece.
                ((long) reach + RowAttention.PIECE - 2) / RowAttention.PIECE + 1);
        attendRows(stream, functions, shape, call, sequenceCount, fewRows, pieces);
        if (onTiles && maxRows > FEW_ROWS) {
            attendTiles(stream, functions, shape, call, sequenceCount, maxRows * shape.sharing());
        }
    }

    private void attendTiles(
            Stream stream,
            Functions functions,
            AttentionShape shape,
            AttentionInputs.Call call,
            int sequences,
            int rows) {
        int units = call.queries().heads() / shape.sharing() * TileAttention.parts(shape);
        int many = TileAttention.MANY_QUERIES;
        boolean isMany = Math.ceilDiv(rows, many) * units * sequences >= multiprocessors
                && TileAttention.sharedBytes(shape, many) <= gpu.info().sharedBytes();
        int queries = isMany ? many : TileAttention.FEW_QUERIES;
        String name = TileAttention.name(queries);
        int shared = TileAttention.sharedBytes(shape, queries);
        functions.allowShared(name, shared);
        functions.launch(
                stream,
                name,
                Math.ceilDiv(rows, queries),
                units,
                sequences,
                shared,
                call.arguments(FEW_ROWS).toArray());
    }

    private void attendRows(
            Stream stream,
            Functions functions,
            AttentionShape shape,
            AttentionInputs.Call call,
            int sequences,
            int rows,
            int pieces) {
        int heads = call.queries().heads();
        int units = heads / RowAttention.heads(shape);
        long bytes = (long) sequences * rows * heads * pieces * RowAttention.pieceBytes(shape.headDim());
        // Other batches have enough blocks of threads without.
        boolean split = pieces > 1 && rows <= FEW_ROWS && bytes <= MOST_PARTIAL_BYTES;
        long partial = split ? scratch.address(bytes) : 0;
        long[] arguments =
                call.arguments(rows).add(rows).add(pieces).add(partial).toArray();
        functions.launch(stream, RowAttention.name(split), rows * (split ? pieces : 1), units, sequences, 0, arguments);
        if (split) {
            functions.launch(stream, RowAttention.TOGETHER, rows, heads, sequences, 0, arguments);
        }
    }

    private static AttentionShape shape(
            DeviceRows queries, DeviceRows results, KvLayout layout, boolean capped, boolean sinks) {
        if (queries.columns() != layout.headDim()
                || queries.heads() % layout.kvHeads() != 0
                || !queries.isAligned(AttentionShape.CHUNK)
                || !results.isAligned(AttentionShape.CHUNK)) {
            throw new IllegalArgumentException(
                    "queries=%s and results=%s must be a multiple of %d heads of %d elements, aligned to %d elements"
                            .formatted(queries, results, layout.kvHeads(), layout.headDim(), AttentionShape.CHUNK));
        }
        return new AttentionShape(
                queries.type(),
                results.type(),
                layout.dtype(),
                layout.headDim(),
                layout.blockSize(),
                queries.heads() / layout.kvHeads(),
                capped,
                sinks,
                layout.latent());
    }

    @Override
    public void close() {
        kernels.close();
        scratch.close();
    }
}
