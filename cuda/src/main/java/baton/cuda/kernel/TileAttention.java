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
import java.util.function.Consumer;

/**
 * Attention of many rows on tensor cores, as in T. Dao's FlashAttention-2 (arXiv 2307.08691). A tile has queries of one key/value head: the heads
 * that share it are neighbours, then come those of the next row. A warp has 16 queries. Tiles of positions begin at multiples of their size, and one
 * is copied to shared memory while the one before is computed. Scores, weights and sums are fp32; weights are rounded to 16 bits for the product with
 * the values.
 *
 * <p>A position that a query does not attend to has a weight of 0 and changes no bit of its sums.
 *
 * <p>Sums of values of many elements are divided among blocks of threads, in parts of equal widths. Each of these blocks computes the scores, in the
 * same order. Of latent entries one copy in shared memory is key and value.
 */
final class TileAttention {
    static final int FEW_QUERIES = 64;

    /** The queries that share a copy of the entries in shared memory, for batches that fill the device. */
    static final int MANY_QUERIES = 128;

    private static final int WARP = PtxAssembler.WARP;
    private static final int WARP_QUERIES = 16;

    /** Elements of values that a block of threads sums up: more need too many registers. */
    private static final int MOST_ELEMENTS = 256;

    /** Elements of a matrix' row, which is {@link PtxAssembler#ACCESS} bytes. */
    private static final int CHUNK = AttentionShape.CHUNK;

    /** Elements of a product at once. */
    private static final int INPUTS = 16;

    /** Sums of a thread in a tile of 16 x 8: those of two rows. */
    private static final int SUMS = 4;

    private final PtxAssembler k;
    private final AttentionInputs code;
    private final AttentionShape shape;

    /** The type of 16 bits in which products are computed. */
    private final DType type;

    private final int queries;
    private final int threads;
    private final int padded;

    /** Elements of values that a block of threads sums up. */
    private final int width;

    private final int positions;
    private final int rowBytes;
    private final U32 thread;
    private final U32 lane;

    /** The lane's place in a matrix of 8 columns: its row, and the first of its two columns. */
    private final U32 group;

    private final U32 pair;

    /** The first element of the values that the block sums up. */
    private final U32 firstElement;

    /**
     * The tile of a block of threads.
     *
     * @param firstQuery number of the tile's first query among the sequence's of the head
     * @param lastQuery the last one there is
     * @param first position that a query attends to
     * @param end behind the last one
     */
    private record Tile(Sequence sequence, U32 head, U32 firstQuery, U32 lastQuery, U32 first, U32 end) {}

    /** One of the two rows of sums that a thread has: a query. */
    private final class Query {
        final Pred exists;
        final U32 row;
        final U32 head;
        final U32 position;
        final U32 first;
        final F32 largest;
        final F32 sum;

        Query(Tile tile, U32 number) {
            exists = k.test(number, Is.LE, tile.lastQuery);
            U32 some = k.min(number, tile.lastQuery);
            U32 ofSequence = k.div(some, shape.sharing());
            row = k.add(tile.sequence.firstRow(), ofSequence);
            head = k.mad(tile.head, shape.sharing(), k.rem(some, shape.sharing()));
            position = k.add(tile.sequence.start(), ofSequence);
            first = code.first(position);
            largest = k.variable(code.firstLargest(head));
            // Each of four lanes sums up its own weights.
            sum = k.variable(k.select(k.test(pair, Is.EQ, 0), code.firstSum(), f32(0)));
        }
    }

    private TileAttention(AttentionShape shape, int queries) {
        this.queries = queries;
        this.threads = queries / WARP_QUERIES * WARP;
        this.k = new PtxAssembler(name(queries), threads);
        this.thread = k.thread();
        this.lane = k.lane();
        this.group = k.shr(lane, 2);
        this.pair = k.shl(k.and(lane, 3), 1);
        this.code = new AttentionInputs(k, shape);
        this.shape = shape;
        this.type = shape.queries();
        this.padded = padded(shape);
        this.width = padded / parts(shape);
        this.firstElement = k.mul(k.rem(k.blockY(), parts(shape)), width);
        this.positions = positions(shape);
        this.rowBytes = entryBytes(shape);
    }

    static String name(int queries) {
        return "attend_tiles_" + queries;
    }

    /** Whether the kernel can be made. */
    static boolean suits(AttentionShape shape) {
        return shape.queries() != DType.F32
                && (shape.cache() == shape.queries() || shape.cache() == DType.F8_E4M3)
                // The last part has no padding.
                && (parts(shape) == 1 || shape.headDim() % INPUTS == 0)
                && loadedChunks(shape) <= FEW_QUERIES / WARP_QUERIES * WARP;
    }

