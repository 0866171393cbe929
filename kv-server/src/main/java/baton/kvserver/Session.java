package baton.kvserver;

import baton.kvserver.Cache.Room;
import baton.kvserver.Counters.Kind;
import baton.messages.PeerSecret;
import baton.store.lm.LmClient;
import baton.store.lm.LmMetadata;
import baton.store.lm.LmWire;
import baton.store.remote.DirectReads;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufAllocator;
import io.netty.buffer.Unpooled;
import io.netty.channel.Channel;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.ChannelOutboundBuffer;
import io.netty.handler.codec.ByteToMessageDecoder;
import io.netty.handler.ssl.SslHandler;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import org.jspecify.annotations.Nullable;

/**
 * One client's connection. Requests are taken apart as they come, in order; values go straight between the network and the {@link Cache}.
 * While replies wait to be sent, or a value waits for room or is read from a file, nothing more is read. Everything runs on the connection's
 * event loop.
 */
final class Session extends ChannelInboundHandlerAdapter {
    private static final int READ_AT_ONCE = 128 << 10;
    private static final int LEAST_DIRECT = 16 << 10;

    /** Smaller values are copied to the replies before and after them. */
    private static final int COPIED = 8 << 10;

    private static final int MOST_REPLIES = 64 << 10;
    private static final int MOST_LISTED = 10_000;
    private static final Duration MOST_WAIT_FOR_ROOM = Duration.ofSeconds(1);
    private static final Duration STARVED_PATIENCE = Duration.ofSeconds(1);
    private static final int MOST_DTYPE = 8;
    private static final int MOST_FORMAT = 255;
    private static final int HELLO_BYTES = LmWire.GREETING_BYTES + PeerSecret.NONCE_BYTES;

    private enum State {
        HELLO,
        PROOF,
        REQUEST,
        VALUE,
        SKIPPED,
        BATCH
    }

    private enum Pause {
        NONE,
        OUTPUT,
        ROOM,
        FILE
    }

    private final KvServer server;
    private final Cache cache;
    private final Counters counters;
    private final Channel channel;
    private final HeldValues held;
    private final byte[] key = new byte[LmClient.MOST_KEY_BYTES];
    private final Progress input = new Progress();
    private final Progress output = new Progress();

    private State state;
    private Pause pause = Pause.NONE;
    private boolean proven;
    private byte[] clientNonce = {};
    private byte[] serverNonce = {};

    /** Bytes that have been read and not taken apart. */
    private @Nullable ByteBuf rest;

    /** Replies that have not been given to the channel. */
    private @Nullable ByteBuf replies;

    private boolean unflushed;
    private boolean direct;
    private long received;
    private long sent;

    private @Nullable ComingValue coming;
    private long skipped;

    /** The look-up that is coming. */
    private @Nullable KeyBatch batch;

    Session(KvServer server, Channel channel) {
        this.server = server;
        this.cache = server.cache();
        this.held = new HeldValues(cache);
        this.counters = server.counters();
        this.channel = channel;
        state = server.token().isPresent() ? State.HELLO : State.REQUEST;
    }

    @Override
    public void handlerAdded(ChannelHandlerContext context) {
        if (context.pipeline().get(SslHandler.class) == null) {
            channel.config().setRecvByteBufAllocator(new DirectReads(this::next));
        }
    }

    /** Where the next bytes are read to. */
    private ByteBuf next(ByteBufAllocator allocator) {
        direct = false;
        if (state == State.VALUE && rest == null && pause == Pause.NONE && takeRoom(false) == Room.TAKEN) {
            MemorySegment place = Objects.requireNonNull(coming).place();
            if (place.byteSize() >= LEAST_DIRECT) {
                direct = true;
                return Unpooled.wrappedBuffer(place.asByteBuffer()).clear();
            }
        }
        return allocator.directBuffer(READ_AT_ONCE, READ_AT_ONCE);
    }

    @Override
    public void channelRead(ChannelHandlerContext context, Object message) {
        ByteBuf read = (ByteBuf) message;
        received += read.readableBytes();
        if (direct) {
            direct = false;
            placed(read.readableBytes());
            read.release();
            return;
        }
        ByteBuf before = rest;
        rest = before == null ? read : ByteToMessageDecoder.MERGE_CUMULATOR.cumulate(context.alloc(), before, read);
        proceed();
    }

