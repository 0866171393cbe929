package baton.pipe.tcp;

import baton.pipe.WireContract;
import baton.pipe.WireTransport;

/** Wires over TCP keep the contract. */
class TcpWireTest extends WireContract {
    @Override
    protected WireTransport[] transports() {
        return new WireTransport[] {new TcpTransport(), new TcpTransport()};
    }
}