    /** Blocks of threads that divide the values of a tile among them. */
    static int parts(AttentionShape shape) {
        int inputs = padded(shape) / INPUTS;
        int parts = Math.ceilDiv(padded(shape), MOST_ELEMENTS);
        while (inputs % parts != 0) {
            parts++;
        }
        return parts;
    }

    /** Chunks of an entry. */
    private static int loadedChunks(AttentionShape shape) {
        return shape.entryBytes() / (CHUNK * shape.cache().bytes());
    }

    /** Elements before the value of an entry in shared memory. */
    private static int valueStart(AttentionShape shape) {
        return shape.latent() ? 0 : padded(shape);
    }

    /** Elements of a key with those of a product that are zeros. */
    private static int padded(AttentionShape shape) {
        return Math.ceilDiv(shape.headDim(), INPUTS) * INPUTS;
    }

    private static int positions(AttentionShape shape) {
        return shape.headDim() > MOST_ELEMENTS / 2 ? 32 : 64;
    }

    /** Bytes from one row of queries in shared memory to the next: neighbours are in different banks. */
    private static int queryBytes(AttentionShape shape) {
        return (padded(shape) + CHUNK) * Short.BYTES;
    }

    private static int entryBytes(AttentionShape shape) {
        return (valueStart(shape) + padded(shape) + CHUNK) * Short.BYTES;
    }

    private static int bufferBytes(AttentionShape shape) {
        return positions(shape) * entryBytes(shape);
    }

    /** Dynamic shared memory: queries, and two tiles of entries. */
    static int sharedBytes(AttentionShape shape, int queries) {
        return queries * queryBytes(shape) + 2 * bufferBytes(shape);
    }

    /** Blocks are {@code (tiles, key/value heads * parts, sequences)}, of tiles of {@code rows * sharing} queries. */
    static PtxKernel kernel(AttentionShape shape, int queries) {
        return new TileAttention(shape, queries).kernel();
    }

    private PtxKernel kernel() {
        U32 shared = k.dynamicShared();
        // The last tiles have the longest contexts.
        U32 number = k.sub(k.sub(k.blocksX(), u32(1)), k.blockX());
        Sequence sequence = code.sequence(k.blockZ());
        code.exitUnless(Is.GT, sequence);
        U32 ofSequence = k.mul(sequence.rows(), shape.sharing());
        U32 firstQuery = k.mul(number, queries);
        k.exitIf(k.test(firstQuery, Is.GE, ofSequence));
        U32 lastQuery = k.sub(k.min(k.add(firstQuery, queries), ofSequence), u32(1));
        U32 firstPosition = k.add(sequence.start(), k.div(firstQuery, shape.sharing()));
        U32 lastPosition = k.add(sequence.start(), k.div(lastQuery, shape.sharing()));
        Tile tile = new Tile(
                sequence,
                k.div(k.blockY(), parts(shape)),
                firstQuery,
                lastQuery,
                code.first(firstPosition),
                k.add(lastPosition, 1));
        U32 entries = k.add(shared, queries * queryBytes(shape));
        loadQueries(tile, shared);
        padEntries(entries);

        U32 ownQuery = k.add(k.add(firstQuery, k.mul(k.warp(), WARP_QUERIES)), group);
        Query[] own = {new Query(tile, ownQuery), new Query(tile, k.add(ownQuery, CHUNK))};
        F32[][] results = variables(width / CHUNK);
        U32 from = k.mul(k.div(tile.first, positions), positions);
        U32 allFrom = code.first(lastPosition);
        loadEntries(tile, from, entries);
        k.commitCopies();
        U32 other = k.variable(u32(bufferBytes(shape)));
        U32 buffer = k.variable(entries);
        k.loop(from, tile.end, u32(positions), start -> {
            U32 next = k.add(start, positions);
            k.when(k.test(next, Is.LT, tile.end), () -> loadEntries(tile, next, k.add(entries, other)));
            k.commitCopies();
            k.waitForCopies(1);
            k.barrier();
            F32[][] scores = scores(shared, buffer);
            Pred masked = k.or(k.test(k.add(next, -1), Is.GT, firstPosition), k.test(start, Is.LT, allFrom));
            weigh(own, scores, start, masked, results);
            addValues(scores, buffer, results);
            k.barrier();
            k.set(buffer, k.add(entries, other));
            k.set(other, k.sub(u32(bufferBytes(shape)), other));
        });
        for (int i = 0; i < own.length; i++) {
            storeResult(own[i], results, 2 * i);
        }
        return k.kernel();
    }

    private F32[][] variables(int tiles) {
        F32[][] sums = new F32[tiles][];
        Arrays.setAll(sums, _ -> k.variables(SUMS, f32(0)));
        return sums;
    }

