package baton.pipe;

/** A wire or pipe could not do what was asked, for a reason outside this process: its peer has gone or is late, or broke the rules. */
public final class PipeException extends Exception {
    private static final long serialVersionUID = 1L;

    public PipeException(String message) {
        super(message);
    }

    public PipeException(String message, Throwable cause) {
        super(message, cause);
    }
}
