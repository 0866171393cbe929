package baton.pipe;

/** A tensor's bytes are not those that were sent: they do not have its checksum. */
public final class DamagedTensorException extends PipeException {
    public DamagedTensorException(String message) {
        super(message);
    }

    DamagedTensorException(String message, Throwable cause) {
        super(message, cause);
    }
}
