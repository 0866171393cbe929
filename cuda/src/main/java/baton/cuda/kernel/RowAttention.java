package baton.cuda.kernel;

import static baton.cuda.ptx.PtxAssembler.f32;
import static baton.cuda.ptx.PtxAssembler.u32;

import baton.cuda.kernel.AttentionInputs.Sequence;
import baton.cuda.ptx.Is;
import baton.cuda.ptx.Operand.F32;
import baton.cuda.ptx.Operand.Pred;
import baton.cuda.ptx.Operand.U32;
import baton.cuda.ptx.Operand.U64;
import baton.cuda.ptx.PtxAssembler;
import baton.cuda.ptx.PtxKernel;
import baton.kv.DType;
import java.util.Arrays;
import java.util.function.BiConsumer;
import java.util.function.Function;

/**
 * Attention of one row's queries, in fp32: of heads that share a key/value head, which is loaded once. Positions are taken in pieces that begin at
 * multiples of {@link #PIECE}. A piece has scores, then their softmax, then a sum of values; then the pieces are put together in their
 * order. A block of threads computes all pieces of a row, or, where that leaves the device idle, one of them, and a second kernel puts them
 * together: the results are the same bits.
 */
final class RowAttention {
    /** Positions that have a softmax of their own. */
    static final int PIECE = 128;

    static final int THREADS = 128;

    private static final int CHUNK = AttentionShape.CHUNK;
    private static final int WARP = PtxAssembler.WARP;

    /** Positions that a thread has at once, so that their loads overlap. */
    private static final int AT_ONCE = 4;

    /** Query heads of a block of threads, and their elements, at most. */
    private static final int MOST_HEADS = 8;

    private static final int MOST_ELEMENTS = 2304;

    /** Pieces that {@link #together} loads at once. */
    private static final int PIECES_AT_ONCE = 8;

    /** Numbers of a piece in memory before its sums of values: the largest score, and the sum of weights. */
    private static final int STATE = 2;

    private final PtxAssembler k;
    private final AttentionInputs code;
    private final AttentionShape shape;
    private final int heads;
    private final int chunks;
    private final U32 thread;

    /** The queries that a block computes. */
    private record Work(Sequence sequence, U32 row, U32 position, U32 first) {}

    /** The state of an element: the largest score so far, the sum of weights, and the sum of values. */
    private record State(F32 largest, F32 sum, F32 values) {}

    /** Shared memory. */
    private record Shared(U32 queries, U32 entries, U32 weights, U32 state) {}

    private RowAttention(String name, AttentionShape shape) {
        this.k = new PtxAssembler(name, THREADS);
        this.code = new AttentionInputs(k, shape);
        this.shape = shape;
        this.heads = heads(shape);
        this.chunks = shape.chunks();
        this.thread = k.thread();
    }

    /** Query heads that a block of threads computes. */
    static int heads(AttentionShape shape) {
        int most = Math.min(MOST_HEADS, MOST_ELEMENTS / shape.headDim());
        int heads = Math.min(most, shape.sharing());
        while (shape.sharing() % heads != 0) {
            heads--;
        }
        return heads;
    }

    static String name(boolean split) {
        return split ? "attend_pieces" : "attend_rows";
    }

    /** Bytes of a piece's results of one head. */
    static long pieceBytes(int headDim) {
        return (long) (STATE + headDim) * Float.BYTES;
    }

    /**
     * Blocks are {@code (rows * pieces, query heads / heads, sequences)}.
     *
     * @param split a block computes one piece, and {@link #together} adds up the pieces
     */
    static PtxKernel kernel(AttentionShape shape, boolean split) {
        return new RowAttention(name(split), shape).attend(split);
    }

