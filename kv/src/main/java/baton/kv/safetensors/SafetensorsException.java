package baton.kv.safetensors;

import java.io.IOException;

/** A file that is not well-formed safetensors, or differs from its header. The message names the file. */
public final class SafetensorsException extends IOException {
    public SafetensorsException(String message) {
        super(message);
    }

    public SafetensorsException(String message, Throwable cause) {
        super(message, cause);
    }
}