    /** A chunk of elements in the type of products. */
    private U32[] chunk(DType from, U64 address) {
        if (from == type) {
            return k.loadU32s(CHUNK / 2, address, 0);
        }
        F32[] numbers = k.load(from, CHUNK, address, 0);
        U32[] words = new U32[CHUNK / 2];
        Arrays.setAll(words, i -> k.pack(type, numbers[2 * i], numbers[2 * i + 1]));
        return words;
    }

    private void loadQueries(Tile tile, U32 shared) {
        int chunks = padded / CHUNK;
        k.loop(thread, u32(queries * chunks), u32(threads), number -> {
            U32 query = k.add(tile.firstQuery, k.div(number, chunks));
            U32 chunk = k.rem(number, chunks);
            U32[] words = new U32[CHUNK / 2];
            Arrays.setAll(words, _ -> k.variable(u32(0)));
            Pred exists = k.test(query, Is.LE, tile.lastQuery);
            k.when(padded == shape.headDim() ? exists : k.and(exists, k.test(chunk, Is.LT, shape.chunks())), () -> {
                U32 row = k.add(tile.sequence.firstRow(), k.div(query, shape.sharing()));
                U32 head = k.mad(tile.head, shape.sharing(), k.rem(query, shape.sharing()));
                U32[] loaded = chunk(shape.queries(), code.queries.at(k, row, head, k.mul(chunk, CHUNK)));
                for (int i = 0; i < words.length; i++) {
                    k.set(words[i], loaded[i]);
                }
            });
            U32 to = k.mad(k.div(number, chunks), queryBytes(shape), shared);
            k.storeU32(k.mad(chunk, PtxAssembler.ACCESS, to), 0, words);
        });
    }

    /** Makes zeros of the elements of both buffers that pad keys and values. */
    private void padEntries(U32 entries) {
        if (padded == shape.headDim()) {
            return;
        }
        U32[] zeros = new U32[CHUNK / 2];
        Arrays.fill(zeros, k.variable(u32(0)));
        k.loop(thread, u32(2 * positions), u32(threads), row -> {
            U32 to = k.mad(row, rowBytes, entries);
            int pad = shape.headDim() * Short.BYTES;
            k.storeU32(to, pad, zeros);
            if (!shape.latent()) {
                k.storeU32(to, padded * Short.BYTES + pad, zeros);
            }
        });
    }

    /** Copies a tile of entries to shared memory, with zeros for positions that no query attends to. */
    private void loadEntries(Tile tile, U32 start, U32 to) {
        int chunks = loadedChunks(shape);
        int groups = threads / chunks;
        U32 chunk = k.rem(thread, chunks);
        U32 ofGroup = k.div(thread, chunks);
        U32 column = padded == shape.headDim()
                ? chunk
                : k.select(k.test(chunk, Is.LT, shape.chunks()), chunk, k.add(chunk, padded / CHUNK - shape.chunks()));
        U32 ofColumn = k.mad(column, PtxAssembler.ACCESS, to);
        Consumer<U32> load = row -> {
            U32 position = k.add(start, row);
            Pred exists = k.and(k.test(position, Is.GE, tile.first), k.test(position, Is.LT, tile.end));
            U64 entry = code.entry(tile.sequence, tile.head, code.clamp(position, tile.first, tile.end));
            U64 from = k.at(entry, chunk, CHUNK * shape.cache().bytes());
            U32 place = k.mad(row, rowBytes, ofColumn);
            if (shape.cache() == type) {
                k.copyAsync(place, 0, from, exists);
            } else {
                U32[] words = chunk(shape.cache(), from);
                for (int i = 0; i < words.length; i++) {
                    words[i] = k.select(exists, words[i], u32(0));
                }
                k.storeU32(place, 0, words);
            }
        };
        for (int i = 0; i < positions; i += groups) {
            U32 row = k.add(ofGroup, i);
            boolean all = groups * chunks == threads && i + groups <= positions;
            if (all) {
                load.accept(row);
            } else {
                U32 end = u32(Math.min(i + groups, positions));
                k.when(k.test(row, Is.LT, end), () -> load.accept(row));
            }
        }
    }

