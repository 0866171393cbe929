package baton.router;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.kv.ServerTls;
import baton.router.flow.ContentKeyedFlow;
import baton.router.policy.PolicySettings;
import baton.router.upstream.Discovery;
import baton.testkit.Await;
import baton.testkit.Certificates;
import io.vertx.core.Vertx;
import io.vertx.core.http.ClientAuth;
import io.vertx.core.http.HttpServer;
import io.vertx.core.http.HttpServerOptions;
import io.vertx.core.net.PemKeyCertOptions;
import io.vertx.core.net.PemTrustOptions;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.Socket;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import javax.net.ssl.KeyManager;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLSocket;
import javax.net.ssl.TrustManagerFactory;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** TLS between clients, the router and instances. */
@Timeout(300)
class TlsTest {
    private static final String BODY = "{\"prompt\":\"hello\"}";
    private static final String GET = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    private static final String POST = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            + "Content-Type: application/json\r\nContent-Length: " + BODY.length() + "\r\n\r\n" + BODY;

    /** A certificate that is its own authority, and its key. */
    private record Identity(Path certificate, Path key) {
        static Identity make(Path directory) throws Exception {
            Files.createDirectories(directory);
            Identity made = new Identity(directory.resolve("cert.pem"), directory.resolve("key.pem"));
            Certificates.make(directory, made.certificate, made.key);
            return made;
        }

        X509Certificate read() throws Exception {
            try (InputStream in = Files.newInputStream(certificate)) {
                return (X509Certificate) CertificateFactory.getInstance("X.509").generateCertificate(in);
            }
        }

        Identity copiedTo(Path directory) throws IOException {
            Identity copy = new Identity(directory.resolve("cert.pem"), directory.resolve("key.pem"));
            Files.copy(certificate, copy.certificate);
            Files.copy(key, copy.key);
            return copy;
        }

        KeyManager[] keys() throws Exception {
            KeyStore store = KeyStore.getInstance("PKCS12");
            try (InputStream in = Files.newInputStream(certificate.resolveSibling("store.p12"))) {
                store.load(in, Certificates.PASSWORD.toCharArray());
            }
            KeyManagerFactory keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
            keys.init(store, Certificates.PASSWORD.toCharArray());
            return keys.getKeyManagers();
        }

        PemKeyCertOptions options() {
            return new PemKeyCertOptions().addCertPath(certificate.toString()).addKeyPath(key.toString());
        }

        PemTrustOptions trust() {
            return new PemTrustOptions().addCertPath(certificate.toString());
        }
    }

    @TempDir
    static Path certificates;

    private static Identity server;
    private static Identity client;
    private static Identity other;

    private final RouterFixture fixture = new RouterFixture();
    private final FakeInstance instance = fixture.instance();
    private final Vertx vertx = Vertx.vertx();

    @BeforeAll
    static void makeCertificates() throws Exception {
        server = Identity.make(certificates.resolve("server"));
        client = Identity.make(certificates.resolve("client"));
        other = Identity.make(certificates.resolve("other"));
    }

    @AfterEach
    void stopAll() throws Exception {
        fixture.close();
        Router.await(vertx.close(), Duration.ofSeconds(10));
    }

    private Router router(List<URI> instances, Security security) {
        return fixture.start(TestConfigs.router(
                        "127.0.0.1",
                        0,
                        instances,
                        instances,
                        ContentKeyedFlow.NAME,
                        Optional.empty(),
                        RouterFixture.LIMITS,
                        Optional.empty(),
                        PolicySettings.DEFAULT,
                        false,
                        new RouterConfig.Sources(Discovery.Settings.NONE, Optional.empty()))
                .withSecurity(security));
    }

    private Router listening(Optional<Path> authorities, Optional<Integer> clients) {
        return listening(server, authorities, clients);
    }

    private Router listening(Identity own, Optional<Path> authorities, Optional<Integer> clients) {
        return router(
                List.of(instance.uri()),
                new Security(
                        Optional.empty(),
                        ServerTls.of(Optional.of(own.certificate), Optional.of(own.key), authorities, clients),
                        Security.NO_INSTANCE_FILES,
                        false,
                        List.of()));
    }

