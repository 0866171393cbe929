package baton.kv;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.UUID;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class KvTransferConfigTest {
    @Test
    void defaults() {
        KvTransferConfig config = json("{}");

        assertThat(config.connector()).isEmpty();
        assertThat(UUID.fromString(config.engineId()).version()).isEqualTo(4);
        assertThat(config.bufferDevice()).isEqualTo("cpu");
        assertThat(config.bufferSize()).isEqualTo(1_000_000_000L);
        assertThat(config.role()).isEmpty();
        assertThat(config.rank()).isEmpty();
        assertThat(config.parallelSize()).isEqualTo(1);
        assertThat(config.ip()).isEqualTo("127.0.0.1");
        assertThat(config.port()).isEqualTo(14579);
        assertThat(config.extra().isEmpty()).isTrue();
        assertThat(config.modulePath()).isEmpty();
        assertThat(config.permuteLocalKv()).isFalse();
        assertThat(config.loadFailurePolicy()).isEqualTo(LoadFailurePolicy.FAIL);
        assertThat(config.isProducer()).isFalse();
        assertThat(config.isConsumer()).isFalse();
        assertThat(config.engineId()).isNotEqualTo(json("{}").engineId());
        assertThat(KvTransferConfig.none().toJson().without("engine_id"))
                .isEqualTo(config.toJson().without("engine_id"));
    }

    @Test
    void everyFieldIsMapped() {
        KvTransferConfig config = json(EVERY_FIELD);

        assertThat(config)
                .isEqualTo(new KvTransferConfig(
                        Optional.of("My"),
                        "engine-7",
                        "cuda",
                        10_000_000_000L,
                        Optional.of(KvRole.CONSUMER),
                        OptionalInt.of(1),
                        2,
                        "10.0.0.3",
                        21001,
                        JsonFields.parse("kv_connector_extra_config", "{\"a\": [1, {\"b\": null}]}"),
                        Optional.of("org.example"),
                        true,
                        LoadFailurePolicy.RECOMPUTE,
                        VerifyKv.FIRST_LAYER));
    }

    @Test
    void toJsonReadsBackEqual() {
        for (String source : List.of("{}", EVERY_FIELD)) {
            KvTransferConfig config = json(source);
            assertThat(json(config.toJson().toString())).isEqualTo(config);
        }
    }

    @Test
    void numbersMayBeText() {
        KvTransferConfig config = json("""
                {"kv_buffer_size": "1e10", "kv_port": "21001", "kv_rank": "1", "kv_parallel_size": "2",
                 "enable_permute_local_kv": "True"}""");

        assertThat(config.bufferSize()).isEqualTo(10_000_000_000L);
        assertThat(config.port()).isEqualTo(21001);
        assertThat(config.rank()).hasValue(1);
        assertThat(config.parallelSize()).isEqualTo(2);
        assertThat(config.permuteLocalKv()).isTrue();
        assertThat(json("{\"kv_buffer_size\": 1e9}").bufferSize()).isEqualTo(1_000_000_000L);
    }

    @Test
    void nullMeansDefault() {
        KvTransferConfig config = json("""
                {"kv_connector": null, "engine_id": null, "kv_role": null, "kv_rank": null, "kv_port": null}""");

        assertThat(config.connector()).isEmpty();
        assertThat(config.port()).isEqualTo(14579);
        assertThat(UUID.fromString(config.engineId()).version()).isEqualTo(4);
    }

    @ParameterizedTest
    @CsvSource({"kv_producer,true,false", "kv_consumer,false,true", "kv_both,true,true"})
    void rolesProduceAndConsume(String role, boolean produces, boolean consumes) {
        KvTransferConfig config = json("{\"kv_connector\": \"X\", \"kv_role\": \"" + role + "\"}");

        assertThat(config.isProducer()).isEqualTo(produces);
        assertThat(config.isConsumer()).isEqualTo(consumes);
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            quoteCharacter = '`',
            value = {
                "{\"kv_role\": \"kv_boht\"} | kv_role: Unsupported kv_role: kv_boht. Supported roles are (kv_producer, kv_consumer, kv_both)",
                "{\"kv_connector\": \"X\"} | kv_role: Please specify kv_role when kv_connector is set, supported roles are (kv_producer, kv_consumer, kv_both)",
                "{\"kv_conector\": \"X\"} | kv_conector: unknown field; did you mean kv_connector?",
                "{\"port\": 1} | port: unknown field; known: kv_connector, engine_id, kv_buffer_device, kv_buffer_size, kv_role, kv_rank, kv_parallel_size, kv_ip, kv_port, kv_connector_extra_config, kv_connector_module_path, enable_permute_local_kv, kv_load_failure_policy, verify_kv",
                "{\"kv_connector\": 5} | kv_connector: must be a string, is 5",
                "{\"kv_connector\": \"\", \"kv_role\": \"kv_both\"} | kv_connector: must not be empty",
                "{\"engine_id\": \" \"} | engine_id: must not be empty",
                "{\"kv_buffer_device\": \"gpu\"} | kv_buffer_device: unsupported value 'gpu'; allowed: cpu, cuda",
                "{\"kv_buffer_size\": \"big\"} | kv_buffer_size: must be a whole number, is \"big\"",
                "{\"kv_buffer_size\": -1} | kv_buffer_size: is -1, must be at least 0",
                "{\"kv_rank\": -1} | kv_rank: is -1, must be at least 0",
                "{\"kv_rank\": 2, \"kv_parallel_size\": 2} | kv_rank: is 2, must be less than kv_parallel_size=2",
                "{\"kv_rank\": 1.5} | kv_rank: must be a whole number, is 1.5",
                "{\"kv_parallel_size\": 0} | kv_parallel_size: is 0, must be at least 1",
                "{\"kv_parallel_size\": 3000000000} | kv_parallel_size: is 3000000000, must be at most 2147483647",
                "{\"kv_ip\": \"\"} | kv_ip: must not be empty",
                "{\"kv_port\": 65536} | kv_port: is 65536, must be 0 to 65535",
                "{\"kv_port\": -1} | kv_port: is -1, must be at least 0",
                "{\"kv_port\": [1]} | kv_port: must be a whole number, is [1]",
                "{\"kv_connector_extra_config\": \"x\"} | kv_connector_extra_config: must be an object, is \"x\"",
                "{\"kv_connector_module_path\": \"\"} | kv_connector_module_path: kv_connector_module_path cannot be an empty string.",
                "{\"enable_permute_local_kv\": \"perhaps\"} | enable_permute_local_kv: must be true or false, is \"perhaps\"",
                "{\"kv_load_failure_policy\": \"retry\"} | kv_load_failure_policy: unsupported value 'retry'; allowed: recompute, fail",
                "{\"verify_kv\": \"on\"} | verify_kv: unsupported value 'on'; allowed: auto, off, last, first_layer, each_block, full"
            })
    void errorsNameFieldValueAndAllowedValues(String json, String message) {
        assertThatThrownBy(() -> json(json)).isInstanceOf(ConfigException.class).hasMessage(message);
    }

    @Test
    void builderReadsPleasantly() {
        KvTransferConfig config = KvTransferConfig.builder("SharedStorageConnector", KvRole.PRODUCER)
                .engineId("p0")
                .bufferDevice("cuda")
                .bufferSize(7)
                .rank(0)
                .parallelSize(2)
                .ip("10.0.0.3")
                .port(0)
                .modulePath("org.example")
                .permuteLocalKv(true)
                .loadFailurePolicy(LoadFailurePolicy.RECOMPUTE)
                .verifyKv(VerifyKv.FIRST_LAYER)
                .extra("shared_storage_path", Path.of("kv", "cache"))
                .extra("backends", List.of("UCX", "LIBFABRIC"))
                .extra("limits", Map.of("seconds", 1.5))
                .extra("threads", 4)
                .extra("bytes", 5_000_000_000L)
                .extra("lazy", true)
                .build();

        assertThat(config).isEqualTo(json("""
                {"kv_connector": "SharedStorageConnector", "kv_role": "kv_producer", "engine_id": "p0",
                 "kv_buffer_device": "cuda", "kv_buffer_size": 7, "kv_rank": 0, "kv_parallel_size": 2,
                 "kv_ip": "10.0.0.3", "kv_port": 0, "kv_connector_module_path": "org.example",
                 "enable_permute_local_kv": true, "kv_load_failure_policy": "recompute", "verify_kv": "first_layer",
                 "kv_connector_extra_config": {"shared_storage_path": "kv/cache", "backends": ["UCX", "LIBFABRIC"],
                   "limits": {"seconds": 1.5}, "threads": 4, "bytes": 5000000000, "lazy": true}}"""));
    }

    @Test
    void builderChecksTheSameAsJson() {
        KvTransferConfig.Builder builder = KvTransferConfig.builder("X", KvRole.BOTH);

        assertThatThrownBy(() -> builder.port(70_000).build())
                .isInstanceOf(ConfigException.class)
                .hasMessage("kv_port: is 70000, must be 0 to 65535");
        assertThatThrownBy(() -> builder.extra("when", new Object()))
                .isInstanceOf(ConfigException.class)
                .hasMessage("kv_connector_extra_config.when: cannot hold a value of java.lang.Object");
    }

    private static final String EVERY_FIELD = """
            {"kv_connector": "My", "engine_id": "engine-7", "kv_buffer_device": "cuda", "kv_buffer_size": 1e10,
             "kv_role": "kv_consumer", "kv_rank": 1, "kv_parallel_size": 2, "kv_ip": "10.0.0.3", "kv_port": 21001,
             "kv_connector_extra_config": {"a": [1, {"b": null}]}, "kv_connector_module_path": "org.example",
             "enable_permute_local_kv": true, "kv_load_failure_policy": "recompute", "verify_kv": "first_layer"}""";

    private static KvTransferConfig json(String json) {
        return KvTransferConfig.fromJson(JsonFields.parse("", json));
    }
}
