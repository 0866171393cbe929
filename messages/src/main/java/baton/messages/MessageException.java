package baton.messages;

/** A message could not be sent or was not answered, for a reason outside this process. */
public final class MessageException extends Exception {
    public MessageException(String message) {
        super(message);
    }

    public MessageException(String message, Throwable cause) {
        super(message, cause);
    }
}
