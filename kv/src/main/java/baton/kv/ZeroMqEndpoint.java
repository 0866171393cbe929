package baton.kv;

/**
 * A TCP address in ZeroMQ's form: {@code tcp://*:5557}, {@code tcp://host:5557}, {@code tcp://[::1]:5557}.
 *
 * @param host name or address, IPv6 without brackets; {@code *} for every address of this host
 * @param port 0 for any free one
 */
public record ZeroMqEndpoint(String host, int port) {
    public static final String EVERY_ADDRESS = "*";

    private static final String SCHEME = "tcp://";

    /**
     * Reads ZeroMQ's form.
     *
     * @param field for errors
     * @throws ConfigException if it is something else, such as an endpoint of another transport
     */
    public static ZeroMqEndpoint parse(String field, String text) {
        int colon = text.lastIndexOf(':');
        if (!text.startsWith(SCHEME) || colon < SCHEME.length()) {
            throw new ConfigException(
                    field,
                    "is '" + text + "', must be tcp://HOST:PORT, such as tcp://*:5557; TCP is the only transport");
        }
        String host = text.substring(SCHEME.length(), colon);
        if (host.startsWith("[") && host.endsWith("]")) {
            host = host.substring(1, host.length() - 1);
        }
        if (!host.equals(EVERY_ADDRESS) && !host.matches("[A-Za-z0-9._:-]{1,253}")) {
            throw new ConfigException(
                    field, "is '" + text + "', must have a host name, an address or * between tcp:// and the port");
        }
        String digits = text.substring(colon + 1);
        int port = digits.matches("[0-9]{1,5}") ? Integer.parseInt(digits) : -1;
        if (port < 0 || port > 65535) {
            throw new ConfigException(field, "is '" + text + "', must end in a port, 0 to 65535");
        }
        return new ZeroMqEndpoint(host, port);
    }

    public boolean isEveryAddress() {
        return host.equals(EVERY_ADDRESS);
    }

    /** ZeroMQ's form. */
    @Override
    public String toString() {
        return SCHEME + (host.indexOf(':') < 0 ? host : "[" + host + "]") + ":" + port;
    }
}
