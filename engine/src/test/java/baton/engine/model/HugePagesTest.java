package baton.engine.model;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Memory from the kernel, and from the JVM, as on platforms of which the kernel's calls are not known. */
class HugePagesTest {
    private static final long HUGE_PAGE = 2L << 20;

    enum Source {
        KERNEL,
        JVM;

        MemorySegment allocate(Arena arena, long bytes) {
            return switch (this) {
                case KERNEL -> HugePages.allocate(arena, bytes, "a test");
                case JVM -> HugePages.ofTheJvm(arena, bytes, "a test");
            };
        }
    }

    @ParameterizedTest
    @EnumSource
    void memoryIsZeroAndAligned(Source source) {
        for (long bytes : new long[] {1, 4096, HUGE_PAGE, 3 * HUGE_PAGE + 4096}) {
            try (Arena arena = Arena.ofShared()) {
                MemorySegment memory = source.allocate(arena, bytes);
                assertThat(memory.byteSize()).isEqualTo(bytes);
                assertThat(memory.address() % (bytes < HUGE_PAGE ? 64 : HUGE_PAGE))
                        .isZero();
                MemorySegment zeros = arena.allocate(bytes);
                assertThat(memory.mismatch(zeros)).isEqualTo(-1);
                memory.set(ValueLayout.JAVA_BYTE, bytes - 1, (byte) 1);
            }
        }
    }

    @ParameterizedTest
    @EnumSource
    void refusalsOfTheSystemAreNamed(Source source) {
        try (Arena arena = Arena.ofShared()) {
            assertThatThrownBy(() -> source.allocate(arena, 1L << 50))
                    .isInstanceOf(IllegalStateException.class)
                    .hasMessageContaining("refused " + (1L << 50) + " bytes for a test");
        }
    }
}
