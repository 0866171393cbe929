package baton.connectors.pynccl;

import baton.kv.ConfigException;
import baton.kv.JsonFields;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.Setting;
import baton.kv.Ticker;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.Rank;
import baton.messages.PeerAccess;
import java.time.Duration;
import java.util.List;

/**
 * The connector's settings.
 *
 * @param producer whether this side is the producer
 * @param rank of the two, 0 or 1; 0 listens
 * @param port of the first of the ranks' wires; each rank has two
 * @param bufferBytes {@code kv_buffer_size}: bytes of entries that the consumer has not taken, at most
 * @param transport {@code auto}, or a {@link baton.pipe.WireTransport#name}
 * @param access the peers that may connect: {@link PeerAccess}
 * @param lookupTimeout the longest that a consumer waits for an entry
 * @param insertTimeout the longest that a producer waits for room in the buffer
 * @param keep after this time an entry that was not taken may be dropped to make room
 * @param connectWait how long after the start, or after the connection was lost, requests wait for a connection
 * @param silence time without a frame after which the peer counts as dead
 */
record PyNcclSettings(
        boolean producer,
        int rank,
        String host,
        int port,
        long bufferBytes,
        String transport,
        PeerAccess access,
        Duration lookupTimeout,
        Duration insertTimeout,
        Duration keep,
        Duration connectWait,
        Duration silence) {
    static final String TRANSPORT = "transport";
    private static final String LOOKUP_TIMEOUT = "lookup_timeout_seconds";
    private static final String INSERT_TIMEOUT = "insert_timeout_seconds";
    private static final String KEEP = "keep_seconds";
    private static final String CONNECT_WAIT = "connect_wait_seconds";
    private static final String SILENCE = "silence_seconds";

    /** All of them. */
    static final List<Setting> SETTINGS = PeerAccess.settings(
            Setting.of(TRANSPORT, "auto", "`tcp`, which `auto` takes, `gloo` or `nccl`; the same at both ends."),
            Setting.of(LOOKUP_TIMEOUT, 30, "The longest that a request waits for its prompt."),
            Setting.of(INSERT_TIMEOUT, 30, "The longest that a prompt waits for room at the producer."),
            Setting.of(KEEP, 120, "A prompt that has not been taken for so long makes room for new ones."),
            Setting.of(CONNECT_WAIT, 5, "How long after the start, or after the peer was lost, requests wait for it."),
            Setting.of(SILENCE, 60, "After so long a silent peer is treated as dead."));

    /** @throws ConfigException if the configuration cannot work */
    static PyNcclSettings of(ConnectorContext context) {
        return of(context.config(), context.tensorParallelSize() * context.pipelineParallelSize(), context.ticker());
    }

    /** @throws ConfigException if the configuration cannot work */
    static PyNcclSettings of(KvTransferConfig config, int ranks, Ticker ticker) {
        KvRole role = config.role().orElseThrow();
        if (role == KvRole.BOTH) {
            throw new ConfigException(
                    "kv_role", "is kv_both; this connector needs kv_producer on one side and kv_consumer on the other");
        }
        if (config.parallelSize() != 2) {
            throw new ConfigException(
                    "kv_parallel_size", "is " + config.parallelSize() + ", must be 2: one producer and one consumer");
        }
        int last = config.port() + 2 * ranks - 1;
        if (config.port() == 0 || last > 65535) {
            throw new ConfigException(
                    "kv_port",
                    "is %d; both sides need to know it, and %d ports from it on are used, two for each rank"
                            .formatted(config.port(), 2 * ranks));
        }
        if (config.bufferSize() == 0) {
            throw new ConfigException("kv_buffer_size", "is 0, must hold at least one prompt's keys and values");
        }
        JsonFields extra = config.extra().withDefaults(SETTINGS);
        boolean producer = role == KvRole.PRODUCER;
        int rank = config.rank().orElse(producer ? 0 : 1);
        String transport = extra.string(TRANSPORT).orElseThrow();
        PeerAccess access = PeerAccess.of(extra, "kv_ip", config.ip(), List.of(config.ip()), ticker);
        if (transport.equals("gloo")) {
            // Its store listens on every address, and admits every host.
            access.requireSafeEverywhere(extra.field(TRANSPORT), transport);
        } else if (rank == 0) {
            access.requireSafe("kv_ip", config.ip());
        }
        return new PyNcclSettings(
                producer,
                rank,
                config.ip(),
                config.port(),
                config.bufferSize(),
                transport,
                access,
                seconds(extra, LOOKUP_TIMEOUT),
                seconds(extra, INSERT_TIMEOUT),
                seconds(extra, KEEP),
                seconds(extra, CONNECT_WAIT),
                seconds(extra, SILENCE));
    }

    /** The first of a rank's two ports: for requests, then for answers. */
    int port(ConnectorContext context, Rank rank) {
        return port + 2 * (rank.pipeline() * context.tensorParallelSize() + rank.tensor());
    }

    private static Duration seconds(JsonFields extra, String name) {
        return extra.seconds(name, Double.MIN_VALUE, 86_400).orElseThrow();
    }
}