    /** Parses the bytes read, until more are needed or an operation has to be waited for. */
    private void proceed() {
        while (pause == Pause.NONE && channel.isActive()) {
            ByteBuf from = rest;
            if (from == null || !from.isReadable() || !step(from)) {
                break;
            }
            if (replies != null && replies.readableBytes() >= MOST_REPLIES) {
                writeReplies();
            }
            if (!channel.isWritable()) {
                flush();
                if (!channel.isWritable()) {
                    pause(Pause.OUTPUT);
                }
            }
        }
        keepLittle();
    }

    /** A large buffer is not kept for a few bytes. */
    private void keepLittle() {
        ByteBuf last = rest;
        if (last == null) {
            return;
        }
        if (!last.isReadable()) {
            rest = null;
            last.release();
        } else if (last.readableBytes() < last.capacity() / 4) {
            rest = last.alloc().buffer(last.readableBytes()).writeBytes(last);
            last.release();
        }
    }

    /** False if more bytes are needed. */
    private boolean step(ByteBuf from) {
        return switch (state) {
            case HELLO -> hello(from);
            case PROOF -> proof(from);
            case REQUEST -> request(from);
            case VALUE -> value(from);
            case SKIPPED -> skip(from);
            case BATCH -> batch(from);
        };
    }

    private boolean hello(ByteBuf from) {
        if (from.readableBytes() < HELLO_BYTES) {
            return false;
        }
        if (from.readIntLE() != LmWire.GREETING || from.readIntLE() != LmWire.GREETING_VERSION) {
            return end(Kind.UNAUTHENTICATED);
        }
        clientNonce = new byte[PeerSecret.NONCE_BYTES];
        from.readBytes(clientNonce);
        serverNonce = PeerSecret.nonce();
        ByteBuf answer = replies(HELLO_BYTES + PeerSecret.MAC_BYTES);
        answer.writeIntLE(LmWire.GREETING).writeIntLE(LmWire.GREETING_VERSION).writeBytes(serverNonce);
        answer.writeBytes(server.token().orElseThrow().mac(LmWire.OF_SERVER, clientNonce, serverNonce));
        state = State.PROOF;
        return true;
    }

    private boolean proof(ByteBuf from) {
        if (from.readableBytes() < PeerSecret.MAC_BYTES) {
            return false;
        }
        byte[] shown = new byte[PeerSecret.MAC_BYTES];
        from.readBytes(shown);
        if (!server.token().orElseThrow().isMac(shown, LmWire.OF_CLIENT, clientNonce, serverNonce)) {
            return end(Kind.UNAUTHENTICATED);
        }
        state = State.REQUEST;
        return true;
    }

    private boolean request(ByteBuf from) {
        if (from.readableBytes() < LmWire.REQUEST_BYTES) {
            return false;
        }
        int at = from.readerIndex();
        int command = from.getIntLE(at);
        int length = from.getIntLE(at + 4);
        LmMetadata metadata = command == LmWire.PUT || command == LmWire.BATCH_EXIST || command == LmWire.FREE
                ? new LmMetadata(
                        from.getIntLE(at + 8),
                        from.getIntLE(at + 12),
                        from.getIntLE(at + 20),
                        from.getIntLE(at + 24),
                        from.getIntLE(at + 28),
                        from.getIntLE(at + 32))
                : LmMetadata.NONE;
        boolean carries = command == LmWire.PUT || command == LmWire.BATCH_EXIST;
        from.getBytes(at + LmWire.KEY_AT, key);
        from.skipBytes(LmWire.REQUEST_BYTES);
        int keyBytes = strip();
        if (length < 0
                || length > 0 && !carries
                || keyBytes < (command == LmWire.BATCH_EXIST ? 0 : 1)
                || metadata.dtype() < 0
                || metadata.dtype() > MOST_DTYPE
                || metadata.format() < 0
                || metadata.format() > MOST_FORMAT) {
            return end(Kind.CLOSED_GARBAGE);
        }
        boolean known = switch (command) {
            case LmWire.PUT -> put(keyBytes, metadata, length);
            case LmWire.GET -> get(keyBytes, false);
            case LmWire.HOLD -> get(keyBytes, true);
            case LmWire.MEMORY -> memory();
            case LmWire.FREE -> held.free(metadata.shape0()) || end(Kind.CLOSED_GARBAGE);
            case LmWire.EXIST -> exist(keyBytes);
            case LmWire.LIST -> list();
            case LmWire.HEALTH -> health();
            case LmWire.BATCH_EXIST -> beginBatch(keyBytes, metadata, length);
            default -> end(Kind.CLOSED_GARBAGE);
        };
        if (known && !proven) {
            proven = true;
            server.proven(this);
        }
        return known;
    }

