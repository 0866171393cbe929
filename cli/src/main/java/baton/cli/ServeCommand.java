package baton.cli;

import baton.engine.CpuBinding;
import baton.engine.EngineConfig;
import baton.engine.LocalEngine;
import baton.engine.ParallelConfig;
import baton.engine.model.Device;
import baton.kv.DType;
import baton.kv.KvTransferConfig;
import baton.server.ApiServer;
import baton.server.PrometheusMetrics;
import baton.server.ServerConfig;
import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import picocli.CommandLine.Command;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;

/** {@code baton serve}: one instance with an OpenAI API. Flags are vLLM's. */
@Command(
        name = "serve",
        description = "Serves a model with an OpenAI API.",
        mixinStandardHelpOptions = true,
        sortOptions = false,
        footer = {
            "",
            "How to exchange KV caches is vLLM's KVTransferConfig, whole or field by field:",
            "  --kv-transfer-config '{\"kv_connector\": \"SharedStorageConnector\", \"kv_role\": \"kv_producer\"}'",
            "  --kv-transfer-config.kv_connector_extra_config.shared_storage_path /mnt/kv"
        })
final class ServeCommand implements Callable<Integer> {
    private static final Logger LOG = LoggerFactory.getLogger(ServeCommand.class);

    @Parameters(
            index = "0",
            arity = "0..1",
            paramLabel = "MODEL_DIR",
            description = "Hugging Face checkpoint directory; the embedded tiny-ledger if not given.")
    private @Nullable Path model;

    @Option(names = "--model", paramLabel = "MODEL_DIR", description = "The same, as a flag.")
    private @Nullable Path modelFlag;

    @Option(
            names = "--host",
            defaultValue = "127.0.0.1",
            description = "Address to listen on (default: ${DEFAULT-VALUE}).")
    private String host;

    @Option(
            names = "--port",
            defaultValue = "8000",
            description = "Port to listen on, 0 for any free one (default: ${DEFAULT-VALUE}).")
    private int port;

    @Option(
            names = "--served-model-name",
            arity = "1..*",
            description = "Names of the model in the API (default: the directory's name).")
    private String[] servedModelNames = {};

    @Option(names = "--api-key", description = "Key that clients must present.")
    private @Nullable String apiKey;

    @Option(names = "--dtype", defaultValue = "auto", description = "auto (the checkpoint's), bfloat16 or float32.")
    private String dtype;

    @Option(
            names = "--max-model-len",
            converter = HumanSize.AsInt.class,
            description = "Tokens that prompt and output may have together (default: the model's limit).")
    private @Nullable Integer maxModelLen;

    @Option(names = "--block-size", description = "Tokens in a KV block (default: 16).")
    private @Nullable Integer blockSize;

    @Option(names = "--max-num-seqs", description = "Sequences in one step (default: 128).")
    private @Nullable Integer maxNumSeqs;

    @Option(
            names = "--max-num-batched-tokens",
            converter = HumanSize.AsInt.class,
            description = "Tokens in one step; longer prompts are prefilled in chunks (default: 2048).")
    private @Nullable Integer maxNumBatchedTokens;

    @Option(
            names = "--enable-prefix-caching",
            negatable = true,
            defaultValue = "true",
            fallbackValue = "true",
            description = "Share KV blocks among requests with equal prefixes (default: on).")
    private boolean enablePrefixCaching;

    @Option(
            names = "--kv-cache-memory-bytes",
            converter = HumanSize.AsLong.class,
            description = "Memory for the KV cache (default: 1G).")
    private @Nullable Long kvCacheBytes;

    @Option(names = "--num-gpu-blocks-override", description = "Blocks of the KV cache, instead of its memory.")
    private @Nullable Integer numBlocks;

    @Option(
            names = "--max-waiting",
            description = "Requests that may wait before more are refused with 503 (default: 4096).")
    private @Nullable Integer maxWaiting;

    @Option(
            names = "--threads",
            description = "Threads to compute with, shared out among the ranks (default: all cores).")
    private @Nullable Integer threads;

    @Option(names = "--seed", description = "Seed of requests that bring none (default: 0).")
    private @Nullable Long seed;

    @Option(
            names = {"--tensor-parallel-size", "-tp"},
            defaultValue = "1",
            description = "Ranks, threads of this process, that share each layer's heads (default: ${DEFAULT-VALUE}).")
    private int tensorParallelSize;

