package baton.store.lm;

import baton.store.remote.Failure;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufAllocator;
import io.netty.channel.Channel;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.EventLoop;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ThreadLocalRandom;
import org.jspecify.annotations.Nullable;

/*
 * down -> (connect, greet) -> probed -> up <-> suspect -> down
 *
 * All state belongs to the connection's event loop; other threads hand requests to it, and read whether it is usable.
 *
 * Requests wait in a queue until there is room in the window of what is sent and not answered, which bounds what is sent in vain when an
 * operation is abandoned.
 *
 * A connection is suspect when an operation's deadline has passed and nothing has come for long: nothing is given to it until something
 * comes. If nothing does it is closed and connected anew, which succeeds only with a server that answers. So a server that hangs costs
 * operations a deadline once.
 */

/** A connection to the server that is made again whenever it is lost. Its public methods are for any thread. */
final class LmConnection {
    private static final Duration FIRST_BACKOFF = Duration.ofMillis(50);
    private static final Duration MOST_BACKOFF = Duration.ofSeconds(2);
    private static final int MOST_UNANSWERED = 1024;
    private static final int READ_AT_ONCE = 128 << 10;

    private final LmConnections pool;
    private final EventLoop loop;
    private final long window;
    private final ArrayDeque<LmRequest> queue = new ArrayDeque<>();
    private final ArrayDeque<LmRequest> sent = new ArrayDeque<>();

    private @Nullable Channel channel;
    private boolean ready;
    private boolean closed;
    private long sentBytes;
    private long suspicions;
    private int attempts;
    private Additions additions = Additions.NONE;
    private Optional<ServerMemory> memory = Optional.empty();

    private volatile boolean usable;

    /** Since when nothing has come: the last bytes, or the first request sent after all had been answered. */
    private volatile long silentSince;

    private volatile boolean waiting;

    /** @param window bytes that may be unanswered; one request always may */
    LmConnection(LmConnections pool, EventLoop loop, long window) {
        this.pool = pool;
        this.loop = loop;
        this.window = window;
    }

    /** Whether requests given to it can be expected to be answered. */
    boolean isUsable() {
        return usable;
    }

    EventLoop loop() {
        return loop;
    }

    /** Sends requests, as soon as there is room for them. */
    void submit(List<? extends LmRequest> requests) {
        run(() -> {
            if (!ready) {
                requests.forEach(request -> request.fail(Failure.UNAVAILABLE));
                return;
            }
            queue.addAll(requests);
            pump();
        });
    }

    /** Ends the use of memory by requests of an operation. */
    void abandon(LmOperation operation) {
        run(() -> {
            LmRequest first = sent.peekFirst();
            for (LmRequest request : sent) {
                if (isOf(request, operation)) {
                    request.abandon();
                }
            }
            Channel current = channel;
            if (first != null && first.isAbandoned() && current != null) {
                current.pipeline().get(Replies.class).skipRest();
            }
            for (LmRequest request : queue) {
                if (isOf(request, operation)) {
                    request.abandon();
                }
            }
            queue.removeIf(LmRequest::isUnwanted);
        });
    }

    private static boolean isOf(LmRequest request, LmOperation operation) {
        return request instanceof LmOperation.Part part && part.operation().equals(operation);
    }

    private void run(Runnable action) {
        if (loop.inEventLoop()) {
            action.run();
        } else {
            try {
                loop.execute(action);
            } catch (RejectedExecutionException _) {
                // The loops end after all connections are closed: there is no other thread, and only failures are left.
                action.run();
            }
        }
    }

    private void pump() {
        Channel to = channel;
        if (!ready || to == null) {
            return;
        }
        boolean written = false;
        while (!queue.isEmpty()) {
            LmRequest next = queue.getFirst();
            if (next instanceof LmOperation.Part part && part.operation().isAbandoned()) {
                next.abandon();
            }
            if (next.isUnwanted()) {
                queue.removeFirst();
                continue;
            }
            if (!sent.isEmpty() && (sent.size() >= MOST_UNANSWERED || sentBytes + next.cost() > window)) {
                break;
            }
            queue.removeFirst();
            send(to, next);
            written = true;
        }
        if (written) {
            to.flush();
        }
    }

    private void send(Channel to, LmRequest request) {
        if (sent.isEmpty()) {
            silentSince = pool.ticker().nanos();
            waiting = true;
        }
        sent.addLast(request);
        sentBytes += request.cost();
        request.send(to, additions);
    }

    void connect() {
        run(() -> {
            if (!closed) {
                pool.connect(this, made -> {
                    if (made.isPresent()) {
                        connected(made.get());
                    } else {
                        retry();
                    }
                });
            }
        });
    }

    private void retry() {
        if (!closed) {
            pool.after(loop, backoff(), this::connect);
        }
    }

    private Duration backoff() {
        long nanos = Math.min(FIRST_BACKOFF.toNanos() << Math.min(attempts, 10), MOST_BACKOFF.toNanos());
        attempts++;
        return Duration.ofNanos(nanos + ThreadLocalRandom.current().nextLong(nanos / 4));
    }

