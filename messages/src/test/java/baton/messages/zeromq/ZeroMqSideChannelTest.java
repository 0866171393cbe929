package baton.messages.zeromq;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.FreePorts;
import baton.messages.MessageException;
import baton.messages.SideChannel.Handler;
import baton.messages.SideChannel.Listener;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.SocketException;
import java.net.SocketTimeoutException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Objects;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.zeromq.SocketType;
import org.zeromq.ZContext;
import org.zeromq.ZMQ;
import org.zeromq.ZMsg;

/** The side channel beside JeroMQ's sockets, bytes that libzmq wrote, and peers that mean no good. */
@Timeout(300)
class ZeroMqSideChannelTest {
    private static final String HOST = "127.0.0.1";
    private static final InetAddress LOOPBACK = InetAddress.ofLiteral(HOST);
    private static final Duration SOON = Duration.ofSeconds(60);
    private static final int CONVERSATIONS = 6;
    private static final Handler ECHO = frames -> frames;

    @AutoClose
    private final ZeroMqSideChannel channel = new ZeroMqSideChannel();

    @Test
    void anAnswerComesBackFrameByFrame() throws Exception {
        Listener listener =
                channel.listen(HOST, 0, frames -> List.of(frames.get(1), new byte[0], bytes(70_000), frames.get(0)));

        List<byte[]> answer = ask(listener.port(), List.of(text("first"), text("second")));

        assertThat(answer).containsExactly(text("second"), new byte[0], bytes(70_000), text("first"));
    }

    @Test
    void manyAskAtOnce() throws Exception {
        Listener listener = channel.listen(HOST, 0, ECHO);

        List<CompletableFuture<List<byte[]>>> answers = IntStream.range(0, 100)
                .mapToObj(i -> channel.ask(HOST, listener.port(), List.of(text("question " + i)), SOON))
                .toList();

        for (int i = 0; i < answers.size(); i++) {
            assertThat(answers.get(i).get()).containsExactly(text("question " + i));
        }
    }

    @Test
    void jeroMqAsks() throws Exception {
        Listener listener =
                channel.listen(HOST, 0, frames -> List.of(text("to " + string(frames.getFirst())), text("two")));
        withJeroMq(context -> {
            ZMQ.Socket req = socket(context, SocketType.REQ);
            req.setHeartbeatIvl(20);
            req.connect("tcp://" + HOST + ":" + listener.port());
            for (String question : List.of("a", "b".repeat(300), "c")) {
                req.send(question);
                ZMsg answer = Objects.requireNonNull(ZMsg.recvMsg(req), "no answer in time");
                assertThat(answer.popString()).isEqualTo("to " + question);
                assertThat(answer.popString()).isEqualTo("two");
                assertThat(answer).isEmpty();
            }
        });
    }

    @Test
    void jeroMqAsksWithCorrelationAndFromADealer() throws Exception {
        Listener listener = channel.listen(HOST, 0, ECHO);
        withJeroMq(context -> {
            ZMQ.Socket req = socket(context, SocketType.REQ);
            req.setReqCorrelate(true);
            req.connect("tcp://" + HOST + ":" + listener.port());
            req.send("correlated");
            assertThat(req.recvStr()).isEqualTo("correlated");

            ZMQ.Socket dealer = socket(context, SocketType.DEALER);
            dealer.connect("tcp://" + HOST + ":" + listener.port());
            for (String frame : List.of("envelope", "", "body")) {
                dealer.send(frame, frame.equals("body") ? 0 : ZMQ.SNDMORE);
            }
            assertThat(dealer.recvStr()).isEqualTo("envelope");
            assertThat(dealer.recvStr()).isEmpty();
            assertThat(dealer.recvStr()).isEqualTo("body");
        });
    }

