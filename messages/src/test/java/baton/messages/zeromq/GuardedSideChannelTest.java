package baton.messages.zeromq;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.Deadline;
import baton.kv.JsonFields;
import baton.kv.Ticker;
import baton.messages.GuardedSideChannel;
import baton.messages.PeerAccess;
import baton.messages.PeerChannel;
import baton.messages.SealedChannel;
import baton.messages.SideChannel;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.Socket;
import java.nio.channels.Channels;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

@Timeout(300)
class GuardedSideChannelTest {
    private static final String HOST = "127.0.0.1";
    private static final Duration SOON = Duration.ofSeconds(60);
    private static final List<byte[]> QUESTION = List.of(bytes("get_meta_msg"));
    private static final List<byte[]> ANSWER = List.of(bytes("the key"), bytes("and more"));

    @TempDir
    private Path directory;

    private final List<AutoCloseable> open = new ArrayList<>();
    private final List<List<byte[]>> heard = new CopyOnWriteArrayList<>();

    @AfterEach
    void close() throws Exception {
        for (AutoCloseable each : open) {
            each.close();
        }
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.US_ASCII);
    }

    /** @param secret empty for none */
    private PeerAccess access(String secret, String allowed) throws IOException {
        String file = secret.isEmpty()
                ? ""
                : ", \"kv_auth_secret_file\": \"" + Files.writeString(directory.resolve(secret), secret.repeat(16))
                        + '"';
        return PeerAccess.of(
                JsonFields.parse("extra", "{\"allowed_peers\": [\"" + allowed + "\"]" + file + "}"),
                "host",
                HOST,
                List.of());
    }

    private GuardedSideChannel channel(PeerAccess access) {
        GuardedSideChannel channel = new GuardedSideChannel(new ZeroMqSideChannel(access), access);
        open.add(channel);
        return channel;
    }

    private int serve(PeerAccess access) throws Exception {
        return channel(access)
                .listen(HOST, 0, frames -> {
                    heard.add(frames);
                    return ANSWER;
                })
                .port();
    }

    private List<byte[]> ask(PeerAccess access, int port) throws Exception {
        return channel(access).ask(HOST, port, QUESTION, SOON).get(2 * SOON.toSeconds(), TimeUnit.SECONDS);
    }

    /** Asks as any program can. */
    private List<byte[]> askPlainly(int port) throws Exception {
        SideChannel plain = new ZeroMqSideChannel();
        open.add(plain);
        return plain.ask(HOST, port, QUESTION, SOON).get(2 * SOON.toSeconds(), TimeUnit.SECONDS);
    }

    private static String text(List<byte[]> frames) {
        StringBuilder text = new StringBuilder();
        frames.forEach(frame -> text.append(new String(frame, StandardCharsets.ISO_8859_1)));
        return text.toString();
    }

    @Test
    void aPeerWithTheSecretIsAnswered() throws Exception {
        PeerAccess access = access("s", HOST);
        int port = serve(access);
        for (int i = 0; i < 3; i++) {
            assertThat(ask(access("s", HOST), port)).usingRecursiveComparison().isEqualTo(ANSWER);
        }
        assertThat(access.takeRefused()).isZero();
        assertThat(heard).allSatisfy(frames -> assertThat(text(frames)).isEqualTo("get_meta_msg"));
    }

    @Test
    void aPeerWithoutTheSecretGetsNoAnswerAndIsCounted() throws Exception {
        PeerAccess access = access("s", HOST);
        int port = serve(access);
        assertThatThrownBy(() -> ask(access("t", HOST), port))
                .isInstanceOf(ExecutionException.class)
                .hasMessageContaining("kv_auth_secret_file");
        assertThatThrownBy(() -> ask(access("", HOST), port)).hasMessageContaining("kv_auth_secret_file");
        assertThat(heard).isEmpty();
        // A caller without a secret ends at the preamble, which the called side sends before it refuses the caller.
        awaitRefused(access, 2);
    }

    /** Waits until so many peers are refused; fails for more. */
    private static void awaitRefused(PeerAccess access, long count) {
        long refused = 0;
        for (Deadline deadline = Deadline.after(Ticker.system(), SOON); refused < count && !deadline.isOver(); ) {
            refused += access.takeRefused();
            LockSupport.parkNanos(1_000_000);
        }
        assertThat(refused).isEqualTo(count);
    }

    /** The answerer has to know the secret as well: a key that another process names is not taken. */
    @Test
    void anAnswerWithoutTheSecretIsNotTaken() throws Exception {
        for (PeerAccess liar : List.of(access("", HOST), access("t", HOST))) {
            int open = serve(liar);
            assertThatThrownBy(() -> ask(access("s", HOST), open)).hasMessageContaining("kv_auth_secret_file");
        }
        assertThat(heard).isEmpty();
    }

    @Test
    void withoutASecretOnlyAllowedPeersAreAnsweredAndInThePlainProtocol() throws Exception {
        int port = serve(access("", HOST));
        assertThat(askPlainly(port)).usingRecursiveComparison().isEqualTo(ANSWER);
        assertThat(ask(access("", HOST), port)).usingRecursiveComparison().isEqualTo(ANSWER);
        assertThat(heard)
                .hasSize(2)
                .allSatisfy(frames -> assertThat(text(frames)).isEqualTo("get_meta_msg"));
        PeerAccess strict = access("", "192.0.2.1");
        int closed = serve(strict);
        assertThat(text(askPlainly(closed))).doesNotContain("the key");
        assertThatThrownBy(() -> ask(access("", HOST), closed)).hasMessageContaining("refuses");
        assertThat(heard).hasSize(2);
        assertThat(strict.takeRefused()).isEqualTo(2);
    }

    /** A peer that is refused is no idle connection. */
    @Test
    void refusedPeersHaveTheTimeOfAHandshake() throws Exception {
        ZeroMqSideChannel.Limits limits =
                new ZeroMqSideChannel.Limits(1 << 10, 1 << 10, 16, 1, Duration.ofSeconds(1), Duration.ofDays(1));
        ZeroMqPeerChannel strangers = new ZeroMqPeerChannel();
        open.add(strangers);
        GuardedSideChannel channel = new GuardedSideChannel(new ZeroMqSideChannel(limits), access("", "192.0.2.1"));
        open.add(channel);
        int port = channel.listen(HOST, 0, _ -> ANSWER).port();
        CountDownLatch ended = new CountDownLatch(1);
        PeerChannel.Call call = strangers.call(HOST, port, "stranger", SOON, ended::countDown);
        assertThat(text(call.ask(List.of(new byte[0], bytes("get_meta_msg")), SOON)))
                .doesNotContain("the key");
        assertThat(ended.await(SOON.toSeconds(), TimeUnit.SECONDS)).isTrue();
    }

    /** One that does not seal is refused with its first bytes, and one that seals without the secret gets no record. */
    @Test
    void strangersTakeNoPeersPlaceWhereThereIsASecret() throws Exception {
        ZeroMqSideChannel.Limits limits =
                new ZeroMqSideChannel.Limits(1 << 10, 1 << 10, 16, 1, Duration.ofSeconds(1), Duration.ofDays(1));
        PeerAccess access = access("s", HOST);
        GuardedSideChannel channel =
                new GuardedSideChannel(new ZeroMqSideChannel(limits, Ticker.system(), access), access);
        open.add(channel);
        int port = channel.listen(HOST, 0, _ -> ANSWER).port();
        byte[] sealing = new SealedChannel(
                        access("t", HOST),
                        "messages",
                        true,
                        HOST,
                        Channels.newChannel(InputStream.nullInputStream()),
                        Channels.newChannel(OutputStream.nullOutputStream()))
                .preamble()
                .array();
        byte[] signatureOfZeroMq = {(byte) 0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f};
        for (byte[] said : List.of(new byte[0], signatureOfZeroMq, sealing)) {
            try (Socket stranger = new Socket(InetAddress.getLoopbackAddress(), port)) {
                stranger.setSoTimeout((int) SOON.toMillis());
                stranger.getOutputStream().write(said);
                // Its connection may be closed for the next one before the preamble is sent.
                assertThat(stranger.getInputStream().readNBytes(SealedChannel.PREAMBLE_BYTES))
                        .hasSize(SealedChannel.PREAMBLE_BYTES);
                // It may also be closed before its first bytes are read, which then are not refused.
                awaitRefused(access, Arrays.equals(said, signatureOfZeroMq) ? 1 : 0);
                assertThat(ask(access("s", HOST), port))
                        .usingRecursiveComparison()
                        .isEqualTo(ANSWER);
                assertThat(stranger.getInputStream().read()).isNegative();
            }
        }
        assertThat(access.takeRefused()).isZero();
    }

    @Test
    void hostsThatAreNotAllowedAreNotAsked() throws Exception {
        PeerAccess access = access("", "192.0.2.1");
        int port = serve(access("", HOST));
        assertThatThrownBy(() -> ask(access, port)).hasMessageContaining("is not an allowed peer");
        assertThat(heard).isEmpty();
    }
}
