package baton.store.mooncake;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.kv.Ticker;
import baton.store.BlockStore;
import baton.store.BlockStoreContract;
import baton.store.StoreFormat;
import baton.store.remote.StoredValues;
import java.io.Closeable;
import java.lang.foreign.Arena;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.UUID;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** By Mooncake's library, with its own master; objects are in the REST service's memory. */
class NativeContractTest extends BlockStoreContract {
    @TempDir
    private static Path directory;

    private static Optional<StoreLibrary.Found> library = Optional.empty();

    @AutoClose
    private static MooncakeServer server;

    @BeforeAll
    static void start() throws Exception {
        switch (StoreLibrary.find(Optional.empty(), System.getenv())) {
            case StoreLibrary.Found found -> library = Optional.of(found);
            case StoreLibrary.Absent absent -> assumeTrue(false, absent.reason());
        }
        server = MooncakeServer.start(directory, Duration.ofSeconds(5));
    }

    private static MooncakeSetup setup(long segmentBytes) {
        return new MooncakeSetup(
                "127.0.0.1", "P2PHANDSHAKE", server.masterAddress(), segmentBytes, "tcp", "", List.of());
    }

    private static MooncakeBlockStore open(StoreFormat format, String prefix, boolean vllm) {
        return MooncakeBlockStore.open(
                format,
                new MooncakeNames(prefix, format.model().name(), 2, 1),
                vllm,
                library.orElseThrow(),
                setup(0),
                Ticker.system());
    }

    @Override
    protected Medium medium() {
        String prefix = "test/" + UUID.randomUUID();
        return new Medium() {
            @Override
            public BlockStore open(StoreFormat format) {
                return NativeContractTest.open(format, prefix, false);
            }

            @Override
            public boolean isDurable() {
                return true;
            }
        };
    }

    @Test
    void vllmsObjectsArriveWholeWithAndWithoutAChecksum() {
        StoreFormat format = StoredValues.format(1);
        try (Arena arena = Arena.ofShared();
                MooncakeBlockStore store = open(format, "vllm", true);
                MooncakeBlockStore other = open(format, "vllm", true)) {
            StoredValues values = StoredValues.random(format, 5, arena, new Random(3));
            assertThat(values.put(store).succeededFromFront()).isEqualTo(5);
            StoredValues read = StoredValues.empty(format, values.keys(), arena);
            assertThat(read.get(other).succeededFromFront()).isEqualTo(5);
            assertThat(read.memory().mismatch(values.memory())).isEqualTo(-1);
        }
    }

    @Test
    void memoryIsGivenAndTakenBack() throws Exception {
        try (Closeable memory = MooncakeBlockStore.mount(library.orElseThrow(), setup(64 << 20), Ticker.system())) {
            assertThat(memory).isNotNull();
        }
    }
}
