package baton.memory;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.SymbolLookup;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.Optional;

/** The functions of a native library: a subclass has a field for each, with its name and types beside it. */
public abstract class NativeFunctions {
    private final SymbolLookup symbols;
    private final String prefix;

    /** @param prefix of all functions' names */
    protected NativeFunctions(SymbolLookup symbols, String prefix) {
        this.symbols = symbols;
        this.prefix = prefix;
    }

    /**
     * A function that returns an {@code int}.
     *
     * @throws NoSuchElementException if the library has none of that name
     */
    protected final MethodHandle function(String name, MemoryLayout... arguments) {
        return function(name, FunctionDescriptor.of(ValueLayout.JAVA_INT, arguments));
    }

    /** @throws NoSuchElementException if the library has none of that name */
    protected final MethodHandle function(String name, FunctionDescriptor descriptor, Linker.Option... options) {
        return Linker.nativeLinker().downcallHandle(symbols.findOrThrow(prefix + name), descriptor, options);
    }

    /**
     * Loads a library, which stays loaded for the life of the process.
     *
     * @param place its file, or the directory that has it; empty for the loader's path
     * @param files the names that it may have, the preferred one first
     * @throws NoSuchElementException if none can be loaded, with those that were tried
     */
    protected static SymbolLookup library(Optional<String> place, List<String> files) {
        List<String> candidates = place.map(Path::of)
                .map(Path::toAbsolutePath)
                .map(path -> Files.isDirectory(path)
                        ? files.stream()
                                .map(file -> path.resolve(file).toString())
                                .toList()
                        : List.of(path.toString()))
                .orElse(files);
        for (String candidate : candidates) {
            try {
                return SymbolLookup.libraryLookup(candidate, Arena.global());
            } catch (IllegalArgumentException _) {
                // The next one.
            }
        }
        throw new NoSuchElementException("cannot load " + String.join(", ", candidates));
    }
}
