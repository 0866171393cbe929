package baton.memory;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.Test;

class AnonymousMemoryTest {
    private static final long BYTES = 1L << 30;

    @Test
    void allocatingTouchesNoPages() throws IOException {
        assumeTrue(Platform.current().isLinux(), "this is not Linux, which has /proc/self/smaps");
        try (Arena arena = Arena.ofShared()) {
            MemorySegment memory = AnonymousMemory.allocate(arena, BYTES, 64);
            // The background thread takes 2 MiB a millisecond at most.
            assertThat(residentBytes(memory.address())).isLessThan(BYTES / 2);
            assertThat(memory.byteSize()).isEqualTo(BYTES);
            assertThat(memory.get(ValueLayout.JAVA_LONG, BYTES - 8)).isZero();
            memory.set(ValueLayout.JAVA_LONG, BYTES - 8, 42);
            assertThat(memory.get(ValueLayout.JAVA_LONG, BYTES - 8)).isEqualTo(42);
        }
    }

    @Test
    void theMappingEndsWithTheArena() throws IOException {
        assumeTrue(Platform.current().isLinux(), "this is not Linux, which has /proc/self/smaps");
        MemorySegment memory;
        try (Arena arena = Arena.ofShared()) {
            memory = AnonymousMemory.allocate(arena, 3 * BYTES, 64);
            assertThat(mappedBytes(memory.address())).isGreaterThanOrEqualTo(3 * BYTES);
        }
        assertThat(mappedBytes(memory.address())).isLessThan(3 * BYTES);
        assertThatThrownBy(() -> memory.get(ValueLayout.JAVA_BYTE, 0)).isInstanceOf(IllegalStateException.class);
    }

    @Test
    void memoryThatTheSystemDoesNotHaveIsAnError() {
        assumeTrue(Platform.current().isLinux(), "this is not Linux; elsewhere the JVM allocates");
        try (Arena arena = Arena.ofShared()) {
            assertThatThrownBy(() -> AnonymousMemory.allocate(arena, 1L << 60, 64))
                    .isInstanceOf(OutOfMemoryError.class)
                    .hasMessageContaining("errno=");
        }
    }

    private static long residentBytes(long address) throws IOException {
        return of(address, "Rss:");
    }

    private static long mappedBytes(long address) throws IOException {
        return of(address, "Size:");
    }

    /** A figure of the mapping with that address; 0 if there is none. */
    private static long of(long address, String figure) throws IOException {
        List<String> lines = Files.readAllLines(Path.of("/proc/self/smaps"));
        boolean found = false;
        for (String line : lines) {
            if (line.matches("[0-9a-f]+-[0-9a-f]+ .*")) {
                String[] range = line.substring(0, line.indexOf(' ')).split("-");
                found = Long.parseUnsignedLong(range[0], 16) <= address
                        && Long.compareUnsigned(address, Long.parseUnsignedLong(range[1], 16)) < 0;
            } else if (found && line.startsWith(figure)) {
                return Long.parseLong(line.replaceAll("\\D", "")) << 10;
            }
        }
        return 0;
    }
}