    private PtxKernel attend(boolean split) {
        U32 maxRows = k.parameterU32("maxRows");
        U32 pieces = k.parameterU32("pieces");
        U64 partial = k.parameterU64("partial");
        U32 piece = k.div(k.blockX(), maxRows);
        Work work = work(k.rem(k.blockX(), maxRows));
        U32 firstQuery = k.mul(k.blockY(), heads);
        U32 head = k.div(firstQuery, shape.sharing());
        U32 firstPiece = k.div(work.first, PIECE);
        U32 endPiece = k.add(k.div(work.position, PIECE), 1);
        if (split) {
            k.exitIf(k.test(k.add(firstPiece, piece), Is.GE, endPiece));
        }
        Shared shared = new Shared(
                k.shared(heads * shape.headDim() * Float.BYTES),
                k.shared(PIECE * Long.BYTES),
                k.shared(Math.max(PIECE * padded(), THREADS * CHUNK * heads) * Float.BYTES),
                k.shared(STATE * heads * Float.BYTES));
        loadQueries(work, firstQuery, shared);
        if (split) {
            U32 row = k.mad(k.blockZ(), maxRows, work.row);
            computePiece(work, head, k.mul(k.add(firstPiece, piece), PIECE), shared, (element, sum) -> {
                U32 of = k.div(element, shape.headDim());
                U32 query = k.add(k.mul(row, k.mul(k.blocksY(), heads)), k.add(firstQuery, of));
                U64 to = pieceAddress(partial, query, pieces, piece);
                U32 column = k.rem(element, shape.headDim());
                k.store(DType.F32, k.at(to, column, Float.BYTES), STATE * Float.BYTES, sum.values);
                k.when(k.test(column, Is.EQ, 0), () -> {
                    k.store(DType.F32, to, 0, sum.largest);
                    k.store(DType.F32, to, Float.BYTES, sum.sum);
                });
            });
            return k.kernel();
        }
        State[] states = new State[elementsOfThread(heads * shape.headDim())];
        eachElement(
                heads * shape.headDim(),
                (i, element) -> states[i] = begin(k.add(firstQuery, k.div(element, shape.headDim()))));
        k.loop(firstPiece, endPiece, u32(1), next -> {
            int[] i = {0};
            computePiece(work, head, k.mul(next, PIECE), shared, (_, sum) -> add(states[i[0]++], sum));
        });
        eachElement(heads * shape.headDim(), (i, element) -> {
            U32 query = k.add(firstQuery, k.div(element, shape.headDim()));
            storeResult(work, query, k.rem(element, shape.headDim()), states[i]);
        });
        return k.kernel();
    }

    /** Puts pieces together. Blocks are {@code (rows, query heads, sequences)}. */
    static PtxKernel together(AttentionShape shape) {
        return new RowAttention(TOGETHER, shape).together();
    }

    static final String TOGETHER = "attend_together";

    private PtxKernel together() {
        U32 maxRows = k.parameterU32("maxRows");
        U32 pieces = k.parameterU32("pieces");
        U64 partial = k.parameterU64("partial");
        Work work = work(k.blockX());
        U32 query = k.blockY();
        U32 row = k.mad(k.blockZ(), maxRows, work.row);
        U32 count = k.sub(k.add(k.div(work.position, PIECE), 1), k.div(work.first, PIECE));
        U32 ofAll = k.mad(row, k.blocksY(), query);
        eachElement(shape.headDim(), (_, element) -> {
            State state = begin(query);
            k.loop(u32(0), count, u32(PIECES_AT_ONCE), first -> {
                State[] loaded = new State[PIECES_AT_ONCE];
                for (int i = 0; i < loaded.length; i++) {
                    U32 piece = code.clamp(k.add(first, i), first, count);
                    loaded[i] = load(pieceAddress(partial, ofAll, pieces, piece), element);
                }
                for (int i = 0; i < loaded.length; i++) {
                    State piece = loaded[i];
                    k.when(k.test(k.add(first, i), Is.LT, count), () -> add(state, piece));
                }
            });
            storeResult(work, query, element, state);
        });
        return k.kernel();
    }

