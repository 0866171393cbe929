package baton.memory;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class MappableMemoryTest {
    private static final long BYTES = (5L << 20) + 100;

    @Test
    void bytesWrittenByTheOwnerAreReadThroughAMapping() throws IOException {
        try (Arena arena = Arena.ofShared()) {
            MappableMemory owned = MappableMemory.allocate(arena, BYTES, "a test");
            assertThat(owned.memory().byteSize()).isEqualTo(BYTES);
            assertThat(owned.memory().address() % (2 << 20)).isZero();
            assertThat(owned.memory().get(ValueLayout.JAVA_LONG_UNALIGNED, BYTES - 8))
                    .isZero();
            MemorySegment mapped = MappableMemory.map(arena, owned.file(), MappableMemory.inode(owned.file()), BYTES);
            owned.memory().set(ValueLayout.JAVA_LONG_UNALIGNED, BYTES - 8, 0x123456789abcdefL);
            assertThat(mapped.get(ValueLayout.JAVA_LONG_UNALIGNED, BYTES - 8)).isEqualTo(0x123456789abcdefL);
            assertThatThrownBy(() -> mapped.set(ValueLayout.JAVA_BYTE, 0, (byte) 1))
                    .isInstanceOf(IllegalArgumentException.class);
        }
    }

    @Test
    void theFileIsGoneWithTheArenaWhileMappingsOfItStay() throws IOException {
        try (Arena reader = Arena.ofShared()) {
            Path file;
            MemorySegment mapped;
            try (Arena arena = Arena.ofShared()) {
                MappableMemory owned = MappableMemory.allocate(arena, BYTES, "a test");
                file = owned.file();
                owned.memory().fill((byte) 7);
                mapped = MappableMemory.map(reader, file, MappableMemory.inode(file), BYTES);
            }
            assertThat(Files.exists(file)).isFalse();
            assertThat(mapped.get(ValueLayout.JAVA_BYTE, BYTES - 1)).isEqualTo((byte) 7);
        }
    }

    @Test
    void anotherFileIsRefused(@TempDir Path directory) throws IOException {
        try (Arena arena = Arena.ofShared()) {
            MappableMemory owned = MappableMemory.allocate(arena, BYTES, "a test");
            long inode = MappableMemory.inode(owned.file());
            assertThatThrownBy(() -> MappableMemory.map(arena, owned.file(), inode + 1, BYTES))
                    .isInstanceOf(IOException.class)
                    .hasMessageContaining("inode=" + inode);
            assertThatThrownBy(() -> MappableMemory.map(arena, owned.file(), inode, BYTES + 1))
                    .isInstanceOf(IOException.class)
                    .hasMessageContaining("size=" + BYTES);
            Path file = Files.write(directory.resolve("file"), new byte[4096]);
            assertThatThrownBy(() -> MappableMemory.map(arena, file, MappableMemory.inode(file), 4096))
                    .isInstanceOf(IOException.class)
                    .hasMessageContaining("may shrink");
            assertThatThrownBy(() -> MappableMemory.map(arena, directory.resolve("none"), 1, 4096))
                    .isInstanceOf(IOException.class)
                    .hasMessageContaining("cannot open");
        }
    }

    @Test
    void mappableMemoryIsForLinuxOnly() {
        assertThat(MappableMemory.whyNone(Platform.of("Linux", "aarch64"))).isEmpty();
        assertThat(MappableMemory.whyNone(Platform.of("Mac OS X", "aarch64")))
                .hasValueSatisfying(why -> assertThat(why).contains("macosx-arm64"));
    }
}
