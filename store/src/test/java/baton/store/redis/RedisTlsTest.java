package baton.store.redis;

import static baton.store.remote.StoredValues.until;
import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.Ticker;
import baton.store.StoreFormat;
import baton.store.remote.RemoteLimits;
import baton.store.remote.StoredValues;
import baton.testkit.Certificates;
import java.lang.foreign.Arena;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Optional;
import java.util.Random;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class RedisTlsTest {
    private static final StoreFormat FORMAT = StoredValues.format(64 << 10);

    @TempDir
    private Path directory;

    @Test
    void tlsWorksWithACertificateThatIsTrustedAndNotWithAnother() throws Exception {
        RedisServer.assumeInstalled();
        Path certificate = directory.resolve("certificate.pem");
        Path key = directory.resolve("key.pem");
        Certificates.make(directory, certificate, key);
        try (RedisServer server = RedisServer.startTls(directory, certificate, key);
                Arena arena = Arena.ofShared()) {
            String url = "rediss://127.0.0.1:" + server.port();
            try (RedisBlockStore store =
                    RedisBlockStoreTest.connected(FORMAT, settings(url, Optional.of(certificate)))) {
                StoredValues values = StoredValues.random(FORMAT, 30, arena, new Random(3));
                assertThat(values.put(store).succeededCount()).isEqualTo(30);
                StoredValues read = StoredValues.empty(FORMAT, values.keys(), arena);
                assertThat(read.get(store).succeededCount()).isEqualTo(30);
                assertThat(read.memory().mismatch(values.memory())).isEqualTo(-1);
            }
            try (RedisBlockStore store =
                    RedisBlockStore.open(FORMAT, settings(url, Optional.empty()), Ticker.system())) {
                until(
                        "refused",
                        () -> store.takeMeasurements().stream()
                                .anyMatch(measurement -> measurement.labels().containsValue("unavailable")));
                assertThat(store.isConnected()).isFalse();
            }
        }
    }

    private static RedisSettings settings(String url, Optional<Path> certificates) {
        return new RedisSettings(
                url, "baton", Optional.empty(), new RemoteLimits(2, Duration.ofSeconds(5), 64L << 20, certificates));
    }
}
