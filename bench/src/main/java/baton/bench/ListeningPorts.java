package baton.bench;

import java.io.IOException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashSet;
import java.util.List;
import java.util.OptionalInt;
import java.util.Set;

/** TCP ports that a process of this user listens on, by Linux' /proc. */
final class ListeningPorts {
    /** State of a socket in {@code /proc/PID/net/tcp}: TCP_LISTEN. */
    private static final String LISTEN = "0A";

    private static final int STATE = 3;
    private static final int INODE = 9;

    private ListeningPorts() {}

    /** The number of ports; empty where it is unknown. */
    static OptionalInt count(long pid) {
        return count(Path.of("/proc", Long.toString(pid)));
    }

    /** @param process directory in the format of Linux' {@code /proc/PID} */
    static OptionalInt count(Path process) {
        try {
            Set<String> open = new HashSet<>();
            try (DirectoryStream<Path> files = Files.newDirectoryStream(process.resolve("fd"))) {
                for (Path file : files) {
                    try {
                        open.add(Files.readSymbolicLink(file).toString());
                    } catch (IOException e) {
                        // Closed meanwhile.
                    }
                }
            }
            int listening = 0;
            for (String table : List.of("tcp", "tcp6")) {
                Path file = process.resolve("net").resolve(table);
                for (String line : Files.exists(file) ? Files.readAllLines(file) : List.<String>of()) {
                    String[] fields = line.strip().split("\\s+");
                    if (fields.length > INODE
                            && fields[STATE].equals(LISTEN)
                            && open.contains("socket:[" + fields[INODE] + "]")) {
                        listening++;
                    }
                }
            }
            return OptionalInt.of(listening);
        } catch (IOException e) {
            return OptionalInt.empty();
        }
    }
}
