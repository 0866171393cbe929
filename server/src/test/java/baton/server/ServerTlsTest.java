package baton.server;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.kv.ServerTls;
import baton.testkit.Certificates;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.time.Duration;
import java.util.Optional;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLSocket;
import javax.net.ssl.TrustManagerFactory;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** A server with TLS that needs certificates of its clients. */
@Timeout(300)
class ServerTlsTest {
    private static final String REQUEST = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

    @TempDir
    static Path directory;

    private static Path certificate;
    private static Path key;

    @BeforeAll
    static void makeCertificate() throws Exception {
        certificate = directory.resolve("cert.pem");
        key = directory.resolve("key.pem");
        Certificates.make(directory, certificate, key);
    }

    /** The server's certificate is the authority of its clients' too. */
    private static ServerFixture fixture(Path certificate, Path key) {
        return new ServerFixture(config -> config.warmUp(Duration.ofSeconds(5))
                .tls(new ServerTls(certificate, key, Optional.of(certificate), ServerTls.Clients.REQUIRED)));
    }

    private static SSLContext context(boolean withCertificate) throws Exception {
        KeyStore store = KeyStore.getInstance("PKCS12");
        try (InputStream in = Files.newInputStream(directory.resolve("store.p12"))) {
            store.load(in, Certificates.PASSWORD.toCharArray());
        }
        KeyManagerFactory keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        keys.init(store, Certificates.PASSWORD.toCharArray());
        KeyStore trusted = KeyStore.getInstance("PKCS12");
        trusted.load(null, null);
        trusted.setCertificateEntry("server", store.getCertificate("server"));
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(trusted);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(withCertificate ? keys.getKeyManagers() : null, trust.getTrustManagers(), null);
        return context;
    }

    private static String ask(Socket socket) throws IOException {
        socket.setSoTimeout((int) ServerFixture.SOON.toMillis());
        socket.getOutputStream().write(REQUEST.getBytes(StandardCharsets.UTF_8));
        return new String(socket.getInputStream().readAllBytes(), StandardCharsets.ISO_8859_1);
    }

    @Test
    void itWarmsUpAndServesClientsWithACertificate() throws Exception {
        try (ServerFixture fixture = fixture(certificate, key)) {
            fixture.engine.answers("word");
            fixture.server.warmUp();
            assertThat(fixture.engine.submittedCount())
                    .as("prompts of the warm-up")
                    .isPositive();
            int port = fixture.server.port();
            try (SSLSocket socket = (SSLSocket) context(true).getSocketFactory().createSocket("127.0.0.1", port)) {
                assertThat(ask(socket)).startsWith("HTTP/1.1 200");
            }
            try (SSLSocket socket =
                    (SSLSocket) context(false).getSocketFactory().createSocket("127.0.0.1", port)) {
                assertThatThrownBy(() -> ask(socket)).isInstanceOf(IOException.class);
            }
            try (Socket socket = new Socket(InetAddress.getLoopbackAddress(), port)) {
                assertThat(ask(socket)).doesNotContain("HTTP/1.1");
            }
        }
    }

    @Test
    void filesThatCannotBeUsedAreNamed() {
        Path missing = directory.resolve("missing.pem");
        assertThatThrownBy(() -> fixture(certificate, missing))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith("ssl keyfile: cannot be read")
                .hasMessageContaining("missing.pem");
        assertThatThrownBy(() -> fixture(certificate, certificate))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("cannot be used");
    }
}
