package baton.kv;

/** A setting, request field or file entry that cannot be used. The message names field, value and what is allowed. */
public final class ConfigException extends IllegalArgumentException {
    private final String field;

    public ConfigException(String field, String message) {
        super(field + ": " + message);
        this.field = field;
    }

    public ConfigException(String field, String message, Throwable cause) {
        super(field + ": " + message, cause);
        this.field = field;
    }

    /** The offending field, as the user wrote it. */
    public String field() {
        return field;
    }

    public static ConfigException unsupported(String field, Object value, String allowed) {
        return new ConfigException(field, "unsupported value '" + value + "'; allowed: " + allowed);
    }
}
