package baton.connectors;

import baton.kv.JsonFields;
import baton.kv.Ticker;
import baton.messages.PeerAccess;
import baton.messages.PeerChannel;
import baton.messages.SideChannel;
import baton.pipe.WireTransport;
import baton.transfer.TransferAgent;
import java.util.concurrent.ThreadFactory;

/** The system's runtime, for tests that replace parts of it. */
public class DelegatingRuntime implements ConnectorRuntime {
    private final ConnectorRuntime system = new SystemRuntime();

    /** The system's runtime, but all wires are this transport's. */
    public static ConnectorRuntime over(WireTransport wires) {
        return new DelegatingRuntime() {
            @Override
            public WireTransport wires(String field, String name, PeerAccess access) {
                return wires;
            }
        };
    }

    @Override
    public Ticker ticker() {
        return system.ticker();
    }

    @Override
    public ThreadFactory threads() {
        return system.threads();
    }

    @Override
    public Memory allocate(long bytes, String purpose) {
        return system.allocate(bytes, purpose);
    }

    @Override
    public TransferAgent transferAgent(JsonFields extra, String host, PeerAccess access) {
        return system.transferAgent(extra, host, access);
    }

    @Override
    public SideChannel sideChannel() {
        return system.sideChannel();
    }

    @Override
    public PeerChannel peerChannel() {
        return system.peerChannel();
    }

    @Override
    public PeerChannel peerChannel(PeerAccess access) {
        return system.peerChannel(access);
    }

    @Override
    public WireTransport wires(String field, String name, PeerAccess access) {
        return system.wires(field, name, access);
    }
}
