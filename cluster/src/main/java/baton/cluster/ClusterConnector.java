package baton.cluster;

import baton.kv.KvRole;
import java.net.URI;
import java.nio.file.Path;
import java.util.List;
import java.util.Optional;

/** How the two instances of a {@link LocalCluster} hand KV caches over, with their settings and the router's. */
public interface ClusterConnector {
    /** Beginning of an option of {@code serve} that sets a field of {@code --kv-transfer-config}. */
    String FIELD = "--kv-transfer-config.";

    /** The same for the connector's own settings. */
    String SETTING = FIELD + "kv_connector_extra_config.";

    /** Value of {@code kv_connector}. */
    String kvConnector();

    /** Value of the router's {@code --flow}. */
    String flow();

    /** Options of {@code serve} beside the connector and the role. */
    List<String> settings(KvRole role, Place place);

    /** Whether the connector listens on a port. */
    default boolean listens() {
        return true;
    }

    /** Whether instances register with the router. */
    default boolean registers() {
        return false;
    }

    /** The same with more options of {@code serve}. */
    default ClusterConnector with(List<String> options) {
        return new ChangedConnector(this, flow(), options);
    }

    /** The same with another flow of the router. */
    default ClusterConnector by(String flow) {
        return new ChangedConnector(this, flow, List.of());
    }

    /**
     * Addresses of one instance.
     *
     * @param shared directory of shared storage, the same for both instances
     * @param meetingPort port where the instances connect to each other; this one and the next were free
     * @param registry the router's address for registrations
     * @param httpPort the instance's HTTP port, 0 for any free one
     */
    record Place(Path shared, int meetingPort, Optional<URI> registry, int httpPort) {}
}