    /** Moves the key to the front of its place. @return its bytes without blanks at the ends; negative if it has control characters */
    private int strip() {
        int start = 0;
        int end = key.length;
        while (end > 0 && key[end - 1] == ' ') {
            end--;
        }
        while (start < end && key[start] == ' ') {
            start++;
        }
        for (int i = start; i < end; i++) {
            if (key[i] >= 0 && key[i] < ' ' || key[i] == 0x7f) {
                return -1;
            }
        }
        if (start > 0) {
            System.arraycopy(key, start, key, 0, end - start);
        }
        return end - start;
    }

    private boolean put(int keyBytes, LmMetadata metadata, int length) {
        if (length > server.settings().limits().valueBytes()) {
            counters.add(Kind.DROPPED_TOO_LARGE);
            skipped = length;
            state = State.SKIPPED;
            return true;
        }
        coming = new ComingValue(cache, cache.begin(Arrays.copyOf(key, keyBytes), metadata, length));
        state = State.VALUE;
        if (length == 0) {
            placed(0);
        }
        return true;
    }

    /** Room for the next bytes of the value that is coming. */
    private Room takeRoom(boolean force) {
        ComingValue value = coming;
        return value == null ? Room.NONE : value.takeRoom(force);
    }

    private boolean value(ByteBuf from) {
        switch (takeRoom(false)) {
            case TAKEN -> copy(from);
            case LATER -> awaitRoom();
            case NONE -> drop();
        }
        return true;
    }

    private void copy(ByteBuf from) {
        MemorySegment place = Objects.requireNonNull(coming).place();
        int bytes = (int) Math.min(place.byteSize(), from.readableBytes());
        from.readBytes(place.asSlice(0, bytes).asByteBuffer());
        placed(bytes);
    }

    /** Counts bytes of the value that are in their place. */
    private void placed(int bytes) {
        ComingValue value = coming;
        if (value != null && value.placed(bytes)) {
            coming = null;
            state = State.REQUEST;
        }
    }

    /** There is no room: the value is read and forgotten. */
    private void drop() {
        ComingValue value = coming;
        if (value == null) {
            return;
        }
        counters.add(Kind.DROPPED_NO_ROOM);
        skipped = value.left();
        coming = null;
        value.abort();
        state = State.SKIPPED;
    }

    private void awaitRoom() {
        AtomicBoolean over = new AtomicBoolean();
        pause(Pause.ROOM);
        cache.whenRoom(() -> channel.eventLoop().execute(() -> roomAgain(over, false)));
        channel.eventLoop()
                .schedule(() -> roomAgain(over, true), MOST_WAIT_FOR_ROOM.toMillis(), TimeUnit.MILLISECONDS)
                .isDone();
    }

    private void roomAgain(AtomicBoolean over, boolean force) {
        if (over.getAndSet(true) || pause != Pause.ROOM) {
            return;
        }
        switch (takeRoom(force)) {
            case TAKEN -> {}
            case LATER -> {
                awaitRoom();
                return;
            }
            case NONE -> drop();
        }
        resume();
    }

    private boolean skip(ByteBuf from) {
        int bytes = (int) Math.min(skipped, from.readableBytes());
        from.skipBytes(bytes);
        skipped -= bytes;
        if (skipped == 0) {
            state = State.REQUEST;
        }
        return true;
    }

    /** @param hold whether the client copies the value out of the memory itself */
    private boolean get(int keyBytes, boolean hold) {
        Optional<Entry> found = cache.hold(key, keyBytes);
        if (found.isEmpty()) {
            miss(hold);
            return true;
        }
        Entry entry = found.get();
        if (cache.isResident(entry)) {
            hit(entry, hold);
            return true;
        }
        AtomicBoolean over = new AtomicBoolean();
        pause(Pause.FILE);
        cache.load(entry, () -> channel.eventLoop().execute(() -> loaded(entry, hold, over)));
        channel.eventLoop()
                .schedule(
                        () -> loaded(entry, hold, over),
                        server.settings().limits().timeout().toMillis(),
                        TimeUnit.MILLISECONDS)
                .isDone();
        return true;
    }

    private void loaded(Entry entry, boolean hold, AtomicBoolean over) {
        if (over.getAndSet(true)) {
            return;
        }
        if (pause == Pause.FILE && cache.isResident(entry)) {
            hit(entry, hold);
        } else {
            cache.release(entry);
            miss(hold);
        }
        resume();
    }

