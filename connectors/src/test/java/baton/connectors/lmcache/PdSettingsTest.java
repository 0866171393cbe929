package baton.connectors.lmcache;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.connectors.lmcache.pd.PdSettings;
import baton.kv.ConfigException;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.messages.PeerAddress;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** LMCache's keys of its prefill/decode mode. */
class PdSettingsTest {
    private static final Map<String, Object> SENDER = Map.of(
            "lmcache.enable_pd",
            true,
            "lmcache.pd_role",
            "sender",
            "lmcache.pd_buffer_size",
            1 << 20,
            "lmcache.pd_buffer_device",
            "cpu",
            "lmcache.pd_peer_host",
            "127.0.0.1",
            "lmcache.pd_peer_init_port",
            List.of(7300));

    private static PdSettings settings(KvRole role, Map<String, Object> extra, Map<String, String> environment) {
        KvTransferConfig.Builder config = KvTransferConfig.builder("LMCacheConnectorV1", role);
        extra.forEach(config::extra);
        return LmCacheSettings.of(config.build(), environment).pd().orElseThrow();
    }

    /** Accepts keys of LMCache's examples that Baton does not need. */
    @Test
    void lmCachesKeysOfASenderAreRead() {
        Map<String, Object> extra = new HashMap<>(SENDER);
        extra.putAll(Map.of(
                "lmcache.local_cpu",
                false,
                "lmcache.max_local_cpu_size",
                0,
                "lmcache.save_unfull_chunk",
                true,
                "lmcache.transfer_channel",
                "nixl",
                "lmcache.pd_proxy_host",
                "localhost",
                "lmcache.pd_proxy_port",
                7500,
                "lmcache.blocking_timeout_secs",
                3));
        PdSettings settings = settings(KvRole.PRODUCER, extra, Map.of());
        assertThat(settings.role()).isEqualTo(PdSettings.Role.SENDER);
        assertThat(settings.receiver()).contains(new PeerAddress("127.0.0.1", 7300));
        assertThat(settings.bufferBytes()).isEqualTo(1 << 20);
        assertThat(settings.longestWait()).isEqualTo(Duration.ofSeconds(3));
        assertThat(settings.host()).isEqualTo("127.0.0.1");
    }

    @Test
    void theFormerNamesMeanTheSameAndVariablesHaveListsWithCommas() {
        PdSettings settings = settings(
                KvRole.CONSUMER,
                Map.of(),
                Map.of(
                        "LMCACHE_ENABLE_XPYD", "True",
                        "LMCACHE_NIXL_ROLE", "receiver",
                        "LMCACHE_NIXL_BUFFER_SIZE", "4096",
                        "LMCACHE_PD_BUFFER_DEVICE", "cpu",
                        "LMCACHE_NIXL_PEER_HOST", "localhost",
                        "LMCACHE_NIXL_PEER_INIT_PORT", "7300,7301",
                        "LMCACHE_NIXL_PEER_ALLOC_PORT", "7400,7401"));
        assertThat(settings.role()).isEqualTo(PdSettings.Role.RECEIVER);
        assertThat(settings.host()).isEqualTo("localhost");
        assertThat(settings.port()).isEqualTo(7300);
        assertThat(settings.receiver()).isEmpty();
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "pd_role|both|allowed: sender, receiver",
                "pd_role|receiver|which kv_role=kv_producer is not",
                "pd_buffer_size|0|must be the bytes of the buffer",
                "pd_buffer_size|many|must be a whole number",
                "pd_buffer_device|cuda|allowed: cpu",
                "transfer_channel|mock_memory|allowed: nixl",
                "pd_bidirectional|true|must be false",
                "pd_peer_init_port|x|must be ports",
                "pd_peer_init_port|70000|must be ports",
                "pd_peer_init_port|0|must be a port",
                "pd_peer_host|a b|must be a name",
                "remote_url|lm://127.0.0.1:1|must be left out with enable_pd",
                "save_decode_cache|true|must be false",
                "pd_speed|1|is not a key",
            })
    void impossibleValuesAreRefusedByName(String key, String value, String text) {
        Map<String, Object> extra = new HashMap<>(SENDER);
        extra.put("lmcache." + key, value);
        assertThatThrownBy(() -> settings(KvRole.PRODUCER, extra, Map.of()))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith("kv_connector_extra_config.lmcache." + key + ": ")
                .hasMessageContaining(text);
    }

    @ParameterizedTest
    @CsvSource({"pd_role", "pd_buffer_size", "pd_peer_host", "pd_peer_init_port"})
    void missingKeysAreNamed(String key) {
        Map<String, Object> extra = new HashMap<>(SENDER);
        extra.remove("lmcache." + key);
        assertThatThrownBy(() -> settings(KvRole.PRODUCER, extra, Map.of()))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith(key + ": is missing");
    }

    @Test
    void aReceiverThatOtherHostsReachNeedsASecret() {
        Map<String, Object> extra = new HashMap<>(SENDER);
        extra.put("lmcache.pd_role", "receiver");
        extra.put("lmcache.pd_peer_host", "192.0.2.1");
        assertThatThrownBy(() -> settings(KvRole.CONSUMER, extra, Map.of()))
                .hasMessageStartingWith("kv_connector_extra_config.lmcache.pd_peer_host: is 192.0.2.1")
                .hasMessageContaining("--kv-auth-secret-file");
    }
}
