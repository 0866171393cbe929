package baton.connectors.p2pnccl;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.KvTransferConfig;
import baton.kv.ListenAddress;
import baton.kv.Setting;
import baton.kv.Ticker;
import baton.messages.PeerAccess;
import baton.messages.PeerAddress;
import baton.pipe.p2p.P2pSettings;
import baton.pipe.p2p.P2pSettings.SendType;
import java.time.Duration;
import java.util.List;
import java.util.Optional;

/**
 * The connector's keys of {@code kv_connector_extra_config}: vLLM's, and further ones of Baton; {@link #SETTINGS} describes them.
 *
 * @param proxy {@code proxy_ip}:{@code proxy_port}: where to register; empty if either is
 * @param http {@code kv_ip}:{@code http_port}: the address of the instance's HTTP API; needed to register
 */
record P2pNcclSettings(
        Optional<PeerAddress> proxy,
        Optional<PeerAddress> http,
        long poolBytes,
        SendType sendType,
        String transport,
        PeerAccess access,
        Duration exchange,
        Duration transfer,
        Duration load,
        Duration keep) {
    private static final String PROXY_IP = "proxy_ip";
    private static final String PROXY_PORT = "proxy_port";
    private static final String HTTP_PORT = "http_port";
    private static final String POOL = "mem_pool_size_gb";
    private static final String SEND_TYPE = "send_type";
    private static final String CHANNELS = "nccl_num_channels";
    static final String TRANSPORT = "transport";
    private static final String EXCHANGE = "exchange_timeout";
    private static final String TRANSFER = "transfer_timeout";
    private static final String LOAD = "load_timeout";
    private static final String TTL = "tensor_ttl";

    /** All of them. */
    static final List<Setting> SETTINGS = PeerAccess.settings(
            Setting.absent(PROXY_IP, "none", "Host of the router with which the instance registers every 3 s."),
            Setting.absent(PROXY_PORT, "none", "The router's `--register-port`."),
            Setting.absent(HTTP_PORT, "none", "The instance's `--port`, to which the router sends requests."),
            Setting.of(POOL, 32, "GiB of host memory for received tensors beyond `kv_buffer_size`; taken when needed."),
            Setting.of(
                    SEND_TYPE,
                    SendType.PUT_ASYNC.name(),
                    "`PUT_ASYNC`: queued and sent by another thread; `PUT`: sent within the step; `GET`: kept until the decode instance gets them. The same at both ends."),
            Setting.of(TRANSPORT, "auto", "`auto`, which is TCP, `tcp`, `gloo` or `nccl`; the same at both ends."),
            Setting.of(EXCHANGE, 5, "Seconds to connect, or for a control message."),
            Setting.of(TRANSFER, 10, "Seconds for one tensor, and for room for it."),
            Setting.of(LOAD, 30, "Seconds for all of a request's tensors, connecting included."),
            Setting.of(TTL, 120, "Seconds that unclaimed tensors are kept."),
            Setting.absent(CHANNELS, "none", "Accepted; has no effect."));

    /** @throws ConfigException if a value cannot be used */
    static P2pNcclSettings of(KvTransferConfig config, Ticker ticker) {
        JsonFields extra = config.extra().withDefaults(SETTINGS);
        // Checked only: NCCL uses its own default.
        integer(extra, CHANNELS, 1, 1024);
        Optional<String> proxyHost = extra.string(PROXY_IP).filter(host -> !host.isBlank());
        Optional<Integer> proxyPort = integer(extra, PROXY_PORT, 1, 65_535);
        if (proxyHost.isPresent() && proxyPort.isEmpty()) {
            throw new ConfigException(
                    extra.field(PROXY_PORT),
                    "is missing; the proxy is at " + proxyHost.get() + ", as " + extra.field(PROXY_IP) + " says");
        }
        Optional<PeerAddress> proxy =
                proxyHost.map(host -> address(extra.field(PROXY_IP), host, proxyPort.orElseThrow()));
        Optional<PeerAddress> http =
                integer(extra, HTTP_PORT, 1, 65_535).map(port -> new PeerAddress(config.ip(), port));
        if (proxy.isPresent() && http.isEmpty()) {
            throw new ConfigException(
                    extra.field(HTTP_PORT),
                    "is missing; the proxy at " + proxy.get() + " needs this instance's address for requests");
        }
        double poolGb = extra.number(POOL, 0, 1 << 20).orElseThrow();
        // Peers parse this address, so it has to have their form.
        PeerAddress own = address("kv_ip", config.ip(), Math.max(1, config.port()));
        ListenAddress.requireOfOneHost("kv_ip", own.host());
        PeerAccess access = PeerAccess.of(extra, "kv_ip", own.host(), List.of(), ticker);
        String transport = extra.string(TRANSPORT).orElseThrow();
        if (transport.equals("gloo")) {
            // Its store listens on every address, and admits every host.
            access.requireSafeEverywhere(extra.field(TRANSPORT), transport);
        } else {
            access.requireSafe("kv_ip", own.host());
        }
        return new P2pNcclSettings(
                proxy,
                http,
                (long) (poolGb * (1L << 30)),
                extra.string(SEND_TYPE)
                        .map(type ->
                                ConfigException.choose(extra.field(SEND_TYPE), type, SendType.values(), SendType::name))
                        .orElseThrow(),
                transport,
                access,
                seconds(extra, EXCHANGE),
                seconds(extra, TRANSFER),
                seconds(extra, LOAD),
                seconds(extra, TTL));
    }

    /** @throws ConfigException if peers cannot parse the address */
    private static PeerAddress address(String field, String host, int port) {
        String text = new PeerAddress(host, port).toString();
        return PeerAddress.find(text)
                .orElseThrow(
                        () -> new ConfigException(field, "is '" + PeerAddress.shown(text) + "', must be host:port"));
    }

    /** The settings of one rank's endpoint. */
    P2pSettings endpoint(KvTransferConfig config, int rank) {
        if (config.port() != 0 && config.port() + rank > 65_535) {
            throw new ConfigException("kv_port", "is " + config.port() + ", leaves no port for rank " + rank);
        }
        return new P2pSettings(
                config.ip(),
                config.port() == 0 ? 0 : config.port() + rank,
                sendType,
                config.bufferSize(),
                poolBytes,
                access,
                exchange,
                transfer,
                keep);
    }

    /** An empty text counts as absent, as in vLLM's configurations. */
    private static Optional<Integer> integer(JsonFields extra, String name, int least, int most) {
        if (extra.value(name)
                .filter(value -> value.isString() && value.asString().isBlank())
                .isPresent()) {
            return Optional.empty();
        }
        return extra.integer(name, least, most);
    }

    private static Duration seconds(JsonFields extra, String name) {
        return extra.seconds(name, 0.001, 86_400).orElseThrow();
    }
}
