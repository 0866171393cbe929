package baton.transfer.mooncake;

import baton.kv.ConfigException;
import baton.kv.GeneratedBuilder;
import baton.messages.PeerAccess;
import java.time.Duration;
import java.util.Optional;

/**
 * How a {@link MooncakeAgent} listens, finds peers and is bounded.
 *
 * @param host to listen at, and under which peers find this agent
 * @param port of the handshake daemon; 0 for a free one
 * @param metadata where descriptors of segments are
 * @param lanes connections that transfers to one peer use at most
 * @param stall after which a connection is closed whose peer has begun a message and neither sends nor takes a byte
 * @param limits bounds of what peers can ask for
 * @param access hosts of the peers that it connects to and admits, by their addresses; empty: all. A secret does not matter, as
 *     Mooncake's protocols have none
 */
@GeneratedBuilder
public record MooncakeAgentSettings(
        String host,
        int port,
        MetadataSource metadata,
        int lanes,
        Duration stall,
        Limits limits,
        Optional<PeerAccess> access)
        implements MooncakeAgentSettingsBuilder.With {
    /** Mooncake's default, {@code MC_TCP_LANES_PER_PEER}. */
    public static final int LANES = 4;

    private static final int MOST_LANES = 16;

    /** @throws ConfigException if a value makes no sense */
    public MooncakeAgentSettings {
        if (port < 0 || port > 0xffff) {
            throw new ConfigException("port", "is " + port + ", must be from 0 to 65535");
        }
        if (lanes <= 0 || lanes > MOST_LANES) {
            throw new ConfigException("lanes", "is " + lanes + ", must be from 1 to " + MOST_LANES);
        }
        if (!stall.isPositive()) {
            throw new ConfigException("stall", "is " + stall + ", must be positive");
        }
    }

    /** A free port, and descriptors asked for at the peers themselves. */
    public static MooncakeAgentSettings at(String host) {
        return new MooncakeAgentSettings(
                host,
                0,
                new MetadataSource.Handshake(),
                LANES,
                Duration.ofSeconds(30),
                Limits.DEFAULT,
                Optional.empty());
    }

    /**
     * Bounds of what peers can ask for.
     *
     * @param connections for data; beyond it the one that is idle for longest is closed
     * @param handshakes under way at a time
     * @param handshakeBytes of one handshake message, as {@code MC_HANDSHAKE_MAX_LENGTH}
     * @param transfers waiting or under way with one peer
     * @param ranges of one transfer
     * @param messageBytes of one notification
     * @param waitingBytes of notifications not yet sent to a peer, and of those not yet taken
     */
    public record Limits(
            int connections,
            int handshakes,
            int handshakeBytes,
            int transfers,
            int ranges,
            int messageBytes,
            long waitingBytes) {
        public static final Limits DEFAULT = new Limits(1024, 64, 1 << 20, 1024, 1 << 18, 1 << 16, 64L << 20);

        /** @throws ConfigException if a value makes no sense */
        public Limits {
            if (connections <= 0 || handshakes <= 0 || transfers <= 0 || ranges <= 0) {
                throw new ConfigException(
                        "limits",
                        "has connections=%d handshakes=%d transfers=%d ranges=%d, must be positive"
                                .formatted(connections, handshakes, transfers, ranges));
            }
            if (handshakeBytes < 1 << 12 || messageBytes <= 0 || waitingBytes <= 0) {
                throw new ConfigException(
                        "limits",
                        "has handshakeBytes=%d messageBytes=%d waitingBytes=%d, must be at least 4096, 1 and 1"
                                .formatted(handshakeBytes, messageBytes, waitingBytes));
            }
        }
    }
}
