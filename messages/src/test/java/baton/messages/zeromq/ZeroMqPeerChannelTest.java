package baton.messages.zeromq;

import static baton.messages.zeromq.ZeroMqSideChannelTest.concat;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.FreePorts;
import baton.messages.MessageException;
import baton.messages.PeerAccess;
import baton.messages.PeerChannel;
import baton.messages.PeerChannel.Call;
import baton.messages.PeerChannel.Caller;
import baton.messages.PeerChannel.Guest;
import baton.messages.SideChannel.Listener;
import java.io.IOException;
import java.io.InputStream;
import java.net.ConnectException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.SocketException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.zeromq.SocketType;
import org.zeromq.ZContext;
import org.zeromq.ZMQ;

/** Lasting connections beside JeroMQ's sockets and bytes that libzmq wrote. */
@Timeout(300)
class ZeroMqPeerChannelTest {
    private static final String HOST = "127.0.0.1";
    private static final Duration SOON = Duration.ofSeconds(60);

    @AutoClose
    private final ZeroMqPeerChannel channel = new ZeroMqPeerChannel();

    private final BlockingQueue<String> heard = new LinkedBlockingQueue<>();

    @Test
    void aCallAsksAndTellsOnOneConnection() throws Exception {
        Listener listener = channel.listen(HOST, 0, this::echoing);
        CountDownLatch ended = new CountDownLatch(1);

        Call call = channel.call(HOST, listener.port(), "10.0.0.1:21001", SOON, ended::countDown);
        call.tell(List.of(text("tell")), SOON);
        for (int i = 0; i < 10; i++) {
            assertThat(call.ask(List.of(text("ask " + i)), SOON)).containsExactly(text("ask " + i));
        }

        assertThat(hear()).isEqualTo("10.0.0.1:21001 arrives");
        assertThat(hear()).isEqualTo("tell");
        assertThat(call.isOpen()).isTrue();
        call.close();
        ended.await();
        assertThat(call.isOpen()).isFalse();
        String last = hear();
        while (last.startsWith("ask")) {
            last = hear();
        }
        assertThat(last).isEqualTo("10.0.0.1:21001 leaves");
    }

    /** After the handler has returned, and from another thread. */
    @Test
    void theListenerTellsMoreThanOnceWithoutBeingAsked() throws Exception {
        BlockingQueue<String> told = new LinkedBlockingQueue<>();
        Listener listener = channel.listen(
                HOST,
                0,
                caller -> frames -> Thread.ofVirtual().start(() -> {
                    try {
                        caller.tell(frames, SOON);
                        caller.tell(List.of(text("again")), SOON);
                    } catch (MessageException e) {
                        told.add(e.toString());
                    }
                }));
        Call call = channel.call(
                HOST,
                listener.port(),
                "me",
                SOON,
                frames -> told.add(new String(frames.getLast(), StandardCharsets.UTF_8)),
                () -> {});
        call.tell(List.of(text("first")), SOON);
        assertThat(told.poll(SOON.toMillis(), TimeUnit.MILLISECONDS)).isEqualTo("first");
        assertThat(told.poll(SOON.toMillis(), TimeUnit.MILLISECONDS)).isEqualTo("again");
    }

    @Test
    void aCallOfAPortWhereNothingListensSaysSo() throws Exception {
        Listener listener = channel.listen(HOST, 0, this::echoing);
        int port = listener.port();
        listener.close();
        assertThatThrownBy(() -> channel.call(HOST, port, "me", SOON, () -> {}))
                .isInstanceOf(MessageException.class)
                .hasCauseInstanceOf(ConnectException.class);
    }

    @Test
    void manyAskOnOneCall() throws Exception {
        Listener listener = channel.listen(HOST, 0, this::echoing);
        Call call = channel.call(HOST, listener.port(), "me", SOON, () -> {});

        List<CompletableFuture<List<byte[]>>> answers =
                IntStream.range(0, 50).mapToObj(i -> asked(call, "ask " + i)).toList();

        for (int i = 0; i < answers.size(); i++) {
            assertThat(answers.get(i).get()).containsExactly(text("ask " + i));
        }
    }

