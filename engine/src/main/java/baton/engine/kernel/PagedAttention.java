package baton.engine.kernel;

import baton.kv.DType;
import baton.kv.KvCache;
import baton.kv.KvLayout;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;

/*
 * Shapes. G key/value heads, R query heads that share one, D head dim. A row's R queries of a key/value head, and those of neighbouring
 * rows, have a lane each of a panel. Scores are the product of the keys (as rows) with the panel of queries. The result is the product of
 * the transposed values (an element of the head is a row) with the panel of the scores' exponentials. So keys and values are used as they
 * lie in the cache: only queries and results are transposed, and only conversion to fp32 copies keys and values. The queries of a single
 * row would leave most lanes empty: DecodeAttention computes these.
 *
 * Sequences with few rows convert keys and values while they use them, run by run in a buffer of the thread's that stays in its caches. Longer
 * chunks have many panels that use the same keys and values, which are converted once, as many heads at a time as a buffer has room for.
 *
 * Positions are taken in runs that begin at multiples of RUN, and those that a query does not attend to change no bit of its sums: a row's
 * result does not depend on the rows beside it, nor on the content of the cache when it came.
 */

/*
 * An entry of latent attention is a key and a value at once. The last elements of a result, those of the rotated part, mean nothing.
 */

/*
 * Where pairs of bf16 are multiplied, by vectors or on the matrix unit, keys are used as they lie in the cache, and queries and weights are
 * rounded to bf16. Only values change their order: each element's row has the positions side by side.
 */

/**
 * Attention over a paged cache in fp32, or in pairs of bf16. The calling thread divides the work among the team's threads.
 *
 * <p>Rows of queries and results are [heads * D]: the R heads of key/value head g are heads g * R and on. Queries are fp32, results fp32 or bf16.
 */
public final class PagedAttention {
    /** Positions that a tile of scores has. */
    static final int RUN = 128;

    /** Runs of one call. They bound its time: the JVM cannot stop the thread meanwhile. */
    private static final int RUNS_AT_ONCE = 4;

    /** Bytes of keys and values that are converted for several panels. */
    private static final long SHARED_BYTES = 32L << 20;

    static final float NO_SCORE = -1e30f;
    private static final int QUAD = 4;

    private static final ValueLayout.OfFloat FLOAT = ValueLayout.JAVA_FLOAT;
    private static final ValueLayout.OfLong LONG = ValueLayout.JAVA_LONG;

    private final Kernels kernels;
    private final ParallelFor threads;
    private final KvCache cache;
    private final KvLayout layout;
    private final int kvHeads;
    private final int headDim;
    private final int lanes;
    private final MachineFunction addValues;
    private final List<Scratch> scratches = new ArrayList<>();
    private final AttentionScores attentionScores;
    private final MemorySegment capFactors;
    private final MemorySegment factor;

    /** Number of parts that the queries of a key/value head are cut into: more than one if they are more than a panel has lanes. */
    private final int parts;

    private final int partHeads;
    private final int panelRows;

    /** Whether queries, weights and values are multiplied in pairs of bf16. */
    private final boolean inPairs;

    /** Whether the matrix unit does that. */
    private final boolean onTiles;

    /** For each lane, its query's row in the panel, and the head in that row. */
    private final int[] laneRows;

    private final int[] laneHeads;

    /** Rows of a tile of scores that nothing attends to. */
    private final MemorySegment noScores;

    private Arena sharedArena = Arena.ofShared();
    private MemorySegment shared = MemorySegment.NULL;

    /**
     * Neighbouring tokens of a sequence that attend.
     *
     * @param row index of the first token among the rows of queries
     * @param count number of tokens
     * @param position of the first token; all keys and values up to each row's own are in the cache
     * @param blockTable of the sequence
     */
    public record Span(int row, int count, int position, int[] blockTable) {
        int end() {
            return position + count;
        }
    }

    /**
     * One call of {@link #attend}: the state that all its panels share.
     *
     * @param window how many positions a row attends to at most
     */
    private record Call(int layer, int window, Rows queries, Rows attended) {}

    /** Working memory of one thread. */
    private final class Scratch {
        final MemorySegment queries;
        final MemorySegment scores;
        final MemorySegment sums;
        final MemorySegment state;
        final MemorySegment limits;
        final MemorySegment from;
        final MemorySegment to;
        /** The result of each lane, [lanes, D]; lanes without a query write there too. */
        final MemorySegment results;

