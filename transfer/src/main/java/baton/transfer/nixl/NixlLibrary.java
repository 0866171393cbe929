package baton.transfer.nixl;

import baton.memory.Posix;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.foreign.Arena;
import java.lang.foreign.SymbolLookup;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Optional;

/**
 * NIXL's C API in this process, or why it is not there.
 *
 * <p>{@link #find} looks, in this order: at the setting it is given, the system property {@value #PROPERTY}, the environment variable
 * {@value #VARIABLE} (each a file, or a directory that holds one; if one of them is set, nothing else is looked at), the neighbours
 * of {@code NIXL_PLUGIN_DIR}, the loader's own path, and the {@code site-packages} of Python environments, where
 * {@code pip install nixl-cu12} puts it.
 *
 * <p>A loaded library stays for the life of the process: it has threads and exit handlers of its own.
 */
public sealed interface NixlLibrary {
    String PROPERTY = "baton.nixl.library";
    String VARIABLE = "BATON_NIXL_LIBRARY";
    String FILE = "libnixl_capi.so";

    /** How to get it. */
    String REMEDY = "install NIXL 1.x (`pip install nixl-cu12`, or nixl-cu13), or name its " + FILE
            + " by kv_connector_extra_config.nixl_library, the environment variable " + VARIABLE
            + " or the system property "
            + PROPERTY;

    /**
     * It is loaded.
     *
     * @param file the file, or its bare name if the loader found it
     */
    record Found(Path file, NixlApi api) implements NixlLibrary {}

    /**
     * The library could not be loaded.
     * @param tried each place and its error
     */
    record Absent(List<String> tried) implements NixlLibrary {
        /** The places tried and the remedy, in one line. */
        public String reason() {
            return "NIXL is not available (" + String.join("; ", tried) + "); " + REMEDY;
        }
    }

    /** Looks for the library in this process's environment. */
    static NixlLibrary find(Optional<Path> setting) {
        return find(setting, Optional.ofNullable(System.getProperty(PROPERTY)), System.getenv());
    }

    /** Finds the library as {@link #find(Optional)} does, with this environment. */
    static NixlLibrary find(Optional<Path> setting, Optional<String> property, Map<String, String> environment) {
        List<String> tried = new ArrayList<>();
        Optional<Path> named = setting.or(() -> property.map(Path::of))
                .or(() -> Optional.ofNullable(environment.get(VARIABLE)).map(Path::of));
        if (named.isPresent()) {
            return named.flatMap(place -> inside(place, tried))
                    .flatMap(file -> load(file, environment, tried))
                    .<NixlLibrary>map(found -> found)
                    .orElseGet(() -> new Absent(List.copyOf(tried)));
        }
        for (Path place : places(environment)) {
            Optional<Found> found = inside(place, tried).flatMap(file -> load(file, environment, tried));
            if (found.isPresent()) {
                return found.get();
            }
        }
        return load(Path.of(FILE), environment, tried)
                .<NixlLibrary>map(found -> found)
                .orElseGet(() -> new Absent(List.copyOf(tried)));
    }

    private static List<Path> places(Map<String, String> environment) {
        List<Path> places = new ArrayList<>();
        Optional.ofNullable(environment.get("NIXL_PLUGIN_DIR"))
                .map(directory -> Path.of(directory).toAbsolutePath().getParent())
                .ifPresent(places::add);
        for (String variable : List.of("VIRTUAL_ENV", "CONDA_PREFIX")) {
            Optional.ofNullable(environment.get(variable))
                    .ifPresent(root -> places.addAll(pythons(Path.of(root, "lib"))));
        }
        Optional.ofNullable(environment.get("HOME"))
                .ifPresent(home -> places.addAll(pythons(Path.of(home, ".local", "lib"))));
        places.addAll(pythons(Path.of("/usr/local/lib")));
        places.addAll(pythons(Path.of("/usr/lib")));
        places.addAll(pythons(Path.of("/opt/venv/lib")));
        return places.stream().filter(Files::isDirectory).toList();
    }

    private static List<Path> pythons(Path lib) {
        return matches(lib, "python3*").stream()
                .flatMap(python -> List.of(python.resolve("site-packages"), python.resolve("dist-packages")).stream())
                .toList();
    }

    /** The library's file at a place: the file itself, a directory with it, or one into which a wheel was unpacked. */
    private static Optional<Path> inside(Path place, List<String> tried) {
        if (Files.isRegularFile(place)) {
            return Optional.of(place.toAbsolutePath());
        }
        List<Path> candidates = new ArrayList<>(List.of(place.resolve(FILE)));
        matches(place, ".nixl*.mesonpy.libs").forEach(libs -> candidates.add(libs.resolve(FILE)));
        Optional<Path> file = candidates.stream().filter(Files::isRegularFile).findFirst();
        if (file.isEmpty()) {
            tried.add(place + (Files.exists(place) ? " has no " + FILE : " does not exist"));
        }
        return file.map(Path::toAbsolutePath);
    }

    private static List<Path> matches(Path directory, String glob) {
        if (!Files.isDirectory(directory)) {
            return List.of();
        }
        List<Path> found = new ArrayList<>();
        try (DirectoryStream<Path> entries = Files.newDirectoryStream(directory, glob)) {
            entries.forEach(found::add);
        } catch (IOException | UncheckedIOException e) {
            // A directory that cannot be listed has no library to load.
            return List.of();
        }
        return found.stream().sorted().toList();
    }

    private static Optional<Found> load(Path file, Map<String, String> environment, List<String> tried) {
        prepare(file, environment);
        try {
            SymbolLookup symbols = file.isAbsolute()
                    ? SymbolLookup.libraryLookup(file, Arena.global())
                    : SymbolLookup.libraryLookup(file.toString(), Arena.global());
            NixlApi api = new NixlApi(symbols);
            if (api.isStub()) {
                tried.add(file + " is NIXL's stub, without NIXL behind it");
                return Optional.empty();
            }
            return Optional.of(new Found(file, api));
        } catch (NoSuchElementException e) {
            tried.add(file + " is not the C API of NIXL 1.x: " + e.getMessage());
        } catch (IllegalArgumentException e) {
            tried.add(file
                    + (file.isAbsolute() ? " or a library it needs cannot be loaded" : " is not on the loader's path"));
        }
        return Optional.empty();
    }

    /**
     * Sets variables that NIXL and UCX read when they are loaded, unless the user has set them. UCX takes signals such as SIGSEGV for
     * itself, which the JVM needs for its own checks; and it hooks malloc and munmap for a cache of registrations, for which an agent
     * that registers all its memory has no use; and its log goes to standard output.
     */
    private static void prepare(Path file, Map<String, String> environment) {
        List<Map.Entry<String, String>> variables = new ArrayList<>();
        variables.add(Map.entry("UCX_ERROR_SIGNALS", ""));
        variables.add(Map.entry("UCX_MEM_EVENTS", "n"));
        variables.add(Map.entry("UCX_LOG_FILE", "stderr"));
        Optional.ofNullable(file.getParent())
                .map(directory -> directory.resolve("plugins"))
                .filter(Files::isDirectory)
                .filter(_ -> !environment.containsKey("NIXL_PLUGIN_DIR"))
                .ifPresent(plugins -> variables.add(Map.entry("NIXL_PLUGIN_DIR", plugins.toString())));
        variables.forEach(variable -> Posix.setenv(variable.getKey(), variable.getValue(), false));
    }
}
