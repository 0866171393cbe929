package baton.pipe.tcp;

import baton.pipe.WireContract;

/** Wires over TCP keep the contract. */
class TcpWireTest extends WireContract {
    TcpWireTest() {
        super(new TcpTransport(), new TcpTransport());
    }
}
