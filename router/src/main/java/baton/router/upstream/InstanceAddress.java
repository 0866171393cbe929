package baton.router.upstream;

import baton.kv.ConfigException;
import java.net.URI;

/** The address of an instance, as operators give it. */
public final class InstanceAddress {
    public static final String SHAPE = "http://host:port, https://host:port";

    private InstanceAddress() {}

    /** @throws ConfigException if the text is not {@code http://host:port} or {@code https://host:port}, with or without {@link InstanceSettings} */
    public static URI parse(String field, String text) {
        try {
            return require(field, URI.create(text));
        } catch (IllegalArgumentException e) {
            throw ConfigException.unsupported(field, text, SHAPE);
        }
    }

    /** @throws ConfigException if it is not {@code http://host:port} or {@code https://host:port}, with or without {@link InstanceSettings} */
    public static URI require(String field, URI address) {
        String path = address.getPath();
        if (!("http".equals(address.getScheme()) || "https".equals(address.getScheme()))
                || address.getHost() == null
                || address.getPort() == 0
                || address.getPort() > 65535
                || address.getUserInfo() != null
                || !(path == null || path.isEmpty() || path.equals("/"))
                || address.getFragment() != null) {
            throw ConfigException.unsupported(field, address, SHAPE);
        }
        InstanceSettings _ = InstanceSettings.of(field, address);
        return address;
    }
}
