package baton.messages;

import baton.messages.PeerChannel.Caller;
import baton.messages.PeerChannel.Guest;
import baton.messages.PeerChannel.Reception;
import java.net.InetAddress;

/**
 * Receives only peers that {@link PeerAccess} admits.
 *
 * @param port for the log of refused peers
 * @param guests receives those that are admitted
 */
public record GuardedReception(PeerAccess access, String port, Reception guests) implements Reception {
    @Override
    public boolean admits(InetAddress from) {
        boolean admitted = access.admits(from);
        if (!admitted) {
            access.refuse(port + ": " + from.getHostAddress(), "it is " + access.notAllowed());
        }
        return admitted;
    }

    @Override
    public Guest arrived(Caller caller) {
        return guests.arrived(caller);
    }
}
