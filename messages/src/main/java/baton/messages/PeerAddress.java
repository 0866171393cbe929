package baton.messages;

import baton.kv.InvalidFieldException;
import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The address at which a peer listens, as it is written in messages and request ids: {@code host:port}.
 *
 * @param host a name, an IPv4 address, or an IPv6 address without its brackets
 */
public record PeerAddress(String host, int port) {
    private static final Pattern FORM =
            Pattern.compile("(?:\\[([0-9A-Fa-f:.%]{2,64})]|([A-Za-z0-9._-]{1,253})):([0-9]{1,5})");

    /** @throws IllegalArgumentException if the port is none */
    public PeerAddress {
        if (port < 1 || port > 65_535) {
            throw new IllegalArgumentException("port=" + port + " must be 1 to 65535");
        }
    }

    /** Reads {@code host:port}; empty if the text is none. */
    public static Optional<PeerAddress> find(String text) {
        Matcher form = FORM.matcher(text);
        int port = form.matches() ? Integer.parseInt(form.group(3)) : 0;
        if (port < 1 || port > 65_535) {
            return Optional.empty();
        }
        return Optional.of(new PeerAddress(form.group(1) == null ? form.group(2) : form.group(1), port));
    }

    /** Reads {@code host:port} as people write it: an IPv6 address, which has {@code ::} or 8 groups, may be without its brackets. */
    public static Optional<PeerAddress> findWritten(String text) {
        return find(text.replaceFirst("^([^\\[]*::.*[^:]|(?:[^:\\[]+:){7}[^:]+):(?=[0-9]+$)", "[$1]:"));
    }

    /**
     * Reads an address that is written as a host and a port.
     *
     * @param host an IPv6 address may have brackets
     * @return empty if they are no address
     */
    public static Optional<PeerAddress> find(String host, long port) {
        return find((host.contains(":") && !host.startsWith("[") ? "[" + host + "]" : host) + ":" + port);
    }

    /**
     * Reads {@code host:port}.
     *
     * @param field for the error
     * @throws InvalidFieldException if the text is none
     */
    public static PeerAddress parse(String field, String text) {
        return find(text)
                .orElseThrow(() -> new InvalidFieldException(field, "is '" + shown(text) + "', must be host:port"));
    }

    /**
     * The address on the same host with the port {@code ports} above: another rank's.
     *
     * @throws InvalidFieldException if there is no such port
     */
    public PeerAddress above(int ports) {
        if (port + ports > 65_535) {
            throw new InvalidFieldException("port", "of " + this + " must leave room for " + ports + " more ranks");
        }
        return new PeerAddress(host, port + ports);
    }

    @Override
    public String toString() {
        return (host.contains(":") ? "[" + host + "]" : host) + ":" + port;
    }

    /** Text that a peer sent, fit for a log. */
    public static String shown(String text) {
        String part = text.length() > 100 ? text.substring(0, 100) + "..." : text;
        return part.replaceAll("[^ -~]", "?");
    }
}
