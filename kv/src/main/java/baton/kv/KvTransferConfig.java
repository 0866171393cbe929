package baton.kv;

import java.util.Objects;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.UUID;

/**
 * How an instance exchanges KV caches: vLLM's {@code KVTransferConfig}, field for field (vllm/config/kv_transfer.py).
 *
 * @param connector {@code kv_connector}: a connector's name, or a class in {@code modulePath}
 * @param engineId {@code engine_id}: unique per instance; random unless given
 * @param bufferDevice {@code kv_buffer_device}: {@code cpu} or {@code cuda}
 * @param bufferSize {@code kv_buffer_size}, bytes
 * @param role {@code kv_role}; present whenever {@code connector} is
 * @param rank {@code kv_rank}, for two-sided connectors
 * @param parallelSize {@code kv_parallel_size}
 * @param ip {@code kv_ip}
 * @param port {@code kv_port}
 * @param extra {@code kv_connector_extra_config}: the connector's own settings
 * @param modulePath {@code kv_connector_module_path}: the Java package of a connector class of the user's own
 * @param permuteLocalKv {@code enable_permute_local_kv}
 * @param loadFailurePolicy {@code kv_load_failure_policy}
 */
public record KvTransferConfig(
        Optional<String> connector,
        String engineId,
        String bufferDevice,
        long bufferSize,
        Optional<KvRole> role,
        OptionalInt rank,
        int parallelSize,
        String ip,
        int port,
        JsonFields extra,
        Optional<String> modulePath,
        boolean permuteLocalKv,
        LoadFailurePolicy loadFailurePolicy) {

    /** No connector: KV caches stay in their instance. */
    public static KvTransferConfig none() {
        return new KvTransferConfig(
                Optional.empty(),
                UUID.randomUUID().toString(),
                "cpu",
                1_000_000_000L,
                Optional.empty(),
                OptionalInt.empty(),
                1,
                "127.0.0.1",
                14579,
                JsonFields.empty("kv_connector_extra_config"),
                Optional.empty(),
                false,
                LoadFailurePolicy.FAIL);
    }

    public KvTransferConfig {
        Objects.requireNonNull(engineId, "engineId");
        Objects.requireNonNull(extra, "extra");
    }

    public boolean isProducer() {
        return connector.isPresent() && role.map(KvRole::produces).orElse(false);
    }

    public boolean isConsumer() {
        return connector.isPresent() && role.map(KvRole::consumes).orElse(false);
    }
}