    @Test
    void jeroMqsDealerCallsWithAndWithoutADelimiter() throws Exception {
        Listener listener = channel.listen(HOST, 0, this::echoing);
        try (ZContext context = new ZContext()) {
            ZMQ.Socket dealer = socket(context, SocketType.DEALER);
            dealer.setIdentity(text("127.0.0.1:9"));
            dealer.connect("tcp://" + HOST + ":" + listener.port());
            String answer = "";
            for (int i = 0; i < 60 && !answer.equals("ask 0"); i++) {
                dealer.setReceiveTimeOut(1000);
                dealer.send("ask 0");
                answer = Objects.requireNonNullElse(dealer.recvStr(), "");
            }
            assertThat(hear()).isEqualTo("127.0.0.1:9 arrives");
            dealer.setReceiveTimeOut((int) SOON.toMillis());
            dealer.send("tell");
            dealer.sendMore("");
            dealer.send("ask 1");
            String empty = dealer.recvStr();
            while (empty.equals("ask 0")) {
                empty = dealer.recvStr();
            }
            assertThat(empty).isEmpty();
            assertThat(dealer.recvStr()).isEqualTo("ask 1");
            dealer.send("ask 2");
            assertThat(dealer.recvStr()).isEqualTo("ask 2");
        }
        assertThat(heard).containsSubsequence("ask 0", "tell", "ask 1", "ask 2");
    }

    @Test
    void jeroMqsRouterIsCalled() throws Exception {
        try (ZContext context = new ZContext()) {
            ZMQ.Socket router = socket(context, SocketType.ROUTER);
            router.setHeartbeatIvl(20);
            int port = router.bindToRandomPort("tcp://" + HOST);
            Call call = channel.call(HOST, port, "127.0.0.1:21001", SOON, () -> {});
            call.tell(List.of(text("news")), SOON);
            assertThat(router.recvStr()).isEqualTo("127.0.0.1:21001");
            assertThat(router.recvStr()).isEqualTo("news");

            for (String question : List.of("a", "b".repeat(300))) {
                CompletableFuture<List<byte[]>> answer = asked(call, question);
                byte[] identity = router.recv();
                assertThat(router.recvStr()).isEqualTo(question);
                router.send(identity, ZMQ.SNDMORE);
                router.send("0");
                assertThat(answer.get()).containsExactly(text("0"));
            }
        }
    }

    @Test
    void libzmqsDealerIsUnderstood() throws Exception {
        BlockingQueue<byte[]> messages = new LinkedBlockingQueue<>();
        Listener listener = channel.listen(HOST, 0, caller -> {
            heard.add(caller.identity());
            return frames -> messages.add(frames.getFirst());
        });
        List<byte[]> written = captured("C");
        try (Socket socket = new Socket(InetAddress.ofLiteral(HOST), listener.port())) {
            for (byte[] bytes : written) {
                socket.getOutputStream().write(bytes);
            }
            assertThat(hear()).isEqualTo("127.0.0.1:21001");
            for (byte[] bytes : written.subList(3, written.size())) {
                // A frame of less than 256 bytes has a head of two.
                assertThat(messages.poll(SOON.toSeconds(), TimeUnit.SECONDS))
                        .isEqualTo(Arrays.copyOfRange(bytes, 2, bytes.length));
            }
        }
    }

    @Test
    void libzmqsRouterIsUnderstoodAndGetsItsOwnDealersBytes() throws Exception {
        List<byte[]> fromRouter = captured("S");
        List<byte[]> fromDealer = captured("C");
        try (ServerSocket server = new ServerSocket(0, 1, InetAddress.ofLiteral(HOST))) {
            CompletableFuture<List<byte[]>> answer = new CompletableFuture<>();
            Thread.ofVirtual().start(() -> {
                try (Call call = channel.call(HOST, server.getLocalPort(), "127.0.0.1:21001", SOON, () -> {})) {
                    byte[] put = fromDealer.get(4);
                    answer.complete(call.ask(List.of(Arrays.copyOfRange(put, 2, put.length)), SOON));
                } catch (MessageException e) {
                    answer.completeExceptionally(e);
                }
            });
            try (Socket socket = server.accept()) {
                for (byte[] bytes : fromRouter.subList(0, 2)) {
                    socket.getOutputStream().write(bytes);
                }
                byte[] ready = fromDealer.get(2);
                byte[] put = fromDealer.get(4);
                byte[] sent = socket.getInputStream().readNBytes(64 + ready.length + put.length);
                assertThat(Arrays.copyOfRange(sent, 64, sent.length)).isEqualTo(concat(ready, put));
                socket.getOutputStream().write(fromRouter.get(2));
                assertThat(answer.get()).containsExactly(text("0"));
            }
        }
    }

    @Test
    void aMissingOrEndingPeerIsNoticedAtOnce() throws Exception {
        int free = FreePorts.inARow(1);
        assertThatThrownBy(() -> channel.call(HOST, free, "me", SOON, () -> {}))
                .isInstanceOf(MessageException.class)
                .hasMessageContaining(HOST + ":" + free);

        ZeroMqPeerChannel other = new ZeroMqPeerChannel();
        CountDownLatch asked = new CountDownLatch(1);
        Listener listener = other.listen(HOST, 0, caller -> frames -> asked.countDown());
        CountDownLatch ended = new CountDownLatch(1);
        Call call = channel.call(HOST, listener.port(), "me", SOON, ended::countDown);
        CompletableFuture<List<byte[]>> answer = asked(call, "are you there?");
        asked.await();
        other.close();
        ended.await();
        assertThatThrownBy(answer::get).hasRootCauseInstanceOf(MessageException.class);
        assertThatThrownBy(() -> call.ask(List.of(text("x")), SOON)).isInstanceOf(MessageException.class);
        assertThatThrownBy(() -> call.tell(List.of(text("x")), SOON)).isInstanceOf(MessageException.class);
    }

