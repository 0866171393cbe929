package baton.router;

import java.net.InetAddress;
import java.net.NetworkInterface;
import java.net.SocketException;
import java.net.UnknownHostException;

/** Which addresses lead to this router: a request that it sends there comes back to it. */
final class OwnAddress {
    private OwnAddress() {}

    /**
     * Whether an instance at that address would be the router: its port on any address of this machine, by whatever name.
     *
     * @param host an address, with brackets or without, or a name, which is looked up
     * @param ownPort 0 if it is not known yet
     */
    static boolean isOwn(String host, int port, int ownPort) {
        if (port != ownPort) {
            return false;
        }
        try {
            for (InetAddress address : InetAddress.getAllByName(host)) {
                if (isOfThisMachine(address)) {
                    return true;
                }
            }
            return false;
        } catch (UnknownHostException e) {
            return false;
        }
    }

    private static boolean isOfThisMachine(InetAddress address) {
        if (address.isLoopbackAddress() || address.isAnyLocalAddress()) {
            return true;
        }
        try {
            return NetworkInterface.getByInetAddress(address) != null;
        } catch (SocketException e) {
            return false;
        }
    }
}
