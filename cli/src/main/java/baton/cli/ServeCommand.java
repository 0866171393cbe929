package baton.cli;

import baton.engine.CpuBinding;
import baton.engine.EngineConfig;
import baton.engine.EngineConfigBuilder;
import baton.engine.EngineListener;
import baton.engine.EngineUnavailableException;
import baton.engine.ParallelConfig;
import baton.engine.SamplingParams;
import baton.engine.SchedulingPolicy;
import baton.engine.gguf.GgufModel;
import baton.engine.local.LocalEngine;
import baton.engine.model.Device;
import baton.engine.model.GenerationConfig;
import baton.engine.model.Quantization;
import baton.kv.BlockHashing;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.HashAlgorithm;
import baton.kv.JsonFields;
import baton.kv.KvEventsConfig;
import baton.kv.KvTransferConfig;
import baton.kv.ListenAddress;
import baton.kv.Require;
import baton.messages.PeerAccess;
import baton.server.ApiServer;
import baton.server.PrometheusMetrics;
import baton.server.ServerConfig;
import baton.server.ServerConfigBuilder;
import baton.trace.OtlpExporter;
import java.io.IOException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.concurrent.Callable;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
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
            "  --kv-transfer-config.kv_connector_extra_config.shared_storage_path /mnt/kv",
            "The configuration of KV events is vLLM's KVEventsConfig, in the same forms:",
            "  --kv-events-config '{\"enable_kv_cache_events\": true, \"endpoint\": \"tcp://*:5557\"}'"
        })
final class ServeCommand implements Callable<Integer> {
    private static final Logger LOG = LoggerFactory.getLogger(ServeCommand.class);
    /** How long an instance may take to warm up. */
    static final Duration WARM_UP = Duration.ofSeconds(2);

