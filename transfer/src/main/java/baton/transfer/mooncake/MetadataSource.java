package baton.transfer.mooncake;

import baton.kv.ConfigException;
import java.net.URI;
import java.util.Optional;

/** Where engines find each other's descriptors: Mooncake's {@code metadata_server}. */
public sealed interface MetadataSource {
    /** Mooncake's word for {@link Handshake}. */
    String P2P = "P2PHANDSHAKE";

    /** Each engine is asked for its own. A segment's name is the {@code host:port} of its handshake daemon. */
    record Handshake() implements MetadataSource {}

    /**
     * A server keeps them.
     *
     * @param address {@code http://host:port/metadata}
     * @param cluster Mooncake's {@code MC_METADATA_CLUSTER_ID}
     * @param segment this agent's name there; empty for the {@code host:port} of its handshake daemon
     */
    record Http(URI address, Optional<String> cluster, Optional<String> segment) implements MetadataSource {
        private static final int LONGEST_NAME = 256;

        /** @throws ConfigException if a value cannot be used */
        public Http {
            if (!"http".equals(address.getScheme()) || address.getHost() == null || address.getRawQuery() != null) {
                throw new ConfigException(
                        "metadata_server", "is " + address + ", must be like http://host:8080/metadata");
            }
            segment.ifPresent(name -> {
                if (!isName(name)) {
                    throw new ConfigException("segment", "is '" + name + "', must be 1 to 256 visible characters");
                }
            });
        }

        static boolean isName(String name) {
            return !name.isEmpty()
                    && name.length() <= LONGEST_NAME
                    && name.chars().allMatch(each -> each > ' ' && each < 0x7f);
        }
    }

    /**
     * Reads {@code metadata_server}: {@value #P2P} or {@code http://host:port/metadata}.
     *
     * @param field the setting, for errors
     * @throws ConfigException if it is something else, such as etcd's or Redis' address
     */
    static MetadataSource parse(String field, String text) {
        if (text.equals(P2P)) {
            return new Handshake();
        }
        if (text.startsWith("http://")) {
            try {
                return new Http(URI.create(text), Optional.empty(), Optional.empty());
            } catch (IllegalArgumentException e) {
                throw new ConfigException(field, "is " + text + ", must be like http://host:8080/metadata", e);
            }
        }
        throw ConfigException.unsupported(field, text, P2P + ", http://host:8080/metadata");
    }
}