    /** A channel over which the server can be asked. */
    private void connected(Channel made) {
        if (closed || !made.isActive()) {
            var _ = made.close();
            retry();
            return;
        }
        channel = made;
        Replies replies = new Replies();
        made.pipeline().addLast(replies);
        if (made.pipeline().get(io.netty.handler.ssl.SslHandler.class) == null) {
            made.config().setRecvByteBufAllocator(new DirectReads(replies::next));
        }
        send(made, new Probe(made));
        made.flush();
        pool.after(loop, pool.connectTimeout(), () -> {
            if (made.equals(channel) && !ready) {
                drop(made);
            }
        });
    }

    /** The first request on a connection: what the server adds to the protocol. It also shows that a suspect one is well. */
    private final class Probe extends LmRequest {
        private final Channel made;
        private int adds;

        private Probe(Channel made) {
            super(LmWire.REQUEST_BYTES);
            this.made = made;
        }

        @Override
        protected int write(Channel to, Additions ofServer) {
            writeWithAnyKey(to, LmWire.EXIST, LmMetadata.NONE);
            return 1;
        }

        @Override
        protected Optional<Destination> reply(int index, LmReply reply) {
            adds = reply.isSuccess() ? reply.metadata().shape0() : 0;
            return Optional.empty();
        }

        @Override
        protected void ended() {
            if (!made.equals(channel) || !made.isActive() || ready) {
                return;
            }
            additions = new Additions(adds >= LmWire.ADDS_BATCHES, Optional.empty());
            if (adds >= LmWire.ADDS_MEMORY && pool.mapsMemoryOf(made)) {
                LmConnection.this.send(made, new MemoryQuestion(made));
                made.flush();
            } else {
                becomeReady();
            }
        }

        @Override
        protected void failed(Failure cause) {}
    }

    private static void writeWithAnyKey(Channel to, int command, LmMetadata metadata) {
        ByteBuf request = to.alloc().directBuffer(LmWire.REQUEST_BYTES);
        LmWire.writeRequest(request, command, 0, metadata);
        LmKeys.of(List.of(LmWire.PROBE)).write(request, 0);
        var _ = to.write(request, to.voidPromise());
    }

    private void becomeReady() {
        ready = true;
        usable = true;
        attempts = 0;
        pool.connected();
    }

    /** Asks a server of this host for its memory. */
    private final class MemoryQuestion extends LmRequest {
        private final Channel made;
        private byte[] description = {};

        private MemoryQuestion(Channel made) {
            super(LmWire.REQUEST_BYTES);
            this.made = made;
        }

        @Override
        protected int write(Channel to, Additions ofServer) {
            writeWithAnyKey(to, LmWire.MEMORY, LmMetadata.NONE);
            return 1;
        }

        @Override
        protected Optional<Destination> reply(int index, LmReply reply) {
            if (!reply.isSuccess() || reply.length() > ServerMemory.MOST_BYTES) {
                return Optional.empty();
            }
            description = new byte[reply.length()];
            return Optional.of(new Destination(List.of(MemorySegment.ofArray(description)), description.length));
        }

        @Override
        protected void ended() {
            if (!made.equals(channel) || !made.isActive() || ready) {
                return;
            }
            try {
                ServerMemory mapped = new ServerMemory(description);
                memory = Optional.of(mapped);
                additions = new Additions(additions.batches(), Optional.of(mapped.memory()));
            } catch (IOException | RuntimeException e) {
                pool.notMapped(e);
            }
            becomeReady();
        }

        @Override
        protected void failed(Failure cause) {}
    }

    private void lost(Channel made) {
        if (!made.equals(channel)) {
            return;
        }
        channel = null;
        boolean was = ready;
        ready = false;
        usable = false;
        waiting = false;
        sentBytes = 0;
        List<LmRequest> failing = new ArrayList<>(sent);
        failing.addAll(queue);
        sent.clear();
        queue.clear();
        failing.forEach(request -> request.fail(Failure.DISCONNECTED));
        additions = Additions.NONE;
        memory.ifPresent(ServerMemory::close);
        memory = Optional.empty();
        if (!closed) {
            pool.lost(was);
            retry();
        }
    }

    /** Ends a connection that does not answer. */
    private void drop(Channel made) {
        var _ = made.close();
        lost(made);
    }

    /** Whether replies have been missing for so long. */
    boolean isStalled(Duration time) {
        return usable && waiting && pool.ticker().nanos() - silentSince >= time.toNanos();
    }

    /** Does not use the connection until the server has answered on it, and ends it if it does not. */
    void suspect() {
        run(() -> {
            Channel doubted = channel;
            if (!ready || !usable || doubted == null) {
                return;
            }
            usable = false;
            long number = ++suspicions;
            if (sent.isEmpty()) {
                send(doubted, new Probe(doubted));
                doubted.flush();
            }
            pool.after(loop, pool.connectTimeout(), () -> {
                if (doubted.equals(channel) && !usable && suspicions == number) {
                    drop(doubted);
                }
            });
        });
    }

