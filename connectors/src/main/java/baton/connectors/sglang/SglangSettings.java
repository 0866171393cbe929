package baton.connectors.sglang;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.KvTransferConfig;
import baton.kv.ListenAddress;
import baton.kv.Setting;
import baton.messages.PeerAccess;
import java.time.Duration;
import java.util.List;

/**
 * The connector's keys of {@code kv_connector_extra_config}. Times have SGLang's defaults. {@link #SETTINGS} describes them.
 */
record SglangSettings(
        String host,
        int bootstrapPort,
        Duration handshake,
        Duration bootstrap,
        Duration waiting,
        Duration transfer,
        Duration release,
        PeerAccess access) {
    static final String BOOTSTRAP_PORT = "bootstrap_port";
    private static final String HANDSHAKE = "handshake_timeout";
    private static final String BOOTSTRAP = "bootstrap_timeout";
    private static final String WAITING = "waiting_timeout";
    private static final String TRANSFER = "transfer_timeout";
    private static final String RELEASE = "release_timeout";

    /** All of them. */
    static final List<Setting> SETTINGS = PeerAccess.settings(
            Setting.of(BOOTSTRAP_PORT, 8998, "Port of the registry that a prefill instance runs; 0 takes a free one."),
            Setting.of(HANDSHAKE, 5, "Seconds for one question to a registry, or one connection."),
            Setting.of(
                    BOOTSTRAP,
                    300,
                    "Seconds that a prefill rank keeps a prompt for a decode rank, and waits for a prompt that a decode rank wants."),
            Setting.of(WAITING, 300, "Seconds after which a decode instance gives up."),
            Setting.of(TRANSFER, 60, "Seconds for the writes of one prompt."),
            Setting.of(
                    RELEASE,
                    30,
                    "Seconds after which a decode instance uses pages of a failed load again although the prefill rank has not said that it has stopped writing."));

    /** @throws ConfigException if a value cannot be used */
    static SglangSettings of(KvTransferConfig config) {
        JsonFields extra = config.extra().withDefaults(SETTINGS);
        if (config.isProducer() == config.isConsumer()) {
            throw new ConfigException(
                    "kv_role",
                    "must be kv_producer or kv_consumer with SglangConnector: requests of SGLang's routers do not say which leg they are");
        }
        ListenAddress.requireOfOneHost("kv_ip", config.ip());
        PeerAccess access = PeerAccess.of(extra, "kv_ip", config.ip(), List.of());
        // SGLang's messages have no place for a secret.
        access.requireSafeByAddress("kv_ip", config.ip());
        return new SglangSettings(
                config.ip(),
                extra.integer(BOOTSTRAP_PORT, 0, 65_535).orElseThrow(),
                seconds(extra, HANDSHAKE),
                seconds(extra, BOOTSTRAP),
                seconds(extra, WAITING),
                seconds(extra, TRANSFER),
                seconds(extra, RELEASE),
                access);
    }

    private static Duration seconds(JsonFields extra, String name) {
        return extra.seconds(name, 0.001, 31_536_000).orElseThrow();
    }
}
