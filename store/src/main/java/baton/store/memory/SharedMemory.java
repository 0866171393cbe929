package baton.store.memory;

import java.nio.file.Path;
import java.util.regex.Pattern;

/**
 * Memory that a store shares with those of the same name and format in other processes of this user on this host, and finds again when it
 * is opened anew: a file {@code baton-NAME-DIGEST}, which stays until it is deleted.
 *
 * @param directory of a file system in memory, such as {@link #DIRECTORY}
 * @param name 1 to 64 letters, digits, dots, dashes and underscores
 */
public record SharedMemory(Path directory, String name) {
    /** Linux' file system in memory. */
    public static final Path DIRECTORY = Path.of("/dev/shm");

    private static final Pattern NAME = Pattern.compile("[A-Za-z0-9_.-]{1,64}");

    /** @throws IllegalArgumentException if the name has other characters */
    public SharedMemory {
        if (!NAME.matcher(name).matches()) {
            throw new IllegalArgumentException(
                    "name=%s must be 1 to 64 letters, digits, dots, dashes and underscores".formatted(name));
        }
    }
}
