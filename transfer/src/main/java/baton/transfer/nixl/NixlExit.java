package baton.transfer.nixl;

import baton.memory.Posix;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * The end of a process that has loaded NIXL. NIXL's wheels bring a libnl-route of their own; where the system's is loaded too, the two
 * share symbols, and a destructor of one (in {@code rtnl_tc_unregister}) crashes on data of the other: the process aborts after
 * everything is done. Such a process ends without destructors of C libraries.
 *
 * <p>{@link Posix#exitWithoutDestructors} does that. At that time all shutdown hooks have run, and the JVM has written its recordings and
 * its AOT cache. A C library without {@code on_exit} is none that NIXL's wheels are built for.
 */
public final class NixlExit {
    private static final Path MAPPINGS = Path.of("/proc/self/maps");

    private NixlExit() {}

    /** {@link #skipDestructors Skips destructors} at shutdown if NIXL has been loaded by then. For programs, not for libraries. */
    public static void atShutdown() {
        Runtime.getRuntime()
                .addShutdownHook(Thread.ofPlatform().name("nixl-exit").unstarted(NixlExit::skipDestructors));
    }

    /** Makes the process end without destructors of C libraries if NIXL is loaded. */
    public static void skipDestructors() {
        if (isLoaded()) {
            // A refusal leaves the exit as it was.
            boolean _ = Posix.exitWithoutDestructors();
        }
    }

    /** Whether this process has loaded NIXL, through Baton or otherwise. */
    static boolean isLoaded() {
        try {
            // File names can have any bytes.
            return Files.readString(MAPPINGS, StandardCharsets.ISO_8859_1).contains("/" + NixlLibrary.FILE);
        } catch (IOException e) {
            // A system without this file, or a sandbox that hides it.
            return false;
        }
    }
}
