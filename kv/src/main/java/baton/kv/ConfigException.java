package baton.kv;

import java.nio.file.InvalidPathException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.function.Function;
import java.util.stream.Collectors;

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

    /**
     * The one of these that has the name.
     *
     * @throws ConfigException naming {@code field} if none has it
     */
    public static <T> T choose(String field, String name, T[] all, Function<? super T, String> nameOf) {
        return Arrays.stream(all)
                .filter(each -> nameOf.apply(each).equals(name))
                .findFirst()
                .orElseThrow(() ->
                        unsupported(field, name, Arrays.stream(all).map(nameOf).collect(Collectors.joining(", "))));
    }

    /** @throws ConfigException if the text is no path */
    public static Path path(String field, String text) {
        try {
            return Path.of(text);
        } catch (InvalidPathException e) {
            throw new ConfigException(field, "is not a path: " + e.getMessage(), e);
        }
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
