package baton.transfer;

/** An operation of a transfer agent failed for a reason outside this process: a peer, a network, a native library. */
public final class TransferException extends Exception {
    public TransferException(String message) {
        super(message);
    }

    public TransferException(String message, Throwable cause) {
        super(message, cause);
    }
}
