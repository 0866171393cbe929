package baton.messages;

import java.io.IOException;

/** A peer does not seal its connection, or the received bytes are not those that it sealed. */
public final class SealException extends IOException {
    SealException(String message) {
        super(message);
    }

    SealException(String message, Throwable cause) {
        super(message, cause);
    }
}
