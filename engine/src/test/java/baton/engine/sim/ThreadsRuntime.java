package baton.engine.sim;

import baton.connectors.ConnectorRuntime;
import baton.kv.JsonFields;
import baton.kv.Ticker;
import baton.messages.PeerAccess;
import baton.messages.PeerChannel;
import baton.messages.SideChannel;
import baton.pipe.WireTransport;
import baton.transfer.TransferAgent;
import java.util.concurrent.ThreadFactory;

/** The virtual clock and cooperative threads, for connectors that are handed a simulated exchange and need nothing else. */
record ThreadsRuntime(Ticker ticker, ThreadFactory threads) implements ConnectorRuntime {
    private static UnsupportedOperationException unused(String what) {
        return new UnsupportedOperationException("the simulation replaces the exchange: it has no " + what);
    }

    @Override
    public Memory allocate(long bytes, String purpose) {
        throw unused("memory");
    }

    @Override
    public TransferAgent transferAgent(JsonFields extra, String host, PeerAccess access) {
        throw unused("transfer agents");
    }

    @Override
    public SideChannel sideChannel() {
        throw unused("side channels");
    }

    @Override
    public PeerChannel peerChannel() {
        throw unused("peer channels");
    }

    @Override
    public WireTransport wires(String field, String name, PeerAccess access) {
        throw unused("wires");
    }
}
