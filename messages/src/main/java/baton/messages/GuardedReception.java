package baton.messages;

import baton.messages.PeerChannel.Caller;
import baton.messages.PeerChannel.Guest;
import baton.messages.PeerChannel.Reception;
import java.net.InetAddress;
import java.util.List;
import java.util.function.Supplier;

/** Receives only peers that {@link PeerAccess} admits; where there is a secret, callers begin with {@link PeerGreeting#greet}. */
public final class GuardedReception implements Reception {
    private final PeerAccess access;
    private final Supplier<String> self;
    private final Reception guests;
    private final Refusals refusals;

    /** Receives peers that are refused. */
    public interface Refusals {
        /** @param from numeric address of the peer */
        void refused(String from, String why);
    }

    /**
     * @param self {@code host:port} as peers call it; asked for each caller
     * @param guests receives those that are admitted
     */
    public GuardedReception(PeerAccess access, Supplier<String> self, Reception guests, Refusals refusals) {
        this.access = access;
        this.self = self;
        this.guests = guests;
        this.refusals = refusals;
    }

    @Override
    public boolean admits(InetAddress from) {
        boolean admitted = access.admits(from);
        if (!admitted) {
            refusals.refused(from.getHostAddress(), "it is " + access.notAllowed());
        }
        return admitted;
    }

    @Override
    public Guest arrived(Caller caller) {
        Guest guest = guests.arrived(caller);
        return access.secret()
                .<Guest>map(
                        secret -> new Greeted(caller, guest, new PeerGreeting(secret, caller.identity(), self.get())))
                .orElse(guest);
    }

    private final class Greeted implements Guest {
        private final Caller caller;
        private final Guest guest;
        private final PeerGreeting greeting;

        private Greeted(Caller caller, Guest guest, PeerGreeting greeting) {
            this.caller = caller;
            this.guest = guest;
            this.greeting = greeting;
        }

        @Override
        public boolean isGreeted() {
            return greeting.isDone();
        }

        @Override
        public void received(List<byte[]> frames) throws MessageException {
            if (greeting.isDone()) {
                guest.received(frames);
                return;
            }
            List<byte[]> answer;
            try {
                answer = greeting.answer(frames);
            } catch (MessageException e) {
                refusals.refused(caller.host(), String.valueOf(e.getMessage()));
                throw e;
            }
            caller.answer(answer);
        }

        @Override
        public void left() {
            guest.left();
        }
    }
}
