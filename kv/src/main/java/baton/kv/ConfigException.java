package baton.kv;

/** A setting, request field or file entry that cannot be used. The message names the field, its value and the allowed ones. */
public final class ConfigException extends InvalidFieldException {
    public ConfigException(String field, String message) {
        super(field, message);
    }

    public ConfigException(String field, String message, Throwable cause) {
        super(field, message, cause);
    }

    public static ConfigException unsupported(String field, Object value, String allowed) {
        return new ConfigException(field, "unsupported value '" + value + "'; allowed: " + allowed);
    }
}
