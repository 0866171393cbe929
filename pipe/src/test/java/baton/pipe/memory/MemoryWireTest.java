package baton.pipe.memory;

import baton.pipe.WireContract;
import baton.pipe.WireTransport;

/** Wires within a process keep the contract. */
class MemoryWireTest extends WireContract {
    @Override
    protected WireTransport[] transports() {
        MemoryTransport transport = new MemoryTransport();
        return new WireTransport[] {transport, transport};
    }
}
