package baton.store.mooncake;

import java.util.List;

/**
 * How an instance becomes a client of a Mooncake store by its library.
 *
 * @param localHostname by which other clients reach this one's memory, with or without a port
 * @param metadataServer {@code P2PHANDSHAKE} or a URL
 * @param segmentBytes of this process's memory that the store gets; may be 0
 * @param preferredSegments where objects are to be put, if there is room
 */
public record MooncakeSetup(
        String localHostname,
        String metadataServer,
        String masterServerAddress,
        long segmentBytes,
        String protocol,
        String deviceName,
        List<String> preferredSegments) {
    public MooncakeSetup {
        preferredSegments = List.copyOf(preferredSegments);
    }
}