    @Test
    void aQuestionWithoutAnAnswerEndsTheCallInTime() throws Exception {
        Listener listener = channel.listen(HOST, 0, caller -> frames -> {});
        CountDownLatch ended = new CountDownLatch(1);
        Call call = channel.call(HOST, listener.port(), "me", SOON, ended::countDown);

        assertThatThrownBy(() -> call.ask(List.of(text("x")), Duration.ofMillis(100)))
                .isInstanceOf(MessageException.class)
                .hasMessageContaining("no answer within");
        ended.await();

        try (ServerSocket silent = new ServerSocket(0, 1, InetAddress.ofLiteral(HOST))) {
            assertThatThrownBy(() -> channel.call(HOST, silent.getLocalPort(), "me", Duration.ofMillis(100), () -> {}))
                    .isInstanceOf(MessageException.class)
                    .hasMessageContaining("no connection within");
        }
    }

    /** A peer that greets and then reads nothing takes no more bytes than its system's buffers hold. */
    @Test
    void aMessageThatThePeerDoesNotReadInTimeEndsTheCall() throws Exception {
        try (ServerSocket deaf = new ServerSocket()) {
            deaf.setReceiveBufferSize(4 << 10);
            deaf.bind(new InetSocketAddress(InetAddress.ofLiteral(HOST), 0));
            CompletableFuture<Socket> accepted = new CompletableFuture<>();
            Thread.ofVirtual().start(() -> {
                try {
                    Socket socket = deaf.accept();
                    accepted.complete(socket);
                    Zmtp zmtp = Zmtp.over(socket, PeerAccess.everyone(), false, 1, 1);
                    zmtp.handshake("ROUTER", Set.of("DEALER"));
                } catch (IOException e) {
                    accepted.completeExceptionally(e);
                }
            });
            CountDownLatch ended = new CountDownLatch(1);
            Call call = channel.call(HOST, deaf.getLocalPort(), "me", SOON, ended::countDown);
            assertThatThrownBy(() -> call.tell(List.of(new byte[64 << 20]), Duration.ofMillis(200)))
                    .isInstanceOf(MessageException.class)
                    .hasMessageContaining("has not read for 200 ms");
            ended.await();
            accepted.get().close();
        }
    }

    /** Connections with incomplete handshakes close no established one, and are closed for one that completes its handshake. */
    @Test
    void unauthenticatedConnectionsAreClosedBeforeThoseOfPeers() throws Exception {
        int most = 4;
        try (ZeroMqPeerChannel small = new ZeroMqPeerChannel(
                new ZeroMqSideChannel.Limits(1 << 10, 1 << 10, 4, most, SOON, Duration.ofDays(1)),
                PeerAccess.everyone())) {
            Listener listener = small.listen(HOST, 0, this::echoing);
            List<Call> peers = new ArrayList<>();
            for (int i = 0; i < most; i++) {
                peers.add(channel.call(HOST, listener.port(), "peer" + i, SOON, () -> {}));
                assertThat(peers.get(i).ask(List.of(text("ask")), SOON)).hasSize(1);
            }
            List<Socket> strangers = new ArrayList<>();
            try {
                for (int i = 0; i < 3 * most; i++) {
                    Socket stranger = new Socket(InetAddress.ofLiteral(HOST), listener.port());
                    strangers.add(stranger);
                    stranger.setSoTimeout((int) SOON.toMillis());
                    stranger.getOutputStream().write(0xff);
                }
                for (Socket early : strangers.subList(0, 2 * most)) {
                    readToEnd(early);
                }
                for (Call peer : peers) {
                    assertThat(peer.ask(List.of(text("ask")), SOON)).hasSize(1);
                }
                Call another = channel.call(HOST, listener.port(), "another", SOON, () -> {});
                assertThat(another.ask(List.of(text("ask")), SOON)).hasSize(1);
            } finally {
                for (Socket stranger : strangers) {
                    stranger.close();
                }
            }
        }
    }

    /** Fails by a timeout if the connection stays open. */
    private static void readToEnd(Socket socket) throws IOException {
        try {
            while (socket.getInputStream().read() >= 0) {
                // The greeting
            }
        } catch (SocketException e) {
            // A reset is an end too.
        }
    }

