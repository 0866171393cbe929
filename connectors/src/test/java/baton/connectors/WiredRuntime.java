package baton.connectors;

import baton.messages.PeerAccess;
import baton.pipe.WireTransport;

/** The system's runtime, but all wires are one transport's. */
public final class WiredRuntime extends SystemRuntime {
    private final WireTransport wires;

    public WiredRuntime(WireTransport wires) {
        this.wires = wires;
    }

    @Override
    public WireTransport wires(String field, String name, PeerAccess access) {
        return wires;
    }
}
