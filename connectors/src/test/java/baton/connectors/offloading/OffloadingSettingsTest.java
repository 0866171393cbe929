package baton.connectors.offloading;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.JsonFields;
import baton.kv.KvGroups;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;
import baton.kv.connector.ConnectorContext;
import baton.store.StoreFormat;
import baton.store.memory.Eviction;
import baton.store.tiered.Backpressure;
import java.util.List;
import java.util.OptionalInt;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class OffloadingSettingsTest {
    private static OffloadingSettings settings(String json) {
        return OffloadingSettings.of(JsonFields.parse("extra", json));
    }

    private static StoreFormat format(String json, int tensorParallelSize) {
        return format(json, tensorParallelSize, KvGroups.one(2));
    }

    private static StoreFormat format(String json, int tensorParallelSize, KvGroups groups) {
        KvTransferConfig.Builder config = KvTransferConfig.builder("OffloadingConnector", KvRole.BOTH);
        JsonFields extra = JsonFields.parse("extra", json);
        extra.names().forEach(name -> config.extra(name, extra.value(name).orElseThrow()));
        KvLayout layout = new KvLayout(2, 4, 8, 16, DType.BF16);
        ConnectorContext context = new ConnectorContext(
                config.build(),
                new ModelFingerprint("m", "0a"),
                layout,
                layout,
                groups,
                tensorParallelSize,
                1,
                Ticker.system(),
                () -> {});
        return OffloadingSettings.of(context.config().extra()).format(context);
    }

    @Test
    void defaultsAreThoseOfVllm() {
        OffloadingSettings settings = settings("{\"cpu_bytes_to_use\": 1.5e9}");
        assertThat(settings.bytes()).isEqualTo(1_500_000_000);
        assertThat(settings.eviction()).isEqualTo(Eviction.LRU);
        assertThat(settings.policy().promptOnly()).isTrue();
        assertThat(settings.policy().storeThreshold()).isZero();
        assertThat(settings.policy().trackedKeys()).isEqualTo(64_000);
        assertThat(settings.tiers()).isEmpty();
        assertThat(format("{\"cpu_bytes_to_use\": 1e9}", 1).blocksPerChunk()).isEqualTo(1);
    }

    @Test
    void theShareOfATenantIsAPartOfTheMemory() {
        String json = "{\"cpu_bytes_to_use\": 1e9, \"tenant_share\": %s}";
        assertThat(settings(json.formatted("0.25")).policy().tenantShare()).isEqualTo(0.25);
        for (String share : List.of("0", "1.5")) {
            assertThatThrownBy(() -> settings(json.formatted(share)))
                    .isInstanceOf(ConfigException.class)
                    .hasMessageStartingWith("extra.tenant_share: is ");
        }
    }

    @Test
    void chunksAreGivenInTokensOrBlocks() {
        assertThat(format("{\"cpu_bytes_to_use\": 1e9, \"block_size\": 48}", 1).blocksPerChunk())
                .isEqualTo(3);
        assertThat(format("{\"cpu_bytes_to_use\": 1e9, \"blocks_per_chunk\": 4}", 1)
                        .blocksPerChunk())
                .isEqualTo(4);
        assertThatThrownBy(() -> format("{\"cpu_bytes_to_use\": 1e9, \"block_size\": 40}", 1))
                .isInstanceOf(ConfigException.class)
                .hasMessage(
                        "kv_connector_extra_config.block_size: is 40, must be a multiple of the engine's block size of 16"
                                + " tokens: use 48, or blocks_per_chunk");
    }

    @Test
    void onlyTheCanonicalLayoutIsSharedByOtherNumbersOfRanks() {
        String json = "{\"cpu_bytes_to_use\": 1e9, \"canonical_layout\": %s}";
        assertThat(format(json.formatted(false), 2)).isNotEqualTo(format(json.formatted(false), 4));
        assertThat(format(json.formatted(true), 2)).isEqualTo(format(json.formatted(true), 4));
    }

    /** The stages of a model with windows can hold layers of one kind each: then a block of one group is as large as one of all layers. */
    @Test
    void valuesOfGroupsAndOfAllLayersAreNotExchanged() {
        KvGroups groups = KvGroups.of(List.of(OptionalInt.empty(), OptionalInt.of(32)));
        StoreFormat ofGroups = format("{\"cpu_bytes_to_use\": 1e9}", 1, groups);
        StoreFormat ofAllLayers = format("{\"cpu_bytes_to_use\": 1e9}", 1);
        assertThat(ofGroups.layout()).isEqualTo(ofAllLayers.layout());
        assertThat(ofGroups.describe()).isEqualTo(ofAllLayers.describe() + " groups=2");
    }

    @Test
    void aTiersOwnBackpressureReplacesThatOfAllFieldByField() {
        OffloadingSettings settings = settings("""
                {"cpu_bytes_to_use": 1, "backpressure": {"alpha": 0.5, "policy_cls": "DropStorePolicy"},
                 "secondary_tiers": [{"type": "fs", "root_dir": "kv", "backpressure": {"alpha": 0.25}},
                     {"type": "fs", "root_dir": "kv", "locality": "REMOTE"}]}
                """);
        Backpressure.Settings local = settings.tiers().getFirst().backpressure().orElseThrow();
        assertThat(local.alpha()).isEqualTo(0.25);
        assertThat(local.policy()).isEqualTo(Backpressure.Policy.DROP);
        assertThat(local.highWater()).isEqualTo(0.010);
        assertThat(local.failureThreshold()).isEqualTo(3);
        Backpressure.Settings remote = settings.tiers().getLast().backpressure().orElseThrow();
        assertThat(remote.alpha()).isEqualTo(0.5);
        assertThat(remote.highWater()).isEqualTo(0.050);
        assertThat(remote.failureThreshold()).isEqualTo(3);
    }

    @ParameterizedTest
    @CsvSource(delimiter = '|', quoteCharacter = '\u0000', textBlock = """
            {} | extra.cpu_bytes_to_use: must be specified: bytes of host memory for KV cache, or use --kv-offloading-size with GiB
            {"cpu_bytes_to_use": -1} | extra.cpu_bytes_to_use: is -1.0, must be at least 1 and at most 1125899906842624
            {"cpu_bytes_to_use": 1, "block_size": 16, "blocks_per_chunk": 1} | extra.block_size: is set and blocks_per_chunk too: specify only one of block_size (tokens) or blocks_per_chunk
            {"cpu_bytes_to_use": 1, "blocks_per_chunk": 0} | extra.blocks_per_chunk: is 0, must be at least 1
            {"cpu_bytes_to_use": 1, "spec_name": "X"} | extra.spec_name: unsupported value 'X'; allowed: CPUOffloadingSpec, TieringOffloadingSpec
            {"cpu_bytes_to_use": 1, "eviction_policy": "fifo"} | extra.eviction_policy: unsupported value 'fifo'; allowed: lru, arc
            {"cpu_bytes_to_use": 1, "load_timeout_seconds": 0} | extra.load_timeout_seconds: is 0.0, must be more than 0 and at most 3600
            {"cpu_bytes_to_use": 1, "sync_load_budget_bytes": -1} | extra.sync_load_budget_bytes: is -1, must be at least 0
            {"cpu_bytes_to_use": 1, "tier_poll_interval_s": "fast"} | extra.tier_poll_interval_s: must be a number, is "fast"
            {"cpu_bytes_to_use": 1, "memory_share_name": "a/b"} | extra.memory_share_name: name=a/b must be 1 to 64 letters, digits, dots, dashes and underscores
            {"cpu_bytes_to_use": 1, "self_describing_kv_events": true} | extra.self_describing_kv_events: is true, must be false: events of offloaded blocks carry their hashes only
            {"cpu_bytes_to_use": 1, "secondary_tiers": [{}]} | extra.secondary_tiers[0].type: is missing, must be one of fs, redis, lm
            {"cpu_bytes_to_use": 1, "secondary_tiers": [{"type": "obj"}]} | extra.secondary_tiers[0].type: unsupported value 'obj'; allowed: fs, redis, lm
            {"cpu_bytes_to_use": 1, "secondary_tiers": [{"type": "fs"}]} | extra.secondary_tiers[0].root_dir: is missing
            {"cpu_bytes_to_use": 1, "secondary_tiers": [{"type": "fs", "root_dir": "kv", "root": 1}]} | extra.secondary_tiers[0].root: unknown field; known: type, locality, enable_kv_events, backpressure, root_dir, n_read_threads, n_write_threads, io, fsync, max_bytes, max_age_seconds
            {"cpu_bytes_to_use": 1, "secondary_tiers": [{"type": "fs", "root_dir": "kv", "locality": "FAR"}]} | extra.secondary_tiers[0].locality: unsupported value 'FAR'; allowed: LOCAL, REMOTE
            {"cpu_bytes_to_use": 1, "secondary_tiers": [{"type": "redis", "url": "http://x"}]} | extra.secondary_tiers[0].url: begins with 'http', must be redis://host:port or rediss://host:port
            {"cpu_bytes_to_use": 1, "secondary_tiers": [{"type": "fs", "root_dir": "kv", "backpressure": {"alpha": 2}}]} | extra.secondary_tiers[0].backpressure.alpha: is 2.0, must be more than 0 and at most 1
            {"cpu_bytes_to_use": 1, "secondary_tiers": [{"type": "fs", "root_dir": "kv", "backpressure": {"failure_threshold": 0}}]} | extra.secondary_tiers[0].backpressure.failure_threshold: is 0, must be at least 1
            {"cpu_bytes_to_use": 1, "backpressure": {"high_water_s": 1, "low_water_s": 2}, "secondary_tiers": [{"type": "fs", "root_dir": "kv"}]} | extra.backpressure.low_water_s: is 2.0, must be at most high_water_s=1.0
            """)
    void unusableSettingsAreNamed(String json, String message) {
        assertThatThrownBy(() -> settings(json))
                .isInstanceOf(ConfigException.class)
                .hasMessage(message);
    }
}
