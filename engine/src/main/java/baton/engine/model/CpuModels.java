package baton.engine.model;

import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.KvGroups;
import baton.kv.KvLayout;
import baton.kv.ModelFingerprint;
import baton.kv.Require;
import baton.kv.Ticker;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.stream.IntStream;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Makes model runners of checkpoints, which compute on this machine's processors. */
public final class CpuModels {
    private static final Logger LOG = LoggerFactory.getLogger(CpuModels.class);

    private CpuModels() {}

    /** The same without quantisation. */
    public static ModelRunner load(
            Checkpoint checkpoint, DType dtype, KvLayout layout, int blocks, OptionalInt threads, int maxPositions)
            throws IOException {
        return load(checkpoint, dtype, Quantization.NONE, layout, blocks, threads, maxPositions);
    }

    /**
     * Loads a checkpoint's weights into memory of their own and allocates the KV pool; the checkpoint may be closed afterwards.
     *
     * @param dtype type to compute in and to keep weights in that are not quantised, bf16, fp16 or fp32
     * @param quantization how matrices are kept
     * @param layout of the KV pool: the model's layers, heads and head dim, in bf16, fp16, fp32 or fp8 (e4m3); see
     *     {@link ModelConfig#kvLayout}. Keys and values are rounded to its type before anything attends to them
     * @param blocks blocks in the KV pool
     * @param threads threads to compute with, in this process as a whole; empty: one for each processor
     * @param maxPositions positions a sequence may have
     * @throws ConfigException naming the part that does not fit
     * @throws IOException if the weights cannot be read
     * @throws IllegalStateException if LibTorch computes and cannot be loaded, or memory is refused
     */
    public static ModelRunner load(
            Checkpoint checkpoint,
            DType dtype,
            Quantization quantization,
            KvLayout layout,
            int blocks,
            OptionalInt threads,
            int maxPositions)
            throws IOException {
        KvLayout wanted = checkpoint.config().kvLayout(layout.blockSize(), layout.dtype());
        if (!layout.equals(wanted)) {
            throw new ConfigException(
                    "layout", "is %s, the model needs %s".formatted(layout.describe(), wanted.describe()));
        }
        ModelOptions options = new ModelOptions(
                dtype,
                quantization,
                layout.dtype(),
                layout.blockSize(),
                blocks,
                threads,
                maxPositions,
                1,
                1,
                false,
                false);
        return load(checkpoint, options).first();
    }

    /**
     * Loads a checkpoint's weights shared out among ranks, each with a KV pool for its layers and heads; the embedding, and an output
     * projection tied to it, are there once for all.
     *
     * @throws ConfigException naming the part that does not fit
     * @throws IOException if the weights cannot be read
     * @throws IllegalStateException if LibTorch computes and cannot be loaded, or memory is refused
     */
    public static ModelRanks load(Checkpoint checkpoint, ModelOptions options) throws IOException {
        KernelChoice choice = KernelChoice.here(checkpoint.config(), options.dtype(), options.quantization());
        LOG.info("kernels: {}", String.join("; ", choice.reasons()));
        return load(checkpoint, choice, options);
    }

    static ModelRanks load(Checkpoint checkpoint, KernelChoice choice, ModelOptions options) throws IOException {
        ModelConfig config = checkpoint.config();
        DType cacheDtype = options.cacheDtype();
        int tensorParallelSize = options.tensorParallelSize();
        int pipelineParallelSize = options.pipelineParallelSize();
        boolean byLibTorch = choice.kind() == KernelChoice.Kind.LIBTORCH;
        if (byLibTorch && cacheDtype != DType.BF16 && cacheDtype != DType.F32) {
            throw new ConfigException(
                    "kv_cache_dtype",
                    "is '%s', which LibTorch's operators do not read, must be auto, bfloat16 or float32"
                            .formatted(cacheDtype.torchName()));
        }
        Require.positive("blocks", options.blocks());
        Require.positive("max_model_len", options.maxPositions());
        List<Shard> shards = Shard.of(config, tensorParallelSize, pipelineParallelSize);
        int threadCount = byLibTorch
                ? LibTorch.load("its kernels compute the model", options.threads())
                : options.threads().orElse(Runtime.getRuntime().availableProcessors());
        ModelFingerprint fingerprint = options.fingerprint(checkpoint);
        Collective collective = new Collective(
                tensorParallelSize, pipelineParallelSize, config.hiddenSize(), Collective.TIMEOUT, Ticker.system());
        List<DecoderRunner> runners = new ArrayList<>();
        try {
            Work<Boolean> loading = () -> {
                for (Shard shard : shards) {
                    runners.add(DecoderRunner.load(
                            checkpoint,
                            fingerprint,
                            options,
                            threadCount,
                            choice,
                            shard,
                            collective.member(shard),
                            runners.stream().findFirst()));
                }
                return true;
            };
            boolean _ = byLibTorch ? apart(loading) : loading.run();
        } catch (IOException | RuntimeException | Error e) {
            runners.reversed().forEach(DecoderRunner::close);
            collective.close();
            throw e;
        }
        int layers = IntStream.range(0, pipelineParallelSize)
                .map(stage ->
                        runners.get(stage * tensorParallelSize).cache().layout().layers())
                .sum();
        return new ModelRanks(
                List.copyOf(runners),
                tensorParallelSize,
                pipelineParallelSize,
                config.kvLayout(KvGroups.one(layers), options.blockSize(), cacheDtype));
    }

