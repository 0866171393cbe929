package baton.memory;

import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.SymbolLookup;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.util.NoSuchElementException;

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
    protected final MethodHandle function(String name, FunctionDescriptor descriptor) {
        return Linker.nativeLinker().downcallHandle(symbols.findOrThrow(prefix + name), descriptor);
    }
}
