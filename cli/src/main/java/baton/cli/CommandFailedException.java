package baton.cli;

/** A command could not do its work; the message is for the user and needs no stack trace. */
final class CommandFailedException extends RuntimeException {
    CommandFailedException(String message) {
        super(message);
    }
}
