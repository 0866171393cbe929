package baton.pipe.p2p;

/** A tensor was not transferred, for a reason outside this process. */
public final class P2pException extends Exception {
    private final Fault fault;

    public P2pException(Fault fault, String message) {
        super(message);
        this.fault = fault;
    }

    public P2pException(Fault fault, String message, Throwable cause) {
        super(message, cause);
        this.fault = fault;
    }

    public Fault fault() {
        return fault;
    }

    /** Kinds of reasons. */
    public enum Fault {
        /** The peer cannot be connected to, or its connection has ended. */
        PEER_GONE,
        /** The exchange took longer than allowed. */
        DEADLINE,
        /** The receiver or the sender has no memory for it. */
        OUT_OF_MEMORY,
        /** The peer does not have it; or it was here and has expired. */
        MISSING,
        /** The peer's address is not allowed. */
        REFUSED,
        /** The connection ended in the middle, or the peer violates the protocol. */
        BROKEN,
        /** Its bytes or its announcement do not have the peer's checksum. */
        CORRUPT,
        /** Other tensors of its group were not transferred. */
        GIVEN_UP,
        /** No longer wanted. */
        CANCELLED;

        /** The value of a metric's label. */
        public String label() {
            return name().toLowerCase(java.util.Locale.ROOT);
        }
    }
}