    @Option(
            names = {"--pipeline-parallel-size", "-pp"},
            defaultValue = "1",
            description = "Stages of ranks that share the layers (default: ${DEFAULT-VALUE}).")
    private int pipelineParallelSize;

    @Option(
            names = "--cpu-bind",
            paramLabel = "CORES",
            defaultValue = "auto",
            description = "Cores of each rank, stage after stage, such as '0-3|4-7'; auto: not pinned.")
    private String cpuBind;

    @Option(
            names = "--device",
            defaultValue = "auto",
            description = "auto, cpu or cuda (refused where it cannot be used) (default: ${DEFAULT-VALUE}).")
    private String device;

    @Option(
            names = {"--gpu-memory-utilization", "--swap-space", "--distributed-executor-backend", "--tokenizer-mode"},
            hidden = true)
    private String[] withoutEffect = {};

    @Option(
            names = {
                "--enforce-eager",
                "--trust-remote-code",
                "--enable-chunked-prefill",
                "--disable-log-requests",
                "--no-enable-log-requests",
                "--disable-log-stats",
                "--disable-uvicorn-access-log"
            },
            hidden = true)
    private boolean[] switchesWithoutEffect = {};

    @Option(names = "--exit-with-parent", hidden = true, description = "Stop when standard input ends.")
    private boolean exitWithParent;

    private Optional<KvTransferConfig> kvTransfer = Optional.empty();

    /** The transfer configuration has a syntax of its own and is read before the other options. */
    void kvTransfer(Optional<KvTransferConfig> config) {
        kvTransfer = config;
    }

    @Override
    public Integer call() throws IOException, InterruptedException {
        EngineConfig config = engineConfig();
        String name = config.model().toAbsolutePath().normalize().getFileName().toString();
        List<String> names = servedModelNames.length == 0 ? List.of(name) : List.of(servedModelNames);
        ServerConfig.Builder server = ServerConfig.of(names.getFirst())
                .servedModelNames(names)
                .host(host)
                .port(port)
                .version(Baton.Version.current());
        Optional.ofNullable(apiKey).ifPresent(server::apiKey);
        // A wrong option is told before the model is loaded.
        server.build();
        PrometheusMetrics metrics = new PrometheusMetrics(names.getFirst());
        LocalEngine engine = LocalEngine.start(config, metrics);
        ApiServer api;
        try {
            api = ApiServer.start(
                    server.samplingDefaults(sampling -> sampling.defaults(engine.generationDefaults()))
                            .build(),
                    engine,
                    metrics);
        } catch (RuntimeException e) {
            engine.close();
            throw e;
        }
        return Service.run("baton serve", host, api.port(), exitWithParent, () -> {
            api.close();
            engine.close();
        });
    }

    EngineConfig engineConfig() {
        if (withoutEffect.length + switchesWithoutEffect.length > 0) {
            LOG.info("Some of the flags are vLLM's and have no effect here");
        }
        Optional<Path> directory = Optional.ofNullable(model).or(() -> Optional.ofNullable(modelFlag));
        EngineConfig.Builder config =
                EngineConfig.of(Models.orEmbedded(directory)).enablePrefixCaching(enablePrefixCaching);
        config.parallel(
                new ParallelConfig(tensorParallelSize, pipelineParallelSize, CpuBinding.parse("cpu_bind", cpuBind)));
        config.device(Device.parse("device", device));
        if (!dtype.equals("auto")) {
            config.dtype(DType.parse("dtype", dtype));
        }
        Optional.ofNullable(maxModelLen).ifPresent(config::maxModelLen);
        Optional.ofNullable(blockSize).ifPresent(config::blockSize);
        Optional.ofNullable(maxNumSeqs).ifPresent(config::maxNumSeqs);
        Optional.ofNullable(maxNumBatchedTokens).ifPresent(config::maxNumBatchedTokens);
        Optional.ofNullable(kvCacheBytes).ifPresent(config::kvCacheBytes);
        Optional.ofNullable(numBlocks).ifPresent(config::numBlocks);
        Optional.ofNullable(maxWaiting).ifPresent(config::maxWaiting);
        Optional.ofNullable(threads).ifPresent(config::threads);
        Optional.ofNullable(seed).ifPresent(config::seed);
        kvTransfer.ifPresent(config::kvTransfer);
        return config.build();
    }
}