    @Test
    void libzmqsQuestionIsUnderstoodAndAnsweredInItsBytes() throws Exception {
        List<Line> lines = capture();
        byte[] answer = lines.getLast().bytes();
        // The capture's answer: empty delimiter, a frame of more than 255 bytes, a frame of nine.
        byte[] payload = Arrays.copyOfRange(answer, 11, answer.length - 11);
        byte[] counter = Arrays.copyOfRange(answer, answer.length - 9, answer.length);
        AtomicReference<List<byte[]>> asked = new AtomicReference<>(List.of());
        Listener listener = channel.listen(HOST, 0, frames -> {
            asked.set(frames);
            return List.of(payload, counter);
        });
        try (Socket socket = new Socket(LOOPBACK, listener.port())) {
            socket.setSoTimeout((int) SOON.toMillis());
            DataInputStream in = new DataInputStream(socket.getInputStream());
            for (Line line : lines) {
                if (line.client()) {
                    socket.getOutputStream().write(line.bytes());
                }
            }
            byte[] greeting = in.readNBytes(64);
            assertThat(greeting[0]).isEqualTo((byte) 0xff);
            byte[] ready = in.readNBytes(43);
            assertThat(new String(ready, StandardCharsets.ISO_8859_1)).contains("READY", "Socket-Type", "ROUTER");

            assertThat(in.readNBytes(answer.length)).isEqualTo(answer);
            assertThat(asked.get()).containsExactly(HexFormat.of().parseHex("93c40c6765745f6d6574615f6d73670001"));
        }
    }

    @Test
    void libzmqsAnswerIsUnderstood() throws Exception {
        List<Line> lines = capture();
        try (ServerSocket server = new ServerSocket(0, 1, LOOPBACK)) {
            CompletableFuture<List<byte[]>> asked = channel.ask(
                    HOST,
                    server.getLocalPort(),
                    List.of(HexFormat.of().parseHex("93c40c6765745f6d6574615f6d73670001")),
                    SOON);
            try (Socket socket = server.accept()) {
                for (Line line : lines) {
                    if (!line.client()) {
                        socket.getOutputStream().write(line.bytes());
                    }
                }
                List<byte[]> answer = asked.get();
                assertThat(answer).hasSize(2);
                assertThat(answer.get(0)).hasSize(348);
                assertThat(answer.get(1)).isEqualTo(HexFormat.of().parseHex("cb3ff8000000000000"));
                byte[] sent = socket.getInputStream().readAllBytes();
                byte[] question = lines.get(4).bytes();
                // Behind the READY command the question is the same.
                assertThat(Arrays.copyOfRange(sent, sent.length - 21, sent.length))
                        .isEqualTo(Arrays.copyOfRange(question, question.length - 21, question.length));
            }
        }
    }

    @Test
    void anAddressWithoutListenerFailsAtOnce() throws Exception {
        int port = FreePorts.inARow(1);
        assertThatThrownBy(() -> ask(port, List.of(text("hello"))))
                .isInstanceOf(MessageException.class)
                .hasMessageContaining(HOST + ":" + port);
    }

    @Test
    void anAnswerThatDoesNotComeFailsInTime() throws Exception {
        try (ServerSocket silent = new ServerSocket(0, 1, LOOPBACK)) {
            assertThatThrownBy(() -> get(
                            channel.ask(HOST, silent.getLocalPort(), List.of(text("hello")), Duration.ofMillis(1500))))
                    .isInstanceOf(MessageException.class)
                    .hasMessageContaining("no answer within 1500 ms");
            // The connection was taken back.
            try (Socket peer = silent.accept()) {
                peer.setSoTimeout((int) SOON.toMillis());
                readToEnd(peer);
            }
        }
    }

