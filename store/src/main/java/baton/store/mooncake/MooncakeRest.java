package baton.store.mooncake;

import java.net.URI;
import java.time.Duration;

/**
 * A REST service of a Mooncake store.
 *
 * @param url {@code http://host:port}
 * @param connections requests for reading at once, and as many for writing
 */
public record MooncakeRest(URI url, int connections, Duration connectTimeout) {}
