package baton.pipe.nccl;

/** Wires over NCCL keep the contract, between two GPUs of this machine. */
class NcclWireTest extends NcclWireContract {
    NcclWireTest() {
        super(System.getenv());
    }
}
