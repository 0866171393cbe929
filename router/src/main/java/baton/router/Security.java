package baton.router;

import java.nio.file.Path;
import java.util.Optional;

/**
 * What protects the router and its instances from clients and from the network.
 *
 * @param clientKeys file with the keys of clients, see {@link baton.router.access.ClientKeys}; empty if clients need none
 */
public record Security(Optional<Path> clientKeys) {
    public static final Security NONE = new Security(Optional.empty());
}
