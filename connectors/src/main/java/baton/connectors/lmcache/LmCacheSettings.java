package baton.connectors.lmcache;

import baton.connectors.bykey.StoreKey;
import baton.connectors.bykey.StorePolicy;
import baton.connectors.lmcache.pd.PdSettings;
import baton.kv.ChunkHashing;
import baton.kv.ConfigException;
import baton.kv.HashAlgorithm;
import baton.kv.KvTransferConfig;
import baton.kv.Setting;
import baton.kv.connector.ConnectorContext;
import baton.messages.PeerSecret;
import baton.store.StoreFormat;
import baton.store.file.FileStoreSettings;
import baton.store.lm.LmSettings;
import baton.store.lmcache.ChunkShare;
import baton.store.lmcache.FsTransport;
import baton.store.prompt.SharedStorage;
import baton.store.redis.RedisSettings;
import baton.store.remote.RemoteLimits;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;

/**
 * The connector's settings, by LMCache's keys ({@link LmCacheConfig}); those with {@code baton_} are Baton's.
 *
 * @param use of the stores, by {@code kv_role}, {@code min_retrieve_tokens} and {@code LMCACHE_FORCE_SKIP_SAVE}
 * @param policy {@code save_decode_cache}, {@code blocking_timeout_secs}; with {@code enable_pd} the decode instance waits, not the answer
 * @param model {@code baton_model_name}: the model in keys; without it, the model's own name
 * @param pd {@code enable_pd} and its keys: then there are no chunks, and no store but the buffer
 */
