package baton.store.mooncake;

import static org.assertj.core.api.Assertions.assertThat;

import java.lang.foreign.Arena;
import java.lang.foreign.MemoryLayout.PathElement;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The library's interface, as far as it shows without the library. */
class StoreApiTest {
    @Test
    void theReplicationStructIsThatOfTheHeader() {
        assertThat(StoreApi.REPLICATION.byteSize()).isEqualTo(32);
        assertThat(StoreApi.REPLICATION.memberLayouts().stream()
                        .map(member -> StoreApi.REPLICATION.byteOffset(
                                PathElement.groupElement(member.name().orElseThrow()))))
                .containsExactly(0L, 8L, 12L, 16L, 24L);
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment config = StoreApi.replication(arena, List.of("host:1"));
            assertThat(config.get(ValueLayout.JAVA_LONG, 0)).isEqualTo(1);
            assertThat(config.get(ValueLayout.JAVA_LONG, 8)).isZero();
            assertThat(config.get(ValueLayout.JAVA_LONG, 24)).isEqualTo(1);
            MemorySegment names = config.get(ValueLayout.ADDRESS, 16).reinterpret(8);
            assertThat(names.get(ValueLayout.ADDRESS, 0).reinterpret(7).getString(0))
                    .isEqualTo("host:1");
            assertThat(StoreApi.replication(arena, List.of())
                            .get(ValueLayout.ADDRESS, 16)
                            .address())
                    .isZero();
        }
    }

    @Test
    void aLibraryThatIsNoneIsExplained(@TempDir Path directory) throws Exception {
        Path file = Files.writeString(directory.resolve("libmooncake_store.so"), "no library");
        assertThat(StoreLibrary.find(Optional.of(file), Map.of()))
                .isInstanceOfSatisfying(
                        StoreLibrary.Absent.class,
                        absent -> assertThat(absent.reason())
                                .contains(
                                        file + " or a library that it needs cannot be loaded", "WITH_STORE_C_SHARED"));
        assertThat(StoreLibrary.find(Optional.empty(), Map.of(StoreLibrary.VARIABLE, "/nowhere")))
                .isEqualTo(new StoreLibrary.Absent("/nowhere is no file"));
    }
}