        final MemorySegment entries;
        final Optional<DecodeAttention> decode;
        final Optional<TileMemory> tiles;

        Scratch(Arena arena) {
            long row = (long) lanes * Float.BYTES;
            queries = floats(arena, headDim * row);
            scores = floats(arena, RUN * row);
            sums = floats(arena, headDim * row);
            state = floats(arena, 2 * row);
            limits = floats(arena, 2 * row);
            from = floats(arena, (long) lanes * Long.BYTES);
            to = floats(arena, (long) lanes * Long.BYTES);
            results = floats(arena, headDim * row);
            decode = parts == 1
                    ? DecodeAttention.of(kernels, cache, partHeads, attentionScores, arena)
                    : Optional.empty();
            tiles = inPairs
                    ? Optional.of(new TileMemory(arena, layout, lanes, scores, state, sums, capFactors))
                    : Optional.empty();
            entries = floats(arena, inPairs ? runBytes() : (long) (RUN + layout.blockSize()) * entryFloats());
        }

        private static MemorySegment floats(Arena arena, long bytes) {
            return arena.allocate(bytes, 64);
        }
    }

    /**
     * @param cache with a head dim that is a multiple of 8
     * @param heads query heads, a multiple of the cache's
     */
    public PagedAttention(
            Kernels kernels,
            ParallelFor threads,
            KvCache cache,
            int heads,
            AttentionScores attentionScores,
            Arena arena) {
        this.kernels = kernels;
        this.attentionScores = attentionScores;
        this.capFactors = attentionScores.capFactors(arena);
        this.threads = threads;
        this.cache = cache;
        this.layout = cache.layout();
        this.kvHeads = layout.kvHeads();
        this.headDim = layout.headDim();
        this.lanes = kernels.panelWidth();
        int sharing = heads / kvHeads;
        this.parts = IntStream.rangeClosed(Math.ceilDiv(sharing, lanes), sharing)
                .filter(count -> sharing % count == 0)
                .findFirst()
                .orElseThrow();
        this.partHeads = sharing / parts;
        this.panelRows = Math.max(1, lanes / partHeads);
        this.inPairs = suitsPairs(kernels, layout);
        this.onTiles = inPairs && kernels.hasTiles();
        this.laneRows = new int[lanes];
        this.laneHeads = new int[lanes];
        for (int lane = 0; lane < lanes; lane++) {
            laneRows[lane] = lane / partHeads;
            laneHeads[lane] = lane % partHeads;
        }
        long row = (long) lanes * Float.BYTES;
        this.noScores = arena.allocate(TileAttentionCode.POSITIONS * row, 64);
        for (int i = 0; i < TileAttentionCode.POSITIONS * lanes; i++) {
            noScores.setAtIndex(FLOAT, i, NO_SCORE);
        }
        this.addValues = MachineFunction.of(
                ProductCode.of(kernels.width(), WeightType.FP32, Math.toIntExact(entryFloats()), true),
                Kernel.ADDED_PRODUCT.arguments());
        this.factor = arena.allocate((long) lanes * Float.BYTES, 64);
        for (int i = 0; i < lanes; i++) {
            factor.setAtIndex(FLOAT, i, attentionScores.factor());
        }
        for (int i = 0; i < threads.size(); i++) {
            scratches.add(new Scratch(arena));
        }
    }

    /** Whether keys and values are multiplied in pairs of bf16: the rows of tiles lie in one block each, and vectors of bf16 fit. */
    static boolean suitsPairs(Kernels kernels, KvLayout layout) {
        return kernels.attendsInPairs()
                && layout.dtype() == DType.BF16
                && !layout.latent()
                && layout.blockSize() % TileCode.ROWS == 0
                && layout.headDim() % TileCode.INPUTS == 0;
    }

    /** Frees the memory that grew with the longest context. */
    public void close() {
        sharedArena.close();
    }

    /** Bytes of a position's key and value of one head in fp32. */
    private long entryFloats() {
        return (long) layout.entryElements() * Float.BYTES;
    }

    private long runBytes() {
        return TileMemory.runBytes(headDim);
    }

