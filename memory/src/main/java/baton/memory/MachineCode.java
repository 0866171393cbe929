package baton.memory;

import java.lang.foreign.AddressLayout;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.util.NoSuchElementException;

/** Memory that the processor executes. Linux on x86-64. */
public final class MachineCode {
    private static final int PROT_READ = 1;
    private static final int PROT_WRITE = 2;
    private static final int PROT_EXEC = 4;
    private static final int MAP_PRIVATE_ANONYMOUS = 0x22;
    private static final long MAP_FAILED = -1;

    private static final ValueLayout.OfInt INT = ValueLayout.JAVA_INT;
    private static final ValueLayout.OfLong LONG = ValueLayout.JAVA_LONG;
    private static final AddressLayout ADDRESS = ValueLayout.ADDRESS;

    private MachineCode() {}

    /**
     * Code as a function, for as long as the process lives.
     *
     * @throws IllegalStateException if the system gives no executable memory, as a hardened one does
     */
    public static MethodHandle function(byte[] code, FunctionDescriptor descriptor) {
        return Linker.nativeLinker().downcallHandle(executable(code), descriptor);
    }

    private static MemorySegment executable(byte[] code) {
        try {
            MethodHandle mmap = system("mmap", FunctionDescriptor.of(ADDRESS, ADDRESS, LONG, INT, INT, INT, LONG));
            MethodHandle mprotect = system("mprotect", FunctionDescriptor.of(INT, ADDRESS, LONG, INT));
            MemorySegment page = (MemorySegment) mmap.invokeExact(
                    MemorySegment.NULL, (long) code.length, PROT_READ | PROT_WRITE, MAP_PRIVATE_ANONYMOUS, -1, 0L);
            if (page.address() == MAP_FAILED) {
                throw new IllegalStateException(
                        "the system gives no memory for %d bytes of code".formatted(code.length));
            }
            MemorySegment memory = page.reinterpret(code.length);
            MemorySegment.copy(code, 0, memory, ValueLayout.JAVA_BYTE, 0, code.length);
            if ((int) mprotect.invokeExact(memory, memory.byteSize(), PROT_READ | PROT_EXEC) != 0) {
                throw new IllegalStateException("the system does not let written memory be executed");
            }
            return memory;
        } catch (NoSuchElementException e) {
            throw new IllegalStateException("the system has no such function: " + e.getMessage(), e);
        } catch (RuntimeException | Error e) {
            throw e;
        } catch (Throwable e) {
            throw new AssertionError("system calls throw nothing", e);
        }
    }

    private static MethodHandle system(String name, FunctionDescriptor descriptor) {
        Linker linker = Linker.nativeLinker();
        return linker.downcallHandle(linker.defaultLookup().findOrThrow(name), descriptor);
    }
}
