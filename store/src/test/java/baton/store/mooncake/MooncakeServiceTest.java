package baton.store.mooncake;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.Ticker;
import baton.store.BlockStore;
import baton.store.BlockStoreContract;
import baton.store.StoreFormat;
import baton.store.remote.StoredValues;
import java.lang.foreign.Arena;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Random;
import java.util.UUID;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Over Mooncake's own master and REST service. */
class MooncakeServiceTest extends BlockStoreContract {
    @TempDir
    private static Path directory;

    @AutoClose
    private static MooncakeServer server;

    @BeforeAll
    static void start() throws Exception {
        server = MooncakeServer.start(directory, Duration.ofMillis(100));
    }

    private static MooncakeBlockStore open(StoreFormat format, String prefix) {
        return MooncakeBlockStore.open(
                format,
                new MooncakeNames(prefix, format.model().name(), 1, 1),
                new MooncakeRest(server.url(), 4, Duration.ofSeconds(1)),
                Ticker.system());
    }

    @Override
    protected Medium medium() {
        String prefix = "test/" + UUID.randomUUID();
        return new Medium() {
            @Override
            public BlockStore open(StoreFormat format) {
                return MooncakeServiceTest.open(format, prefix);
            }

            @Override
            public boolean isDurable() {
                return true;
            }
        };
    }

    @Test
    void valuesOfAMegabyteArriveWhole() {
        StoreFormat format = StoredValues.format(1 << 20);
        try (Arena arena = Arena.ofShared();
                MooncakeBlockStore store = open(format, "large")) {
            StoredValues values = StoredValues.random(format, 8, arena, new Random(3));
            assertThat(values.put(store).succeededFromFront()).isEqualTo(8);
            StoredValues read = StoredValues.empty(format, values.keys(), arena);
            assertThat(read.get(store).succeededFromFront()).isEqualTo(8);
            for (int i = 0; i < 8; i++) {
                assertThat(values.sameAt(i, read)).isTrue();
            }
        }
    }

    @Test
    void aServiceThatIsKilledAndStartedAgainIsUsedAgain() throws Exception {
        StoreFormat format = StoredValues.format(1 << 16);
        try (Arena arena = Arena.ofShared();
                MooncakeBlockStore store = open(format, "killed")) {
            StoredValues values = StoredValues.random(format, 4, arena, new Random(5));
            assertThat(values.put(store).succeededFromFront()).isEqualTo(4);
            server.kill();
            assertThat(values.contains(store).succeededCount()).isZero();
            server.restart();
            // The master says for a while that objects are there which have gone with the service.
            StoredValues read = StoredValues.empty(format, values.keys(), arena);
            StoredValues.until(
                    "stored and read again",
                    () -> values.put(store).succeededCount() == 4
                            && read.get(store).succeededCount() == 4);
            assertThat(values.sameAt(3, read)).isTrue();
        }
    }
}
