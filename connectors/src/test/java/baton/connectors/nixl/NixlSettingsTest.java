package baton.connectors.nixl;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.messages.PeerAddress;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

class NixlSettingsTest {
    private static NixlSettings settings(String json, Map<String, String> environment) {
        return NixlSettings.of(JsonFields.parse("kv_connector_extra_config", json.replace('\'', '"')), environment);
    }

    @Test
    void theDefaultsAreVllms() {
        NixlSettings settings = settings("{}", Map.of());
        assertThat(settings.lease()).isEqualTo(Duration.ofSeconds(30));
        assertThat(settings.oneSided().heartbeatInterval()).isEqualTo(Duration.ofSeconds(5));
        assertThat(settings.oneSided().leaseExtension()).isEqualTo(Duration.ofSeconds(20));
        assertThat(settings.decoderBlocksTtl()).isEqualTo(Duration.ofMinutes(8));
        assertThat(settings.oneSided().pushRegistrationTimeout()).isEqualTo(Duration.ofMinutes(8));
        assertThat(settings.recomputeThreshold()).isEqualTo(64);
        assertThat(settings.bidirectional()).isFalse();
        assertThat(settings.oneSided().enforceCompatibility()).isTrue();
        assertThat(settings.oneSided().engineTtl()).isEqualTo(Duration.ofHours(1));
        assertThat(settings.oneSided().handshakeTimeout()).isEqualTo(Duration.ofSeconds(5));
        assertThat(settings.oneSided().transferTimeout()).isEqualTo(Duration.ofSeconds(30));
        assertThat(settings.host()).isEqualTo("localhost");
        assertThat(settings.port()).isEqualTo(5600);
        assertThat(settings.peers()).isEmpty();
    }

    @Test
    void theSideChannelsAddressIsFromSettingsOrVariables() {
        Map<String, String> environment =
                Map.of("VLLM_NIXL_SIDE_CHANNEL_HOST", "127.0.0.7", "VLLM_NIXL_SIDE_CHANNEL_PORT", "5700");
        assertThat(settings("{}", environment).host()).isEqualTo("127.0.0.7");
        assertThat(settings("{}", environment).port()).isEqualTo(5700);
        NixlSettings own = settings("{'side_channel_host': '::1', 'side_channel_port': '0'}", environment);
        assertThat(own.host()).isEqualTo("::1");
        assertThat(own.port()).isZero();
        assertThatThrownBy(() -> settings("{}", Map.of("VLLM_NIXL_SIDE_CHANNEL_PORT", "many")))
                .isInstanceOf(ConfigException.class)
                .hasMessage("VLLM_NIXL_SIDE_CHANNEL_PORT: must be a whole number, is \"many\"");
    }

    @ParameterizedTest
    @ValueSource(strings = {"0.0.0.0", "::", "0:0:0:0:0:0:0:0"})
    void anAddressAtWhichNoPeerFindsItIsRefused(String host) {
        assertThatThrownBy(() ->
                        settings("{'side_channel_host': '" + host + "', 'kv_allow_unauthenticated': true}", Map.of()))
                .isInstanceOf(ConfigException.class)
                .hasMessageContainingAll(
                        "kv_connector_extra_config.side_channel_host: is " + host,
                        "must be the address at which peers find this instance");
    }

    @Test
    void hashesOfVllmPeersAreMirroredIfTheSettingsSaySo() {
        String peers = "'peers': ['a:1']";
        assertThat(settings("{" + peers + "}", Map.of()).oneSided().mirrored()).isEmpty();
        assertThat(settings("{'vllm_compat': 'mirror', " + peers + "}", Map.of())
                        .oneSided()
                        .mirrored())
                .containsExactly(new PeerAddress("a", 1));
        assertThat(settings(
                                "{'vllm_compat': {'version': '0.32.0', 'model': 'm', 'attn_backend_name': 'FLASH_ATTN'}, "
                                        + peers + "}",
                                Map.of())
                        .oneSided()
                        .mirrored())
                .isEmpty();
        assertThatThrownBy(() -> settings("{'vllm_compat': 'like vLLM'}", Map.of()))
                .isInstanceOf(ConfigException.class)
                .hasMessageContainingAll("kv_connector_extra_config.vllm_compat", "like vLLM", "mirror or an object");
    }

    @Test
    void settingsReplaceDefaults() {
        NixlSettings settings = settings(
                "{'kv_lease_duration': 12, 'engine_ttl': 0, 'bidirectional_kv_xfer': 'true', 'peers': ['a:1', '::1:2']}",
                Map.of());
        assertThat(settings.lease()).isEqualTo(Duration.ofSeconds(12));
        assertThat(settings.oneSided().transferTimeout()).isEqualTo(Duration.ofSeconds(12));
        assertThat(settings.oneSided().engineTtl()).isZero();
        assertThat(settings.bidirectional()).isTrue();
        assertThat(settings.peers()).isEqualTo(List.of(new PeerAddress("a", 1), new PeerAddress("::1", 2)));
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "{'kv_lease_duration': 0} | kv_lease_duration: is 0.0, must be at least 0.001 and at most 31536000",
                "{'kv_lease_duration': 'long'} | kv_lease_duration: must be a number",
                "{'kv_recompute_threshold': -1} | kv_recompute_threshold: is -1, must be at least 0",
                "{'side_channel_port': 70000} | side_channel_port: is 70000, must be at most 65535",
                "{'side_channel_host': ''} | side_channel_host: is empty, must be a host name or address",
                "{'enforce_handshake_compat': 7} | enforce_handshake_compat: must be true or false",
                "{'peers': 'a:1'} | peers: must be an array of strings",
                "{'peers': ['a']} | peers: has 'a', must have host:port",
                "{'side_channel_host': '192.0.2.1'} | side_channel_host: is 192.0.2.1, with which other hosts reach the KV port",
                "{'vllm_compat': 'auto'} | vllm_compat: unsupported value 'auto'; allowed: mirror or an object",
                "{'vllm_compat': {'version': '0.32.0', 'model': 'm'}} | vllm_compat.attn_backend_name: is missing, must be vLLM's value",
                "{'vllm_compat': {'vllm_version': '0.32.0'}} | vllm_compat.vllm_version: unknown field; known: version, model, attn_backend_name, cache_dtype",
                "{'vllm_compat': {'version': [], 'model': 'm', 'attn_backend_name': 'X'}} | vllm_compat.version: is [], must name each version once",
                "{'vllm_compat': {'version': ['1', '1'], 'model': 'm', 'attn_backend_name': 'X'}} | vllm_compat.version: is [1, 1], must name each version once",
                "{'vllm_compat': {'version': '1', 'model': 'm', 'attn_backend_name': 'X', 'side_channel_port': 70000}} | vllm_compat.side_channel_port: is 70000, must be at most 65535",
                "{'vllm_cpu_attn_isa': 'avx'} | vllm_cpu_attn_isa: unsupported value 'avx'",
                "{'kv_digest': 'md5'} | kv_digest: unsupported value 'md5'; allowed: auto, none, crc32c, sum61",
                "{'require_verified_kv': 1} | require_verified_kv: must be true or false",
                "{'allowed_peers': '10.0.0.1'} | allowed_peers: must be an array of strings",
                "{'kv_auth_secret_file': '/nowhere/secret'} | kv_auth_secret_file: is /nowhere/secret, which cannot be read"
            },
            quoteCharacter = '`')
    void invalidSettingsAreRefused(String json, String message) {
        assertThatThrownBy(() -> settings(json, Map.of()))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith("kv_connector_extra_config." + message);
    }
}
