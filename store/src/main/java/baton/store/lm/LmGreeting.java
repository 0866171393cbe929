package baton.store.lm;

import baton.messages.PeerSecret;
import io.netty.buffer.ByteBuf;
import io.netty.channel.ChannelHandlerContext;
import io.netty.handler.codec.ByteToMessageDecoder;
import java.io.IOException;
import java.util.List;

/** The client's side of the proof that both sides have a token, see {@link LmWire}. Removes itself when it is done. */
final class LmGreeting extends ByteToMessageDecoder {
    private static final int ANSWER_BYTES = LmWire.GREETING_BYTES + PeerSecret.NONCE_BYTES + PeerSecret.MAC_BYTES;

    private final PeerSecret token;
    private final byte[] nonce = PeerSecret.nonce();
    private final Runnable end;

    /** @param end run on the event loop when requests can follow */
    LmGreeting(PeerSecret token, Runnable end) {
        this.token = token;
        this.end = end;
    }

    void begin(ChannelHandlerContext context) {
        ByteBuf hello = context.alloc().buffer(LmWire.GREETING_BYTES + nonce.length);
        hello.writeIntLE(LmWire.GREETING);
        hello.writeIntLE(LmWire.GREETING_VERSION);
        hello.writeBytes(nonce);
        var _ = context.writeAndFlush(hello);
    }

    @Override
    protected void decode(ChannelHandlerContext context, ByteBuf in, List<Object> out) throws IOException {
        if (in.readableBytes() < ANSWER_BYTES) {
            return;
        }
        if (in.readIntLE() != LmWire.GREETING || in.readIntLE() != LmWire.GREETING_VERSION) {
            throw new IOException("it asks for no token");
        }
        byte[] other = new byte[PeerSecret.NONCE_BYTES];
        in.readBytes(other);
        byte[] proof = new byte[PeerSecret.MAC_BYTES];
        in.readBytes(proof);
        if (!token.isMac(proof, LmWire.OF_SERVER, nonce, other)) {
            throw new IOException("it has another token");
        }
        var _ = context.writeAndFlush(
                context.alloc().buffer(PeerSecret.MAC_BYTES).writeBytes(token.mac(LmWire.OF_CLIENT, nonce, other)));
        context.pipeline().remove(this);
        end.run();
    }
}