    private State load(U64 piece, U32 element) {
        return new State(
                k.load(DType.F32, piece, 0),
                k.load(DType.F32, piece, Float.BYTES),
                k.load(DType.F32, k.at(piece, element, Float.BYTES), STATE * Float.BYTES));
    }

    /** Ends the threads if there is no such row. */
    private Work work(U32 row) {
        Sequence sequence = code.sequence(k.blockZ());
        code.exitUnless(Is.LE, sequence);
        k.exitIf(k.test(row, Is.GE, sequence.rows()));
        U32 position = k.add(sequence.start(), row);
        return new Work(sequence, row, position, code.first(position));
    }

    private U64 pieceAddress(U64 partial, U32 query, U32 pieces, U32 piece) {
        U64 bytes = PtxAssembler.u64(pieceBytes(shape.headDim()));
        return k.at(k.at(partial, query, k.mul(k.wide(pieces), bytes)), piece, bytes);
    }

    private State begin(U32 query) {
        return new State(k.variable(code.firstLargest(query)), k.variable(code.firstSum()), k.variable(f32(0)));
    }

    private void add(State state, State piece) {
        F32 largest = k.max(state.largest, piece.largest);
        F32 before = k.exp2(k.sub(state.largest, largest));
        F32 ofPiece = k.exp2(k.sub(piece.largest, largest));
        k.set(state.sum, k.fma(state.sum, before, k.mul(piece.sum, ofPiece)));
        k.set(state.values, k.fma(state.values, before, k.mul(piece.values, ofPiece)));
        k.set(state.largest, largest);
    }

    private void storeResult(Work work, U32 query, U32 column, State state) {
        U32 row = k.add(work.sequence.firstRow(), work.row);
        k.store(shape.results(), code.results.at(k, row, query, column), 0, k.div(state.values, state.sum));
    }

    private static int elementsOfThread(int elements) {
        return Math.ceilDiv(elements, THREADS);
    }

    /** Each element of the thread's, of so many. */
    private void eachElement(int elements, BiConsumer<Integer, U32> then) {
        for (int i = 0; i < elementsOfThread(elements); i++) {
            int number = i;
            U32 element = k.add(thread, i * THREADS);
            if ((i + 1) * THREADS <= elements) {
                then.accept(number, element);
            } else {
                // Registers that this branch writes are read under the same condition only.
                k.when(k.test(element, Is.LT, elements), () -> then.accept(number, element));
            }
        }
    }

    /** Weights of a position: one for each head, a power of two of them. */
    private int padded() {
        return heads == 1 ? 1 : Integer.highestOneBit(heads - 1) << 1;
    }

    private void loadQueries(Work work, U32 firstQuery, Shared shared) {
        U32 row = k.add(work.sequence.firstRow(), work.row);
        k.loop(thread, u32(heads * chunks), u32(THREADS), number -> {
            U32 query = k.add(firstQuery, k.div(number, chunks));
            U64 from = code.queries.at(k, row, query, k.mul(k.rem(number, chunks), CHUNK));
            k.store(
                    DType.F32,
                    k.mad(number, CHUNK * Float.BYTES, shared.queries),
                    0,
                    k.load(shape.queries(), CHUNK, from, 0));
        });
    }

