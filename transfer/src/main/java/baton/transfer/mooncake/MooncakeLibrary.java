package baton.transfer.mooncake;

import java.lang.foreign.Arena;
import java.lang.foreign.SymbolLookup;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Optional;

/**
 * Mooncake's transfer engine as a library with its C API ({@code transfer_engine_c.h}), or why it is not there. Mooncake's wheels do
 * not export that API, so the library is built from Mooncake's sources, and named by the setting, the system property
 * {@value #PROPERTY} or the environment variable {@value #VARIABLE}: a file, or a directory that holds one.
 *
 * <p>A loaded library stays for the life of the process.
 */
public sealed interface MooncakeLibrary {
    String PROPERTY = "baton.mooncake.library";
    String VARIABLE = "BATON_MOONCAKE_LIBRARY";
    String FILE = "libtransfer_engine.so";

    /** How to get it. */
    String REMEDY = "build " + FILE + " from Mooncake's sources (docs/connectors/transfer-agents.md) and name it by"
            + " kv_connector_extra_config.mooncake_library, the environment variable " + VARIABLE
            + " or the system property " + PROPERTY + "; protocol tcp needs no library";

    /** The library is loaded. */
    record Found(Path file, MooncakeApi api) implements MooncakeLibrary {}

    /** The library could not be loaded. */
    record Absent(String why) implements MooncakeLibrary {
        /** The reason and the remedy, in one line. */
        public String reason() {
            return "Mooncake's library is not available (" + why + "); " + REMEDY;
        }
    }

    /** Looks for the library in this process's environment. */
    static MooncakeLibrary find(Optional<Path> setting) {
        return find(setting, Optional.ofNullable(System.getProperty(PROPERTY)), System.getenv());
    }

    /** Finds the library as {@link #find(Optional)} does, with this environment. */
    static MooncakeLibrary find(Optional<Path> setting, Optional<String> property, Map<String, String> environment) {
        Optional<Path> named = setting.or(() -> property.map(Path::of))
                .or(() -> Optional.ofNullable(environment.get(VARIABLE)).map(Path::of));
        if (named.isEmpty()) {
            return new Absent("none is named");
        }
        Path file = Files.isDirectory(named.get()) ? named.get().resolve(FILE) : named.get();
        if (!Files.isRegularFile(file)) {
            return new Absent(file + " does not exist");
        }
        try {
            return new Found(file, new MooncakeApi(SymbolLookup.libraryLookup(file.toAbsolutePath(), Arena.global())));
        } catch (NoSuchElementException e) {
            return new Absent(file + " has not the C API of Mooncake's transfer engine: " + e.getMessage());
        } catch (IllegalArgumentException e) {
            return new Absent(file + " or a library it needs cannot be loaded");
        }
    }
}