    private void miss(boolean hold) {
        counters.add(hold ? Kind.HOLD_MISS : Kind.GET_MISS);
        reply(LmWire.FAIL, 0, LmMetadata.NONE);
    }

    private void hit(Entry entry, boolean hold) {
        counters.add(hold ? Kind.HOLD_HIT : Kind.GET_HIT);
        counters.add(Kind.SENT_BYTES, entry.length);
        if (hold) {
            keep(entry);
        } else {
            send(entry);
        }
    }

    /** Sends the place of a value, and holds it until the client has copied it. */
    private void keep(Entry entry) {
        if (!held.add(entry)) {
            end(Kind.CLOSED_GARBAGE);
            return;
        }
        List<MemorySegment> pieces = cache.bytes(entry, 0);
        int bytes = pieces.size() * LmWire.PIECE_BYTES;
        reply(LmWire.SUCCESS, bytes, entry.metadata);
        ByteBuf to = replies(bytes);
        for (MemorySegment piece : pieces) {
            to.writeLongLE(cache.offset(piece)).writeLongLE(piece.byteSize());
        }
    }

    private boolean memory() {
        Optional<byte[]> description = adds() == LmWire.ADDS_MEMORY ? cache.description() : Optional.empty();
        description.ifPresentOrElse(
                bytes -> {
                    reply(LmWire.SUCCESS, bytes.length, LmMetadata.bytes(bytes.length));
                    replies(bytes.length).writeBytes(bytes);
                },
                () -> reply(LmWire.FAIL, 0, LmMetadata.NONE));
        return true;
    }

    /** The server's additions to the protocol on this connection. */
    private int adds() {
        return cache.description().isPresent() && channel.pipeline().get(SslHandler.class) == null
                ? LmWire.ADDS_MEMORY
                : LmWire.ADDS_BATCHES;
    }

    /** Sends a value that is held, and lets go of it when it has been sent. */
    private void send(Entry entry) {
        reply(LmWire.SUCCESS, entry.length, entry.metadata);
        List<MemorySegment> pieces = cache.bytes(entry, 0);
        if (entry.length <= COPIED) {
            ByteBuf to = replies(entry.length);
            pieces.forEach(piece -> to.writeBytes(piece.asByteBuffer()));
            cache.release(entry);
            return;
        }
        writeReplies();
        sent += entry.length;
        unflushed = true;
        for (int i = 0; i < pieces.size() - 1; i++) {
            var _ = channel.write(Unpooled.wrappedBuffer(pieces.get(i).asByteBuffer()), channel.voidPromise());
        }
        var _ = channel.write(Unpooled.wrappedBuffer(pieces.getLast().asByteBuffer()))
                .addListener(_ -> cache.release(entry));
    }

    private boolean exist(int keyBytes) {
        boolean found = cache.contains(key, keyBytes);
        if (!found
                && keyBytes == KvServer.PROBE.length
                && Arrays.equals(key, 0, keyBytes, KvServer.PROBE, 0, keyBytes)) {
            reply(
                    LmWire.SUCCESS,
                    0,
                    new LmMetadata(LmMetadata.NONE.format(), LmMetadata.NONE.dtype(), adds(), 0, 0, 0));
            return true;
        }
        counters.add(found ? Kind.EXIST_HIT : Kind.EXIST_MISS);
        reply(found ? LmWire.SUCCESS : LmWire.FAIL, 0, LmMetadata.NONE);
        return true;
    }

    private boolean list() {
        counters.add(Kind.LIST);
        byte[] keys = cache.list(MOST_LISTED);
        reply(LmWire.SUCCESS, keys.length, LmMetadata.bytes(keys.length));
        replies(keys.length).writeBytes(keys);
        return true;
    }

    private boolean health() {
        counters.add(Kind.HEALTH);
        reply(LmWire.SUCCESS, 0, LmMetadata.NONE);
        return true;
    }

    private boolean beginBatch(int keyBytes, LmMetadata sizes, int length) {
        Optional<KeyBatch> begun = KeyBatch.begin(cache, Arrays.copyOf(key, keyBytes), sizes, length);
        if (begun.isEmpty()) {
            return end(Kind.CLOSED_GARBAGE);
        }
        batch = begun.get();
        state = State.BATCH;
        return true;
    }

