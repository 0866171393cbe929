package baton.connectors.mooncake;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.KvTransferConfig;
import baton.kv.ListenAddress;
import baton.kv.Setting;
import baton.messages.PeerAccess;
import baton.messages.PeerAddress;
import baton.transfer.select.TransferAgents;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * The connector's keys of {@code kv_connector_extra_config}: vLLM's, and some of Baton's; {@link #SETTINGS} describes them.
 */
record MooncakeSettings(
        String host,
        int bootstrapPort,
        Optional<PeerAddress> registry,
        int dpRank,
        int workers,
        Timeouts timeouts,
        PeerAccess access) {
    static final String PROTOCOL = "mooncake_protocol";
    static final String DEVICE = "device_name";
    static final String BOOTSTRAP_PORT = "bootstrap_port";
    private static final String REGISTRY = "bootstrap_server_address";
    private static final String DP_RANK = "data_parallel_rank";
    private static final String WORKERS = "num_workers";
    private static final String HANDSHAKE = "handshake_timeout";
    private static final String ABORT = "abort_request_timeout";
    private static final String TRANSFER = "transfer_timeout";
    private static final String LOAD = "load_timeout";
    private static final String PORT_VARIABLE = "VLLM_MOONCAKE_BOOTSTRAP_PORT";
    private static final String ABORT_VARIABLE = "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT";
    private static final String HANDSHAKE_VARIABLE = "VLLM_MOONCAKE_CONNECTOR_TIMEOUT";

    /** All of them. */
    static final List<Setting> SETTINGS = PeerAccess.settings(
            Setting.absent(
                    BOOTSTRAP_PORT,
                    "variable `" + PORT_VARIABLE + "`, else 8998",
                    "Port of the registry that a prefill instance runs; 0 takes a free one."),
            Setting.absent(
                    REGISTRY,
                    "none",
                    "`host:port` of a registry elsewhere, with which this prefill instance registers; then it runs none."),
            Setting.of(DP_RANK, 0, "Of this instance among those that share a registry."),
            Setting.of(WORKERS, 10, "Prompts that a rank writes at once."),
            Setting.of(PROTOCOL, "rdma", "vLLM's. Transfers never go over RDMA."),
            Setting.absent(DEVICE, "none", "vLLM's; has no effect."),
            Setting.of(
                    TransferAgents.TRANSPORT,
                    "auto",
                    "With a secret, within one host: `auto` is shared memory, `tcp` is TCP as between hosts."),
            Setting.absent(
                    ABORT,
                    "variable `" + ABORT_VARIABLE + "`, else 480",
                    "Seconds that a prefill rank waits for a prompt that a decode rank has asked for, and keeps one that none has asked for. The same at both ends."),
            Setting.of(TRANSFER, 60, "Seconds for the writes of one prompt. The same at both ends."),
            Setting.absent(
                    HANDSHAKE,
                    "variable `" + HANDSHAKE_VARIABLE + "`, else 30",
                    "Seconds for one question to a registry, or one connection."),
            Setting.absent(
                    LOAD, "`" + ABORT + "` and `" + TRANSFER + "`", "Seconds after which a decode instance gives up."));

    /**
     * Whether instances have a secret, for which Mooncake's protocols have no place: messages are sealed then, and the embedded agent moves
     * the blocks. Only Baton's instances with that secret are peers.
     */
    boolean isSealed() {
        return access.secret().isPresent();
    }

    /** How long things may take. */
    record Timeouts(Duration handshake, Duration abort, Duration transfer, Duration load) {
        /** After this time since a decode rank has asked, a prefill rank writes nothing for it, whatever has happened. */
        Duration lastWrite() {
            return abort.plus(transfer).plus(handshake);
        }
    }

    /**
     * @param environment the process's variables
     * @throws ConfigException if a value cannot be used
     */
    static MooncakeSettings of(KvTransferConfig config, Map<String, String> environment) {
        JsonFields extra = config.extra().withDefaults(SETTINGS);
        JsonFields variables = JsonFields.ofVariables(environment);
        extra.choice(PROTOCOL, "rdma", "tcp");
        extra.choice(TransferAgents.TRANSPORT, "auto", "tcp");
        ListenAddress.requireOfOneHost("kv_ip", config.ip());
        Optional<PeerAddress> registry = extra.string(REGISTRY)
                .map(text -> PeerAddress.find(text)
                        .orElseThrow(() -> new ConfigException(
                                extra.field(REGISTRY),
                                "is '" + PeerAddress.shown(text) + "', must specify a host and port, host:port")));
        PeerAccess access = PeerAccess.of(
                extra,
                "kv_ip",
                config.ip(),
                registry.map(PeerAddress::host).map(List::of).orElse(List.of()));
        if (access.secret().isEmpty()) {
            access.requireSafeByAddress("kv_ip", config.ip());
        }
        Duration handshake = seconds(extra, HANDSHAKE)
                .or(() -> seconds(variables, HANDSHAKE_VARIABLE))
                .orElse(Duration.ofSeconds(30));
        Duration abort = seconds(extra, ABORT)
                .or(() -> seconds(variables, ABORT_VARIABLE))
                .orElse(Duration.ofMinutes(8));
        Duration transfer = seconds(extra, TRANSFER).orElseThrow();
        Duration load = seconds(extra, LOAD).orElse(abort.plus(transfer));
        return new MooncakeSettings(
                config.ip(),
                extra.integer(BOOTSTRAP_PORT, 0, 65_535)
                        .or(() -> variables.integer(PORT_VARIABLE, 0, 65_535))
                        .orElse(8998),
                registry,
                extra.integerAtLeast(DP_RANK, 0).orElseThrow(),
                extra.integerAtLeast(WORKERS, 1).orElseThrow(),
                new Timeouts(handshake, abort, transfer, load),
                access);
    }

    private static Optional<Duration> seconds(JsonFields fields, String name) {
        return fields.seconds(name, 0.001, 31_536_000);
    }
}
