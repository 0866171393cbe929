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

    /** The same problem in a value that stands at {@code path}, which takes the place of the first name of the field. */
    public ConfigException at(String path) {
        int end = 0;
        while (end < field().length() && ".[".indexOf(field().charAt(end)) < 0) {
            end++;
        }
        String problem = String.valueOf(getMessage()).substring(field().length() + 2);
        return new ConfigException(path + field().substring(end), problem, this);
    }
}
