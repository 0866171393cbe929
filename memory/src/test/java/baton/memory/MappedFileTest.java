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
import java.nio.file.attribute.PosixFilePermissions;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class MappedFileTest {
    @TempDir
    private Path directory;

    @BeforeEach
    void onLinuxOnly() {
        assumeTrue(
                Platform.current().isLinux(), "this is not Linux: files are mapped and locked by Linux system calls");
    }

    @Test
    void twoMappingsAreTheSameMemoryAndItStaysInTheFile() throws IOException {
        Path path = directory.resolve("shared");
        try (Arena arena = Arena.ofShared();
                MappedFile one = MappedFile.open(path);
                MappedFile other = MappedFile.open(path)) {
            one.allocate(2 << 20);
            MemorySegment first = one.map(arena, 2 << 20);
            MemorySegment second = other.map(arena, 2 << 20);
            first.set(ValueLayout.JAVA_LONG, (2 << 20) - 8, 42);
            assertThat(second.get(ValueLayout.JAVA_LONG, (2 << 20) - 8)).isEqualTo(42);
            assertThatThrownBy(() -> one.map(arena, 3 << 20)).hasMessageContaining("has 2097152 bytes, not 3145728");
        }
        assertThat(PosixFilePermissions.toString(Files.getPosixFilePermissions(path)))
                .isEqualTo("rw-------");
        try (Arena arena = Arena.ofShared();
                MappedFile again = MappedFile.open(path)) {
            assertThat(again.map(arena, 2 << 20).get(ValueLayout.JAVA_LONG, (2 << 20) - 8))
                    .isEqualTo(42);
        }
    }

    @Test
    void aLockIsOfOneOpenedFileUntilItIsUnlockedOrClosed() throws IOException {
        Path path = directory.resolve("locks");
        try (MappedFile one = MappedFile.open(path)) {
            try (MappedFile other = MappedFile.open(path)) {
                assertThat(other.tryLock(1)).isTrue();
                assertThat(other.tryLock(2)).isTrue();
                assertThat(one.tryLock(1)).isFalse();
                assertThat(one.isLockedElsewhere(1)).isTrue();
                assertThat(other.isLockedElsewhere(1)).isFalse();
                other.unlock(1);
                assertThat(one.isLockedElsewhere(1)).isFalse();
                assertThat(one.tryLock(1)).isTrue();
                assertThat(one.tryLock(2)).isFalse();
            }
            assertThat(one.tryLock(2)).isTrue();
        }
    }

    @Test
    void aFileThatWasReplacedIsNotCurrent() throws IOException {
        Path path = directory.resolve("replaced");
        try (MappedFile file = MappedFile.open(path)) {
            assertThat(file.isCurrent()).isTrue();
            Files.delete(path);
            assertThat(file.isCurrent()).isFalse();
            Files.createFile(path);
            assertThat(file.isCurrent()).isFalse();
        }
    }

    @Test
    void onlyAPrivateFileOfThisUserIsTaken() throws IOException {
        Path readable = Files.createFile(directory.resolve("readable"));
        Files.setPosixFilePermissions(readable, PosixFilePermissions.fromString("rw-r--r--"));
        assertThatThrownBy(() -> MappedFile.open(readable)).hasMessageContaining("mode=644");
        Path link = Files.createSymbolicLink(directory.resolve("link"), directory.resolve("target"));
        assertThatThrownBy(() -> MappedFile.open(link)).hasMessageContaining("is not a regular file");
        assertThatThrownBy(() -> MappedFile.open(directory)).isInstanceOf(IOException.class);
    }

    @Test
    void moreThanTheFileSystemHasIsRefused() throws IOException {
        Path memory = Path.of("/dev/shm");
        assumeTrue(Files.isWritable(memory), "there is no /dev/shm that can be written");
        Path path = memory.resolve("baton-test-" + ProcessHandle.current().pid());
        try (MappedFile file = MappedFile.open(path)) {
            assertThatThrownBy(() -> file.allocate(1L << 50))
                    .isInstanceOf(IOException.class)
                    .hasMessageContaining("cannot have %d bytes".formatted(1L << 50));
        } finally {
            Files.deleteIfExists(path);
        }
    }
}
