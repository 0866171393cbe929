package baton.cuda.model;

import baton.cuda.driver.Gpu;
import baton.cuda.kernel.DeviceRows;
import baton.cuda.kernel.ExpertOps;
import baton.engine.model.ModelConfig;
import baton.engine.model.Recipe.Experts;
import baton.engine.model.Recipe.Latent;
import baton.kv.DType;
import java.util.Optional;

/**
 * Memory for the results of a step's launches. Buffers between two launches of attention are as large as a piece of the rows.
 */
final class Activations implements AutoCloseable {
    /** DeviceRows that go through everything but attention together: enough for full speed, and few enough that activations take little memory. */
    static final int PIECE_ROWS = 1024;

    private final DeviceAllocations memory;
    private final int rows;
    private final int wanted;
    private boolean closed;

    /** The residual stream. */
    final DeviceRows x;

    final DeviceRows queries;
    final DeviceRows attended;

    /** The inputs of products, of a piece of the rows. */
    final DeviceRows normed;

    final DeviceRows projected;
    final DeviceRows keys;
    final DeviceRows gate;
    final DeviceRows up;
    final DeviceRows activated;
    final DeviceRows sum;

    /** The activations of experts. */
    final DeviceRows router;

    final long chosen;
    final long shares;
    /** {@link ExpertOps#group} makes them. */
    final long lists;

    final long sharedShares;
    final DeviceRows expertGate;
    final DeviceRows expertUp;
    final DeviceRows expertActivated;
    final DeviceRows expertResults;
    /** The results of the expert of all tokens. */
    final DeviceRows shared;

    /** The queries of latent attention, before their heads are multiplied with keys. */
    final DeviceRows latentQueries;
    /** The products of its heads. */
    final DeviceRows ofHeads;

    final DeviceRows headInputs;

    /** The rows that are used after the last layer. */
    final DeviceRows last;

    final DeviceRows lastAttended;
    final DeviceRows logits;
    final long best;
    final long bestValues;

    /**
     * Allocates all.
     *
     * @param dtype of the inputs of products
     * @param rows of a step at most
     * @param wanted rows after the last layer at most
     */
    static Activations of(Gpu gpu, ModelConfig config, DType dtype, int rows, int wanted) {
        DeviceAllocations memory = new DeviceAllocations(gpu);
        try {
            return new Activations(memory, config, dtype, rows, wanted);
        } catch (RuntimeException e) {
            memory.close();
            throw e;
        }
    }

    private Activations(DeviceAllocations memory, ModelConfig config, DType dtype, int rows, int wanted) {
        this.memory = memory;
        this.rows = rows;
        this.wanted = wanted;
        int piece = Math.min(Math.max(rows, wanted), PIECE_ROWS);
        int hidden = config.hiddenSize();
        int queryColumns = config.heads() * config.headDim();
        int keyColumns = config.kvHeads() * config.headDim();
        Optional<Experts> experts = config.recipe().experts();
        int width = Math.max(
                config.intermediateSize(), experts.map(Experts::sharedWidth).orElse(0));
        x = matrix(DType.F32, rows, hidden);
        queries = matrix(dtype, rows, queryColumns);
        attended = matrix(dtype, rows, queryColumns);
        normed = matrix(dtype, piece, hidden);
        Optional<Latent> latent = config.recipe().latent();
        int latentColumns = config.heads() * latent.map(Latent::query).orElse(0);
        int latentProjected =
                Math.max(latentColumns, latent.map(Latent::queryRank).orElse(0)) + config.headDim();
        projected = matrix(DType.F32, piece, latent.isPresent() ? latentProjected : queryColumns + 2 * keyColumns);
        latentQueries = matrix(DType.F32, piece, latentColumns);
        int headColumns = config.heads()
                * latent.map(each -> Math.max(each.rank(), each.values())).orElse(0);
        ofHeads = matrix(DType.F32, piece, headColumns);
        headInputs = matrix(dtype, piece, Math.max(latentProjected, headColumns));
        keys = matrix(DType.F32, piece, keyColumns);
        gate = matrix(DType.F32, piece, width);
        up = matrix(DType.F32, piece, width);
        activated = matrix(dtype, piece, width);
        sum = matrix(DType.F32, piece, hidden);
        int choices = piece * experts.map(Experts::chosen).orElse(0);
        int expertWidth = experts.map(Experts::width).orElse(0);
        router = matrix(DType.F32, piece, experts.map(each -> each.count() + 1).orElse(0));
        chosen = memory.allocate((long) choices * Integer.BYTES);
        shares = memory.allocate((long) choices * Float.BYTES);
        sharedShares = memory.allocate((long) piece * Float.BYTES);
        lists = memory.allocate(experts.map(each -> ExpertOps.listBytes(piece, each.chosen(), each.count()))
                .orElse(0L));
        expertGate = matrix(DType.F32, choices, expertWidth);
        expertUp = matrix(DType.F32, choices, expertWidth);
        expertActivated = matrix(dtype, choices, expertWidth);
        expertResults = matrix(DType.F32, choices, experts.isPresent() ? hidden : 0);
        boolean hasShared = experts.map(Experts::sharedWidth).orElse(0) > 0;
        shared = matrix(DType.F32, hasShared ? piece : 0, hidden);
        last = matrix(DType.F32, wanted, hidden);
        lastAttended = matrix(dtype, piece, queryColumns);
        logits = matrix(DType.F32, wanted, config.vocabularySize());
        best = memory.allocate((long) wanted * Integer.BYTES);
        bestValues = memory.allocate((long) wanted * Float.BYTES);
    }

    private DeviceRows matrix(DType type, int count, int columns) {
        return DeviceRows.matrix(memory.allocate((long) count * columns * type.bytes()), type, count, columns);
    }

    /** False once it is closed. */
    boolean suffice(int someRows, int someWanted) {
        return !closed && someRows <= rows && someWanted <= wanted;
    }

    /** Memory for the same model and such a step, twice as large where this is too small. This may be closed. */
    Activations grown(Gpu gpu, ModelConfig config, DType dtype, int someRows, int someWanted) {
        return of(
                gpu,
                config,
                dtype,
                someRows <= rows ? rows : Math.max(someRows, 2 * rows),
                someWanted <= wanted ? wanted : Math.max(someWanted, 2 * wanted));
    }

    @Override
    public void close() {
        closed = true;
        memory.close();
    }
}
