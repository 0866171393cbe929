package baton.store.remote;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufAllocator;
import io.netty.channel.Channel;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.handler.ssl.SslHandler;
import io.netty.handler.ssl.SslHandshakeCompletionEvent;
import java.util.Objects;
import java.util.Optional;
import org.jspecify.annotations.Nullable;

/**
 * A protocol on one channel: opens it, writes requests, and takes replies apart into heads and bodies. A body goes straight to its
 * place, where that is possible. Everything runs on the connection's event loop.
 *
 * @param <R> requests of the protocol
 */
public abstract class RemoteSession<R extends RemoteRequest> extends ChannelInboundHandlerAdapter {
    private static final int READ_AT_ONCE = 128 << 10;

    private final RemoteConnection<R> connection;
    private @Nullable Channel channel;

    /** Bytes of a head that is not complete. */
    private @Nullable ByteBuf partial;

    /** Whether the bytes that are being read are read into their place. */
    private boolean direct;

    private @Nullable Destination destination;

    /** Bytes of the body that go nowhere, behind those that do. */
    private long skipped;

    private boolean isRefused;

    /**
     * The body behind a head.
     *
     * @param place of its first bytes; the rest is skipped
     */
    public record Body(long bytes, Optional<Destination> place) {
        public static final Body NONE = new Body(0, Optional.empty());
    }

    protected RemoteSession(RemoteConnection<R> connection) {
        this.connection = connection;
    }

    /** The channel is connected, and encrypted if it is to be. Leads to {@link #ready} or {@link #refuse}. */
    protected abstract void open(ChannelHandlerContext context);

    /**
     * Writes a request, without a flush.
     *
     * @return replies that it will have, at least one
     */
    protected abstract int write(Channel to, R request);

    /** A request that every healthy server answers. */
    protected abstract R ping();

    /** Bytes of the head that a buffer begins with; 0 if it is not complete. */
    protected abstract int headBytes(ByteBuf from);

    /** The limit of a read that expects a head. A small one leaves the body for a read directly into its place. */
    protected int bytesBeforeBody() {
        return READ_AT_ONCE;
    }

    /** Takes a head; {@link #body} follows unless the result is {@link Body#NONE}. */
    protected abstract Body head(ByteBuf head);

    /** The body of the last head is in its place, or skipped. */
    protected abstract void body();

    /** Why it fails, if it does before the server takes requests. */
    protected Failure earlyFailure() {
        return Failure.UNAVAILABLE;
    }

    /** The reason, for the log, of a channel that ends before the server takes requests. */
    protected String earlyEnd() {
        return "has closed a connection";
    }

    /** The channel has ended, and is not used any more. */
    protected void ended() {}

    protected final Channel channel() {
        return Objects.requireNonNull(channel);
    }

    /** The server takes requests. */
    protected final void ready() {
        connection.ready(this);
    }

    protected final boolean isReady() {
        return connection.isReady();
    }

    /** Whether the connection uses it, and the channel is open. */
    protected final boolean isCurrent() {
        return connection.isCurrent(this);
    }

    /** Ends the channel after bytes that are no reply. */
    protected final Body notUnderstood(String text) {
        connection.client().note("has sent bytes that are no reply: " + text);
        connection.drop(this);
        return Body.NONE;
    }

    /** The server cannot be used: ends the channel. */
    protected final void refuse(Failure cause, String text) {
        isRefused = true;
        connection.client().connectFailed(cause, text);
        connection.drop(this);
    }

    final void tellEarlyEnd() {
        if (!isRefused) {
            connection.client().connectFailed(earlyFailure(), earlyEnd());
        }
    }

    /** Sends a request past those that wait. */
    protected final void send(R request) {
        connection.send(this, request);
    }

    /** The request that gets the next reply. */
    protected final Optional<R> first() {
        return Optional.ofNullable(connection.first());
    }

    /** A reply of the first request is complete. Whether it was its last one. */
    protected final boolean replied() {
        return connection.replied();
    }

    @Override
    public final void handlerAdded(ChannelHandlerContext context) {
        channel = context.channel();
        connection.begun(this);
    }

    @Override
    public final void channelActive(ChannelHandlerContext context) {
        connection.opening(this);
        if (context.pipeline().get(SslHandler.class) == null) {
            channel().config().setRecvByteBufAllocator(new DirectReads(this::next));
            open(context);
        }
    }

    @Override
    public final void userEventTriggered(ChannelHandlerContext context, Object event) {
        if (event instanceof SslHandshakeCompletionEvent handshake && handshake.isSuccess()) {
            open(context);
        }
    }

    private ByteBuf next(ByteBufAllocator allocator) {
        direct = destination != null && destination.isDirect();
        if (direct && destination != null) {
            return destination.direct();
        }
        int bytes = READ_AT_ONCE;
        if (destination != null) {
            bytes = destination.bytesBeforeDirect(READ_AT_ONCE);
        } else if (skipped == 0) {
            bytes = Math.max(1, bytesBeforeBody() - (partial == null ? 0 : partial.readableBytes()));
        }
        return allocator.directBuffer(bytes, bytes);
    }

    @Override
    public final void channelRead(ChannelHandlerContext context, Object message) {
        ByteBuf read = (ByteBuf) message;
        connection.heard();
        try {
            if (direct && destination != null) {
                destination.advance(read.readableBytes());
                placed();
            } else if (partial == null) {
                parse(read);
            } else {
                ByteBuf both = partial.writeBytes(read);
                partial = null;
                try {
                    parse(both);
                } finally {
                    both.release();
                }
            }
        } finally {
            read.release();
        }
    }

    private void parse(ByteBuf read) {
        while (read.isReadable() && isCurrent()) {
            if (destination != null) {
                destination.copy(read);
                placed();
            } else if (skipped > 0) {
                int bytes = (int) Math.min(skipped, read.readableBytes());
                read.skipBytes(bytes);
                skipped -= bytes;
                bodyIfComplete();
            } else {
                int bytes = headBytes(read);
                if (bytes == 0) {
                    partial = channel().alloc().buffer(read.readableBytes()).writeBytes(read);
                    return;
                }
                Body body = head(read.readSlice(bytes));
                destination = body.place().filter(place -> place.left() > 0).orElse(null);
                skipped = body.bytes() - (destination == null ? 0 : destination.left());
            }
        }
    }

    private void placed() {
        if (destination != null && destination.left() == 0) {
            destination = null;
            bodyIfComplete();
        }
    }

    private void bodyIfComplete() {
        if (skipped == 0) {
            body();
        }
    }

    /** The first request is not wanted any more: its replies are skipped. */
    final void skipRest() {
        if (destination != null) {
            skipped += destination.left();
            destination = null;
        }
    }

    @Override
    public final void channelInactive(ChannelHandlerContext context) {
        connection.lost(this);
    }

    @Override
    public final void handlerRemoved(ChannelHandlerContext context) {
        if (partial != null) {
            partial.release();
            partial = null;
        }
    }

    @Override
    @SuppressWarnings("deprecation") // the handler's own method is not
    public final void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
        if (!connection.isReady()) {
            refuse(earlyFailure(), "differs from the settings: " + cause);
        } else {
            connection.client().note("has a connection that fails: " + cause);
            connection.drop(this);
        }
    }
}
