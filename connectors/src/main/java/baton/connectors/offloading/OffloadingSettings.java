package baton.connectors.offloading;

import baton.connectors.bykey.StoreKey;
import baton.connectors.bykey.StorePolicy;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.Require;
import baton.kv.Setting;
import baton.kv.connector.ConnectorContext;
import baton.messages.PeerSecret;
import baton.store.StoreFormat;
import baton.store.memory.Eviction;
import baton.store.memory.HostMemorySettings;
import baton.store.memory.SharedMemory;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;

/**
 * {@code kv_connector_extra_config} of the connector, by vLLM 0.33's names; those with {@code memory_} or {@code _seconds} are Baton's.
 *
 * @param tokensPerChunk {@code block_size}
 * @param blocksPerChunk {@code blocks_per_chunk}; neither means 1
 */
record OffloadingSettings(
        long bytes,
        OptionalInt tokensPerChunk,
        OptionalInt blocksPerChunk,
        Eviction eviction,
        StorePolicy policy,
        boolean canonicalLayout,
        Optional<SharedMemory> shared,
        Optional<PeerSecret> key,
        List<TierSettings> tiers) {
    static final String BYTES = "cpu_bytes_to_use";
    private static final String BLOCK_SIZE = "block_size";
    private static final String BLOCKS_PER_CHUNK = "blocks_per_chunk";
    private static final String SPEC = "spec_name";
    private static final String EVICTION = "eviction_policy";
    private static final String THRESHOLD = "store_threshold";
    private static final String TRACKED = "max_tracker_size";
    private static final String PROMPT_ONLY = "offload_prompt_only";
    private static final String CANONICAL = "canonical_layout";
    private static final String TIERS = "secondary_tiers";
    private static final String SELF_DESCRIBING = "self_describing_kv_events";
    private static final String SHARED_NAME = "memory_share_name";
    private static final String LOAD_TIMEOUT = "load_timeout_seconds";
    private static final String WITHIN_STEP = "sync_load_budget_bytes";
    private static final String POLL_INTERVAL = "tier_poll_interval_s";

    /** All of them. */
    static final List<Setting> SETTINGS = Setting.join(
            List.of(
                    Setting.absent(
                            BYTES,
                            "required",
                            "Host memory of all ranks together; `--kv-offloading-size` sets it in GiB."),
                    Setting.absent(BLOCKS_PER_CHUNK, "1", "Blocks that are stored and loaded as one value."),
                    Setting.absent(BLOCK_SIZE, "one block", "The same in tokens; only one of the two."),
                    Setting.of(
                            EVICTION, "lru", "`lru`, or `arc`, which keeps values used often when many are used once."),
                    Setting.of(THRESHOLD, 0, "2 and more: only chunks that have been computed so often are stored."),
                    Setting.of(TRACKED, 64_000, "Keys that are remembered for that."),
                    Setting.of(
                            PROMPT_ONLY, true, "`false`: outputs are stored too, for the next turn of a conversation."),
                    Setting.of(
                            CANONICAL,
                            false,
                            "`true`: instances of other tensor and pipeline parallel sizes exchange values."),
                    Setting.absent(
                            SHARED_NAME,
                            "none",
                            "Host memory under this name in `/dev/shm`, which survives a restart and which instances of this host share."),
                    Setting.of(
                            LOAD_TIMEOUT,
                            2,
                            "Seconds, the longest that a request waits for values that are not in memory, and its answer for those of its prompt that are being stored."),
                    Setting.of(
                            WITHIN_STEP,
                            0,
                            "Bytes of a rank that are loaded from memory within the step that schedules their requests; requests with more wait for a later step."),
                    Setting.absent(
                            POLL_INTERVAL,
                            "0.001",
                            "vLLM's, for a thread that asks tiers; tiers report by themselves, so it has no effect."),
                    StoreKey.SETTING,
                    StorePolicy.TENANT_SETTING,
                    Setting.absent(
                            SPEC, "none", "vLLM's: `CPUOffloadingSpec` or `TieringOffloadingSpec`; has no effect."),
                    Setting.of(SELF_DESCRIBING, false, "No other."),
                    Setting.absent(
                            TierSettings.BACKPRESSURE, "none", "Of all tiers: when values are not written behind."),
                    Setting.absent(TIERS, "`[]`", "Where values are kept behind host memory, asked in this order.")),
            Setting.within(TierSettings.BACKPRESSURE, BackpressureSettings.SETTINGS),
            TierSettings.settings(TIERS));

    private static final Duration COPY_TIMEOUT = Duration.ofSeconds(30);

    /** @throws ConfigException if a setting cannot be used */
    static OffloadingSettings of(JsonFields given) {
        JsonFields extra = given.withDefaults(SETTINGS);
        extra.choice(SPEC, "CPUOffloadingSpec", "TieringOffloadingSpec");
        double bytes = extra.number(BYTES, 1, 0x1p50)
                .orElseThrow(() -> new ConfigException(
                        extra.field(BYTES),
                        "must be specified: bytes of host memory for KV cache, or use --kv-offloading-size with GiB"));
        if (extra.value(BLOCK_SIZE).isPresent() && extra.value(BLOCKS_PER_CHUNK).isPresent()) {
            throw new ConfigException(
                    extra.field(BLOCK_SIZE),
                    "is set and " + BLOCKS_PER_CHUNK + " too: specify only one of " + BLOCK_SIZE + " (tokens) or "
                            + BLOCKS_PER_CHUNK);
        }
        Eviction eviction =
                Eviction.parse(extra.field(EVICTION), extra.string(EVICTION).orElseThrow());
        extra.requireOnly(SELF_DESCRIBING, false, "events of offloaded blocks carry their hashes only");
        long withinStep = extra.integer(WITHIN_STEP).orElseThrow();
        Require.atLeast(extra.field(WITHIN_STEP), withinStep, 0);
        // Any number is vLLM's, which has no thread for 0 and less.
        extra.number(POLL_INTERVAL);
        Optional<JsonFields> backpressure = extra.object(TierSettings.BACKPRESSURE);
        List<TierSettings> tiers = new ArrayList<>();
        for (JsonFields tier : extra.objects(TIERS).orElse(List.of())) {
            tiers.add(TierSettings.of(tier, backpressure));
        }
        Optional<SharedMemory> shared = extra.string(SHARED_NAME).map(name -> shared(extra, name));
        return new OffloadingSettings(
                (long) bytes,
                optional(extra, BLOCK_SIZE),
                optional(extra, BLOCKS_PER_CHUNK),
                eviction,
                new StorePolicy(
                        extra.bool(PROMPT_ONLY).orElseThrow(),
                        extra.integerAtLeast(THRESHOLD, 0).orElseThrow(),
                        extra.integerAtLeast(TRACKED, 1).orElseThrow(),
                        extra.seconds(LOAD_TIMEOUT, Double.MIN_VALUE, 3600).orElseThrow(),
                        !tiers.isEmpty() || shared.isPresent(),
                        withinStep,
                        StorePolicy.tenantShare(extra),
                        COPY_TIMEOUT),
                extra.bool(CANONICAL).orElseThrow(),
                shared,
                StoreKey.of(extra),
                List.copyOf(tiers));
    }

    private static SharedMemory shared(JsonFields extra, String name) {
        try {
            return new SharedMemory(SharedMemory.DIRECTORY, name);
        } catch (IllegalArgumentException e) {
            throw new ConfigException(extra.field(SHARED_NAME), String.valueOf(e.getMessage()), e);
        }
    }

    private static OptionalInt optional(JsonFields extra, String name) {
        return extra.integerAtLeast(name, 1).map(OptionalInt::of).orElse(OptionalInt.empty());
    }

    HostMemorySettings memory() {
        return HostMemorySettings.of(bytes).withEviction(eviction).withShared(shared);
    }

    /** @throws ConfigException if {@code block_size} is no multiple of the engine's */
    StoreFormat format(ConnectorContext context) {
        JsonFields extra = context.config().extra();
        int own = context.modelLayout().blockSize();
        int perChunk = blocksPerChunk.orElse(1);
        if (tokensPerChunk.isPresent()) {
            int tokens = tokensPerChunk.getAsInt();
            if (tokens % own != 0) {
                throw new ConfigException(
                        extra.field(BLOCK_SIZE),
                        "is " + tokens + ", must be a multiple of the engine's block size of " + own + " tokens: use "
                                + Math.ceilDiv(tokens, own) * own + ", or " + BLOCKS_PER_CHUNK);
            }
            perChunk = tokens / own;
        }
        return new StoreFormat(
                context.model(),
                context.modelLayout(),
                perChunk,
                canonicalLayout ? 0 : context.tensorParallelSize(),
                canonicalLayout ? 0 : context.pipelineParallelSize(),
                context.groups().size());
    }
}
