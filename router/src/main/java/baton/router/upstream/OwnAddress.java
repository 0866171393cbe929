package baton.router.upstream;

import java.net.InetAddress;
import java.net.NetworkInterface;
import java.net.SocketException;
import java.net.UnknownHostException;
import java.util.Arrays;
import java.util.List;

/**
 * The addresses at which this router listens. A request that the router sends to one of them returns to it.
 *
 * @param bound the addresses that the router listens on; empty if on all of this machine
 * @param port 0 if not known yet
 */
public record OwnAddress(List<InetAddress> bound, int port) {
    public OwnAddress {
        bound = List.copyOf(bound);
    }

    /** @param host that the router listens on: an address, or a name, which is looked up */
    public static OwnAddress of(String host, int port) {
        try {
            InetAddress[] bound = InetAddress.getAllByName(host);
            boolean all = Arrays.stream(bound).anyMatch(InetAddress::isAnyLocalAddress);
            return new OwnAddress(all ? List.of() : List.of(bound), port);
        } catch (UnknownHostException e) {
            return new OwnAddress(List.of(), port);
        }
    }

    /**
     * Whether an instance at that address would be the router.
     *
     * @param host an address, with brackets or without, or a name, which is looked up
     */
    public boolean isAt(String host, int port) {
        if (port != this.port) {
            return false;
        }
        try {
            return Arrays.stream(InetAddress.getAllByName(host)).anyMatch(this::leadsHere);
        } catch (UnknownHostException e) {
            return false;
        }
    }

    private boolean leadsHere(InetAddress address) {
        if (address.isAnyLocalAddress()) {
            // A connection to the wildcard address goes to the loopback address.
            return bound.isEmpty() || bound.stream().anyMatch(InetAddress::isLoopbackAddress);
        }
        return bound.isEmpty() ? isOfThisMachine(address) : bound.contains(address);
    }

    private static boolean isOfThisMachine(InetAddress address) {
        if (address.isLoopbackAddress()) {
            return true;
        }
        try {
            return NetworkInterface.getByInetAddress(address) != null;
        } catch (SocketException e) {
            return false;
        }
    }
}
