package baton.kv;

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.UnknownHostException;

/** Checks whether an address can be listened on, for servers that listen only after minutes of other work. */
public final class ListenAddress {
    private ListenAddress() {}

    /**
     * Rejects the wildcard address as one that peers are to connect to.
     *
     * @param field the setting that the host is from, for errors
     * @throws ConfigException if it is such an address; looks no name up
     */
    public static void requireOfOneHost(String field, String host) {
        boolean any;
        try {
            any = InetAddress.ofLiteral(host).isAnyLocalAddress();
        } catch (IllegalArgumentException e) {
            // A name.
            any = false;
        }
        if (any) {
            throw new ConfigException(
                    field,
                    "is " + host
                            + ", must be the address at which peers find this instance, such as that of a network interface");
        }
    }

    /**
     * Returns if the address can be listened on now. Another process may still take it.
     *
     * @param hostField the setting that the host is from, for errors
     * @param portField the setting that the port is from, for errors
     * @param port 0 for any free one
     * @throws ConfigException if not
     */
    public static void require(String hostField, String host, String portField, int port) {
        if (host.isBlank()) {
            throw new ConfigException(hostField, "is empty, must be a name or address of this machine");
        }
        Require.port(portField, port);
        InetAddress address;
        try {
            address = InetAddress.getByName(host);
        } catch (UnknownHostException e) {
            throw new ConfigException(hostField, "is " + host + ", which has no known address", e);
        }
        try (ServerSocket any = new ServerSocket()) {
            any.bind(new InetSocketAddress(address, 0));
        } catch (IOException e) {
            throw new ConfigException(hostField, "is " + host + ", which cannot be listened on: " + e.getMessage(), e);
        }
        try (ServerSocket wanted = new ServerSocket()) {
            // A process that listened there may have just ended.
            wanted.setReuseAddress(true);
            wanted.bind(new InetSocketAddress(address, port));
        } catch (IOException e) {
            throw new ConfigException(portField, "cannot listen on " + host + ":" + port + ": " + e.getMessage(), e);
        }
    }
}
