package baton.pipe.memory;

import baton.pipe.WireContract;

/** Wires within a process keep the contract. */
class MemoryWireTest extends WireContract {
    MemoryWireTest() {
        super(new MemoryTransport());
    }
}