    /**
     * Attends for all rows of the spans.
     *
     * @param window how many positions a row attends to at most, its own included
     * @param attended where the results are written to: fp32, or bf16 on a processor with AVX512_BF16
     */
    public void attend(int layer, List<Span> spans, int window, Rows queries, Rows attended) {
        Call call = new Call(layer, window, queries, attended);
        List<Span> few = new ArrayList<>();
        for (Span span : spans) {
            if (span.count <= panelRows) {
                few.add(span);
            } else {
                attendMany(call, span);
            }
        }
        int units = kvHeads * parts;
        int tasks = few.size() * units;
        int piece = headsAtOnce(few, units, window);
        // Batches have the longest contexts last. They come first here, so that the pieces at the end, with which other
        // threads help, are short.
        Collections.reverse(few);
        threads.parallelFor(tasks, piece, (member, first, end) -> {
            for (int task = first; task < end; task++) {
                Panel panel = new Panel(call, few.get(task / units), task % units, scratches.get(member));
                int next = Math.min(task + 1, tasks - 1);
                panel.attendFew(few.get(next / units), next % units);
            }
        });
    }

    /**
     * Heads of a sequence that a thread takes at once; they lie side by side, and each prefetches the next one: all if each thread gets
     * several sequences of the longest context.
     */
    private int headsAtOnce(List<Span> spans, int units, int window) {
        long longest = 1;
        long all = 0;
        for (Span span : spans) {
            long attended = Math.min(span.end(), window);
            longest = Math.max(longest, attended);
            all += attended;
        }
        return Math.clamp(units * all / (2 * longest * threads.members()), 1, units);
    }

    private void attendMany(Call call, Span span) {
        int firstRun = firstRun(span.position, call.window);
        // Whole blocks are converted, of which a run need not begin with the first position.
        int start = inPairs ? firstRun : firstRun - firstRun % layout.blockSize();
        long headBytes = inPairs
                ? Math.ceilDiv(span.end() - start, RUN) * runBytes()
                : (long) Math.ceilDiv(span.end() - start, layout.blockSize()) * layout.blockSize() * entryFloats();
        int together = Math.clamp(SHARED_BYTES / headBytes, 1, kvHeads);
        MemorySegment converted = shared(together * headBytes);
        int panels = Math.ceilDiv(span.count, panelRows);
        for (int base = 0; base < kvHeads; base += together) {
            int firstHead = base;
            int heads = Math.min(together, kvHeads - firstHead);
            if (inPairs) {
                prepareRuns(call, span, start, firstHead, heads, converted);
            } else {
                convert(call, span, start, firstHead, heads, converted.address());
            }
            // Head by head: keys and values stay in the caches of the head's thread. The last panels have the longest
            // contexts: they come
            // first, so that the pieces at the end are short.
            threads.parallelFor(heads * parts * panels, 1, (member, first, end) -> {
                for (int task = first; task < end; task++) {
                    int row = (panels - 1 - task % panels) * panelRows;
                    int unit = task / panels;
                    int count = Math.min(panelRows, span.count - row);
                    Panel panel = new Panel(call, span, row, count, firstHead * parts + unit, scratches.get(member));
                    MemorySegment entries = converted.asSlice(unit / parts * headBytes, headBytes);
                    panel.attend(entries, start);
                }
            });
        }
    }

    /** Converts entries of some heads to fp32, {@code to[head][position]} from position {@code start} on. */
    private void convert(Call call, Span span, int start, int firstHead, int heads, long to) {
        int blockSize = layout.blockSize();
        int firstBlock = start / blockSize;
        int blocks = Math.ceilDiv(span.end() - start, blockSize);
        threads.parallelFor(heads * blocks, 8, (_, first, end) -> {
            for (int task = first; task < end; task++) {
                int block = firstBlock + task % blocks;
                int used = Math.min(blockSize, span.end() - block * blockSize);
                long place = to + task * (long) blockSize * entryFloats();
                convert(call.layer, span.blockTable[block], firstHead + task / blocks, 0, used, place);
            }
        });
    }

    /** Prepares the runs of some heads, {@code to[head][run]} from position {@code start} on. */
    private void prepareRuns(Call call, Span span, int start, int firstHead, int heads, MemorySegment to) {
        int runs = Math.ceilDiv(span.end() - start, RUN);
        threads.parallelFor(heads * runs, 1, (member, first, end) -> {
            for (int task = first; task < end; task++) {
                int at = start + task % runs * RUN;
                int positions = Math.min(RUN, span.end() - at);
                MemorySegment run = to.asSlice(task * runBytes(), runBytes());
                prepareRun(call, span, firstHead + task / runs, at, positions, scratches.get(member), run);
            }
        });
    }

