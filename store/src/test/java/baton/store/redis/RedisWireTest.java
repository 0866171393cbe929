package baton.store.redis;

import static baton.store.remote.StoredValues.until;
import static org.assertj.core.api.Assertions.assertThat;

import baton.store.StoreFormat;
import baton.store.remote.StoredValues;
import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.lang.foreign.Arena;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CopyOnWriteArrayList;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** The bytes of replies: in pieces of any length, and such that are no replies. */
class RedisWireTest {
    /** A server of a few commands that sends replies in pieces. */
    private static final class Server implements AutoCloseable {
        private final ServerSocket listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        private final List<Socket> sockets = new CopyOnWriteArrayList<>();
        private final Map<String, String> values = new ConcurrentHashMap<>();
        private final ConcurrentLinkedQueue<List<String>> commands = new ConcurrentLinkedQueue<>();
        private final int longestPiece;
        private volatile Optional<String> replyToGet = Optional.empty();

        private Server(int longestPiece) throws IOException {
            this.longestPiece = longestPiece;
            Thread.ofVirtual().start(() -> {
                try {
                    while (true) {
                        Socket socket = listener.accept();
                        socket.setTcpNoDelay(true);
                        sockets.add(socket);
                        Thread.ofVirtual().start(() -> serve(socket));
                    }
                } catch (IOException _) {
                    // Closed.
                }
            });
        }

        private RedisSettings settings() {
            return RedisSettings.of("redis://user:secret@127.0.0.1:" + listener.getLocalPort() + "/7");
        }

        private void serve(Socket socket) {
            Random random = new Random(3);
            try (socket) {
                DataInputStream in = new DataInputStream(new BufferedInputStream(socket.getInputStream()));
                OutputStream out = socket.getOutputStream();
                while (true) {
                    List<String> command = new ArrayList<>();
                    for (int words = number(in); words > 0; words--) {
                        byte[] word = new byte[number(in)];
                        in.readFully(word);
                        in.skipNBytes(2);
                        command.add(new String(word, StandardCharsets.ISO_8859_1));
                    }
                    commands.add(command);
                    byte[] reply = reply(command).getBytes(StandardCharsets.ISO_8859_1);
                    for (int at = 0; at < reply.length; ) {
                        int piece = Math.min(reply.length - at, 1 + random.nextInt(longestPiece));
                        out.write(reply, at, piece);
                        out.flush();
                        at += piece;
                    }
                }
            } catch (IOException _) {
                // The client has ended it.
            }
        }

        /** Of a line such as {@code *3}. */
        private static int number(InputStream in) throws IOException {
            StringBuilder line = new StringBuilder();
            for (int c = in.read(); c != '\n'; c = in.read()) {
                if (c < 0) {
                    throw new IOException("ended");
                }
                line.append((char) c);
            }
            return Integer.parseInt(line.substring(1).strip());
        }

        private String reply(List<String> command) {
            return switch (command.getFirst()) {
                case "AUTH", "CLIENT", "SELECT" -> "+OK\r\n";
                case "INFO" -> string("# Server\r\nredis_version:7.0.15\r\n");
                case "EXISTS" ->
                    ":" + command.stream().skip(1).filter(values::containsKey).count() + "\r\n";
                case "SET" -> {
                    values.put(command.get(1), command.get(2));
                    yield "+OK\r\n";
                }
                case "GET" ->
                    replyToGet.orElseGet(() -> Optional.ofNullable(values.get(command.get(1)))
                            .map(Server::string)
                            .orElse("$-1\r\n"));
                default -> "-ERR unknown command\r\n";
            };
        }

        private static String string(String value) {
            return "$" + value.length() + "\r\n" + value + "\r\n";
        }

        @Override
        public void close() throws IOException {
            listener.close();
            for (Socket socket : sockets) {
                socket.close();
            }
        }
    }

    /** Values that are read together with neighbouring bytes, and values that are read straight into their place. */
    @ParameterizedTest
    @ValueSource(ints = {300, 32 << 10})
    void repliesMayComeInPiecesOfAnyLength(int valueBytes) throws Exception {
        StoreFormat format = StoredValues.format(valueBytes);
        for (int longestPiece : List.of(1, 5, 200, 40_000)) {
            try (Server server = new Server(longestPiece);
                    RedisBlockStore store = RedisBlockStoreTest.connected(format, server.settings());
                    Arena arena = Arena.ofShared()) {
                StoredValues values = StoredValues.random(format, 3, arena, new Random(4));
                assertThat(values.put(store).succeededCount()).isEqualTo(3);
                server.values.remove(server.values.keySet().iterator().next());
                StoredValues read = StoredValues.empty(format, values.keys(), arena);
                var task = read.get(store);
                assertThat(task.succeededCount())
                        .as("pieces of %d", longestPiece)
                        .isEqualTo(2);
                for (int key = 0; key < 3; key++) {
                    assertThat(!task.succeeded(key) || read.sameAt(key, values)).isTrue();
                }
            }
        }
    }

    @Test
    void aConnectionLogsInNamesItselfAndSelectsItsDatabase() throws Exception {
        try (Server server = new Server(1000);
                RedisBlockStore _ = RedisBlockStoreTest.connected(StoredValues.format(300), server.settings())) {
            assertThat(server.commands)
                    .contains(
                            List.of("AUTH", "user", "secret"),
                            List.of("CLIENT", "SETNAME", "baton"),
                            List.of("SELECT", "7"));
        }
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "%1\r\n",
                "$x\r\n",
                "\r\n",
                "$99999999999\r\n",
                "*1\r\n*1\r\n:1\r\n",
                "$2\r\nok",
                ":1\r\n:2\r\n:3\r\n"
            })
    void aMalformedReplyMakesMissesAndTheNextConnectionWorks(String reply) throws Exception {
        StoreFormat format = StoredValues.format(300);
        try (Server server = new Server(1000);
                RedisBlockStore store = RedisBlockStoreTest.connected(format, server.settings());
                Arena arena = Arena.ofShared()) {
            StoredValues values = StoredValues.random(format, 1, arena, new Random(5));
            assertThat(values.put(store).succeededCount()).isEqualTo(1);
            server.replyToGet = Optional.of(reply);
            assertThat(values.get(store).succeededCount()).isZero();
            server.replyToGet = Optional.empty();
            until("read", () -> values.get(store).succeededCount() == 1);
        }
    }
}
