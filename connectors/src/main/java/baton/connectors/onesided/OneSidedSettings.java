package baton.connectors.onesided;

import baton.messages.PeerAccess;
import baton.messages.PeerAddress;
import java.time.Duration;
import java.util.Set;

/**
 * The settings of one-sided transfers that every such connector has.
 *
 * @param host at which peers reach this instance's side channel
 * @param access which peers may be connected to
 * @param handshakeTimeout of one handshake
 * @param enforceCompatibility refuse peers with another compatibility hash
 * @param mirrored peers that, if they have no incarnation, are compatible whatever their hash
 * @param requireVerified refuse blocks that have no checksums
 * @param engineTtl after which an unused peer is disconnected; zero: never
 * @param leaseExtension time from a heartbeat's arrival by which it extends a lease
 * @param heartbeatInterval between a reader's heartbeats, and between registrations of one push
 * @param transferTimeout from the start of a load to its end
 * @param pushRegistrationTimeout from the registration of a push to its end
 */
public record OneSidedSettings(
        String host,
        PeerAccess access,
        Duration handshakeTimeout,
        boolean enforceCompatibility,
        Set<PeerAddress> mirrored,
        boolean requireVerified,
        Duration engineTtl,
        Duration leaseExtension,
        Duration heartbeatInterval,
        Duration transferTimeout,
        Duration pushRegistrationTimeout) {
    /** Heartbeats, and registrations of one push, in the time of a lease. */
    public static final int HEARTBEATS_OF_LEASE = 6;
}