    /** Gives each of the thread's elements the piece's sums. All threads must be there, and those of the piece before are given. */
    private void computePiece(Work work, U32 head, U32 start, Shared shared, BiConsumer<U32, State> then) {
        // Places of the piece that are attended to.
        U32 low = k.sub(k.max(work.first, start), start);
        U32 high = k.min(k.sub(k.add(work.position, 1), start), u32(PIECE));
        k.loop(
                k.add(low, thread),
                high,
                u32(THREADS),
                place -> k.storeU64(
                        k.mad(place, Long.BYTES, shared.entries),
                        0,
                        code.entry(work.sequence, head, k.add(start, place))));
        k.barrier();
        score(low, high, shared);
        k.barrier();
        weigh(low, high, shared);
        k.barrier();
        sumUp(low, high, shared);
        k.barrier();
        int groups = THREADS / chunks;
        eachElement(heads * shape.headDim(), (_, element) -> {
            U32 at = k.mad(element, Float.BYTES, shared.weights);
            F32 sum = k.load(DType.F32, at, 0);
            for (int group = 1; group < groups; group++) {
                sum = k.add(sum, k.load(DType.F32, at, group * heads * shape.headDim() * Float.BYTES));
            }
            U32 state = k.mad(k.div(element, shape.headDim()), STATE * Float.BYTES, shared.state);
            then.accept(element, new State(k.load(DType.F32, state, 0), k.load(DType.F32, state, Float.BYTES), sum));
        });
    }

    /** Scores of all places, {@code [place][head]}: some neighbouring lanes have a place together, and chunks of its key in turns. */
    private void score(U32 low, U32 high, Shared shared) {
        int lanes = Math.min(CHUNK, Integer.lowestOneBit(chunks));
        int together = THREADS / lanes;
        int count = Math.min(AT_ONCE, PIECE / together);
        U32 group = k.div(thread, lanes);
        U32 lane = k.rem(thread, lanes);
        U32 query = k.mad(lane, CHUNK * Float.BYTES, shared.queries);
        int step = count * together;
        // From the step on that has the first place.
        U32 from = k.mul(k.div(low, step), step);
        k.loop(from, high, u32(step), base -> {
            U32[] places = new U32[count];
            U64[] keys = new U64[count];
            F32[][] products = new F32[count][];
            for (int i = 0; i < count; i++) {
                places[i] = k.add(k.add(base, group), i * together);
                U32 some = code.clamp(places[i], low, high);
                U64 entry = k.loadU64(k.mad(some, Long.BYTES, shared.entries), 0);
                keys[i] = k.at(entry, lane, CHUNK * shape.cache().bytes());
                products[i] = k.variables(heads, f32(0));
            }
            for (int chunk = 0; chunk < chunks / lanes; chunk++) {
                int first = chunk * lanes * CHUNK;
                F32[][] elements = new F32[count][];
                for (int i = 0; i < count; i++) {
                    elements[i] = k.load(
                            shape.cache(), CHUNK, keys[i], first * shape.cache().bytes());
                }
                for (int head = 0; head < heads; head++) {
                    F32[] ofQuery = k.load(DType.F32, CHUNK, query, (head * shape.headDim() + first) * Float.BYTES);
                    for (int i = 0; i < count; i++) {
                        for (int e = 0; e < CHUNK; e++) {
                            k.accumulate(products[i][head], ofQuery[e], elements[i][e]);
                        }
                    }
                }
            }
            for (int i = 0; i < count; i++) {
                F32[] scores = new F32[padded()];
                Arrays.fill(scores, f32(0));
                for (int head = 0; head < heads; head++) {
                    scores[head] = code.score(k.acrossLanes(products[i][head], lanes, k::add));
                }
                Pred isPlace = k.and(k.test(places[i], Is.GE, low), k.test(places[i], Is.LT, high));
                U32 to = k.mad(places[i], padded() * Float.BYTES, shared.weights);
                k.when(k.and(isPlace, k.test(lane, Is.EQ, 0)), () -> k.store(DType.F32, to, 0, scores));
            }
        });
    }

