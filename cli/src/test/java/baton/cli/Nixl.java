package baton.cli;

import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.transfer.nixl.NixlExit;
import baton.transfer.nixl.NixlLibrary;
import java.util.Optional;

/** NIXL, for tests that need it. */
final class Nixl {
    private Nixl() {}

    /** Skips the test, with the reason, where NIXL's library is not installed. */
    static void assumeInstalled() {
        NixlLibrary library = Loaded.LIBRARY;
        assumeTrue(
                library instanceof NixlLibrary.Found,
                () -> library instanceof NixlLibrary.Absent absent ? absent.reason() : "");
    }

    private static final class Loaded {
        static final NixlLibrary LIBRARY = find();

        private static NixlLibrary find() {
            // The library is loaded into this process too.
            NixlExit.atShutdown();
            return NixlLibrary.find(Optional.empty());
        }
    }
}
