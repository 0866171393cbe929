package baton.cuda.model;

import baton.cuda.driver.CublasLt;
import baton.cuda.driver.Driver.DeviceInfo;
import baton.cuda.driver.Gpu;
import baton.cuda.driver.StreamFences;
import baton.cuda.kernel.GpuKernels;
import baton.cuda.kernel.LargeProducts;
import baton.cuda.model.StepInputs.Step;
import baton.engine.kernel.ParallelFor;
import baton.engine.kernel.ThreadTeam;
import baton.engine.model.Batch;
import baton.engine.model.Checkpoint;
import baton.engine.model.Logits;
import baton.engine.model.ModelConfig;
import baton.engine.model.ModelOptions;
import baton.engine.model.ModelRunner;
import baton.kv.DType;
import baton.kv.KvCache;
import baton.kv.KvDevice;
import baton.kv.KvFence;
import baton.kv.KvGroups;
import baton.kv.KvLayout;
import baton.kv.KvMemory;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;
import baton.kv.connector.HiddenState;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.util.List;
import java.util.Optional;
import java.util.function.IntUnaryOperator;
import java.util.stream.IntStream;

/**
 * Computes a model on a device. A step is one copy of its inputs and a sequence of launches, which is one graph where all sequences have one
 * token; at its end the ids of the largest logits are copied to the host.
 */
final class CudaRunner implements ModelRunner {
    private static final int LEAST_ROWS = 64;

    private final ModelConfig config;
    private final DType dtype;
    private final ModelFingerprint fingerprint;
    private final int maxPositions;
    private final Gpu gpu;
    private final boolean byLibrary;
    private final ThreadTeam team;
    private final KvCache cache;
    private final Gpu.Stream stream;
    private final StreamFences fences;
    private final StepInputs inputs;
    private final StepGraphs graphs;
    private final LayerLaunches launches;
    private final GrowingPinned best;
    private final GrowingPinned hiddenStates;
    private final CudaLogits.HostRows logitRows;
    private final Owned owned;
    private Activations activations;
    private long inputsAddress;
    private boolean closed;

    private CudaRunner(Gpu gpu, Optional<CublasLt> library, Checkpoint checkpoint, ModelOptions options, Owned owned)
            throws IOException {
        this.gpu = gpu;
        this.owned = owned;
        config = checkpoint.config();
        dtype = options.dtype();
        maxPositions = options.maxPositions();
        fingerprint = options.fingerprint(checkpoint);
        team = new ThreadTeam(options.threads().orElse(Runtime.getRuntime().availableProcessors()));
        owned.add(team, team::close);
        Optional<LargeProducts> largeProducts = library.flatMap(each -> LargeProducts.of(gpu, each));
        byLibrary = largeProducts.isPresent();
        GpuKernels kernels = new GpuKernels(gpu, dtype, largeProducts);
        owned.add(kernels, kernels::close);
        DeviceAllocations memory = new DeviceAllocations(gpu);
        owned.add(memory, memory::close);
        DeviceWeights weights = DeviceWeights.load(gpu, checkpoint, options, team.forUnevenPieces(), memory);
        stream = gpu.stream();
        owned.add(stream, stream::close);
        fences = new StreamFences(stream, Ticker.system());
        owned.add(fences, fences::close);
        cache = pool(options, kernels, owned);
        inputs = new StepInputs(gpu, cache, config.hiddenSize());
        owned.add(inputs, inputs::close);
        inputsAddress = inputs.address();
        graphs = new StepGraphs(stream);
        owned.add(graphs, graphs::clear);
        best = new GrowingPinned(gpu);
        owned.add(best, best::close);
        hiddenStates = new GrowingPinned(gpu);
        owned.add(hiddenStates, hiddenStates::close);
        logitRows = new CudaLogits.HostRows(gpu, config.vocabularySize());
        owned.add(logitRows, logitRows::close);
        activations = Activations.of(gpu, config, dtype, LEAST_ROWS, LEAST_ROWS);
        owned.add(activations, () -> activations.close());
        launches = new LayerLaunches(config, dtype, cache, weights, kernels, stream, inputs);
        owned.add(fences, fences::synchronize);
        fences.synchronize();
    }

    /**
     * Loads a model.
     *
     * @param gpu closed with the runner
     * @param library for products of many rows
     */
    static CudaRunner load(Gpu gpu, Optional<CublasLt> library, Checkpoint checkpoint, ModelOptions options)
            throws IOException {
        Owned owned = new Owned();
        owned.add(gpu, gpu::close);
        try {
            return new CudaRunner(gpu, library, checkpoint, options, owned);
        } catch (IOException | RuntimeException | Error e) {
            owned.closeAfter(e);
            throw e;
        }
    }