    private void prepareRun(Call call, Span span, int head, int at, int positions, Scratch scratch, MemorySegment run) {
        long keyBytes = (long) headDim * Short.BYTES;
        scratch.tiles
                .orElseThrow()
                .turnValues(kernels, i -> entry(call, span, head, at + i) + keyBytes, positions, run.address());
        for (int i = 0; i < RUN / TileCode.ROWS; i++) {
            // Rows behind the end are multiplied, and their scores not used.
            int position = at + Math.min(i, (positions - 1) / TileCode.ROWS) * TileCode.ROWS;
            run.set(LONG, TileMemory.valueBytes(headDim) + (long) i * Long.BYTES, entry(call, span, head, position));
        }
    }

    /** Address of a position's key, behind which is its value. */
    private long entry(Call call, Span span, int head, int position) {
        return cache.host().address() + cache.entryStart(span.blockTable, call.layer, head, position);
    }

    /** Where the first run begins for a row at this position. */
    private static int firstRun(int position, int window) {
        return Math.max(0, position + 1 - window) / RUN * RUN;
    }

    private MemorySegment shared(long bytes) {
        if (shared.byteSize() < bytes) {
            sharedArena.close();
            sharedArena = Arena.ofShared();
            shared = sharedArena.allocate(bytes, 64);
        }
        return shared;
    }

    /** Converts a head's entries in a block to fp32, from slot {@code first} on. */
    private void convert(int layer, int block, int head, int first, int count, long to) {
        long from = cache.layerStart(block, layer) + head * layout.headBytes() + first * layout.entryBytes();
        kernels.get(Kernel.WIDEN, layout.dtype())
                .call(cache.host().address() + from, to, (long) count * layout.entryElements());
    }

    /** Queries that attend together: of some rows, those of one part of a key/value head. */
    private final class Panel {
        private final Call call;
        private final Span span;
        private final int row;
        private final int count;
        private final int head;
        private final int firstQuery;
        private final Scratch scratch;
        private final int used;

        /**
         * @param row the first, from the span's beginning
         * @param unit the part's number among those of all heads
         */
        Panel(Call call, Span span, int row, int count, int unit, Scratch scratch) {
            this.call = call;
            this.span = span;
            this.row = row;
            this.count = count;
            this.head = unit / parts;
            this.firstQuery = unit * partHeads;
            this.scratch = scratch;
            this.used = count * partHeads;
        }

        /** A panel of all rows of a span. */
        Panel(Call call, Span span, int unit, Scratch scratch) {
            this(call, span, 0, span.count, unit, scratch);
        }

        void attendFew(Span next, int nextUnit) {
            if (span.count == 1 && scratch.decode.isPresent()) {
                scratch.decode
                        .get()
                        .attend(
                                call.layer,
                                context(span, head),
                                context(next, nextUnit / parts),
                                place(call.queries, 0),
                                target(0));
                narrowResults();
            } else {
                attend(MemorySegment.NULL, 0);
            }
        }

        private DecodeAttention.Context context(Span of, int ofHead) {
            return new DecodeAttention.Context(
                    of.blockTable,
                    ofHead,
                    firstRun(of.position, call.window),
                    Math.max(0, of.position + 1 - call.window),
                    of.end());
        }

        /**
         * @param entries the head's keys and values in fp32 from position {@code start} on, or its runs prepared; empty if that is to be
         *     done
         */
        void attend(MemorySegment entries, int start) {
            for (int lane = 0; lane < lanes; lane++) {
                boolean real = lane < used;
                scratch.from.setAtIndex(LONG, lane, place(call.queries, real ? lane : 0));
                scratch.to.setAtIndex(LONG, lane, real ? target(lane) : result(lane));
            }
            long tileRow = (long) lanes * Float.BYTES;
            MemorySegment.copy(noScores, 0, scratch.state, 0, tileRow);
            scratch.state.asSlice(tileRow).fill((byte) 0);
            for (int lane = 0; attentionScores.hasSinks() && lane < lanes; lane++) {
                int query = firstQuery + laneHeads[lane];
                scratch.state.setAtIndex(FLOAT, lane, attentionScores.firstLargest(call.layer, query));
                scratch.state.setAtIndex(FLOAT, lanes + lane, attentionScores.firstSum());
            }
            scratch.sums.fill((byte) 0);
            int end = span.position + row + count;
            int first = firstRun(span.position + row, call.window);
            if (inPairs) {
                attendInPairs(scratch.tiles.orElseThrow(), entries, start, first, end);
            } else {
                attendByVectors(entries, start, first, end);
            }
            narrowResults();
        }

