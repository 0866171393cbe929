package baton.memory;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.nio.file.Path;
import java.util.concurrent.locks.LockSupport;
import org.junit.jupiter.api.Test;

class PosixTest {
    private static final FunctionDescriptor INT_OF_INT =
            FunctionDescriptor.of(ValueLayout.JAVA_INT, ValueLayout.JAVA_INT);

    @Test
    void aCallThatFailsThrowsItsNameAndErrno() {
        assertThatThrownBy(() -> Posix.open(Path.of("/no/such/file"), Posix.O_RDONLY))
                .isInstanceOfSatisfying(Posix.Failure.class, e -> {
                    assertThat(e.function()).isEqualTo("open");
                    assertThat(e.errno()).isEqualTo(2); // ENOENT
                    assertThat(e).hasMessage("open failed, errno=2");
                });
        assertThatThrownBy(() -> Posix.mmap(
                        MemorySegment.NULL, 0, Posix.PROT_READ, Posix.MAP_PRIVATE | Posix.MAP_ANONYMOUS, Posix.NO_FILE))
                .isInstanceOf(Posix.Failure.class)
                .hasMessageContaining("mmap");
    }

    @Test
    void aFunctionOfTheCLibraryIsCalled() throws Throwable {
        MethodHandle abs = Posix.function("abs", INT_OF_INT);
        assertThat((int) abs.invokeExact(-7)).isEqualTo(7);
        assertThat(Posix.find("no_such_function", INT_OF_INT)).isEmpty();
    }

    @Test
    void aFunctionThatTheCLibraryLacksThrowsWhenItIsCalled() {
        MethodHandle missing = Posix.function("no_such_function", INT_OF_INT, Linker.Option.captureCallState("errno"));
        assertThatThrownBy(() -> {
                    int _ = (int) missing.invokeExact(MemorySegment.NULL, 1);
                })
                .isInstanceOf(UnsupportedOperationException.class)
                .hasMessageContaining("no_such_function");
    }

    @Test
    void aThreadsClockStandsStillWhileItIsParked() {
        long start = Posix.threadCpuNanos();
        long until = System.nanoTime() + 100_000_000;
        while (System.nanoTime() < until) {
            LockSupport.parkNanos(until - System.nanoTime());
        }
        long parked = Posix.threadCpuNanos() - start;
        assertThat(parked).isBetween(0L, 80_000_000L);
        long end = System.nanoTime() + 20_000_000_000L;
        while (Posix.threadCpuNanos() - start < 100_000_000 && System.nanoTime() < end) {
            Thread.onSpinWait();
        }
        assertThat(Posix.threadCpuNanos() - start).isGreaterThanOrEqualTo(100_000_000);
    }
}
