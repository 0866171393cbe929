package baton.store.redis;

import static baton.store.redis.StoredValues.until;
import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.Ticker;
import baton.store.StoreFormat;
import java.io.InputStream;
import java.lang.foreign.Arena;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.time.Duration;
import java.util.Base64;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class RedisTlsTest {
    private static final StoreFormat FORMAT = StoredValues.format(64 << 10);
    private static final String PASSWORD = "changeit";

    @TempDir
    private Path directory;

    @Test
    void tlsWorksWithACertificateThatIsTrustedAndNotWithAnother() throws Exception {
        RedisServer.assumeInstalled();
        Path certificate = directory.resolve("certificate.pem");
        Path key = directory.resolve("key.pem");
        makeCertificate(certificate, key);
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
        return new RedisSettings(url, "baton", Optional.empty(), 2, Duration.ofSeconds(5), 64L << 20, certificates);
    }

    /** A certificate for 127.0.0.1 that is its own authority. */
    private void makeCertificate(Path certificate, Path key) throws Exception {
        Path store = directory.resolve("store.p12");
        Process keytool = new ProcessBuilder(
                        Path.of(System.getProperty("java.home"), "bin", "keytool")
                                .toString(),
                        "-genkeypair",
                        "-alias",
                        "redis",
                        "-keyalg",
                        "EC",
                        "-dname",
                        "CN=127.0.0.1",
                        "-ext",
                        "san=ip:127.0.0.1",
                        "-keystore",
                        store.toString(),
                        "-storetype",
                        "PKCS12",
                        "-storepass",
                        PASSWORD)
                .redirectErrorStream(true)
                .redirectOutput(directory.resolve("keytool.log").toFile())
                .start();
        assertThat(keytool.waitFor(30, TimeUnit.SECONDS) && keytool.exitValue() == 0)
                .as(() -> "keytool: " + directory)
                .isTrue();
        KeyStore keys = KeyStore.getInstance("PKCS12");
        try (InputStream in = Files.newInputStream(store)) {
            keys.load(in, PASSWORD.toCharArray());
        }
        Files.writeString(
                certificate, pem("CERTIFICATE", keys.getCertificate("redis").getEncoded()));
        Files.writeString(
                key,
                pem("PRIVATE KEY", keys.getKey("redis", PASSWORD.toCharArray()).getEncoded()));
    }

    private static String pem(String what, byte[] bytes) {
        return "-----BEGIN %s-----\n%s\n-----END %s-----\n"
                .formatted(what, Base64.getMimeEncoder(64, new byte[] {'\n'}).encodeToString(bytes), what);
    }
}