    /** Makes weights of scores: a warp for each head. */
    private void weigh(U32 low, U32 high, Shared shared) {
        U32 lane = k.lane();
        k.loop(k.warp(), u32(heads), u32(THREADS / WARP), head -> {
            F32[] scores = k.variables(PIECE / WARP, f32(Double.NEGATIVE_INFINITY));
            U32[] at = new U32[scores.length];
            Pred[] isPlace = new Pred[scores.length];
            F32 largest = f32(AttentionShape.NO_SCORE);
            for (int i = 0; i < scores.length; i++) {
                int number = i;
                U32 place = k.add(lane, i * WARP);
                isPlace[i] = k.and(k.test(place, Is.GE, low), k.test(place, Is.LT, high));
                at[i] = k.mad(k.mad(place, padded(), head), Float.BYTES, shared.weights);
                k.when(isPlace[i], () -> k.set(scores[number], k.load(DType.F32, at[number], 0)));
                largest = k.max(largest, scores[i]);
            }
            F32 ofAll = k.acrossLanes(largest, WARP, k::max);
            F32 sum = f32(0);
            for (int i = 0; i < scores.length; i++) {
                int number = i;
                F32 weight = k.exp2(k.sub(scores[i], ofAll));
                k.when(isPlace[i], () -> k.store(DType.F32, at[number], 0, weight));
                sum = k.add(sum, weight);
            }
            F32 ofWeights = k.acrossLanes(sum, WARP, k::add);
            U32 state = k.mad(head, STATE * Float.BYTES, shared.state);
            k.when(k.test(lane, Is.EQ, 0), () -> {
                k.store(DType.F32, state, 0, ofAll);
                k.store(DType.F32, state, Float.BYTES, ofWeights);
            });
        });
    }

    /** Sums of weighted values, {@code [group][head][element]}: a thread has a chunk of elements and, with its group, places in turns. */
    private void sumUp(U32 low, U32 high, Shared shared) {
        int groups = THREADS / chunks;
        U32 group = k.div(thread, chunks);
        U32 chunk = k.rem(thread, chunks);
        F32[][] sums = new F32[heads][];
        Arrays.setAll(sums, _ -> k.variables(CHUNK, f32(0)));
        Function<Runnable, Runnable> ofGroups = instructions -> () -> {
            if (groups * chunks == THREADS) {
                instructions.run();
            } else {
                k.when(k.test(group, Is.LT, groups), instructions);
            }
        };
        ofGroups.apply(() -> {
                    // The first place of the group's that is not before the first one.
                    U32 missing = k.sub(k.max(low, group), group);
                    U32 from = k.add(group, k.mul(k.div(k.add(missing, groups - 1), groups), groups));
                    k.loop(from, high, u32(AT_ONCE * groups), base -> {
                        F32[][] values = new F32[AT_ONCE][];
                        F32[][] weights = new F32[AT_ONCE][];
                        for (int i = 0; i < AT_ONCE; i++) {
                            U32 place = k.add(base, i * groups);
                            U32 some = code.clamp(place, low, high);
                            U64 entry = k.loadU64(k.mad(some, Long.BYTES, shared.entries), 0);
                            U64 value = k.at(entry, chunk, CHUNK * shape.cache().bytes());
                            values[i] = k.load(shape.cache(), CHUNK, value, shape.valueStart());
                            weights[i] =
                                    k.load(DType.F32, padded(), k.mad(some, padded() * Float.BYTES, shared.weights), 0);
                            Pred isPlace = k.test(place, Is.LT, high);
                            for (int head = 0; head < heads; head++) {
                                weights[i][head] = k.select(isPlace, weights[i][head], f32(0));
                            }
                        }
                        for (int i = 0; i < AT_ONCE; i++) {
                            for (int head = 0; head < heads; head++) {
                                for (int e = 0; e < CHUNK; e++) {
                                    k.accumulate(sums[head][e], weights[i][head], values[i][e]);
                                }
                            }
                        }
                    });
                })
                .run();
        // The sums take the place of the weights.
        k.barrier();
        ofGroups.apply(() -> {
                    for (int head = 0; head < heads; head++) {
                        U32 row = k.mad(k.mad(group, heads, u32(head)), shape.headDim(), k.mul(chunk, CHUNK));
                        k.store(DType.F32, k.mad(row, Float.BYTES, shared.weights), 0, sums[head]);
                    }
                })
                .run();
    }
}
