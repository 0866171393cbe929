package baton.connectors.lmcache;

import baton.connectors.lmcache.pd.PdSettings;
import baton.connectors.lmcache.pd.PdSettings.Role;
import baton.kv.ConfigException;
import baton.kv.KvTransferConfig;
import baton.kv.ListenAddress;
import baton.kv.Setting;
import baton.messages.PeerAccess;
import baton.messages.PeerAddress;
import baton.transfer.select.TransferAgents;
import java.time.Duration;
import java.util.List;
import java.util.Optional;

/** LMCache's keys of its prefill/decode mode, and Baton's own of agents and of access to them. */
final class PdConfig {
    private static final String ENABLE = "enable_pd";
    private static final String ROLE = "pd_role";
    static final String BYTES = "pd_buffer_size";
    private static final String DEVICE = "pd_buffer_device";
    private static final String HOST = "pd_peer_host";
    private static final String PORT = "pd_peer_init_port";
    private static final String BIDIRECTIONAL = "pd_bidirectional";
    private static final String LONGEST = "pd_max_prefill_len";
    private static final String CHANNEL = "transfer_channel";

    /** LMCache's that nothing here depends on: notices to its proxy, ports and threads that Baton does not have. */
    private static final List<String> UNUSED = List.of(
            "pd_peer_alloc_port",
            "pd_peer_query_port",
            "pd_proxy_host",
            "pd_proxy_port",
            "pd_backend_mode",
            "pd_skip_proxy_notification",
            "pd_allocation_timeout_sec",
            "pd_shutdown_timeout_sec",
            "pd_condition_poll_interval_sec");

    private static final List<Setting> ONLY_WITH_PD = Setting.join(
            List.of(
                    Setting.absent(
                            ROLE,
                            "required",
                            "`sender` or `receiver`; this and the following keys with `enable_pd` only."),
                    Setting.absent(
                            BYTES,
                            "required",
                            "Bytes of host memory for blocks that are on their way, and at the receiver for those that came last."),
                    Setting.absent(DEVICE, "`cpu`", "No other."),
                    Setting.absent(
                            HOST,
                            "required of a receiver",
                            "Where it listens; at a sender, the receiver of requests that name none."),
                    Setting.absent(PORT, "required of a receiver", "Its port; of a list the first counts."),
                    Setting.absent(BIDIRECTIONAL, "`false`", "No other."),
                    Setting.absent(LONGEST, "not checked", "Tokens that the buffer must have room for."),
                    Setting.absent(CHANNEL, "`nixl`", "No other; `" + TransferAgents.TRANSFER_AGENT + "` chooses.")),
            UNUSED.stream()
                    .map(key -> Setting.absent(key, "none", "Accepted; has no effect."))
                    .toList());

    static final List<Setting> SETTINGS = Setting.join(
            List.of(Setting.of(
                    ENABLE,
                    false,
                    "Blocks of prompts go from a prefill instance to a decode instance, and nowhere else.")),
            ONLY_WITH_PD,
            PeerAccess.settings(TransferAgents.WITHOUT_MOONCAKE.toArray(Setting[]::new)));

    private PdConfig() {}

    /**
     * @param wait {@code blocking_timeout_secs}
     * @param leastLoad {@code min_retrieve_tokens}
     * @return empty unless {@code enable_pd} is on
     * @throws ConfigException if a key cannot be used, or is missing
     */
    static Optional<PdSettings> read(LmCacheConfig config, KvTransferConfig transfer, Duration wait, int leastLoad) {
        if (!config.bool(ENABLE).orElseThrow()) {
            for (String key : Setting.names(ONLY_WITH_PD)) {
                if (config.has(key)) {
                    throw new ConfigException(config.field(key), "means something with enable_pd=true only");
                }
            }
            return Optional.empty();
        }
        Role role = role(config, transfer);
        long bytes = config.integer(BYTES)
                .orElseThrow(() -> new ConfigException(BYTES, "is missing, must be the bytes of the buffer"));
        if (bytes <= 0) {
            throw new ConfigException(config.field(BYTES), "is " + bytes + ", must be the bytes of the buffer");
        }
        config.choice(DEVICE, "cpu");
        config.choice(CHANNEL, "nixl");
        if (config.bool(BIDIRECTIONAL).orElse(false)) {
            throw new ConfigException(
                    config.field(BIDIRECTIONAL), "is true, must be false: blocks go from prefill to decode only");
        }
        Optional<String> host = config.string(HOST);
        Optional<Integer> port = config.firstPort(PORT);
        if (host.isPresent() != port.isPresent() || (host.isEmpty() && role == Role.RECEIVER)) {
            throw new ConfigException(
                    config.field(host.isEmpty() ? HOST : PORT),
                    role == Role.RECEIVER
                            ? "is missing: a receiver listens at " + HOST + " and " + PORT
                            : "is missing: " + HOST + " and " + PORT + " name the receiver together");
        }
        Optional<PeerAddress> peer = host.flatMap(name -> port.map(number -> address(config, name, number)));
        String own = role == Role.RECEIVER ? host.orElseThrow() : transfer.ip();
        String field = role == Role.RECEIVER ? config.field(HOST) : "kv_ip";
        ListenAddress.requireOfOneHost(field, own);
        PeerAccess access = PeerAccess.of(
                transfer.extra(),
                field,
                own,
                role == Role.RECEIVER
                        ? List.of()
                        : peer.map(PeerAddress::host).stream().toList());
        access.requireSafe(field, own);
        return Optional.of(new PdSettings(
                role,
                own,
                role == Role.RECEIVER ? port.orElseThrow() : 0,
                role == Role.RECEIVER ? Optional.empty() : peer,
                bytes,
                wait,
                leastLoad,
                access));
    }

    private static Role role(LmCacheConfig config, KvTransferConfig transfer) {
        String role = config.string(ROLE)
                .orElseThrow(() -> new ConfigException(ROLE, "is missing, must be sender or receiver"));
        return switch (role) {
            case "sender" -> {
                if (!transfer.isProducer()) {
                    throw new ConfigException(config.field(ROLE), "is sender, which kv_role=kv_consumer is not");
                }
                yield Role.SENDER;
            }
            case "receiver" -> {
                if (!transfer.isConsumer()) {
                    throw new ConfigException(config.field(ROLE), "is receiver, which kv_role=kv_producer is not");
                }
                yield Role.RECEIVER;
            }
            default -> throw ConfigException.unsupported(config.field(ROLE), role, "sender, receiver");
        };
    }

    private static PeerAddress address(LmCacheConfig config, String host, int port) {
        if (port == 0) {
            throw new ConfigException(config.field(PORT), "is 0, must be a port that the sender names too");
        }
        return PeerAddress.find(host, port)
                .orElseThrow(() -> new ConfigException(
                        config.field(HOST), "is '" + PeerAddress.shown(host) + "', must be a name or an address"));
    }

    /**
     * Refuses a buffer that has no room for the longest prompt.
     *
     * @param tokens that it has room for
     */
    static void requireRoom(LmCacheConfig config, long tokens) {
        long longest = config.integer(LONGEST).orElse(0L);
        if (longest > tokens) {
            throw new ConfigException(
                    config.field(BYTES),
                    "has room for %d tokens, must have room for the %d of %s".formatted(tokens, longest, LONGEST));
        }
    }
}