        private void attendByVectors(MemorySegment entries, int start, int first, int end) {
            long tileRow = (long) lanes * Float.BYTES;
            int quads = Math.ceilDiv(used, QUAD);
            kernels.get(Kernel.TO_LANES)
                    .call(scratch.from.address(), scratch.queries.address(), tileRow, quads, headDim, factor.address());
            if (entries.byteSize() > 0) {
                for (int at = first; at < end; at += RUN) {
                    int positions = Math.min(RUN, end - at);
                    take(entries.address() + (at - start) * entryFloats(), at, positions);
                }
            } else {
                convertAndTake(first, end);
            }
            kernels.get(Kernel.NORMALISE).call(scratch.sums.address(), headDim, scratch.state.address());
            kernels.get(Kernel.FROM_LANES).call(scratch.to.address(), scratch.sums.address(), tileRow, quads, headDim);
        }

        private void attendInPairs(TileMemory tiles, MemorySegment entries, int start, int first, int end) {
            kernels.get(Kernel.QUERY_PAIRS)
                    .call(scratch.from.address(), tiles.queries.address(), headDim / TileCode.INPUTS, factor.address());
            if (onTiles) {
                kernels.withTilesOfThread(
                        TileConfigurations.ofProduct(TileCode.MOST_ROWS),
                        () -> takeRuns(tiles, entries, start, first, end));
            } else {
                takeRuns(tiles, entries, start, first, end);
            }
            kernels.get(Kernel.RESULTS)
                    .call(
                            scratch.sums.address(),
                            scratch.to.address(),
                            headDim / TileCode.ROWS,
                            scratch.state.address());
        }

        private void takeRuns(TileMemory tiles, MemorySegment entries, int start, int first, int end) {
            for (int at = first; at < end; ) {
                int positions = Math.min(RUN, end - at);
                long run = entries.address() + (at - start) / RUN * runBytes();
                if (entries.byteSize() == 0) {
                    prepareRun(call, span, head, at, positions, scratch, scratch.entries);
                    run = scratch.entries.address();
                }
                int visible = !onTiles || entries.byteSize() == 0 ? 0 : Math.min(RUNS_AT_ONCE, visibleRuns(at));
                if (visible > 0) {
                    kernels.get(Kernel.RUNS).call(tiles.runArguments.address(), run, visible);
                    at += visible * RUN;
                } else {
                    takeInPairs(tiles, run, at, positions);
                    at += RUN;
                }
            }
        }

        /** Where a lane's query, or its result, is in a matrix. */
        private long place(Rows matrix, int lane) {
            long element = (firstQuery + laneHeads[lane]) * (long) headDim;
            return matrix.address(span.row + row + laneRows[lane])
                    + element * matrix.type().bytes();
        }

        /** Where a lane's result is written to in fp32. */
        private long target(int lane) {
            return call.attended.isNarrow() ? result(lane) : place(call.attended, lane);
        }

        private long result(int lane) {
            return scratch.results.address() + (long) lane * headDim * Float.BYTES;
        }

        /** Rounds the results to bf16 if that is their type. A row's heads follow each other in both matrices. */
        private void narrowResults() {
            if (call.attended.isNarrow()) {
                int width = partHeads * headDim;
                kernels.narrowingForPairs(width)
                        .call(
                                result(0),
                                (long) width * Float.BYTES,
                                place(call.attended, 0),
                                call.attended.stride(),
                                count,
                                width);
            }
        }

        private void convertAndTake(int first, int end) {
            int blockSize = layout.blockSize();
            for (int at = first; at < end; at += RUN) {
                int positions = Math.min(RUN, end - at);
                for (int done = 0; done < positions; ) {
                    int position = at + done;
                    int slot = position % blockSize;
                    int some = Math.min(blockSize - slot, positions - done);
                    convert(
                            call.layer,
                            span.blockTable[position / blockSize],
                            head,
                            slot,
                            some,
                            scratch.entries.address() + done * entryFloats());
                    done += some;
                }
                take(scratch.entries.address(), at, positions);
            }
        }

