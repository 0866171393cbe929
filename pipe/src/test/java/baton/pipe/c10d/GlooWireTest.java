package baton.pipe.c10d;

import baton.pipe.PipeException;
import baton.pipe.WireContract;

/** Wires over Gloo keep the contract. */
class GlooWireTest extends WireContract {
    GlooWireTest() throws PipeException {
        super(GlooTransport.load(), GlooTransport.load());
    }
}
