package baton.transfer.mooncake;

import baton.kv.ConfigException;
import baton.kv.GeneratedBuilder;
import baton.kv.Require;
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
 * @param stall after which a connection is closed if its peer has begun a message and neither sends nor takes a byte
 * @param limits bounds of peers' requests
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
        Require.port("port", port);
        Require.between("lanes", lanes, 1, MOST_LANES);
        Require.positive("stall", stall);
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
     * Bounds of peers' requests.
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
            Require.positive("limits.connections", connections);
            Require.positive("limits.handshakes", handshakes);
            Require.atLeast("limits.handshakeBytes", handshakeBytes, 1 << 12);
            Require.positive("limits.transfers", transfers);
            Require.positive("limits.ranges", ranges);
            Require.positive("limits.messageBytes", messageBytes);
            Require.positive("limits.waitingBytes", waitingBytes);
        }
    }
}
