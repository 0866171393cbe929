package baton.store.mooncake;

import baton.kv.ConfigException;
import java.lang.foreign.Arena;
import java.lang.foreign.SymbolLookup;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Optional;

/**
 * The C library of Mooncake's store in this process, or why it is not there. A loaded library stays for the life of the process: it has
 * threads of its own.
 */
public sealed interface StoreLibrary {
    String VARIABLE = "BATON_MOONCAKE_STORE_LIBRARY";
    String FILE = "libmooncake_store.so";

    /** The library is loaded. */
    record Found(StoreApi api) implements StoreLibrary {}

    /** @param tried the places where it was looked for, with the errors there */
    record Absent(String tried) implements StoreLibrary {
        /** One line: the places that were tried, and the remedy. */
        public String reason() {
            return "Mooncake's store library is not available (" + tried + "); build it from Mooncake's sources with"
                    + " -DWITH_STORE_C_SHARED=ON, as Mooncake's Python package does not have it, and name the file by"
                    + " kv_connector_extra_config.mooncake_store_library or the environment variable " + VARIABLE
                    + ", or use the REST service by kv_connector_extra_config.store_rest_url";
        }
    }

    /**
     * Looks at the setting, else at {@value #VARIABLE}, else lets the system's loader look for {@value #FILE}.
     *
     * @throws ConfigException if the variable's value is no path
     */
    static StoreLibrary find(Optional<Path> setting, Map<String, String> environment) {
        Optional<Path> named = setting.or(
                () -> Optional.ofNullable(environment.get(VARIABLE)).map(file -> ConfigException.path(VARIABLE, file)));
        if (named.isPresent() && !Files.isRegularFile(named.get())) {
            return new Absent(named.get() + " is no file");
        }
        try {
            SymbolLookup symbols = named.isPresent()
                    ? SymbolLookup.libraryLookup(named.get().toAbsolutePath(), Arena.global())
                    : SymbolLookup.libraryLookup(FILE, Arena.global());
            return new Found(new StoreApi(symbols));
        } catch (NoSuchElementException e) {
            return new Absent(named.map(Path::toString).orElse(FILE) + " lacks a function: " + e.getMessage());
        } catch (IllegalArgumentException _) {
            return new Absent(named.map(file -> file + " or a library that it needs cannot be loaded")
                    .orElse(FILE + " is not on the loader's path"));
        }
    }
}