    @Test
    void anAnswerThatIsTooLargeIsRefused() throws Exception {
        ZeroMqSideChannel.Limits few = limits(64 << 10, 1000, 4, 4, SOON, SOON);
        try (ZeroMqSideChannel small = new ZeroMqSideChannel(few)) {
            Listener listener = channel.listen(HOST, 0, frames -> List.of(bytes(600), bytes(600)));
            assertThatThrownBy(() -> get(small.ask(HOST, listener.port(), List.of(text("x")), SOON)))
                    .isInstanceOf(MessageException.class)
                    .hasMessageContaining("larger than allowed");
            Listener chatty = channel.listen(HOST, 0, frames -> List.of(text("1"), text("2"), text("3"), text("4")));
            assertThatThrownBy(() -> get(small.ask(HOST, chatty.port(), List.of(text("x")), SOON)))
                    .isInstanceOf(MessageException.class)
                    .hasMessageContaining("more than 4 frames");
        }
    }

    @Test
    void aQuestionThatIsTooLargeEndsItsConnectionOnly() throws Exception {
        Listener listener = channel.listen(HOST, 0, ECHO);
        assertThatThrownBy(() -> ask(listener.port(), List.of(bytes(65 << 10)))).isInstanceOf(MessageException.class);
        assertThatThrownBy(() -> ask(
                        listener.port(),
                        IntStream.range(0, 16).mapToObj(i -> text("f")).toList()))
                .isInstanceOf(MessageException.class);
        assertThat(ask(listener.port(), List.of(text("still here")))).containsExactly(text("still here"));
    }

    @Test
    void aHandlerThatHasNoAnswerOrFailsClosesTheConnection() throws Exception {
        Listener listener = channel.listen(HOST, 0, frames -> {
            if (string(frames.getFirst()).equals("throw")) {
                throw new IllegalStateException("asked to");
            }
            return string(frames.getFirst()).equals("nothing") ? List.of() : frames;
        });
        assertThatThrownBy(() -> ask(listener.port(), List.of(text("throw")))).isInstanceOf(MessageException.class);
        assertThatThrownBy(() -> ask(listener.port(), List.of(text("nothing")))).isInstanceOf(MessageException.class);
        assertThat(ask(listener.port(), List.of(text("fine")))).containsExactly(text("fine"));
    }

