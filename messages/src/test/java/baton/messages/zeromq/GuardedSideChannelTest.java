package baton.messages.zeromq;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.JsonFields;
import baton.messages.GuardedSideChannel;
import baton.messages.PeerAccess;
import baton.messages.PeerChannel;
import baton.messages.SideChannel;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

@Timeout(60)
class GuardedSideChannelTest {
    private static final String HOST = "127.0.0.1";
    private static final Duration SOON = Duration.ofSeconds(10);
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
        GuardedSideChannel channel = new GuardedSideChannel(new ZeroMqSideChannel(), access);
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
        return channel(access).ask(HOST, port, QUESTION, SOON).get(20, TimeUnit.SECONDS);
    }

    /** As any program can. */
    private List<byte[]> askPlainly(int port, SideChannel.Next next, List<byte[]> first) throws Exception {
        SideChannel plain = new ZeroMqSideChannel();
        open.add(plain);
        return plain.converse(HOST, port, first, next, SOON).get(20, TimeUnit.SECONDS);
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
                .hasMessageContaining("it refuses");
        assertThatThrownBy(() -> ask(access("", HOST), port)).hasMessageContaining("kv_auth_secret_file");
        assertThat(text(askPlainly(port, _ -> Optional.empty(), QUESTION))).doesNotContain("the key");
        assertThat(heard).isEmpty();
        assertThat(access.takeRefused()).isEqualTo(3);
    }

    /** A proof of one connection is valid on no other one, nor twice on the same one. */
    @Test
    void aReplayedProofIsRefused() throws Exception {
        int port = serve(access("s", HOST));
        List<List<byte[]>> said = new CopyOnWriteArrayList<>();
        SideChannel relay = new ZeroMqSideChannel();
        open.add(relay);
        // A relay between two instances that have the secret.
        SideChannel.Listener between = relay.receive(HOST, 0, _ -> {
            List<List<byte[]>> questions = new ArrayList<>();
            return frames -> {
                questions.add(frames);
                said.add(frames);
                try {
                    return questions.size() == 1
                            ? askPlainly(port, _ -> Optional.empty(), frames)
                            : List.of(bytes("none"));
                } catch (Exception e) {
                    return List.of();
                }
            };
        });
        assertThatThrownBy(() -> ask(access("s", HOST), between.port())).isInstanceOf(ExecutionException.class);
        assertThat(said).hasSize(2);
        List<byte[]> hello = said.get(0);
        List<byte[]> proven = said.get(1);
        List<byte[]> replayed = askPlainly(port, new Then(proven), hello);
        assertThat(text(replayed)).doesNotContain("the key");
        assertThat(text(askPlainly(port, _ -> Optional.empty(), proven))).doesNotContain("the key");
        assertThat(heard).isEmpty();
    }

    /** Continues with that, once. */
    private static final class Then implements SideChannel.Next {
        private Optional<List<byte[]>> left;

        private Then(List<byte[]> next) {
            this.left = Optional.of(next);
        }

        @Override
        public Optional<List<byte[]>> after(List<byte[]> answer) {
            Optional<List<byte[]>> now = left;
            left = Optional.empty();
            return now;
        }
    }

    /** The answerer has to know the secret as well: a key that another process names is not taken. */
    @Test
    void anAnswerWithoutProofIsRefused() throws Exception {
        int open = serve(access("", HOST));
        assertThatThrownBy(() -> ask(access("s", HOST), open)).hasMessageContaining("there is no secret");
        SideChannel liar = new ZeroMqSideChannel();
        this.open.add(liar);
        // Gives the caller's own number and proof back.
        SideChannel.Listener mirror = liar.listen(HOST, 0, frames -> {
            String first = new String(frames.getFirst(), StandardCharsets.ISO_8859_1);
            return first.contains("HELLO")
                    ? List.of(first.replace("HELLO", "NONCE").getBytes(StandardCharsets.ISO_8859_1))
                    : List.of(bytes("a key"), frames.getLast());
        });
        assertThatThrownBy(() -> ask(access("s", HOST), mirror.port()))
                .hasMessageContaining("does not show that it knows the secret");
        SideChannel.Listener plain = liar.listen(HOST, 0, frames -> ANSWER);
        assertThatThrownBy(() -> ask(access("s", HOST), plain.port()))
                .hasMessageContaining("does not show that it knows the secret");
    }

    @Test
    void withoutASecretOnlyAllowedPeersAreAnsweredAndInThePlainProtocol() throws Exception {
        int port = serve(access("", HOST));
        assertThat(askPlainly(port, _ -> Optional.empty(), QUESTION))
                .usingRecursiveComparison()
                .isEqualTo(ANSWER);
        assertThat(ask(access("", HOST), port)).usingRecursiveComparison().isEqualTo(ANSWER);
        assertThat(heard)
                .hasSize(2)
                .allSatisfy(frames -> assertThat(text(frames)).isEqualTo("get_meta_msg"));
        PeerAccess strict = access("", "192.0.2.1");
        int closed = serve(strict);
        assertThat(text(askPlainly(closed, _ -> Optional.empty(), QUESTION))).doesNotContain("the key");
        assertThatThrownBy(() -> ask(access("", HOST), closed)).hasMessageContaining("it refuses");
        assertThat(heard).hasSize(2);
        assertThat(strict.takeRefused()).isEqualTo(2);
    }

    /** What only connects, or is refused, is no idle connection of a peer. */
    @Test
    void unauthenticatedPeersHaveTheTimeOfAHandshake() throws Exception {
        ZeroMqSideChannel.Limits limits =
                new ZeroMqSideChannel.Limits(1 << 10, 1 << 10, 16, 1, Duration.ofSeconds(1), Duration.ofDays(1));
        ZeroMqPeerChannel strangers = new ZeroMqPeerChannel();
        open.add(strangers);
        for (PeerAccess access : List.of(access("s", HOST), access("", "192.0.2.1"))) {
            GuardedSideChannel channel = new GuardedSideChannel(new ZeroMqSideChannel(limits), access);
            open.add(channel);
            int port = channel.listen(HOST, 0, _ -> ANSWER).port();
            CountDownLatch ended = new CountDownLatch(1);
            PeerChannel.Call call = strangers.call(HOST, port, "stranger", SOON, ended::countDown);
            assertThat(text(call.ask(List.of(new byte[0], bytes("get_meta_msg")), SOON)))
                    .doesNotContain("the key");
            assertThat(ended.await(SOON.toSeconds(), TimeUnit.SECONDS)).isTrue();
        }
    }

    @Test
    void hostsThatAreNotAllowedAreNotAsked() throws Exception {
        PeerAccess access = access("", "192.0.2.1");
        int port = serve(access("", HOST));
        assertThatThrownBy(() -> ask(access, port)).hasMessageContaining("is not an allowed peer");
        assertThat(heard).isEmpty();
    }
}