record LmCacheSettings(
        LmCacheConfig config,
        int chunkSize,
        long memoryBytes,
        Optional<FileStoreSettings> disk,
        Optional<RemoteStore> remote,
        Hashes hashes,
        TokenChunkKeys.Use use,
        StorePolicy policy,
        Duration lookupTimeout,
        Optional<String> model,
        Optional<PeerSecret> key,
        Optional<PdSettings> pd) {
    static final String FORCE_SKIP_SAVE = "LMCACHE_FORCE_SKIP_SAVE";
    private static final String CHUNK_SIZE = "chunk_size";
    private static final String LOCAL_CPU = "local_cpu";
    private static final String MEMORY = "max_local_cpu_size";
    private static final String DISK = "local_disk";
    private static final String DISK_BYTES = "max_local_disk_size";
    static final String REMOTE = "remote_url";
    private static final String SERDE = "remote_serde";
    private static final String SAVE_DECODE = "save_decode_cache";
    private static final String SAVE_UNFULL = "save_unfull_chunk";
    private static final String HASH = "pre_caching_hash_algorithm";
    private static final String BLOCKING = "blocking_timeout_secs";
    private static final String LOOKUP = "lookup_timeout_ms";
    private static final String MIN_RETRIEVE = "min_retrieve_tokens";
    private static final String POLICY = "cache_policy";
    private static final String CHUNK_META = "extra_config.save_chunk_meta";
    private static final String MODEL = "baton_model_name";
    private static final String TOKEN_FILE = "baton_token_file";
    private static final String CA_CERTIFICATES = "baton_ca_certificates";

    /** All of them. */
    static final List<Setting> SETTINGS = Setting.join(
            List.of(
                    Setting.of(CHUNK_SIZE, 256, "Tokens of a chunk, a multiple of `--block-size`, at most 8192."),
                    Setting.of(MEMORY, 5, "GiB of host memory for chunks, of all ranks together."),
                    Setting.of(LOCAL_CPU, true, "No other: all values pass through that memory."),
                    Setting.absent(DISK, "none", "One directory; `file://` may be in front."),
                    Setting.of(DISK_BYTES, 0, "GiB that it may take."),
                    StoreKey.SETTING,
                    Setting.absent(
                            REMOTE,
                            "none",
                            "`redis://`, `rediss://`, `lm://`, `fs://host:port/directory[,directory]`; `lms://` is `lm://` with TLS."),
                    Setting.of(SERDE, "naive", "No other."),
                    Setting.of(HASH, "builtin", "Or `sha256`, `sha256_cbor`, `sha256_cbor_64bit`."),
                    Setting.of(SAVE_DECODE, false, "`true`: outputs are stored too."),
                    Setting.of(SAVE_UNFULL, false, "No other."),
                    Setting.of(
                            BLOCKING,
                            10,
                            "Seconds, the longest that a request waits for chunks that are not in memory, and its answer for those of its prompt that are being stored."),
                    Setting.of(LOOKUP, 3000, "Milliseconds, the longest look-up at disk and remote store."),
                    Setting.of(MIN_RETRIEVE, 0, "Shorter hits are computed."),
                    Setting.of(POLICY, "LRU", "No other."),
                    Setting.of(CHUNK_META, true, "`false`: files of `fs://` without metadata."),
                    Setting.absent(MODEL, "the directory's name", "The model in keys, as in vLLM's `--model`."),
                    Setting.absent(TOKEN_FILE, "none", "File with the secret of `./baton kv-server --token-file`."),
                    Setting.absent(
                            CA_CERTIFICATES, "those of Java", "Certificate authorities to trust under TLS, in PEM.")),
            PdConfig.SETTINGS);

    private static final double GIB = 1L << 30;
    private static final Duration COPY_TIMEOUT = Duration.ofSeconds(30);

    /** The limit by the frames of Python's pickle and the protocols' int32 lengths. */
    private static final int MOST_CHUNK = 8192;

    /** {@code pre_caching_hash_algorithm}. */
    enum Hashes {
        BUILTIN,
        SHA256,
        SHA256_CBOR;

        ChunkHashing open(Map<String, String> environment) {
            return switch (this) {
                case BUILTIN -> ChunkHashing.python(environment);
                case SHA256 -> ChunkHashing.digest(HashAlgorithm.SHA256, HashAlgorithm.seed(environment));
                case SHA256_CBOR -> ChunkHashing.digest(HashAlgorithm.SHA256_CBOR, HashAlgorithm.seed(environment));
            };
        }
    }

    /**
     * @param environment the process's variables
     * @throws ConfigException if a setting cannot be used
     */
    static LmCacheSettings of(KvTransferConfig transfer, Map<String, String> environment) {
        LmCacheConfig config = LmCacheConfig.of(transfer.extra(), environment, SETTINGS);
        Duration blocking = Duration.ofNanos((long) (config.number(BLOCKING, 1e-3, 3600) * 1e9));
        int leastLoad = Math.max(1, config.integerAtLeast(MIN_RETRIEVE, 0).orElseThrow());
        Optional<PdSettings> pd = PdConfig.read(config, transfer, blocking, leastLoad);
        if (pd.isPresent()) {
            for (String key : List.of(REMOTE, DISK)) {
                if (config.has(key)) {
                    throw new ConfigException(
                            config.field(key),
                            "must be left out with enable_pd: blocks are sent to the decode instance only");
                }
            }
            require(config, SAVE_DECODE, false, "with enable_pd only prompts are handed over");
        } else {
            require(config, LOCAL_CPU, true, "values pass through host memory of " + MEMORY + " GiB in any case");
            require(config, SAVE_UNFULL, false, "only whole chunks are stored");
        }
        if (config.has(StoreKey.FILE) && (pd.isPresent() || config.has(REMOTE))) {
            throw new ConfigException(
                    config.field(StoreKey.FILE),
                    "must be left out with enable_pd and " + REMOTE + ": it is of " + DISK
                            + ", as LMCache, which shares remote objects, does not decrypt them; tiers of OffloadingConnector can be encrypted");
        }
        config.choice(SERDE, "naive");
        config.choice(POLICY, "LRU");
        int chunkSize = config.integer(CHUNK_SIZE, 1, MOST_CHUNK).orElseThrow();
        Hashes hashes = Hashes.valueOf(config.choice(HASH, "builtin", "sha256", "sha256_cbor", "sha256_cbor_64bit")
                .orElseThrow()
                .replace("_64bit", "")
                .toUpperCase(Locale.ROOT));
        var _ = hashes.open(environment);
        boolean skipSave = !Optional.ofNullable(environment.get(FORCE_SKIP_SAVE))
                .orElse("")
                .isEmpty();
        return new LmCacheSettings(
                config,
                chunkSize,
                (long) (config.number(MEMORY, 0, 1 << 20) * GIB),
                disk(config),
                remote(config),
                hashes,
                new TokenChunkKeys.Use(transfer.isConsumer(), transfer.isProducer() && !skipSave, leastLoad),
                new StorePolicy(
                        !config.bool(SAVE_DECODE).orElseThrow(), 0, 1, blocking, pd.isEmpty(), 0, 1, COPY_TIMEOUT),
                Duration.ofNanos((long) (config.number(LOOKUP, 1, 3_600_000) * 1e6)),
                config.string(MODEL).map(name -> model(config.field(MODEL), name)),
                config.path(StoreKey.FILE).map(file -> PeerSecret.read(config.field(StoreKey.FILE), file)),
                pd);
    }

    private static void require(LmCacheConfig config, String key, boolean value, String why) {
        if (config.bool(key).orElseThrow() != value) {
            throw new ConfigException(config.field(key), "is " + !value + ", must be " + value + ": " + why);
        }
    }

    private static String model(String field, String name) {
        if (name.isBlank() || name.contains("@") || !name.chars().allMatch(c -> c > ' ' && c < 127)) {
            throw new ConfigException(field, "is '" + name + "', must be printable ASCII without blanks and @");
        }
        return name;
    }

    private static Optional<FileStoreSettings> disk(LmCacheConfig config) {
        Optional<String> path = config.string(DISK);
        double gib = config.number(DISK_BYTES, 0, 1 << 24);
        if (path.isEmpty()) {
            return Optional.empty();
        }
        String field = config.field(DISK);
        String name = path.get().startsWith("file://") ? path.get().substring("file://".length()) : path.get();
        if (name.contains(",")) {
            throw new ConfigException(field, "is '" + name + "', must be one directory");
        }
        if (gib == 0) {
            throw new ConfigException(config.field(DISK_BYTES), "is 0, must be the GiB that " + DISK + " may take");
        }
        FileStoreSettings plain = FileStoreSettings.of(field, SharedStorage.root(field, name));
        return Optional.of(new FileStoreSettings(
                field,
                plain.root(),
                plain.readThreads(),
                plain.writeThreads(),
                plain.queued(),
                plain.io(),
                plain.fsync(),
                new FileStoreSettings.Limits(OptionalLong.of((long) (gib * GIB)), Optional.empty())));
    }

    private static Optional<RemoteStore> remote(LmCacheConfig config) {
        Optional<String> url = config.string(REMOTE);
        boolean meta = config.bool(CHUNK_META).orElseThrow();
        Optional<RemoteStore> remote = url.map(text -> remote(config, text, meta));
        if (!meta && !(remote.isPresent() && remote.get() instanceof RemoteStore.Fs)) {
            throw new ConfigException(
                    config.field(CHUNK_META),
                    "is false, must be true: only objects of an fs:// store can be without metadata");
        }
        return remote;
    }

    private static RemoteStore remote(LmCacheConfig config, String url, boolean meta) {
        String field = config.field(REMOTE);
        int colon = url.indexOf("://");
        String scheme = colon < 0 ? "" : url.substring(0, colon);
        Optional<Path> certificates = config.path(CA_CERTIFICATES);
        Optional<Path> token = config.path(TOKEN_FILE);
        try {
            RemoteLimits limits = RemoteLimits.DEFAULT.withCaCertificates(certificates);
            return switch (scheme) {
                case "redis", "rediss" -> {
                    RedisSettings plain = RedisSettings.of(url);
                    yield new RemoteStore.Redis(new RedisSettings(plain.url(), plain.prefix(), plain.ttl(), limits));
                }
                case "lm", "lms" -> {
                    LmSettings plain = LmSettings.of(url);
                    yield new RemoteStore.Lm(new LmSettings(plain.url(), plain.sharedMemory(), token, limits));
                }
                case "fs" -> new RemoteStore.Fs(FsTransport.directories(field, url), meta);
                default ->
                    // Not the URL, which may have a password.
                    throw new ConfigException(
                            field,
                            "begins with '%s', must be redis://, rediss://, lm://, lms:// or fs://".formatted(scheme));
            };
        } catch (ConfigException e) {
            throw e.field().equals(field) ? e : new ConfigException(field, String.valueOf(e.getMessage()), e);
        }
    }

    /** @throws ConfigException if chunks are no multiple of the engine's blocks, or there is no room for one */
    StoreFormat format(ConnectorContext context) {
        int block = context.modelLayout().blockSize();
        if (chunkSize % block != 0) {
            throw new ConfigException(
                    config.field(CHUNK_SIZE),
                    "is %d, must be a multiple of the engine's block size of %d tokens: use %d"
                            .formatted(chunkSize, block, Math.ceilDiv(chunkSize, block) * block));
        }
        StoreFormat format = new StoreFormat(
                context.model(),
                context.modelLayout(),
                chunkSize / block,
                context.tensorParallelSize(),
                context.pipelineParallelSize());
        if (memoryBytes < format.valueBytes()) {
            throw new ConfigException(
                    config.field(MEMORY),
                    "is %s GiB, must have room for a chunk of %d bytes"
                            .formatted(memoryBytes / GIB, format.valueBytes()));
        }
        return format;
    }

    /** @throws ConfigException if the stages have different numbers of layers */
    List<ChunkShare> shares(ConnectorContext context, StoreFormat format) {
        int stages = context.pipelineParallelSize();
        int layers = format.layout().layers();
        if (layers % stages != 0) {
            throw new ConfigException(
                    config.field(REMOTE),
                    "cannot be used with %d layers on %d pipeline stages: stages must have equal numbers of layers"
                            .formatted(layers, stages));
        }
        return ChunkShare.of(format, context.tensorParallelSize(), Collections.nCopies(stages, layers / stages));
    }

    /** @throws ConfigException if the model's name cannot be part of a key */
    String modelName(ConnectorContext context) {
        return model.orElseGet(() -> model(MODEL, context.model().name()));
    }
}
