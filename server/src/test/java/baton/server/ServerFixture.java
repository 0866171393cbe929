package baton.server;

import java.io.BufferedInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.Socket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.function.UnaryOperator;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/** A server on a free port of 127.0.0.1 with a {@link FakeEngine}, and clients. */
final class ServerFixture implements AutoCloseable {
    static final JsonMapper MAPPER = JsonMapper.builder().build();
    static final String MODEL = "tiny-ledger";

    /** Far longer than anything takes on a busy machine. */
    static final Duration SOON = Duration.ofSeconds(60);

    final FakeEngine engine = new FakeEngine();
    final ApiServer server;
    final HttpClient client = HttpClient.newBuilder().connectTimeout(SOON).build();

    ServerFixture() {
        this(config -> config);
    }

    ServerFixture(UnaryOperator<ServerConfigBuilder> settings) {
        ServerConfig config = settings.apply(
                        ServerConfig.of(MODEL).host("127.0.0.1").port(0).version("1.2.3"))
                .build();
        server = ApiServer.start(config, engine, new PrometheusMetrics(MODEL));
    }

    URI uri(String path) {
        return URI.create("http://127.0.0.1:" + server.port() + path);
    }

    HttpResponse<String> get(String path) throws IOException, InterruptedException {
        return send(HttpRequest.newBuilder(uri(path)).GET());
    }

    HttpResponse<String> post(String path, String body) throws IOException, InterruptedException {
        return send(HttpRequest.newBuilder(uri(path))
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString(body)));
    }

    HttpResponse<String> send(HttpRequest.Builder request) throws IOException, InterruptedException {
        return client.send(request.timeout(SOON).build(), HttpResponse.BodyHandlers.ofString());
    }

    static JsonNode json(HttpResponse<String> response) {
        return MAPPER.readTree(response.body());
    }

    RawClient raw() throws IOException {
        return new RawClient(server.port());
    }

    @Override
    public void close() {
        client.shutdownNow();
        server.close(Duration.ZERO);
        engine.close();
    }

    /** HTTP on a plain socket, to control each byte and the end of the connection. */
    static final class RawClient implements AutoCloseable {
        private final Socket socket;
        private final InputStream in;

        private RawClient(int port) throws IOException {
            socket = new Socket(InetAddress.getLoopbackAddress(), port);
            socket.setSoTimeout((int) SOON.toMillis());
            in = new BufferedInputStream(socket.getInputStream());
        }

        Socket socket() {
            return socket;
        }

        void send(String text) throws IOException {
            socket.getOutputStream().write(text.getBytes(StandardCharsets.UTF_8));
            socket.getOutputStream().flush();
        }

        void post(String path, String body) throws IOException {
            int length = body.getBytes(StandardCharsets.UTF_8).length;
            send("POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
                    + length + "\r\n\r\n" + body);
        }

        /** The status line and the headers. */
        String head() throws IOException {
            StringBuilder head = new StringBuilder();
            String line = line();
            while (!line.isEmpty()) {
                head.append(line).append('\n');
                line = line();
            }
            return head.toString();
        }

        /** One HTTP chunk; empty at the end of the body. */
        String chunk() throws IOException {
            int length = Integer.parseInt(line(), 16);
            byte[] bytes = in.readNBytes(length);
            line();
            return new String(bytes, StandardCharsets.UTF_8);
        }

        /** Reads that many bytes of a body. */
        void skip(int bytes) throws IOException {
            in.skipNBytes(bytes);
        }

        /** Waits for the server to close the connection; false if it sends something instead. */
        boolean closed() throws IOException {
            return in.read() < 0;
        }

        /** Closes the connection at once. */
        void leave() throws IOException {
            socket.close();
        }

        private String line() throws IOException {
            StringBuilder line = new StringBuilder();
            int next = in.read();
            while (next != '\n') {
                if (next < 0) {
                    throw new EOFException("connection closed after: " + line);
                }
                if (next != '\r') {
                    line.append((char) next);
                }
                next = in.read();
            }
            return line.toString();
        }

        @Override
        public void close() throws IOException {
            socket.close();
        }
    }
}
