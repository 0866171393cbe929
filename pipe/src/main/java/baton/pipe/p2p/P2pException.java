package baton.pipe.p2p;

/** A tensor did not get from one peer to another, for a reason outside this process. */
public final class P2pException extends Exception {
    private static final long serialVersionUID = 1L;

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
        /** The peer is not there, or has gone. */
        PEER_GONE,
        /** It took longer than allowed. */
        DEADLINE,
        /** The receiver has no memory for it, or the sender has none. */
        OUT_OF_MEMORY,
        /** The peer does not have it; or it was here, and nobody came for it in time. */
        MISSING,
        /** The peer's address is not allowed. */
        REFUSED,
        /** The connection broke in the middle, or the peer does not keep to the protocol. */
        BROKEN,
        /** Others of what it belongs to did not get there. */
        GIVEN_UP,
        /** Nobody wants it any more. */
        CANCELLED;

        /** For a metric. */
        public String label() {
            return name().toLowerCase(java.util.Locale.ROOT);
        }
    }
}
