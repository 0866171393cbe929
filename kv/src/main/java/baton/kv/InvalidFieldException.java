package baton.kv;

/**
 * A field that cannot be used, of a setting, a request, a file or a message of a peer. The message names the field, its value and the
 * allowed values. A user's wrong setting is a {@link ConfigException}.
 */
public class InvalidFieldException extends IllegalArgumentException {
    private final String field;

    public InvalidFieldException(String field, String message) {
        super(field + ": " + message);
        this.field = field;
    }

    public InvalidFieldException(String field, String message, Throwable cause) {
        super(field + ": " + message, cause);
        this.field = field;
    }

    /** The offending field, as it stands in the setting, file or message. */
    public final String field() {
        return field;
    }
}
