package baton.pipe.nccl;

import static org.junit.jupiter.api.Assumptions.abort;

import baton.pipe.PipeException;
import baton.pipe.WireContract;

/** Wires over NCCL keep the contract, between two GPUs of this machine. */
class NcclWireTest extends WireContract {
    NcclWireTest() {
        super(onDevice(0), onDevice(1));
    }

    private static NcclTransport onDevice(int device) {
        try {
            return NcclTransport.load(device);
        } catch (PipeException e) {
            return abort("two GPUs are needed, and NCCL: " + e.getMessage());
        }
    }
}