    /** Ends all requests, and takes no more. */
    void close() {
        run(() -> {
            closed = true;
            if (channel != null) {
                Channel last = channel;
                drop(last);
            }
        });
    }

    /** Takes replies apart. What follows them goes straight to its place, where that is possible. */
    private final class Replies extends ChannelInboundHandlerAdapter {
        private @Nullable ByteBuf partial;

        /** Whether the bytes that are being read are read into their place. */
        private boolean direct;

        private @Nullable Destination destination;
        private int reply;
        private long skipped;

        /** Values that the server holds for requests that are over. */
        private int held;

        private ByteBuf next(ByteBufAllocator allocator) {
            direct = destination != null && destination.isDirect();
            if (direct && destination != null) {
                return destination.direct();
            }
            int bytes = READ_AT_ONCE;
            LmRequest first = sent.peekFirst();
            if (destination != null) {
                bytes = destination.bytesBeforeDirect(READ_AT_ONCE);
            } else if (skipped == 0 && first != null && first.headBytes() > 0) {
                bytes = LmWire.REPLY_BYTES + first.headBytes() - (partial == null ? 0 : partial.readableBytes());
            }
            return allocator.directBuffer(bytes, bytes);
        }

        @Override
        public void channelRead(ChannelHandlerContext context, Object message) {
            ByteBuf read = (ByteBuf) message;
            silentSince = pool.ticker().nanos();
            if (ready) {
                usable = true;
            }
            try {
                if (direct && destination != null) {
                    destination.advance(read.readableBytes());
                    received();
                } else {
                    parse(context, read);
                }
            } finally {
                read.release();
            }
        }

        private void parse(ChannelHandlerContext context, ByteBuf read) {
            while (read.isReadable()) {
                if (destination != null) {
                    destination.copy(read);
                    received();
                } else if (skipped > 0) {
                    int bytes = (int) Math.min(skipped, read.readableBytes());
                    read.skipBytes(bytes);
                    skipped -= bytes;
                    if (skipped == 0) {
                        answered();
                    }
                } else if (partial == null && read.readableBytes() >= LmWire.REPLY_BYTES) {
                    if (!reply(context, read)) {
                        return;
                    }
                } else {
                    ByteBuf start = partial == null ? context.alloc().buffer(LmWire.REPLY_BYTES) : partial;
                    partial = start;
                    start.writeBytes(read, Math.min(read.readableBytes(), LmWire.REPLY_BYTES - start.readableBytes()));
                    if (start.readableBytes() == LmWire.REPLY_BYTES) {
                        partial = null;
                        try {
                            if (!reply(context, start)) {
                                return;
                            }
                        } finally {
                            start.release();
                        }
                    }
                }
            }
        }

        /** False if the stream cannot be understood, and the connection ends. */
        private boolean reply(ChannelHandlerContext context, ByteBuf from) {
            LmReply numbers = LmReply.read(from);
            LmRequest request = sent.peekFirst();
            if (request == null || !numbers.isValid()) {
                pool.note("has sent what is no reply: " + numbers);
                drop(context.channel());
                return false;
            }
            Optional<Destination> to = request.isAbandoned() ? Optional.empty() : request.reply(reply, numbers);
            if (numbers.length() == 0) {
                answered();
            } else if (to.isPresent()) {
                destination = to.get();
            } else {
                skipped = numbers.length();
            }
            return true;
        }

        private void received() {
            if (destination == null || destination.left() > 0) {
                return;
            }
            destination = null;
            sent.getFirst().received(reply);
            answered();
        }

        /** A reply, and what follows it, is complete. */
        private void answered() {
            LmRequest request = sent.getFirst();
            if (!request.isAnswered()) {
                reply++;
                return;
            }
            reply = 0;
            sent.removeFirst();
            held += request.holds() ? 1 : 0;
            sentBytes -= request.cost();
            waiting = !sent.isEmpty();
            if (!queue.isEmpty() && sent.size() <= MOST_UNANSWERED / 2 && sentBytes <= window / 2) {
                pump();
            }
        }

        @Override
        public void channelReadComplete(ChannelHandlerContext context) {
            if (held > 0 && context.channel().isActive()) {
                LmMetadata none = LmMetadata.NONE;
                writeWithAnyKey(
                        context.channel(), LmWire.FREE, new LmMetadata(none.format(), none.dtype(), held, 0, 0, 0));
                context.channel().flush();
                held = 0;
            }
        }

        /** The first request is not wanted any more: what comes for it is skipped. */
        private void skipRest() {
            if (destination != null) {
                skipped = destination.left();
                destination = null;
            }
        }

        @Override
        public void channelInactive(ChannelHandlerContext context) {
            lost(context.channel());
        }

        @Override
        public void handlerRemoved(ChannelHandlerContext context) {
            if (partial != null) {
                partial.release();
                partial = null;
            }
        }

        @Override
        @SuppressWarnings("deprecation") // the handler's own method is not
        public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
            pool.note("has a connection that fails: " + cause);
            drop(context.channel());
        }
    }
}
