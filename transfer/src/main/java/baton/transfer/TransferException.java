package baton.transfer;

/** A transfer agent could not do what was asked, for a reason outside this process: a peer, a network, a native library. */
public final class TransferException extends Exception {
    public TransferException(String message) {
        super(message);
    }

    public TransferException(String message, Throwable cause) {
        super(message, cause);
    }
}