    /** A pool of zeros, with one block more than the cache has, see {@link StepInputs}. */
    private KvCache pool(ModelOptions options, GpuKernels kernels, Owned owned) {
        KvGroups groups = config.kvGroups(options.hybrid());
        KvLayout layout = config.kvLayout(groups, options.blockSize(), options.cacheDtype());
        long bytes = Math.multiplyExact(layout.blockBytes(), (long) options.blocks());
        Gpu.Buffer pool = gpu.allocate(bytes + layout.blockBytes());
        owned.add(pool, pool::close);
        stream.fill(pool.address(), 0, pool.bytes());
        CudaCopier copier = new CudaCopier(pool, kernels.copies());
        owned.add(copier, copier::close);
        List<String> names = IntStream.range(0, config.layers())
                .mapToObj("model.layers.%d.self_attn.attn"::formatted)
                .toList();
        KvDevice device = new KvDevice("cuda", gpu.ordinal());
        return new KvCache(
                new KvMemory.Device(pool.address(), bytes, device, copier), layout, options.blocks(), names, groups);
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
    public List<String> kernels() {
        DeviceInfo info = gpu.info();
        return List.of("cuda: %s, sm_%d, weights and products in %s, summed in float32%s"
                .formatted(
                        info.name(),
                        info.capability(),
                        dtype.torchName(),
                        byLibrary ? ", those of long prompts by cuBLASLt" : ""));
    }

    @Override
    public KvCache cache() {
        return cache;
    }

    @Override
    public ParallelFor threads() {
        return team.forUnevenPieces();
    }

    @Override
    public boolean takes(HiddenState state) {
        boolean known = state.dtype() == DType.F32 || state.dtype() == DType.BF16;
        return known
                && state.data().byteSize()
                        == (long) config.hiddenSize() * state.dtype().bytes();
    }

    @Override
    public Logits forward(List<SequenceSlice> slices, LayerHooks hooks) {
        if (closed) {
            throw new IllegalStateException("the model is closed");
        }
        Batch batch = new Batch(slices, config, cache, maxPositions, IntUnaryOperator.identity());
        try {
            return compute(batch, hooks);
        } catch (RuntimeException | Error e) {
            settle(e);
            throw e;
        }
    }

    /**
     * Waits for the launches and copies of a step that failed, which use pinned memory of the step.
     *
     * @throws Error if the device does nothing more: after a kernel's fault the driver refuses all until the process ends
     */
    private void settle(Throwable failure) {
        try {
            fences.synchronize();
        } catch (RuntimeException e) {
            Owned.suppress(failure, e);
            throw new Error("%s has failed: %s".formatted(gpu.info().name(), failure.getMessage()), failure);
        }
    }

    private Logits compute(Batch batch, LayerHooks hooks) {
        List<Integer> hiddenOf = List.copyOf(hooks.hiddenWanted());
        boolean single = batch.chunks().isEmpty() && batch.given().isEmpty() && hiddenOf.isEmpty();
        Step step =
                inputs.write(batch, hiddenOf.stream().mapToInt(batch::lastRow).toArray(), single, stream);
        makeRoom(step);
        hooks.begin();
        int logits = batch.logitRows().length;
        if (single) {
            decode(step, hooks);
        } else if (step.rows() > 0) {
            launches.layers(
                    step,
                    activations,
                    layer -> StreamFences.order(hooks.beforeLayer(layer), stream),
                    layer -> hooks.afterLayer(layer, fences.record()));
        }
        if (!single) {
            takeGiven(batch);
            launches.logits(logits, activations);
        }
        MemorySegment states = hiddenStates.of((long) hiddenOf.size() * hiddenBytes());
        if (!hiddenOf.isEmpty()) {
            stream.copyToHost(
                    states, activations.last.rows(logits, hiddenOf.size()).address());
        }
        MemorySegment ids = best.of(2L * logits * Integer.BYTES);
        if (logits > 0) {
            stream.copyToHost(ids.asSlice(0, ids.byteSize() / 2), activations.best);
            stream.copyToHost(ids.asSlice(ids.byteSize() / 2), activations.bestValues);
        }
        fences.synchronize();
        for (int i = 0; i < hiddenOf.size(); i++) {
            hooks.hidden(hiddenOf.get(i), new HiddenState(DType.F32, states.asSlice(i * hiddenBytes(), hiddenBytes())));
        }
        return new CudaLogits(stream, fences, activations.logits.rows(0, logits), ids, logitRows);
    }

    /** A step of single tokens: one graph, unless keys and values of a layer are still on their way. */
    private void decode(Step step, LayerHooks hooks) {
        List<KvFence> loaded =
                IntStream.range(0, config.layers()).mapToObj(hooks::beforeLayer).toList();
        if (loaded.stream().allMatch(KvFence::isPassed)) {
            graphs.launch(step, () -> {
                launches.layers(step, activations, _ -> {}, _ -> {});
                launches.logits(step.wanted(), activations);
            });
            KvFence computed = fences.record();
            IntStream.range(0, config.layers()).forEach(layer -> hooks.afterLayer(layer, computed));
            return;
        }
        launches.layers(
                step,
                activations,
                layer -> StreamFences.order(loaded.get(layer), stream),
                layer -> hooks.afterLayer(layer, fences.record()));
        launches.logits(step.wanted(), activations);
    }

    /** Puts the hidden states that were computed elsewhere where those of the last layer are. */
    private void takeGiven(Batch batch) {
        int[] rows = batch.given().keySet().stream()
                .mapToInt(Integer::intValue)
                .sorted()
                .toArray();
        for (int i = 0; i < rows.length; i++) {
            stream.copy(activations.last.rows(rows[i], 1).address(), inputs.hidden(i), hiddenBytes());
        }
    }

    private long hiddenBytes() {
        return (long) config.hiddenSize() * Float.BYTES;
    }

    /** Makes memory for a step; nothing is enqueued that uses the old one but the copy of inputs. */
    private void makeRoom(Step step) {
        boolean suffices = activations.suffice(step.rows(), step.wanted());
        if (suffices && inputs.address() == inputsAddress) {
            return;
        }
        fences.synchronize();
        graphs.clear();
        inputsAddress = inputs.address();
        if (!suffices) {
            // Both may not fit. If there is no room the next step asks again, for less if it is smaller.
            activations.close();
            activations = activations.grown(gpu, config, dtype, step.rows(), step.wanted());
        }
    }

    @Override
    public void close() {
        if (closed) {
            return;
        }
        closed = true;
        owned.close();
    }
}
