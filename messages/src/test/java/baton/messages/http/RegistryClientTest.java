package baton.messages.http;

import static org.assertj.core.api.Assertions.assertThat;

import baton.messages.MessageException;
import baton.messages.PeerAccess;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

class RegistryClientTest {
    private static final String BEGINNING = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{";

    @Test
    @Timeout(300)
    void anAnswerThatDoesNotEndIsGivenUpAtTheTimeout() throws Exception {
        try (ServerSocket server = new ServerSocket(0, 8, InetAddress.getLoopbackAddress());
                RegistryClient client =
                        new RegistryClient(PeerAccess.everyone(), Executors.newVirtualThreadPerTaskExecutor())) {
            Thread.ofVirtual().start(() -> answerPartly(server));
            CompletableFuture<String> answer =
                    client.get("http://127.0.0.1:" + server.getLocalPort(), "/route", Duration.ofMillis(100));
            assertThat(answer)
                    .failsWithin(60, TimeUnit.SECONDS)
                    .withThrowableThat()
                    .withCauseInstanceOf(MessageException.class)
                    .withMessageContaining("/route");
        }
    }

    @Test
    void addressesThatAreNoRegistriesAreRefused() {
        try (RegistryClient client =
                new RegistryClient(PeerAccess.everyone(), Executors.newVirtualThreadPerTaskExecutor())) {
            assertThat(client.get("ftp://h:1", "/query", Duration.ofSeconds(5)))
                    .failsWithin(60, TimeUnit.SECONDS)
                    .withThrowableThat()
                    .withMessageContaining("it must be http://host:port");
        }
    }

    private static void answerPartly(ServerSocket server) {
        try {
            while (true) {
                // Stays open: the client ends the connection.
                Socket socket = server.accept();
                socket.getOutputStream().write(BEGINNING.getBytes(StandardCharsets.ISO_8859_1));
            }
        } catch (IOException e) {
            // The test is over.
        }
    }
}