        /** Adds a run of positions from {@code at} on to the sums. */
        private void take(long entries, int at, int positions) {
            long scores = scratch.scores.address();
            kernels.get(Kernel.PRODUCT, WeightType.FP32)
                    .call(
                            entries,
                            entryFloats(),
                            scratch.queries.address(),
                            headDim,
                            scores,
                            positions,
                            scratch.queries.address());
            capScores(positions);
            kernels.get(mask(at, positions) ? Kernel.MASKED_SOFTMAX : Kernel.SOFTMAX)
                    .call(
                            scores,
                            positions,
                            scratch.state.address(),
                            scratch.limits.address(),
                            scratch.sums.address(),
                            headDim);
            addValues.call(
                    entries + (long) layout.valueOffset() * Float.BYTES,
                    Float.BYTES,
                    scores,
                    positions,
                    scratch.sums.address(),
                    headDim,
                    scores);
        }

        private void capScores(int positions) {
            if (capFactors.byteSize() > 0) {
                kernels.get(Kernel.CAP_SCORES)
                        .call(scratch.scores.address(), (long) positions * ProductCode.VECTORS, capFactors.address());
            }
        }

        /** As {@link #take}, for a prepared run. */
        private void takeInPairs(TileMemory tiles, long run, int at, int positions) {
            int padded = Math.ceilDiv(positions, TileAttentionCode.POSITIONS) * TileAttentionCode.POSITIONS;
            if (onTiles) {
                kernels.get(Kernel.GATHERED_BY_TILES)
                        .call(
                                run + TileMemory.valueBytes(headDim),
                                layout.entryBytes(),
                                tiles.queries.address(),
                                headDim / 2,
                                scratch.scores.address(),
                                padded / TileCode.ROWS);
            } else {
                score(tiles, at, positions);
            }
            capScores(positions);
            long row = (long) lanes * Float.BYTES;
            MemorySegment.copy(noScores, 0, scratch.scores, positions * row, (padded - positions) * row);
            kernels.get(mask(at, positions) ? Kernel.MASKED_SOFTMAX_TO_PAIRS : Kernel.SOFTMAX_TO_PAIRS)
                    .call(
                            scratch.scores.address(),
                            padded,
                            scratch.state.address(),
                            scratch.limits.address(),
                            scratch.sums.address(),
                            headDim,
                            tiles.weights.address());
            long valueStride = (long) RUN * Short.BYTES;
            long weights = tiles.weights.address();
            long sums = scratch.sums.address();
            if (onTiles) {
                kernels.get(Kernel.ADDED_BY_TILES).call(run, valueStride, weights, padded / 2, sums, headDim);
            } else {
                kernels.get(Kernel.ADDED_PRODUCT, WeightType.BF16_PAIRS)
                        .call(run, valueStride, weights, padded / 2, sums, headDim, weights);
            }
        }

        /** Scores of a run's positions. Their keys are used as they lie in the cache. */
        private void score(TileMemory tiles, int at, int positions) {
            MachineFunction product = kernels.get(Kernel.SCORES);
            long queries = tiles.queries.address();
            int some;
            for (int done = 0; done < positions; done += some) {
                some = Math.min(layout.blockSize() - (at + done) % layout.blockSize(), positions - done);
                long keys = entry(call, span, head, at + done);
                long scores = scratch.scores.address() + (long) done * lanes * Float.BYTES;
                product.call(keys, layout.entryBytes(), queries, headDim / 2, scores, some, queries);
            }
        }

        /** Number of runs from {@code at} on of which all rows attend to all positions. */
        private int visibleRuns(int at) {
            return at < firstOfLast() ? 0 : (span.position + row + 1 - at) / RUN;
        }

        /** The first position that the last row attends to. */
        private int firstOfLast() {
            return span.position + row + count - call.window;
        }

        /** Sets the limits of the run's positions if a row does not attend to some. */
        private boolean mask(int at, int positions) {
            int firstRow = span.position + row;
            boolean masked = at + positions - 1 > firstRow || at < firstOfLast();
            if (masked) {
                for (int lane = 0; lane < lanes; lane++) {
                    int position = firstRow + laneRows[Math.min(lane, used - 1)];
                    scratch.limits.setAtIndex(FLOAT, lane, position - at);
                    scratch.limits.setAtIndex(FLOAT, lanes + lane, Math.max(0, position + 1 - call.window) - at);
                }
            }
            return masked;
        }
    }
}