    /**
     * Computes on a thread that ends with it, and returns the result. OpenMP's threads belong to the thread that computes and end
     * with it, and while there are more of them than processors, those that wait go to sleep at once; waking them for each
     * operator takes longer than small operators do. So work that only prepares a model must not leave such threads behind.
     *
     * @throws IOException from {@code work}
     */
    public static <T> T apart(Work<T> work) throws IOException {
        FutureTask<T> task = new FutureTask<>(work::run);
        Thread.ofPlatform().name("libtorch-apart").start(task);
        boolean interrupted = false;
        try {
            while (true) {
                try {
                    return task.get();
                } catch (InterruptedException e) {
                    // Waits on, without a deadline: the task works on memory that the caller would free.
                    interrupted = true;
                } catch (ExecutionException e) {
                    switch (e.getCause()) {
                        case IOException cause -> throw cause;
                        case RuntimeException cause -> throw cause;
                        case Error cause -> throw cause;
                        case null, default -> throw new IllegalStateException(e.getCause());
                    }
                }
            }
        } finally {
            HugePages.giveBack();
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    /** Something to compute. */
    public interface Work<T> {
        T run() throws IOException;
    }

    /**
     * Bytes of one block in the pools of all ranks together.
     *
     * @param hybrid as in {@link ModelOptions}
     * @throws ConfigException if the model cannot be shared like this
     */
    public static long blockBytes(
            ModelConfig config,
            int blockSize,
            DType cacheDtype,
            int tensorParallelSize,
            int pipelineParallelSize,
            boolean hybrid) {
        return Shard.of(config, tensorParallelSize, pipelineParallelSize).stream()
                .mapToLong(shard -> shard.config()
                        .kvLayout(shard.groups(hybrid), blockSize, cacheDtype)
                        .blockBytes())
                .sum();
    }

    /**
     * Bytes of a model's weights when they are loaded, about: panels are padded.
     *
     * @throws ConfigException if no kernels compute it
     */
    public static double weightBytes(ModelConfig config, DType dtype, Quantization quantization) {
        boolean sharesHead = KernelChoice.here(config, dtype, quantization).kind() == KernelChoice.Kind.LIBTORCH;
        double ofMatrix = quantization == Quantization.INT8 ? 1 : dtype.bytes();
        double embedding = (double) config.vocabularySize() * config.hiddenSize();
        double all = Checkpoint.tensorShapes(config).values().stream()
                .mapToDouble(
                        shape -> shape.stream().mapToDouble(Long::doubleValue).reduce(1, (a, b) -> a * b))
                .sum();
        double matrices = all - embedding + (config.tiedEmbeddings() && !sharesHead ? embedding : 0);
        return embedding * dtype.bytes() + matrices * ofMatrix;
    }

    /**
     * Measures the kernels that a model would be computed with.
     *
     * @throws ConfigException if no kernels compute it
     * @throws IllegalStateException if LibTorch computes and cannot be loaded, or memory is refused
     */
    public static ProductRates measure(ModelConfig config, DType dtype, Quantization quantization) throws IOException {
        KernelChoice choice = KernelChoice.here(config, dtype, quantization);
        int processors = Runtime.getRuntime().availableProcessors();
        if (choice.kind() == KernelChoice.Kind.LIBTORCH) {
            int threads = LibTorch.load("its products are measured", OptionalInt.of(processors));
            return apart(() -> ProductRates.measure(choice, dtype, quantization, threads));
        }
        return ProductRates.measure(choice, dtype, quantization, processors);
    }

    /**
     * Loads the native library, as loading a model does.
     *
     * @return its number of threads unless another one is set
     * @throws IllegalStateException if it cannot be loaded here, naming the missing requirement
     */
    public static int loadLibrary() {
        return LibTorch.load("its state is asked for", OptionalInt.empty());
    }

    /** Why {@link #loadLibrary} would fail for want of classes; empty if they are there. Loads nothing. */
    public static Optional<String> whyNoLibTorch() {
        return CpuModels.class.getResource("/org/bytedeco/pytorch/global/torch.class") == null
                ? Optional.of("LibTorch's jars (pytorch, openblas, javacpp) are not on the class path")
                : Optional.empty();
    }
}
