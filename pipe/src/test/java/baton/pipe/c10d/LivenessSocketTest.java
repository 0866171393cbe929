package baton.pipe.c10d;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.pipe.PipeException;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import java.time.Duration;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** A connection that rank 0 does not accept is closed, so that its peer does not wait. */
@Timeout(300)
class LivenessSocketTest {
    private static final Duration SOON = Duration.ofMinutes(2);
    private static final String HOST = "127.0.0.1";

    @Test
    void aConnectionThatIsNotAcceptedIsClosed() throws Exception {
        try (LivenessSocket.Post post = new LivenessSocket.Post(HOST);
                SocketChannel guest = connect(post)) {
            guest.write(token(post));
            strangerIsTurnedAway(post);
            post.close();
            assertThat(end(guest, ByteBuffer.allocate(0))).isEqualTo(-1);
        }
    }

    @Test
    void aConnectionThatGreetsAfterTheEndIsClosed() throws Exception {
        try (LivenessSocket.Post post = new LivenessSocket.Post(HOST);
                SocketChannel guest = connect(post)) {
            ByteBuffer token = token(post);
            guest.write(token.slice(0, 1));
            strangerIsTurnedAway(post);
            post.close();
            assertThat(end(guest, token.slice(1, token.remaining() - 1))).isEqualTo(-1);
        }
    }

    @Test
    void anAcceptedConnectionStaysWhenTheListenerEnds() throws Exception {
        try (LivenessSocket.Post post = new LivenessSocket.Post(HOST)) {
            try (SocketChannel guest = connect(post)) {
                guest.write(token(post));
                try (LivenessSocket _ = post.accept(Deadline.after(Ticker.system(), SOON))) {
                    post.close();
                    guest.configureBlocking(false);
                    assertThat(guest.read(ByteBuffer.allocate(1))).isZero();
                }
            }
        }
    }

    /** Afterwards earlier connections have been accepted. */
    private static void strangerIsTurnedAway(LivenessSocket.Post post) throws Exception {
        try (SocketChannel stranger = connect(post)) {
            assertThat(end(stranger, ByteBuffer.allocate(token(post).remaining())))
                    .isEqualTo(-1);
        }
    }

    /** The peer's bytes after that, or the end of the connection. */
    private static int end(SocketChannel guest, ByteBuffer greeting) {
        try {
            guest.write(greeting);
            return guest.read(ByteBuffer.allocate(1));
        } catch (IOException e) {
            return -1;
        }
    }

    private static SocketChannel connect(LivenessSocket.Post post) throws Exception {
        int port = ByteBuffer.wrap(post.where()).getShort() & 0xffff;
        return SocketChannel.open(new InetSocketAddress(InetAddress.ofLiteral(HOST), port));
    }

    private static ByteBuffer token(LivenessSocket.Post post) throws PipeException {
        byte[] where = post.where();
        return ByteBuffer.wrap(where, Short.BYTES, where.length - Short.BYTES - HOST.length());
    }
}
