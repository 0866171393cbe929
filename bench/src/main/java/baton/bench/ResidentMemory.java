package baton.bench;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/** Memory of another process, by Linux' /proc. */
final class ResidentMemory {
    private static final String FIELD = "VmRSS:";

    private ResidentMemory() {}

    /** Bytes that are in physical memory. */
    static long bytes(long pid) throws IOException {
        Path file = Path.of("/proc", Long.toString(pid), "status");
        for (String line : Files.readAllLines(file)) {
            if (line.startsWith(FIELD)) {
                return Long.parseLong(
                                line.substring(FIELD.length()).replace("kB", "").strip())
                        << 10;
            }
        }
        throw new IOException(file + " has no " + FIELD);
    }
}