    /** The products of queries and keys: tiles of 8 positions. */
    private F32[][] scores(U32 shared, U32 buffer) {
        F32[][] scores = variables(positions / CHUNK);
        // Matrices of 8 x 8: rows 0 and 8 of elements 0, then of elements 8.
        U32 queryRow = k.add(k.mul(k.warp(), WARP_QUERIES), k.and(lane, WARP_QUERIES - 1));
        U32 query = k.add(k.mad(queryRow, queryBytes(shape), shared), k.mul(k.shr(lane, 4), PtxAssembler.ACCESS));
        // Elements 0 and 8 of positions 0, then of positions 8.
        U32 keyRow = k.add(k.mul(k.shr(lane, 4), CHUNK), k.and(lane, CHUNK - 1));
        U32 key = k.add(k.mad(keyRow, rowBytes, buffer), k.mul(k.and(k.shr(lane, 3), 1), PtxAssembler.ACCESS));
        for (int input = 0; input < padded; input += INPUTS) {
            U32[] a = k.loadMatrices(false, query, input * Short.BYTES);
            for (int j = 0; j < scores.length; j += 2) {
                U32[] b = k.loadMatrices(false, key, j * CHUNK * rowBytes + input * Short.BYTES);
                k.multiply(type, scores[j], a, new U32[] {b[0], b[1]});
                k.multiply(type, scores[j + 1], a, new U32[] {b[2], b[3]});
            }
        }
        return scores;
    }

    /** Replaces scores by weights, and scales down the results so far. */
    private void weigh(Query[] own, F32[][] scores, U32 start, Pred masked, F32[][] results) {
        for (F32[] tile : scores) {
            for (F32 score : tile) {
                k.set(score, code.score(score));
            }
        }
        k.when(masked, () -> {
            for (int j = 0; j < scores.length; j++) {
                for (int i = 0; i < SUMS; i++) {
                    Query query = own[i / 2];
                    U32 position = k.add(k.add(start, pair), j * CHUNK + i % 2);
                    Pred attended =
                            k.and(k.test(position, Is.LE, query.position), k.test(position, Is.GE, query.first));
                    k.set(scores[j][i], k.select(attended, scores[j][i], f32(Double.NEGATIVE_INFINITY)));
                }
            }
        });
        for (int i = 0; i < own.length; i++) {
            Query query = own[i];
            F32 largest = query.largest;
            for (F32[] tile : scores) {
                largest = k.max(k.max(largest, tile[2 * i]), tile[2 * i + 1]);
            }
            largest = k.acrossLanes(largest, 4, k::max);
            F32 before = k.exp2(k.sub(query.largest, largest));
            k.set(query.largest, largest);
            F32 sum = k.mul(query.sum, before);
            for (F32[] tile : scores) {
                for (int j = 2 * i; j < 2 * i + 2; j++) {
                    k.set(tile[j], k.exp2(k.sub(tile[j], largest)));
                    sum = k.add(sum, tile[j]);
                }
            }
            k.set(query.sum, sum);
            for (F32[] tile : results) {
                for (int j = 2 * i; j < 2 * i + 2; j++) {
                    k.set(tile[j], k.mul(tile[j], before));
                }
            }
        }
    }

    /** Adds the products of weights and values: the sums of a product of scores lie as the inputs of one with values do. */
    private void addValues(F32[][] weights, U32 buffer, F32[][] results) {
        // Positions 0 and 8 of elements 0, then of elements 8.
        U32 valueRow = k.and(lane, WARP_QUERIES - 1);
        U32 ofPart = k.mad(firstElement, Short.BYTES, buffer);
        U32 value = k.add(k.mad(valueRow, rowBytes, ofPart), k.mul(k.shr(lane, 4), PtxAssembler.ACCESS));
        for (int j = 0; j < weights.length; j += 2) {
            U32[] a = {
                k.pack(type, weights[j][0], weights[j][1]),
                k.pack(type, weights[j][2], weights[j][3]),
                k.pack(type, weights[j + 1][0], weights[j + 1][1]),
                k.pack(type, weights[j + 1][2], weights[j + 1][3])
            };
            for (int e = 0; e < results.length; e += 2) {
                int offset = j * CHUNK * rowBytes + (valueStart(shape) + e * CHUNK) * Short.BYTES;
                U32[] b = k.loadMatrices(true, value, offset);
                k.multiply(type, results[e], a, new U32[] {b[0], b[1]});
                k.multiply(type, results[e + 1], a, new U32[] {b[2], b[3]});
            }
        }
    }

    /** @param first of the query's sums in a tile of 8 elements */
    private void storeResult(Query query, F32[][] results, int first) {
        F32 sum = k.acrossLanes(query.sum, 4, k::add);
        k.when(query.exists, () -> {
            U64 to = code.results.at(k, query.row, query.head, k.add(firstElement, pair));
            for (int e = 0; e < Math.min(width / CHUNK, shape.chunks()); e++) {
                k.store(
                        shape.results(),
                        to,
                        e * CHUNK * shape.results().bytes(),
                        k.div(results[e][first], sum),
                        k.div(results[e][first + 1], sum));
            }
        });
    }
}