    /** For any bytes the connection ends, and the next one is answered. */
    @Test
    void anInvalidMessageEndsItsConnectionOnly() throws Exception {
        Random random = new Random(Long.getLong("tests.seed", 11));
        Listener listener = channel.listen(HOST, 0, ECHO);
        byte[] good = goodClient();
        List<byte[]> peers = new ArrayList<>();
        peers.add(new byte[0]);
        peers.add(text("GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
        peers.add(slice(good, 0, 10));
        // Versions 1 and 2 of the protocol, another mechanism, another kind of socket.
        peers.add(replaced(good, 10, 1));
        peers.add(replaced(good, 12, 'P'));
        peers.add(replaced(good, good.length - 36, 'X'));
        // Sizes that are not there, up to the largest number.
        for (byte[] header : List.of(
                hex("0401"),
                hex("06ffffffffffffffff"),
                hex("027fffffffffffffff"),
                hex("028000000000000000"),
                hex("0200000000ffffffff"),
                hex("0200000000000fffff"),
                hex("ff00"),
                hex("0500"),
                hex("0000"),
                hex("00ff"))) {
            peers.add(concat(good, header));
            peers.add(concat(Arrays.copyOf(good, 64), header));
        }
        for (int i = 0; i < 200; i++) {
            byte[] bytes = concat(good, hex("0100000568656c6c6f"));
            int from = random.nextInt(4) == 0 ? 0 : 64;
            for (int change = random.nextInt(1, 6); change > 0; change--) {
                bytes[random.nextInt(from, bytes.length)] = (byte) random.nextInt();
            }
            peers.add(Arrays.copyOf(bytes, random.nextInt(bytes.length + 1)));
        }
        for (byte[] peer : peers) {
            try (Socket socket = new Socket(LOOPBACK, listener.port())) {
                socket.setSoTimeout((int) SOON.toMillis());
                write(socket, peer);
                socket.shutdownOutput();
                readToEnd(socket);
            }
        }
        assertThat(ask(listener.port(), List.of(text("still here")))).containsExactly(text("still here"));
    }

    /** ZeroMQ's sockets keep such a message in memory until it ends. */
    @Test
    void aMessageWithoutEndIsCutOff() throws Exception {
        Listener listener = channel.listen(HOST, 0, ECHO);
        try (Socket socket = new Socket(LOOPBACK, listener.port())) {
            socket.setSoTimeout((int) SOON.toMillis());
            socket.getOutputStream().write(goodClient());
            byte[] more = new byte[2 * 1024];
            for (int i = 0; i < more.length; i += 2) {
                more[i] = 1;
            }
            assertThat(writesUntilRefused(socket.getOutputStream(), more)).isTrue();
        }
        try (Socket socket = new Socket(LOOPBACK, listener.port())) {
            socket.getOutputStream().write(goodClient());
            byte[] pings = "\4\7\4PING\0\0".repeat(200).getBytes(StandardCharsets.ISO_8859_1);
            assertThat(writesUntilRefused(socket.getOutputStream(), pings)).isTrue();
        }
    }

    @Test
    void slowPeersAreCutOffInTheMiddleOfAnything() throws Exception {
        ZeroMqSideChannel.Limits hasty = limits(1 << 20, 1 << 20, 16, 16, Duration.ofMillis(300), SOON);
        try (ZeroMqSideChannel strict = new ZeroMqSideChannel(hasty)) {
            Listener listener = strict.listen(HOST, 0, frames -> List.of(bytes(64 << 20)));
            byte[] good = goodClient();
            List<byte[]> unfinished = List.of(
                    new byte[0],
                    slice(good, 0, 30),
                    concat(good, hex("0100")),
                    concat(good, hex("0100000568")),
                    // A complete question, the answer of which is not read.
                    concat(good, hex("01000001ff")));
            for (byte[] bytes : unfinished) {
                try (Socket socket = new Socket(LOOPBACK, listener.port())) {
                    socket.setSoTimeout((int) SOON.toMillis());
                    write(socket, bytes);
                    awaitConnections(listener.port(), 0);
                }
            }
        }
    }

    @Test
    void anIdleConnectionIsClosedForAnotherOneOrAfterItsTime() throws Exception {
        ZeroMqSideChannel.Limits two = limits(1 << 10, 1 << 10, 16, 2, SOON, SOON);
        try (ZeroMqSideChannel small = new ZeroMqSideChannel(two)) {
            Listener listener = small.listen(HOST, 0, ECHO);
            List<Socket> idle = new ArrayList<>();
            for (int i = 0; i < 8; i++) {
                Socket socket = new Socket(LOOPBACK, listener.port());
                socket.setSoTimeout((int) SOON.toMillis());
                socket.getOutputStream().write(concat(goodClient(), hex("0100000161")));
                // Greeting, READY, and the answer of two frames.
                assertThat(socket.getInputStream().readNBytes(64 + 43 + 5)).endsWith(hex("0100000161"));
                if (idle.size() == 2) {
                    // Usually the first one, but a connection counts as idle only a moment after its answer.
                    awaitEndOfOne(idle);
                }
                idle.add(socket);
            }
            for (Socket socket : idle) {
                socket.close();
            }
        }
        ZeroMqSideChannel.Limits restless = limits(1 << 10, 1 << 10, 16, 2, SOON, Duration.ofMillis(100));
        try (ZeroMqSideChannel small = new ZeroMqSideChannel(restless)) {
            Listener listener = small.listen(HOST, 0, ECHO);
            try (Socket socket = new Socket(LOOPBACK, listener.port())) {
                socket.setSoTimeout((int) SOON.toMillis());
                socket.getOutputStream().write(goodClient());
                readToEnd(socket);
            }
        }
    }

    /** Takes the one out that ends. */
    private static void awaitEndOfOne(List<Socket> sockets) throws IOException {
        long deadline = System.nanoTime() + SOON.toNanos();
        while (true) {
            for (Socket each : sockets) {
                each.setSoTimeout(10);
                try {
                    assertThat(each.getInputStream().read()).isEqualTo(-1);
                    sockets.remove(each);
                    each.close();
                    return;
                } catch (SocketException e) {
                    sockets.remove(each);
                    return;
                } catch (SocketTimeoutException e) {
                    assertThat(System.nanoTime() - deadline)
                            .as("no connection was ended for another")
                            .isNegative();
                }
            }
        }
    }

    @Test
    void aPortInUseIsNamedInTheError() throws Exception {
        Listener listener = channel.listen(HOST, 0, ECHO);
        assertThatThrownBy(() -> channel.listen(HOST, listener.port(), ECHO))
                .isInstanceOf(MessageException.class)
                .hasMessageContaining("cannot listen on " + HOST + ":" + listener.port());
        assertThatThrownBy(() -> channel.listen(HOST, 70_000, ECHO)).isInstanceOf(MessageException.class);
        listener.close();
        try (Listener again = channel.listen(HOST, listener.port(), ECHO)) {
            assertThat(ask(again.port(), List.of(text("again")))).containsExactly(text("again"));
        }
    }

    @Test
    void closingEndsCallsUnderWay() throws Exception {
        CountDownLatch asked = new CountDownLatch(1);
        CountDownLatch never = new CountDownLatch(1);
        Listener listener = channel.listen(HOST, 0, frames -> {
            asked.countDown();
            try {
                never.await();
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
            return frames;
        });
        ZeroMqSideChannel other = new ZeroMqSideChannel();
        CompletableFuture<List<byte[]>> first =
                other.ask(HOST, listener.port(), List.of(text("x")), Duration.ofDays(1));
        asked.await();
        other.close();
        assertThatThrownBy(() -> get(first))
                .isInstanceOf(MessageException.class)
                .hasMessageContaining("closed");
        assertThatThrownBy(() -> get(other.ask(HOST, listener.port(), List.of(text("x")), SOON)))
                .isInstanceOf(MessageException.class)
                .hasMessageContaining("closed");

        try (Socket idle = new Socket(LOOPBACK, listener.port())) {
            idle.setSoTimeout((int) SOON.toMillis());
            never.countDown();
            channel.close();
            readToEnd(idle);
        }
        assertThatThrownBy(() -> channel.listen(HOST, 0, ECHO)).isInstanceOf(MessageException.class);
        awaitConnections(listener.port(), 0);
    }

    /**
     * One in 20 to 40 of JeroMQ's connections stalls in its handshake, and its messages are lost: it has connected and sends not one byte,
     * though the whole greeting of Baton has come. Between two of its own sockets, REQ and ROUTER, that happens as often. So a conversation
     * may begin anew, with sockets of its own.
     */
    private static void withJeroMq(Consumer<ZContext> conversation) {
        for (int left = CONVERSATIONS; left > 0; left--) {
            try (ZContext context = new ZContext()) {
                conversation.accept(context);
                return;
            } catch (NullPointerException | AssertionError e) {
                if (left == 1) {
                    throw e;
                }
            }
        }
    }

    private static ZMQ.Socket socket(ZContext context, SocketType type) {
        ZMQ.Socket socket = context.createSocket(type);
        socket.setReceiveTimeOut((int) SOON.toMillis() / CONVERSATIONS);
        socket.setHandshakeIvl(300);
        return socket;
    }

    private List<byte[]> ask(int port, List<byte[]> frames) throws Exception {
        return get(channel.ask(HOST, port, frames, SOON));
    }

    private static List<byte[]> get(CompletableFuture<List<byte[]>> answer) throws Exception {
        try {
            return answer.get(2 * SOON.toSeconds(), TimeUnit.SECONDS);
        } catch (ExecutionException e) {
            if (e.getCause() instanceof Exception cause) {
                throw cause;
            }
            throw e;
        }
    }

    /** Waits until the kernel knows of no more connections that are held at that port's side. */
    private static void awaitConnections(int port, int wanted) throws IOException {
        long end = System.nanoTime() + SOON.toNanos();
        long held;
        do {
            held = established(port);
            Thread.onSpinWait();
        } while (held != wanted && System.nanoTime() < end);
        assertThat(held).isEqualTo(wanted);
    }

    /** Connections in state ESTABLISHED or CLOSE_WAIT with that local port, IPv4 and IPv6. */
    private static long established(int port) throws IOException {
        String local = ":%04X".formatted(port);
        long count = 0;
        for (String table : List.of("/proc/net/tcp", "/proc/net/tcp6")) {
            for (String line : Files.readAllLines(Path.of(table))) {
                String[] columns = line.trim().split("\\s+");
                if (columns[1].endsWith(local) && (columns[3].equals("01") || columns[3].equals("08"))) {
                    count++;
                }
            }
        }
        return count;
    }

    private static boolean writesUntilRefused(OutputStream out, byte[] bytes) {
        try {
            long end = System.nanoTime() + SOON.toNanos();
            while (System.nanoTime() < end) {
                out.write(bytes);
            }
            return false;
        } catch (IOException e) {
            return true;
        }
    }

    private static void write(Socket socket, byte[] bytes) {
        try {
            socket.getOutputStream().write(bytes);
            socket.getOutputStream().flush();
        } catch (IOException e) {
            // It may be refused before it has said everything.
        }
    }

    /** Fails by a timeout if the connection stays open. */
    static void readToEnd(Socket socket) throws IOException {
        try {
            socket.getInputStream().readAllBytes();
        } catch (SocketTimeoutException e) {
            throw e;
        } catch (IOException e) {
            // A reset is an end too.
        }
    }

    private static ZeroMqSideChannel.Limits limits(
            int question, int answer, int frames, int connections, Duration exchange, Duration idle) {
        return new ZeroMqSideChannel.Limits(question, answer, frames, connections, exchange, idle);
    }

    private record Line(boolean client, byte[] bytes) {}

    private static List<Line> capture() {
        try (InputStream in = Objects.requireNonNull(ZeroMqSideChannelTest.class.getResourceAsStream("pyzmq.txt"))) {
            return new String(in.readAllBytes(), StandardCharsets.US_ASCII)
                    .lines()
                    .filter(line -> !line.startsWith("#"))
                    .map(line -> new Line(line.startsWith("C"), hex(line.substring(2))))
                    .toList();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** Greeting and READY of libzmq's REQ socket. */
    private static byte[] goodClient() {
        byte[] all = new byte[0];
        for (Line line : capture()) {
            all = line.client() ? concat(all, line.bytes()) : all;
        }
        // The question is the last 21 bytes.
        return Arrays.copyOf(all, all.length - 21);
    }

    static byte[] concat(byte[] a, byte[] b) {
        byte[] both = Arrays.copyOf(a, a.length + b.length);
        System.arraycopy(b, 0, both, a.length, b.length);
        return both;
    }

    private static byte[] replaced(byte[] bytes, int at, int value) {
        byte[] changed = bytes.clone();
        changed[at] = (byte) value;
        return changed;
    }

    private static byte[] hex(String hex) {
        return HexFormat.of().parseHex(hex);
    }

    private static byte[] slice(byte[] bytes, int from, int to) {
        return Arrays.copyOfRange(bytes, from, to);
    }

    private static byte[] text(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String string(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }

    private static byte[] bytes(int count) {
        byte[] bytes = new byte[count];
        for (int i = 0; i < count; i++) {
            bytes[i] = (byte) (i * 31);
        }
        return bytes;
    }
}