    @Parameters(
            index = "0",
            arity = "0..1",
            paramLabel = "MODEL_DIR",
            description = "Hugging Face checkpoint directory, or a GGUF file; the embedded tiny-ledger if not given.")
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
            names = "--grpc-port",
            description = "Port for gRPC as in vLLM's front end in Rust (services vllm.Inference, vllm.Control,"
                    + " grpc.health.v1.Health), 0 for any free one (default: no gRPC).")
    private @Nullable Integer grpcPort;

    @Option(
            names = "--served-model-name",
            arity = "1..*",
            description = "Names of the model in the API (default: the directory's or the file's name).")
    private String[] servedModelNames = {};

    @Mixin
    private final SslOptions ssl = new SslOptions();

    @Mixin
    private final OriginOptions origins = new OriginOptions();

    @Option(names = "--api-key", description = "Key that clients must present.")
    private @Nullable String apiKey;

    @Option(
            names = "--dtype",
            defaultValue = "auto",
            description = "auto (the fastest that loses nothing of the checkpoint), bfloat16, float16 or float32.")
    private String dtype;

    @Option(
            names = {"--quantization", "-q"},
            defaultValue = "none",
            description = "none, or int8: weights become 8-bit integers when loaded (default: none).")
    private String quantization;

    @Option(
            names = "--kv-cache-dtype",
            defaultValue = "auto",
            description =
                    "auto (that of --dtype), bfloat16, float16, float32, or fp8 (fp8_e4m3): half the bytes of bfloat16.")
    private String kvCacheDtype;

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
            names = "--scheduling-policy",
            description = "fcfs (first come, first served) or priority (smallest first) (default: fcfs).")
    private @Nullable String schedulingPolicy;

    @Option(
            names = "--long-prefill-token-threshold",
            converter = HumanSize.AsInt.class,
            description =
                    "Tokens of one prompt in one step, so that short prompts get a share too (default: no limit).")
    private @Nullable Integer longPrefillTokenThreshold;

    @Option(
            names = "--enable-prefix-caching",
            negatable = true,
            defaultValue = "true",
            fallbackValue = "true",
            description = "Share KV blocks among requests with equal prefixes (default: on).")
    private boolean enablePrefixCaching;

    @Option(
            names = "--disable-hybrid-kv-cache-manager",
            negatable = true,
            fallbackValue = "true",
            description =
                    "Keep the KV of all positions in layers with a sliding window, too (default: only with a connector that takes blocks of all layers).")
    private @Nullable Boolean disableHybridKvCacheManager;

    @Option(
            names = "--prefix-caching-hash-algo",
            paramLabel = "NAME",
            defaultValue = "sha256",
            description =
                    "How blocks are hashed, for KV events and stores too: sha256 (default), sha256_cbor. PYTHONHASHSEED"
                            + " sets the seed, as in vLLM.")
    private String hashAlgorithm;

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

    @Option(names = "--trust-request-chat-template", description = "Let requests bring a chat template of their own.")
    private boolean trustRequestChatTemplate;

    @Option(
            names = "--enable-auto-tool-choice",
            description = "Let chats have tools, and look for calls in the answers by --tool-call-parser.")
    private boolean enableAutoToolChoice;

    @Option(
            names = "--tool-call-parser",
            paramLabel = "NAME",
            description =
                    "How the model writes calls: hermes, llama3_json, mistral, openai, phi4_mini_json, pythonic, qwen3_coder,"
                            + " or auto, as its chat template does. Without effect but with --enable-auto-tool-choice.")
    private @Nullable String toolCallParser;

    @Option(
            names = "--response-role",
            defaultValue = "assistant",
            description = "Role of the messages that the model writes (default: ${DEFAULT-VALUE}).")
    private String responseRole;

    @Option(
            names = "--reasoning-parser",
            paramLabel = "NAME",
            description = "How the model marks its reasoning, which answers then have apart from the content: qwen3,"
                    + " deepseek_r1, granite or gpt_oss (default: it is not looked for).")
    private @Nullable String reasoningParser;

    @Option(names = "--disable-uvicorn-access-log", description = "No access log at all.")
    private boolean disableAccessLog;

    @Option(
            names = "--disable-access-log-for-endpoints",
            paramLabel = "PATH,...",
            split = ",",
            description = "Paths of requests that are in the access log only if they fail; with an empty list all are"
                    + " (default: /health,/ping,/metrics,/load,/kv_transfer_params).")
    private @Nullable List<String> unloggedPaths;

    @Option(
            names = "--generation-config",
            paramLabel = "auto|vllm|DIR",
            defaultValue = GenerationConfig.AUTO,
            description =
                    "Whose generation_config.json gives the defaults of sampling: auto (the model's), vllm (none), or"
                            + " a directory's (default: ${DEFAULT-VALUE}).")
    private String generationConfig;

    @Option(
            names = "--override-generation-config",
            paramLabel = "JSON",
            description = "Defaults of sampling that win over the file's, as '{\"temperature\": 0.5}' or field by field"
                    + " (--override-generation-config.temperature 0.5); max_new_tokens limits every request.")
    private @Nullable String overrideGenerationConfig;

    @Option(names = "--seed", description = "Seed of requests that bring none (default: 0).")
    private @Nullable Long seed;

    @Option(
            names = "--profile",
            arity = "0..1",
            paramLabel = "SECONDS",
            fallbackValue = "30",
            description = "Print where the engine's steps spend their time, every 30 seconds or so many.")
    private @Nullable Integer profileSeconds;

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
            description = "auto, cpu, cuda or cuda:N, the GPU of that number (refused where it cannot be used)"
                    + " (default: ${DEFAULT-VALUE}).")
    private String device;

    @Option(
            names = {
                "--uvicorn-log-level",
                "--gpu-memory-utilization",
                "--swap-space",
                "--distributed-executor-backend",
                "--tokenizer-mode"
            },
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
                "--enable-prompt-tokens-details",
                "--enable-server-load-tracking"
            },
            hidden = true)
    private boolean[] switchesWithoutEffect = {};

    @Option(
            names = "--global-cache-hit-threshold",
            paramLabel = "SHARE",
            defaultValue = "0",
            description = "cache_hit_threshold of requests that have none: the share of a prompt, 0 to 1, that caches"
                    + " must hold if it is to be computed here (default: ${DEFAULT-VALUE}).")
    private double globalCacheHitThreshold;

    @Option(
            names = "--tenant-cache-share",
            paramLabel = "SHARE",
            defaultValue = "1",
            description =
                    "The share of the KV cache, above 0 and at most 1, that cached blocks of one tenant may take before"
                            + " they are evicted first; a tenant is a cache_salt up to its first ':' (default: ${DEFAULT-VALUE}).")
    private double tenantCacheShare;

    @Option(
            names = "--gpu-metric-names",
            description = "Show the KV cache's metrics under vLLM's old names too: vllm:gpu_cache_usage_perc,"
                    + " vllm:gpu_prefix_cache_queries, _hits and _hit_rate.")
    private boolean gpuMetricNames;

    @Option(
            names = "--kv-auth-secret-file",
            paramLabel = "FILE",
            description =
                    "File with a secret that all instances share: KV caches are exchanged only with peers that show"
                            + " that they know it.")
    private @Nullable Path kvAuthSecretFile;

    @Option(
            names = "--kv-encryption",
            paramLabel = "off|required",
            description =
                    "required: connections of KV ports and KV events are encrypted with the secret of --kv-auth-secret-file,"
                            + " and peers that do not encrypt are refused (default: off).")
    private @Nullable String kvEncryption;

    @Option(
            names = "--kv-allow-unauthenticated",
            description = "Let a KV port be open to other hosts without a secret, and the ports of KV events.")
    private boolean kvAllowUnauthenticated;

    @Option(
            names = "--kv-events-allowed-peers",
            paramLabel = "HOST,...",
            split = ",",
            description = "Names, addresses and networks that may read KV events (default: the connector's"
                    + " allowed_peers, else loopback and this host's networks).")
    private @Nullable List<String> kvEventsAllowedPeers;

    @Option(
            names = "--kv-prompt-token-ids",
            negatable = true,
            defaultValue = "true",
            fallbackValue = "true",
            description = "Let kv_transfer_params.prompt_token_ids of a request take its prompt's place (default: on).")
    private boolean kvPromptTokenIds;

    @Option(
            names = "--shutdown-timeout",
            paramLabel = "SECONDS",
            defaultValue = "30",
            description =
                    "After SIGTERM, how long running requests and hand-offs of KV caches may take (default: ${DEFAULT-VALUE}).")
    private int shutdownSeconds;

    @Option(
            names = "--otlp-traces-endpoint",
            paramLabel = "URL",
            description = "Send spans of requests to this OpenTelemetry collector, by OTLP/HTTP in JSON, as"
                    + " http://host:4318/v1/traces (default: none are recorded).")
    private @Nullable String otlpTracesEndpoint;

    @Option(
            names = "--warmup",
            negatable = true,
            defaultValue = "true",
            fallbackValue = "true",
            description = "Compute prompts before being ready, for about two seconds at most (default: on).")
    private boolean warmUp;

    @Option(names = "--exit-with-parent", hidden = true, description = "Stop when standard input ends.")
    private boolean exitWithParent;

    @Mixin
    private OffloadingFlags offloading = new OffloadingFlags();

    private Optional<KvTransferConfig> kvTransfer = Optional.empty();
    private Optional<KvEventsConfig> kvEvents = Optional.empty();

    /** Sets the transfer configuration, which is parsed before the other options. */
    void kvTransfer(Optional<KvTransferConfig> config) {
        kvTransfer = config;
    }

    /** Sets the configuration of KV events, which is parsed before the other options. */
    void kvEvents(Optional<KvEventsConfig> config) {
        kvEvents = config;
    }

    @Override
    public Integer call() throws IOException, InterruptedException {
        EngineConfig config = engineConfig();
        ServerConfigBuilder server = serverConfig(config);
        // Invalid options are reported before the model is loaded.
        Require.atLeast("shutdown_timeout", shutdownSeconds, 0);
        Spans.requireEndpoint(otlpTracesEndpoint);
        ListenAddress.require("host", host, "port", port);
        Duration shutdownTimeout = Duration.ofSeconds(shutdownSeconds);
        String name = server.build().servedModelNames().getFirst();
        PrometheusMetrics metrics = new PrometheusMetrics(name);
        if (gpuMetricNames) {
            metrics.addGpuNames();
        }
        Optional<PublishedKvEvents> events = publishedKvEvents(config);
        Optional<OtlpExporter> spans = Spans.exporter(otlpTracesEndpoint, "baton-serve", host, port);
        try {
            spans.ifPresent(exporter -> {
                server.spans(exporter);
                Spans.addTo(metrics, exporter);
            });
            events.ifPresent(each -> {
                each.addTo(metrics);
                server.kvEventSources(each.sources());
            });
            return serve(config, server, metrics, events, shutdownTimeout);
        } finally {
            // After the engine, so that its last events are published.
            events.ifPresent(PublishedKvEvents::close);
            spans.ifPresent(OtlpExporter::close);
        }
    }

    private Optional<PublishedKvEvents> publishedKvEvents(EngineConfig config) {
        JsonFields extra = config.kvTransfer().extra();
        boolean open = kvAllowUnauthenticated
                || extra.bool(KvTransferConfig.ALLOW_UNAUTHENTICATED).orElse(false);
        Optional<List<String>> allowed =
                Optional.ofNullable(kvEventsAllowedPeers).or(() -> extra.strings(PeerAccess.ALLOWED_PEERS));
        Optional<String> secret = extra.string(PeerAccess.ENCRYPTION)
                .filter(PeerAccess.REQUIRED::equals)
                .flatMap(_ -> extra.string(PeerAccess.SECRET_FILE));
        return kvEvents.flatMap(
                events -> PublishedKvEvents.start(events, config.enablePrefixCaching(), open, allowed, secret));
    }

    private int serve(
            EngineConfig config,
            ServerConfigBuilder server,
            PrometheusMetrics metrics,
            Optional<PublishedKvEvents> events,
            Duration shutdownTimeout)
            throws IOException, InterruptedException {
        Optional<PrintedProfile> profile = Optional.ofNullable(profileSeconds).map(PrintedProfile::new);
        MachineLoad load = MachineLoad.here(
                config.parallel().threadsPerRank(config.threads())
                        * config.parallel().ranks(),
                LOG::warn);
        load.start();
        EngineListener measured = profile.<EngineListener>map(metrics::and).orElse(metrics);
        LocalEngine engine = LocalEngine.start(
                config, events.<EngineListener>map(measured::and).orElse(measured));
        ApiServer api;
        try {
            api = ApiServer.start(
                    server.samplingDefaults(sampling -> SamplingParams.apply(engine.generationDefaults(), sampling))
                            .build(),
                    engine,
                    metrics);
        } catch (RuntimeException e) {
            engine.close();
            throw e;
        }
        try {
            api.warmUp();
            if (warmUp) {
                CompilerThreads.stepBack();
            }
        } catch (RuntimeException e) {
            api.close(Duration.ZERO);
            engine.close();
            throw e instanceof EngineUnavailableException
                    ? new CommandFailedException(String.valueOf(e.getMessage()))
                    : e;
        }
        AtomicBoolean drained = new AtomicBoolean();
        Runnable drain = () -> {
            drained.set(true);
            api.drain(shutdownTimeout);
        };
        String scheme = ssl.tls().isPresent() ? "https" : "http";
        return Service.run("baton serve", scheme, host, api.port(), exitWithParent, drain, () -> {
            if (drained.get()) {
                // Running requests have had the timeout.
                api.close(Duration.ZERO);
            } else {
                api.close();
            }
            engine.close();
            load.close();
            profile.ifPresent(PrintedProfile::print);
        });
    }

    ServerConfigBuilder serverConfig(EngineConfig config) {
        Path model = config.model().toAbsolutePath().normalize();
        String name = GgufModel.isFile(model)
                ? GgufModel.name(model)
                : model.getFileName().toString();
        List<String> names = servedModelNames.length == 0 ? List.of(name) : List.of(servedModelNames);
        ServerConfigBuilder server = ServerConfig.of(names.getFirst())
                .servedModelNames(names)
                .host(host)
                .port(port)
                .version(Baton.Version.current())
                .responseRole(responseRole)
                .trustRequestChatTemplate(trustRequestChatTemplate)
                .kvPromptTokenIds(kvPromptTokenIds)
                .cacheHitThreshold(globalCacheHitThreshold);
        server.allowedOrigins(origins.allowed());
        if (enableAutoToolChoice) {
            server.toolCallParser(Optional.ofNullable(toolCallParser)
                    .orElseThrow(() -> new ConfigException(
                            "enable_auto_tool_choice",
                            "requires --tool-call-parser, such as --tool-call-parser auto")));
        }
        Optional.ofNullable(grpcPort).ifPresent(server::grpcPort);
        Optional.ofNullable(apiKey).ifPresent(server::apiKey);
        ssl.tls().ifPresent(server::tls);
        Optional.ofNullable(reasoningParser).ifPresent(server::reasoningParser);
        if (warmUp) {
            server.warmUp(WARM_UP);
        }
        if (disableAccessLog) {
            server.accessLog(line -> {});
        }
        Optional.ofNullable(unloggedPaths)
                .ifPresent(paths -> server.unloggedPaths(paths.stream()
                        .map(String::strip)
                        .filter(path -> !path.isEmpty())
                        .collect(Collectors.toSet())));
        return server;
    }

    /** The configuration with the flags for the connector's peers, which override the connector's settings. */
    private KvTransferConfig withAccess(KvTransferConfig config) {
        KvTransferConfig with = config;
        if (kvAuthSecretFile != null) {
            with = with.withExtra(KvTransferConfig.AUTH_SECRET_FILE, kvAuthSecretFile);
        }
        if (kvEncryption != null) {
            with = with.withExtra(KvTransferConfig.ENCRYPTION, kvEncryption);
        }
        return kvAllowUnauthenticated ? with.withExtra(KvTransferConfig.ALLOW_UNAUTHENTICATED, true) : with;
    }

    EngineConfig engineConfig() {
        if (withoutEffect.length + switchesWithoutEffect.length > 0) {
            LOG.info("Some of the flags are vLLM's and have no effect here");
        }
        Optional<Path> directory = Optional.ofNullable(model).or(() -> Optional.ofNullable(modelFlag));
        EngineConfigBuilder config =
                EngineConfig.of(Models.orEmbedded(directory)).enablePrefixCaching(enablePrefixCaching);
        config.tenantCacheShare(tenantCacheShare);
        config.generation(new GenerationConfig(
                generationConfig,
                overrideGenerationConfig == null
                        ? JsonFields.empty(GenerationConfig.OVERRIDES)
                        : JsonFields.parse(GenerationConfig.OVERRIDES, overrideGenerationConfig)));
        config.parallel(
                new ParallelConfig(tensorParallelSize, pipelineParallelSize, CpuBinding.parse("cpu_bind", cpuBind)));
        config.device(Device.parse("device", device));
        if (!dtype.equals("auto")) {
            config.dtype(DType.parse("dtype", dtype));
        }
        config.quantization(Quantization.parse("quantization", quantization));
        kvCacheDtype().ifPresent(config::kvCacheDtype);
        Optional.ofNullable(maxModelLen).ifPresent(config::maxModelLen);
        Optional.ofNullable(blockSize).ifPresent(config::blockSize);
        Optional.ofNullable(maxNumSeqs).ifPresent(config::maxNumSeqs);
        Optional.ofNullable(maxNumBatchedTokens).ifPresent(config::maxNumBatchedTokens);
        Optional.ofNullable(schedulingPolicy)
                .map(name -> SchedulingPolicy.parse("scheduling_policy", name))
                .ifPresent(config::schedulingPolicy);
        Optional.ofNullable(longPrefillTokenThreshold).ifPresent(config::longPrefillTokenThreshold);
        Optional.ofNullable(kvCacheBytes).ifPresent(config::kvCacheBytes);
        Optional.ofNullable(numBlocks).ifPresent(config::numBlocks);
        Optional.ofNullable(maxWaiting).ifPresent(config::maxWaiting);
        Optional.ofNullable(threads).ifPresent(config::threads);
        Optional.ofNullable(seed).ifPresent(config::seed);
        Optional.ofNullable(disableHybridKvCacheManager).ifPresent(config::disableHybridKvCacheManager);
        offloading.apply(kvTransfer).map(this::withAccess).ifPresent(config::kvTransfer);
        config.hashing(
                BlockHashing.of(HashAlgorithm.parse("prefix_caching_hash_algo", hashAlgorithm), System.getenv()));
        config.kvEvents(kvEvents.map(KvEventsConfig::enabled).orElse(false));
        return config.build();
    }

    private Optional<DType> kvCacheDtype() {
        return switch (kvCacheDtype.toLowerCase(Locale.ROOT)) {
            case "auto" -> Optional.empty();
            case "fp8", "fp8_e4m3" -> Optional.of(DType.F8_E4M3);
            default ->
                Optional.of(DType.computed(kvCacheDtype)
                        .orElseThrow(() -> ConfigException.unsupported(
                                "kv_cache_dtype", kvCacheDtype, "auto, bfloat16, float16, float32, fp8, fp8_e4m3")));
        };
    }
}
