package baton.memory;

import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;

/** Memory that the processor executes. Linux on x86-64. */
public final class MachineCode {
    private MachineCode() {}

    /**
     * Code as a function, for as long as the process lives.
     *
     * @param options of the calls
     * @throws IllegalStateException if the system gives no executable memory, as a hardened one does
     */
    public static MethodHandle function(byte[] code, FunctionDescriptor descriptor, Linker.Option... options) {
        return Linker.nativeLinker().downcallHandle(executable(code), descriptor, options);
    }

    /**
     * Code in memory that is executable as long as the process lives.
     *
     * @throws IllegalStateException if the system gives no executable memory, as a hardened one does
     */
    public static MemorySegment executable(byte[] code) {
        try {
            MemorySegment memory = Posix.mmap(
                            MemorySegment.NULL,
                            code.length,
                            Posix.PROT_READ | Posix.PROT_WRITE,
                            Posix.MAP_PRIVATE | Posix.MAP_ANONYMOUS,
                            Posix.NO_FILE)
                    .reinterpret(code.length);
            MemorySegment.copy(code, 0, memory, ValueLayout.JAVA_BYTE, 0, code.length);
            Posix.mprotect(memory, memory.byteSize(), Posix.PROT_READ | Posix.PROT_EXEC);
            return memory;
        } catch (Posix.Failure | UnsupportedOperationException e) {
            throw new IllegalStateException(
                    "the system gives no executable memory for %d bytes of code: %s"
                            .formatted(code.length, e.getMessage()),
                    e);
        }
    }
}