    private boolean batch(ByteBuf from) {
        KeyBatch looking = Objects.requireNonNull(batch);
        int before = looking.keysDone();
        int hits = looking.take(from);
        if (hits < 0) {
            return end(Kind.CLOSED_GARBAGE);
        }
        counters.add(Kind.EXIST_HIT, hits);
        counters.add(Kind.EXIST_MISS, looking.keysDone() - before - hits);
        if (!looking.isDone()) {
            return false;
        }
        byte[] bits = looking.bits();
        reply(
                LmWire.SUCCESS,
                bits.length,
                new LmMetadata(LmMetadata.NONE.format(), LmMetadata.NONE.dtype(), looking.keysDone(), 0, 0, 0));
        replies(bits.length).writeBytes(bits);
        batch = null;
        state = State.REQUEST;
        return true;
    }

    private void reply(int code, int length, LmMetadata metadata) {
        LmWire.writeReply(replies(LmWire.REPLY_BYTES), code, length, metadata);
    }

    /** Where replies are put together, with so much room. */
    private ByteBuf replies(int bytes) {
        ByteBuf to = replies;
        if (to == null) {
            to = channel.alloc().directBuffer(Math.max(bytes, 1024));
            replies = to;
        }
        return to;
    }

    private void writeReplies() {
        ByteBuf last = replies;
        if (last != null) {
            replies = null;
            sent += last.readableBytes();
            unflushed = true;
            var _ = channel.write(last, channel.voidPromise());
        }
    }

    private void flush() {
        writeReplies();
        if (unflushed) {
            unflushed = false;
            channel.flush();
        }
    }

    @Override
    public void channelReadComplete(ChannelHandlerContext context) {
        flush();
    }

    private void pause(Pause why) {
        pause = why;
        channel.config().setAutoRead(false);
    }

    private void resume() {
        pause = Pause.NONE;
        proceed();
        flush();
        if (pause == Pause.NONE) {
            channel.config().setAutoRead(true);
        }
    }

    @Override
    public void channelWritabilityChanged(ChannelHandlerContext context) {
        if (pause == Pause.OUTPUT && channel.isWritable()) {
            resume();
        }
    }

    /** Ends the connection. @return false */
    private boolean end(Kind why) {
        counters.add(why);
        var _ = channel.close();
        return false;
    }

    /** Looks whether the client gets on; called again and again. */
    void look(long now) {
        Duration patience = server.settings().limits().timeout();
        if (cache.isStarved() && patience.compareTo(STARVED_PATIENCE) > 0) {
            patience = STARVED_PATIENCE;
        }
        long window = patience.toNanos();
        long least = Math.max(1, (long) (server.settings().limits().leastRate() * (window / 1e9)));
        ChannelOutboundBuffer buffer = channel.unsafe().outboundBuffer();
        long pending = buffer == null ? 0 : buffer.totalPendingWriteBytes();
        if (held.isAnyOlderThan(window, now)) {
            end(Kind.CLOSED_SLOW_READER);
        } else if (output.isStuck(now, sent - pending, pending, window, least)) {
            end(Kind.CLOSED_SLOW_READER);
        } else if (input.isStuck(now, received, pause == Pause.NONE ? expected() : 0, window, least)) {
            end(Kind.CLOSED_HALF_REQUEST);
        }
    }

    /** Bytes that are missing of a request that has begun. */
    private long expected() {
        int there = rest == null ? 0 : rest.readableBytes();
        return switch (state) {
            case HELLO -> HELLO_BYTES - there;
            case PROOF -> PeerSecret.MAC_BYTES - there;
            case REQUEST -> there == 0 ? 0 : LmWire.REQUEST_BYTES - there;
            case VALUE -> coming == null ? 0 : coming.left();
            case SKIPPED -> skipped;
            case BATCH -> batch == null ? 0 : batch.bytesLeft();
        };
    }

    void evictForRoom() {
        channel.eventLoop().execute(() -> end(Kind.CLOSED_FOR_ROOM));
    }

    @Override
    public void channelInactive(ChannelHandlerContext context) {
        server.ended(this);
        ComingValue value = coming;
        if (value != null) {
            coming = null;
            counters.add(Kind.DROPPED_BROKEN);
            value.abort();
        }
        held.freeAll();
        pause = Pause.OUTPUT;
        if (rest != null) {
            rest.release();
            rest = null;
        }
        if (replies != null) {
            replies.release();
            replies = null;
        }
    }

    @Override
    @SuppressWarnings("deprecation") // the handler's own method is not
    public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
        server.failed(cause);
        var _ = channel.close();
    }
}
