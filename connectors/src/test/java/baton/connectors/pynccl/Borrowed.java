package baton.connectors.pynccl;

import baton.pipe.WireTransport;
import baton.testkit.Forwarding;

/** A transport that its users cannot close. */
final class Borrowed {
    private Borrowed() {}

    @SuppressWarnings({"UnusedMethod", "EffectivelyPrivate"}) // called by Forwarding
    static WireTransport of(WireTransport transport) {
        return Forwarding.to(WireTransport.class, transport, new Object() {
            public void close() {}
        });
    }
}
