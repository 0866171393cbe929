package baton.bench.serve;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.testkit.Certificates;
import com.sun.net.httpserver.HttpsConfigurator;
import com.sun.net.httpserver.HttpsServer;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.util.Map;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestInstance;
import org.junit.jupiter.api.io.TempDir;

/** Against a server with a self-signed certificate of another host. */
@TestInstance(TestInstance.Lifecycle.PER_CLASS)
class EndpointClientTest {
    @TempDir
    private static Path directory;

    private HttpsServer server;

    @BeforeAll
    void start() throws Exception {
        Certificates.make(directory, directory.resolve("server.crt"), directory.resolve("server.key"));
        KeyStore keys = KeyStore.getInstance("PKCS12");
        try (InputStream in = Files.newInputStream(directory.resolve("store.p12"))) {
            keys.load(in, Certificates.PASSWORD.toCharArray());
        }
        KeyManagerFactory managers = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        managers.init(keys, Certificates.PASSWORD.toCharArray());
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(managers.getKeyManagers(), null, null);
        server = HttpsServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        server.setHttpsConfigurator(new HttpsConfigurator(context));
        server.createContext("/", exchange -> {
            byte[] answer = (exchange.getRequestURI().getPath().equals("/v1/models")
                            ? "{\"data\": [{\"id\": \"m\"}]}"
                            : "{\"tokens\": [7, 3]}")
                    .getBytes(StandardCharsets.UTF_8);
            try (exchange) {
                exchange.sendResponseHeaders(200, answer.length);
                exchange.getResponseBody().write(answer);
            }
        });
        server.start();
    }

    @AfterAll
    void stop() {
        server.stop(0);
    }

    private Endpoint endpoint(boolean insecure) {
        // localhost is not in the certificate.
        String base = "https://localhost:" + server.getAddress().getPort();
        return new Endpoint(Backend.OPENAI, base, Backend.OPENAI.path(), Map.of(), insecure);
    }

    @Test
    void insecureAcceptsAnyCertificateForModelsAndTokens() throws Exception {
        assertThat(ServedModel.first(endpoint(true)).name()).isEqualTo("m");
        try (ServerTokens tokens = new ServerTokens(endpoint(true), "m")) {
            assertThat(tokens.ids()).containsExactly(3, 7);
        }
    }

    @Test
    void aCertificateThatNoAuthoritySignedIsRefusedOtherwise() {
        assertThatThrownBy(() -> ServedModel.first(endpoint(false)))
                .isInstanceOf(IOException.class)
                .hasMessageContaining("certification path");
    }
}
