package baton.pipe;

/**
 * A wire or pipe has failed for a reason outside this process: its connection has ended, or the peer is late or violates the
 * protocol.
 */
public class PipeException extends Exception {
    public PipeException(String message) {
        super(message);
    }

    public PipeException(String message, Throwable cause) {
        super(message, cause);
    }
}
