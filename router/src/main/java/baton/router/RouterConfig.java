package baton.router;

import baton.kv.ConfigException;
import java.net.URI;
import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;

/**
 * What a router listens on and which instances stand behind it.
 *
 * @param host address to listen on
 * @param port port to listen on; 0 takes a free one
 * @param prefill base addresses of the prefill instances, {@code http://host:port}
 * @param decode base addresses of the decode instances, {@code http://host:port}
 * @param flow how the two legs of a request are tied together: {@code content-keyed} or {@code kv_transfer_params}
 * @param apiKey sent as {@code Authorization: Bearer} to the instances when the client sends no such header of its own
 * @param limits deadlines and sizes
 */
public record RouterConfig(
        String host,
        int port,
        List<URI> prefill,
        List<URI> decode,
        String flow,
        Optional<String> apiKey,
        Limits limits) {

    /** The flow for connectors that find a prompt's blocks by their content. */
    public static final String DEFAULT_FLOW = ContentKeyedFlow.NAME;

    /**
     * Deadlines and sizes.
     *
     * @param connect for a connection to an instance, and for the answer to a health probe
     * @param prefill for the whole prefill leg
     * @param idle for the first byte of a decode leg, for the time between two of its bytes, and for a client to take or send bytes
     * @param probeInterval between two health probes of an instance
     * @param drain how long {@link Router#close()} waits for running requests
     * @param maxBodyBytes the largest request body, and the largest prefill answer
     * @param maxInFlight requests running at once; more are refused with 503 at once instead of queueing
     */
    public record Limits(
            Duration connect,
            Duration prefill,
            Duration idle,
            Duration probeInterval,
            Duration drain,
            int maxBodyBytes,
            int maxInFlight) {

        public static final Limits DEFAULT = new Limits(
                Duration.ofSeconds(5),
                Duration.ofMinutes(10),
                Duration.ofMinutes(5),
                Duration.ofSeconds(2),
                Duration.ofSeconds(30),
                32 << 20,
                8192);

        /** @throws ConfigException if a value is not positive or too large for a timer */
        public Limits {
            requirePositive("connect timeout", connect);
            requirePositive("prefill deadline", prefill);
            requirePositive("idle deadline", idle);
            requirePositive("probe interval", probeInterval);
            requirePositive("drain deadline", drain);
            requirePositive("max body bytes", maxBodyBytes);
            requirePositive("max requests in flight", maxInFlight);
        }

        private static void requirePositive(String field, Duration value) {
            if (value.toMillis() < 1 || value.compareTo(Duration.ofDays(7)) > 0) {
                throw ConfigException.unsupported(field, value, "1 ms to 7 days");
            }
        }

        private static void requirePositive(String field, int value) {
            if (value < 1) {
                throw ConfigException.unsupported(field, value, "at least 1");
            }
        }
    }

    /** @throws ConfigException naming the field and value that cannot be used */
    public RouterConfig {
        if (host.isBlank()) {
            throw ConfigException.unsupported("host", host, "a host name or address");
        }
        if (port < 0 || port > 65535) {
            throw ConfigException.unsupported("port", port, "0 to 65535");
        }
        prefill = requireAddresses("prefill", prefill);
        decode = requireAddresses("decode", decode);
        HandoffFlow.named(flow);
        apiKey.ifPresent(key -> {
            if (key.isBlank() || key.chars().anyMatch(c -> c < ' ' || c > '~')) {
                throw new ConfigException("api key", "must be printable ASCII and not blank");
            }
        });
    }

    private static List<URI> requireAddresses(String field, List<URI> addresses) {
        if (addresses.isEmpty()) {
            throw new ConfigException(field, "needs at least one instance, http://host:port");
        }
        Set<String> seen = new HashSet<>();
        for (URI address : addresses) {
            String path = address.getPath();
            if (!"http".equals(address.getScheme())
                    || address.getHost() == null
                    || address.getPort() == 0
                    || address.getUserInfo() != null
                    || !(path == null || path.isEmpty() || path.equals("/"))
                    || address.getQuery() != null
                    || address.getFragment() != null) {
                throw ConfigException.unsupported(field, address, "http://host:port");
            }
            if (!seen.add(address.getAuthority())) {
                throw new ConfigException(field, "'" + address + "' is given twice");
            }
        }
        return List.copyOf(addresses);
    }
}
