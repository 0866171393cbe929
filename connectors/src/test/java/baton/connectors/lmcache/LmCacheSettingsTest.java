package baton.connectors.lmcache;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class LmCacheSettingsTest {
    @TempDir
    private Path directory;

    private static LmCacheSettings settings(Map<String, Object> extra, Map<String, String> environment) {
        KvTransferConfig.Builder config = KvTransferConfig.builder("LMCacheConnectorV1", KvRole.BOTH);
        extra.forEach(config::extra);
        return LmCacheSettings.of(config.build(), environment);
    }

    private Map<String, String> file(String yaml) throws IOException {
        Path file = directory.resolve("lmcache.yaml");
        Files.writeString(file, yaml);
        return Map.of("LMCACHE_CONFIG_FILE", file.toString());
    }

    @Test
    void defaultsAreLmCaches() {
        LmCacheSettings settings = settings(Map.of(), Map.of());
        assertThat(settings.chunkSize()).isEqualTo(256);
        assertThat(settings.memoryBytes()).isEqualTo(5L << 30);
        assertThat(settings.disk()).isEmpty();
        assertThat(settings.remote()).isEmpty();
        assertThat(settings.hashes()).isEqualTo(LmCacheSettings.Hashes.BUILTIN);
        assertThat(settings.policy().promptOnly()).isTrue();
        assertThat(settings.policy().acquire()).isEqualTo(Duration.ofSeconds(10));
        assertThat(settings.lookupTimeout()).isEqualTo(Duration.ofSeconds(3));
    }

    @Test
    void objectsThatLmCacheReadsAreNotEncrypted() throws IOException {
        String key = Files.writeString(directory.resolve("key"), "a key of the instances")
                .toString();
        assertThat(settings(Map.of("kv_store_key_file", key), Map.of()).key()).isPresent();
        assertThatThrownBy(() ->
                        settings(Map.of("kv_store_key_file", key, "remote_url", "fs://host:0" + directory), Map.of()))
                .isInstanceOf(ConfigException.class)
                .hasMessageContainingAll("kv_store_key_file", "must be left out", "OffloadingConnector");
    }

    @Test
    void lmCachesYamlFileIsRead() throws IOException {
        LmCacheSettings settings = settings(Map.of(), file("""
                        # as LMCache's documentation has it
                        chunk_size: 128
                        local_cpu: true
                        max_local_cpu_size: 0.5
                        local_disk: "file://%s/disk"
                        max_local_disk_size: 2
                        remote_url: "fs://host:0%s/a,%s/b"
                        remote_serde: "naive"
                        save_decode_cache: True
                        use_layerwise: false
                        remote_storage_plugins:
                        pre_caching_hash_algorithm: sha256_cbor_64bit
                        extra_config:
                          save_chunk_meta: false
                        """.formatted(directory, directory, directory)));
        assertThat(settings.chunkSize()).isEqualTo(128);
        assertThat(settings.memoryBytes()).isEqualTo(1L << 29);
        assertThat(settings.disk().orElseThrow().root()).isEqualTo(directory.resolve("disk"));
        assertThat(settings.disk().orElseThrow().limits().maxBytes()).hasValue(2L << 30);
        assertThat(settings.policy().promptOnly()).isFalse();
        assertThat(settings.hashes()).isEqualTo(LmCacheSettings.Hashes.SHA256_CBOR);
        assertThat(settings.remote().orElseThrow()).isInstanceOfSatisfying(RemoteStore.Fs.class, fs -> {
            assertThat(fs.directories()).containsExactly(directory.resolve("a"), directory.resolve("b"));
            assertThat(fs.hasMetadata()).isFalse();
        });
    }

    @Test
    void theEnvironmentGoesBeforeTheFileAndTheConnectorsOwnSettingsBeforeBoth() throws IOException {
        Map<String, String> environment =
                new java.util.HashMap<>(file("chunk_size: 16\nlookup_timeout_ms: 1000\nmin_retrieve_tokens: 5\n"));
        environment.put("LMCACHE_LOOKUP_TIMEOUT_MS", "2000");
        environment.put("LMCACHE_MIN_RETRIEVE_TOKENS", "6");
        environment.put("LMCACHE_LOCAL_CPU", "1");
        environment.put("LMCACHE_EXTRA_CONFIG", "{\"save_chunk_meta\": true}");
        LmCacheSettings settings =
                settings(Map.of("min_retrieve_tokens", 7, "lmcache.min_retrieve_tokens", 8), environment);
        assertThat(settings.chunkSize()).isEqualTo(16);
        assertThat(settings.lookupTimeout()).isEqualTo(Duration.ofSeconds(2));
        assertThat(settings.use().leastLoad()).isEqualTo(8);
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "lmcache.chunk_sise|256|is not a key",
                "lmcache.enable_p2p|true|must be false",
                "lmcache.pd_role|sender|with enable_pd=true only",
                "lmcache.nixl_role|sender|with enable_pd=true only",
                "lmcache.use_layerwise|true|must be false",
                "lmcache.local_cpu|false|must be true",
                "lmcache.save_unfull_chunk|true|must be false",
                "lmcache.remote_serde|cachegen|allowed: naive",
                "lmcache.cache_policy|LFU|allowed: LRU",
                "lmcache.pre_caching_hash_algorithm|xxhash|allowed: builtin, sha256",
                "lmcache.chunk_size|0|must be at least 1",
                "lmcache.chunk_size|abc|must be a whole number",
                "lmcache.max_local_cpu_size|-1|must be at least 0",
                "lmcache.remote_url|valkey://h:1|must be redis://",
                "lmcache.remote_url|resp://h:1|must be redis://",
                "lmcache.remote_url|lm://h|must be lm://",
                "lmcache.remote_url|fs://h:1|must be fs://host:port/directory",
                "lmcache.remote_url|h:1|must be redis://",
                "lmcache.baton_model_name|a@b|without blanks and @",
                "remote_storage_plugins|fs|is not a key",
            })
    void unsupportedKeysAreRefusedByName(String key, String value, String text) {
        assertThatThrownBy(() -> settings(Map.of(key, value), Map.of()))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith("kv_connector_extra_config." + key + ": ")
                .hasMessageContaining(text);
    }

    @Test
    void errorsNameTheFileOrVariable() throws IOException {
        Map<String, String> environment = file("p2p_host: a\n");
        assertThatThrownBy(() -> settings(Map.of(), environment))
                .hasMessageContaining(environment.get("LMCACHE_CONFIG_FILE") + ": p2p_host")
                .isInstanceOf(ConfigException.class);
        assertThatThrownBy(() -> settings(Map.of(), Map.of("LMCACHE_P2P_HOST", "a")))
                .hasMessageStartingWith("LMCACHE_P2P_HOST: is not a key");
        assertThatThrownBy(() -> settings(Map.of(), Map.of("LMCACHE_CONFIG_FILE", "/nowhere/x.yaml")))
                .hasMessageStartingWith("LMCACHE_CONFIG_FILE: is /nowhere/x.yaml");
        assertThatThrownBy(() -> settings(Map.of("extra_config", Map.of("nope", 1)), Map.of()))
                .hasMessageStartingWith("kv_connector_extra_config.extra_config.nope: ");
        Map<String, String> broken = file("a: [1\n");
        assertThatThrownBy(() -> settings(Map.of(), broken)).hasMessageContaining("cannot be read");
    }

    @Test
    void aPasswordIsNotInAnError() {
        assertThatThrownBy(() -> settings(Map.of("remote_url", "redis://u:secret@h:1/x"), Map.of()))
                .hasMessageNotContaining("secret")
                .hasMessageStartingWith("kv_connector_extra_config.remote_url: ");
    }
}