    /** Handling may take longer than a message may be under way. */
    @Test
    void aHandlerMayTakeLong() throws Exception {
        // For handshakes too, which take their time on a busy machine.
        Duration exchange = Duration.ofSeconds(2);
        CountDownLatch release = new CountDownLatch(1);
        try (ZeroMqPeerChannel hasty = new ZeroMqPeerChannel(
                new ZeroMqSideChannel.Limits(1 << 10, 1 << 10, 4, 4, exchange, Duration.ofDays(1)),
                PeerAccess.everyone())) {
            Listener listener = hasty.listen(HOST, 0, caller -> frames -> {
                await(release);
                caller.answer(frames);
            });
            Call patient = channel.call(HOST, listener.port(), "patient", SOON, () -> {});
            CompletableFuture<List<byte[]>> answer = asked(patient, "slowly");
            // Meanwhile the same sweep closes a connection that has sent half a message.
            try (Socket half = new Socket(InetAddress.ofLiteral(HOST), listener.port())) {
                half.setSoTimeout((int) SOON.toMillis());
                half.getOutputStream().write(0xff);
                half.getInputStream().readAllBytes();
            }
            release.countDown();
            assertThat(answer.get()).containsExactly(text("slowly"));
        }
    }

    @Test
    void aHandlerThatFailsOrHangsUpEndsItsConnectionOnly() throws Exception {
        Listener listener = channel.listen(HOST, 0, caller -> frames -> {
            switch (new String(frames.getFirst(), StandardCharsets.UTF_8)) {
                case "fail" -> throw new MessageException("asked to");
                case "hang up" -> caller.hangUp();
                default -> caller.answer(frames);
            }
        });
        for (String word : List.of("fail", "hang up")) {
            CountDownLatch ended = new CountDownLatch(1);
            Call call = channel.call(HOST, listener.port(), word, SOON, ended::countDown);
            assertThatThrownBy(() -> call.ask(List.of(text(word)), SOON)).isInstanceOf(MessageException.class);
            ended.await();
        }
        Call call = channel.call(HOST, listener.port(), "good", SOON, () -> {});
        assertThat(call.ask(List.of(text("fine")), SOON)).containsExactly(text("fine"));
    }

    @Test
    void connectionsFromAddressesThatAreNotAdmittedEndUnread() throws Exception {
        Listener listener = channel.listen(HOST, 0, new PeerChannel.Reception() {
            @Override
            public Guest arrived(Caller caller) {
                return echoing(caller);
            }

            @Override
            public boolean admits(InetAddress from) {
                return !from.isLoopbackAddress();
            }
        });
        assertThatThrownBy(() -> channel.call(HOST, listener.port(), "me", SOON, () -> {}))
                .isInstanceOf(MessageException.class);
        assertThat(heard).isEmpty();
    }

    private Guest echoing(Caller caller) {
        heard.add(caller.identity() + " arrives");
        return new PeerChannel.Guest() {
            @Override
            public void received(List<byte[]> frames) throws MessageException {
                heard.add(new String(frames.getFirst(), StandardCharsets.UTF_8));
                if (frames.getFirst()[0] == 'a') {
                    caller.answer(frames);
                }
            }

            @Override
            public void left() {
                heard.add(caller.identity() + " leaves");
            }
        };
    }

    private String hear() throws InterruptedException {
        return Objects.requireNonNull(heard.poll(SOON.toSeconds(), TimeUnit.SECONDS), "nothing in time");
    }

    private static CompletableFuture<List<byte[]>> asked(Call call, String question) {
        CompletableFuture<List<byte[]>> answer = new CompletableFuture<>();
        Thread.ofVirtual().start(() -> {
            try {
                answer.complete(call.ask(List.of(text(question)), SOON));
            } catch (MessageException e) {
                answer.completeExceptionally(e);
            }
        });
        return answer;
    }

    private static void await(CountDownLatch latch) {
        try {
            latch.await();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    /** JeroMQ's connections sometimes stall at first, so they are closed soon and made again. */
    private static ZMQ.Socket socket(ZContext context, SocketType type) {
        ZMQ.Socket socket = context.createSocket(type);
        socket.setReceiveTimeOut((int) SOON.toMillis());
        socket.setHandshakeIvl(300);
        return socket;
    }

    private static List<byte[]> captured(String side) throws IOException {
        try (InputStream in = Objects.requireNonNull(
                ZeroMqPeerChannelTest.class.getResourceAsStream("/baton/messages/p2p/pyzmq-msgpack.txt"))) {
            return new String(in.readAllBytes(), StandardCharsets.US_ASCII)
                    .lines()
                    .filter(line -> line.startsWith(side))
                    .map(line -> HexFormat.of().parseHex(line.substring(2)))
                    .toList();
        }
    }

    private static byte[] text(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
