package baton.connectors.mooncakestore;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Map;
import java.util.OptionalInt;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class MooncakeStoreSettingsTest {
    private static final String REST = "\"store_rest_url\": \"http://10.0.0.1:8080/\"";

    @TempDir
    private Path directory;

    private static MooncakeStoreSettings settings(KvRole role, String extra, Map<String, String> environment) {
        KvTransferConfig.Builder config = KvTransferConfig.builder("MooncakeStoreConnector", role);
        JsonFields fields = JsonFields.parse("kv_connector_extra_config", "{" + extra + "}");
        fields.names().forEach(name -> config.extra(name, fields.value(name).orElseThrow()));
        return MooncakeStoreSettings.of(config.build(), environment);
    }

    private String file(String json) throws IOException {
        Path file = directory.resolve("mooncake.json");
        Files.writeString(file, json);
        return file.toString();
    }

    @Test
    void aServiceNeedsNothingButItsUrl() {
        MooncakeStoreSettings settings = settings(KvRole.BOTH, REST, Map.of());
        assertThat(settings.access()).isInstanceOfSatisfying(StoreAccess.Rest.class, rest -> {
            assertThat(rest.service().url()).isEqualTo(URI.create("http://10.0.0.1:8080"));
            assertThat(rest.service().connections()).isEqualTo(4);
        });
        assertThat(settings.memoryBytes()).isEqualTo(4L << 30);
        assertThat(settings.loads()).isTrue();
        assertThat(settings.stores()).isTrue();
        assertThat(settings.policy().promptOnly()).isTrue();
        assertThat(settings.policy().acquire()).isEqualTo(Duration.ofSeconds(2));
        assertThat(settings.storeTensorShares()).isEmpty();
    }

    @Test
    void objectsThatVllmReadsAreNotEncrypted() throws IOException {
        String key = "\"kv_store_key_file\": \"" + Files.writeString(directory.resolve("key"), "a key of the instances")
                + "\", ";
        assertThat(settings(KvRole.BOTH, key + REST, Map.of()).key()).isPresent();
        assertThatThrownBy(() -> settings(KvRole.BOTH, key + "\"store_tp_size\": 2, " + REST, Map.of()))
                .isInstanceOf(ConfigException.class)
                .hasMessageContainingAll("kv_store_key_file", "must be left out with store_tp_size");
    }

    @Test
    void mooncakesFileIsReadAsVllmReadsIt() throws Exception {
        String path = file("""
                {"mode": "standalone-store", "global_segment_size": 0, "local_buffer_size": "1.5 GB", "protocol": "tcp",
                 "metadata_server": "P2PHANDSHAKE", "local_hostname": "h", "tenant_id": " "}""");
        assertThat(settings(KvRole.BOTH, REST, Map.of("MOONCAKE_CONFIG_PATH", path))
                        .memoryBytes())
                .isEqualTo(3L << 29);
        assertThat(settings(
                                KvRole.BOTH,
                                REST + ", \"local_buffer_size\": \"512kb\"",
                                Map.of("MOONCAKE_CONFIG_PATH", path))
                        .memoryBytes())
                .isEqualTo(512 << 10);
    }

    @Test
    void storeTensorSharesAreGivenOrTheLeastCommonMultiple() {
        assertThat(settings(KvRole.BOTH, REST + ", \"store_tp_size\": 4", Map.of())
                        .storeTensorShares())
                .isEqualTo(OptionalInt.of(4));
        assertThat(settings(
                                KvRole.BOTH,
                                REST + ", \"enable_store_tp_lcm\": true, \"prefill_tp_sizes\": [4, 6, 2]",
                                Map.of())
                        .storeTensorShares())
                .isEqualTo(OptionalInt.of(12));
    }

    @Test
    void withoutAServiceTheLibraryIsNeededAndItsAbsenceIsExplained() throws Exception {
        String path = file("{\"master_server_address\": \"127.0.0.1:50051\", \"protocol\": \"tcp\"}");
        assertThatThrownBy(() -> settings(KvRole.BOTH, "", Map.of()))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("MOONCAKE_CONFIG_PATH: is not set")
                .hasMessageContaining("store_rest_url");
        assertThatThrownBy(() -> settings(
                        KvRole.BOTH,
                        "\"mooncake_store_library\": \"/nowhere/libmooncake_store.so\"",
                        Map.of("MOONCAKE_CONFIG_PATH", path)))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining(
                        "kv_connector_extra_config.mooncake_store_library: Mooncake's store library is not")
                .hasMessageContaining("/nowhere/libmooncake_store.so is no file")
                .hasMessageContaining("BATON_MOONCAKE_STORE_LIBRARY");
    }

    @ParameterizedTest
    @CsvSource(delimiter = '|', textBlock = """
            "load_async": false                      | load_async: is false, must be true
            "enable_cross_layers_blocks": true       | enable_cross_layers_blocks: is true, must be false
            "enable_group_semantics": true           | enable_group_semantics: is true, must be false
            "custom_mem_pool": "NVLINK"              | custom_mem_pool: is "NVLINK", must be absent
            "preferred_segment": "h:1"               | preferred_segment: cannot be chosen through store_rest_url
            "mooncake_store_library": "/x"           | mooncake_store_library: is set and store_rest_url too
            "store_rest_connections": 100            | store_rest_connections: is 100, must be at most 64
            "load_timeout_seconds": 0                | load_timeout_seconds: is 0.0, must be more than 0
            "local_buffer_size": "4 TB"              | local_buffer_size: is "4 TB", must be a number of bytes
            "local_buffer_size": 0                   | local_buffer_size: is 0, must be more than 0
            "enable_store_tp_lcm": true              | prefill_tp_sizes: is absent, must be an array of sizes
            "store_tp_size": 0                       | store_tp_size: is 0, must be at least 1
            "store_rest_url": "10.0.0.1:8080"        | store_rest_url: is '10.0.0.1:8080', must be http://host:port
            "store_rest_url": "http://h:1/api"       | store_rest_url: is 'http://h:1/api', must be http://host:port
            """)
    void unsupportedSettingsAreRefusedByName(String extra, String message) {
        String all = extra.contains("rest_url") ? extra : REST + ", " + extra;
        assertThatThrownBy(() -> settings(KvRole.BOTH, all, Map.of()))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("kv_connector_extra_config." + message);
    }

    @ParameterizedTest
    @CsvSource(delimiter = '|', textBlock = """
            {"mode": "both"}                                     | mode: unsupported value 'both'
            {"global_segment_size": 0}                           | global_segment_size: is 0, must be more than 0 in mode
            {"mode": "standalone-store"}                         | global_segment_size: is 4294967296, must be set to 0
            {"global_segment_size": "1 parsec"}                  | global_segment_size: is "1 parsec", must be a number
            {"protocol": "ascend"}                               | protocol: unsupported value 'ascend'
            {"local_bufer_size": 1}                              | local_bufer_size: is not known
            {}                                                   | mode: is embedded: through store_rest_url
            {"mode": "standalone-store", "global_segment_size": 0, "tenant_id": "a"} | tenant_id: is 'a', must be default
            """)
    void mistakesInMooncakesFileAreNamed(String json, String message) throws Exception {
        String path = file(json);
        assertThatThrownBy(() -> settings(KvRole.BOTH, REST, Map.of("MOONCAKE_CONFIG_PATH", path)))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining(path + "." + message);
    }

    @Test
    void anInstanceThatNeitherLooksUpNorStoresNeedsTheLibrary() {
        assertThatThrownBy(() -> settings(KvRole.CONSUMER, REST + ", \"enable_lookup\": false", Map.of()))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("store_rest_url: is set, but this instance neither looks up nor stores");
    }
}
