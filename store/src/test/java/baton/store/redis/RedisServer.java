package baton.store.redis;

import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.kv.FreePorts;
import baton.testkit.InstalledProgram;
import java.io.BufferedInputStream;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;

/** A real {@code redis-server} on a free port of 127.0.0.1 that keeps nothing on disk. Can be stopped, killed, halted and started again. */
public final class RedisServer implements AutoCloseable {
    private static final Duration PATIENCE = Duration.ofMinutes(2);

    private final Path directory;
    private final List<String> options;
    private final int port;
    private InstalledProgram process;

    private RedisServer(Path directory, int port, List<String> options) throws IOException {
        this.directory = directory;
        this.port = port;
        this.options = options;
        process = launch();
    }

    /** Skips the test unless the program is installed. */
    public static void assumeInstalled() {
        boolean installed = Stream.of(System.getenv("PATH").split(File.pathSeparator))
                .anyMatch(path -> Files.isExecutable(Path.of(path, "redis-server")));
        assumeTrue(installed, "redis-server is not on the PATH");
    }

    /**
     * Starts one and waits until it accepts connections; skips the test unless the program is installed.
     *
     * @param options added to the command line, e.g. {@code --maxmemory 1mb}
     */
    public static RedisServer start(Path directory, String... options) throws IOException {
        assumeInstalled();
        return new RedisServer(directory, FreePorts.inARow(1), List.of(options));
    }

    /** As {@link #start}, with TLS on its port and without demanding certificates of clients. */
    static RedisServer startTls(Path directory, Path certificate, Path key) throws IOException {
        assumeInstalled();
        int port = FreePorts.inARow(1);
        return new RedisServer(
                directory,
                port,
                List.of(
                        "--port",
                        "0",
                        "--tls-port",
                        Integer.toString(port),
                        "--tls-cert-file",
                        certificate.toString(),
                        "--tls-key-file",
                        key.toString(),
                        "--tls-ca-cert-file",
                        certificate.toString(),
                        "--tls-auth-clients",
                        "no"));
    }

    private InstalledProgram launch() throws IOException {
        List<String> command = new ArrayList<>(List.of("redis-server", "--bind", "127.0.0.1"));
        if (!options.contains("--port")) {
            command.addAll(List.of("--port", Integer.toString(port)));
        }
        command.addAll(List.of("--save", "", "--appendonly", "no", "--dir", directory.toString()));
        command.addAll(options);
        return InstalledProgram.start(directory.resolve("redis.log"), command).awaitListening(port);
    }

    public int port() {
        return port;
    }

    public InetSocketAddress address() {
        return new InetSocketAddress(InetAddress.getLoopbackAddress(), port);
    }

    public String url() {
        return "redis://127.0.0.1:" + port;
    }

    /** Ends it at once, as a crash does. */
    public void kill() throws InterruptedException {
        process.kill();
    }

    /** Starts it again on the same port, empty. */
    public void restart() throws IOException {
        process = launch();
    }

    /** Halts it: connections stay open, nothing is answered. */
    public void halt() throws IOException, InterruptedException {
        process.signal("-STOP");
    }

    public void resume() throws IOException, InterruptedException {
        process.signal("-CONT");
    }

    /** Sends a command past the store, and gives the reply: without its type for a line, a bulk string's bytes as Latin-1. */
    public String command(String... arguments) throws IOException {
        return commands(List.of(List.of(arguments)));
    }

    /** As {@link #command}, after {@code AUTH}. */
    public String authenticated(String password, String... arguments) throws IOException {
        return commands(List.of(List.of("AUTH", password), List.of(arguments)));
    }

    /** The reply to the last one. */
    private String commands(List<List<String>> commands) throws IOException {
        try (Socket socket = new Socket()) {
            socket.connect(address(), (int) PATIENCE.toMillis());
            socket.setSoTimeout((int) PATIENCE.toMillis());
            InputStream in = new BufferedInputStream(socket.getInputStream());
            String reply = "";
            for (List<String> command : commands) {
                StringBuilder text = new StringBuilder("*" + command.size() + "\r\n");
                for (String argument : command) {
                    text.append("$" + argument.length() + "\r\n" + argument + "\r\n");
                }
                socket.getOutputStream().write(text.toString().getBytes(StandardCharsets.ISO_8859_1));
                reply = reply(in);
            }
            return reply;
        }
    }

    private static String reply(InputStream in) throws IOException {
        String line = line(in);
        String rest = line.substring(1);
        return switch (line.charAt(0)) {
            case '$' -> {
                int length = Integer.parseInt(rest);
                String value = length < 0 ? "" : new String(in.readNBytes(length), StandardCharsets.ISO_8859_1);
                if (length >= 0) {
                    in.skipNBytes(2);
                }
                yield value;
            }
            case '*' -> {
                List<String> parts = new ArrayList<>();
                for (int i = Integer.parseInt(rest); i > 0; i--) {
                    parts.add(reply(in));
                }
                yield String.join("\n", parts);
            }
            default -> rest;
        };
    }

    private static String line(InputStream in) throws IOException {
        ByteArrayOutputStream line = new ByteArrayOutputStream();
        for (int c = in.read(); c != '\r'; c = in.read()) {
            if (c < 0) {
                throw new IOException("the connection has ended");
            }
            line.write(c);
        }
        in.skipNBytes(1);
        return line.toString(StandardCharsets.ISO_8859_1);
    }

    @Override
    public void close() throws InterruptedException {
        kill();
    }
}
