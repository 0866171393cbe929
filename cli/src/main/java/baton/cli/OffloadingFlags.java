package baton.cli;

import baton.kv.ConfigException;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import java.util.Optional;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Option;

/** vLLM's flags that stand for a transfer configuration with host memory behind the KV cache. */
final class OffloadingFlags {
    private static final String CONNECTOR = "OffloadingConnector";
    private static final String SIZE = "kv_offloading_size";
    private static final double GIB = 1L << 30;

    @Option(
            names = "--kv-offloading-size",
            paramLabel = "GIB",
            description = "Keep KV blocks in that much host memory too: " + CONNECTOR
                    + " with cpu_bytes_to_use (default: none).")
    private @Nullable Double size;

    @Option(
            names = "--kv-offloading-backend",
            defaultValue = "native",
            description = "The backend of --kv-offloading-size: native (default).")
    private String backend = "native";

    /**
     * @param config of {@code --kv-transfer-config}
     * @throws ConfigException if the flags cannot be used, or contradict the configuration
     */
    Optional<KvTransferConfig> apply(Optional<KvTransferConfig> config) {
        if (size == null) {
            return config;
        }
        double gib = size;
        if (!(gib > 0 && gib <= 1 << 20)) {
            throw new ConfigException(SIZE, "is " + gib + ", must be a number of GiB, more than 0");
        }
        if (!backend.equals("native")) {
            throw ConfigException.unsupported("kv_offloading_backend", backend, "native");
        }
        Optional<String> other = config.flatMap(KvTransferConfig::connector).filter(name -> !name.equals(CONNECTOR));
        if (other.isPresent()) {
            throw new ConfigException(
                    SIZE,
                    "is " + gib + " and kv_connector is " + other.get()
                            + ": an instance has one connector. For both, let" + " kv_connector be MultiConnector with "
                            + other.get() + " and " + CONNECTOR);
        }
        KvTransferConfig.Builder builder = KvTransferConfig.builder(CONNECTOR, KvRole.BOTH);
        config.ifPresent(given -> {
            builder.engineId(given.engineId()).loadFailurePolicy(given.loadFailurePolicy());
            given.extra()
                    .names()
                    .forEach(name -> given.extra().value(name).ifPresent(value -> builder.extra(name, value)));
        });
        return Optional.of(builder.extra("cpu_bytes_to_use", (long) (gib * GIB)).build());
    }
}