    /** Trusts a certificate; presents one if given. */
    private static SSLContext context(Identity expected, Optional<Identity> own) throws Exception {
        KeyStore trusted = KeyStore.getInstance("PKCS12");
        trusted.load(null, null);
        trusted.setCertificateEntry("router", expected.read());
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(trusted);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(own.isPresent() ? own.get().keys() : null, trust.getTrustManagers(), null);
        return context;
    }

    private String ask(Router router, Optional<Identity> own, String request) throws Exception {
        try (SSLSocket socket =
                (SSLSocket) context(server, own).getSocketFactory().createSocket("127.0.0.1", router.port())) {
            socket.setSoTimeout((int) RouterFixture.SOON.toMillis());
            socket.getOutputStream().write(request.getBytes(StandardCharsets.UTF_8));
            return new String(socket.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        }
    }

    @Test
    void clientsUseTls() throws Exception {
        Router router = listening(Optional.empty(), Optional.empty());
        assertThat(ask(router, Optional.empty(), GET)).startsWith("HTTP/1.1 200");
        assertThat(ask(router, Optional.empty(), POST))
                .startsWith("HTTP/1.1 200")
                .contains("an answer");
        try (Socket plain = new Socket(InetAddress.getLoopbackAddress(), router.port())) {
            plain.setSoTimeout((int) RouterFixture.SOON.toMillis());
            plain.getOutputStream().write(GET.getBytes(StandardCharsets.UTF_8));
            assertThat(new String(plain.getInputStream().readAllBytes(), StandardCharsets.ISO_8859_1))
                    .doesNotContain("HTTP/1.1");
        }
        assertThat(ask(router, Optional.empty(), GET)).startsWith("HTTP/1.1 200");
    }

    @Test
    void clientsMustPresentACertificateOfTheAuthorities() throws Exception {
        Router router = listening(Optional.of(client.certificate), Optional.empty());
        assertThat(ask(router, Optional.of(client), POST)).startsWith("HTTP/1.1 200");
        assertThatThrownBy(() -> ask(router, Optional.empty(), POST)).isInstanceOf(IOException.class);
        assertThatThrownBy(() -> ask(router, Optional.of(other), POST)).isInstanceOf(IOException.class);
        assertThat(instance.received).hasSize(2);
    }

    @Test
    void clientsMayPresentACertificate() throws Exception {
        Router router = listening(Optional.of(client.certificate), Optional.of(1));
        assertThat(ask(router, Optional.of(client), GET)).startsWith("HTTP/1.1 200");
        assertThat(ask(router, Optional.empty(), GET)).startsWith("HTTP/1.1 200");
    }

    @Test
    void certificatesThatAreReplacedAreUsed(@TempDir Path directory) throws Exception {
        Identity own = server.copiedTo(directory);
        Router router = listening(own, Optional.empty(), Optional.empty());
        // A key that is not the certificate's changes nothing.
        Files.copy(other.key, own.key, StandardCopyOption.REPLACE_EXISTING);
        Await.until("the router reads it", RouterFixture.SOON, () -> refusals(router) > 0);
        assertThat(ask(router, Optional.empty(), GET)).startsWith("HTTP/1.1 200");
        Files.copy(other.certificate, own.certificate, StandardCopyOption.REPLACE_EXISTING);
        Await.until("the new certificate", RouterFixture.SOON, () -> presents(router, other));
    }

    /** How often files were read that could not be used. */
    private double refusals(Router router) throws Exception {
        return ask(router, Optional.empty(), GET.replace("/health", "/metrics"))
                .lines()
                .filter(line ->
                        line.startsWith("baton:router_followed_files_total") && line.contains("result=\"refused\""))
                .mapToDouble(line -> Double.parseDouble(line.substring(line.lastIndexOf(' '))))
                .sum();
    }

    /** Whether that is the router's certificate, and is trusted. */
    private static boolean presents(Router router, Identity wanted) throws Exception {
        try (SSLSocket socket = (SSLSocket)
                context(wanted, Optional.empty()).getSocketFactory().createSocket("127.0.0.1", router.port())) {
            socket.setSoTimeout((int) RouterFixture.SOON.toMillis());
            socket.startHandshake();
            return true;
        } catch (IOException e) {
            return false;
        }
    }

    @Test
    void filesThatCannotBeUsedAreNamed(@TempDir Path directory) throws Exception {
        Identity own = server.copiedTo(directory);
        Files.copy(other.key, own.key, StandardCopyOption.REPLACE_EXISTING);
        assertThatThrownBy(() -> listening(own, Optional.empty(), Optional.empty()))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith("ssl cert: ")
                .hasMessageContaining("the key is not the certificate's");
        Files.writeString(own.key, "no key");
        assertThatThrownBy(() -> listening(own, Optional.empty(), Optional.empty()))
                .isInstanceOf(ConfigException.class);
        Files.delete(own.key);
        assertThatThrownBy(() -> listening(own, Optional.empty(), Optional.empty()))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("key.pem");
        assertThatThrownBy(() -> listening(Optional.empty(), Optional.of(2)))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith("ssl cert reqs: is 2");
        assertThatThrownBy(() -> listening(Optional.empty(), Optional.of(3)))
                .isInstanceOf(ConfigException.class)
                .hasMessage("ssl cert reqs: unsupported value '3'; allowed: 0, 1, 2");
    }

    /** An instance with TLS that needs a certificate of its clients. */
    private URI secured() throws Exception {
        HttpServer started = vertx.createHttpServer(new HttpServerOptions()
                        .setSsl(true)
                        .setKeyCertOptions(server.options())
                        .setTrustOptions(client.trust())
                        .setClientAuth(ClientAuth.REQUIRED))
                .requestHandler(request -> request.response()
                        .putHeader("Content-Type", "application/json")
                        .end(RouterFixture.ANSWER))
                .listen(0, "127.0.0.1")
                .toCompletionStage()
                .toCompletableFuture()
                .get();
        return URI.create("https://127.0.0.1:" + started.actualPort());
    }

    private Security towards(Optional<Path> authorities, Optional<Identity> own) {
        return new Security(
                Optional.empty(),
                Optional.empty(),
                Security.instances(authorities, own.map(Identity::certificate), own.map(Identity::key)),
                false,
                List.of());
    }

    @Test
    void instancesAreReachedByTlsWithTheRoutersCertificate() throws Exception {
        Router router = router(List.of(secured()), towards(Optional.of(server.certificate), Optional.of(client)));
        fixture.awaitUp(router, "decode", 1);
        fixture.awaitUp(router, "prefill", 1);
        var answer = fixture.post(router, BODY);
        assertThat(answer.statusCode()).isEqualTo(200);
        assertThat(answer.headers().firstValue("X-Baton-Decode").orElse("")).startsWith("https://127.0.0.1:");
    }

    @Test
    void instancesWithAnotherCertificateGetNothing() throws Exception {
        URI address = secured();
        Router untrusting = router(List.of(address), towards(Optional.of(client.certificate), Optional.of(client)));
        assertThat(fixture.post(untrusting, BODY).statusCode()).isEqualTo(503);
        Await.until(
                "the reason",
                RouterFixture.SOON,
                () -> fixture.get(untrusting, "/v1/instances").body().contains("PKIX"));
        Router withoutOwn = router(List.of(address), towards(Optional.of(server.certificate), Optional.empty()));
        assertThat(fixture.post(withoutOwn, BODY).statusCode()).isEqualTo(503);
        Router platform = router(List.of(address), Security.NONE);
        assertThat(fixture.post(platform, BODY).statusCode()).isEqualTo(503);
    }

    /** The certificate is for 127.0.0.1 only. */
    @Test
    void instancesMustHaveACertificateForTheirName() throws Exception {
        URI address = URI.create(secured().toString().replace("127.0.0.1", "localhost"));
        Router router = router(List.of(address), towards(Optional.of(server.certificate), Optional.of(client)));
        assertThat(fixture.post(router, BODY).statusCode()).isEqualTo(503);
    }
}
