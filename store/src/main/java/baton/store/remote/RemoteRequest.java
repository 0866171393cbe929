package baton.store.remote;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.channel.Channel;
import java.lang.foreign.MemorySegment;
import java.util.List;
import java.util.Optional;

/**
 * A command and its replies. Everything but the constructor runs on the event loop of the connection that it was
 * given to. It ends once: then it uses none of its operation's memory.
 */
public abstract class RemoteRequest {
    /** Above it pieces are put together: the operating system takes so many at once only. */
    private static final int MOST_PIECES = 64;

    private final Optional<RemoteOperation<?>> operation;
    private final long cost;
    private final int keys;
    private int repliesLeft;
    private boolean sent;
    private boolean abandoned;
    private boolean over;
    private boolean writing;
    private boolean ended;

    /**
     * A request that no operation waits for.
     *
     * @param cost bytes sent or replied, whichever is more
     */
    protected RemoteRequest(long cost) {
        this.operation = Optional.empty();
        this.cost = cost;
        this.keys = 0;
    }

    /**
     * A request of an operation, which it keeps open until it has ended.
     *
     * @param cost bytes sent or replied, whichever is more
     * @param keys that it is for
     */
    protected RemoteRequest(RemoteOperation<?> of, long cost, int keys) {
        this.operation = Optional.of(of);
        this.cost = cost;
        this.keys = keys;
    }

    protected final long cost() {
        return cost;
    }

    /** The request is over: all replies have come, or none will. */
    protected void ended() {
        operation.ifPresent(RemoteOperation::requestEnded);
    }

    /** There are no more replies. Not called once it is abandoned. */
    protected void failed(Failure cause) {
        operation.ifPresent(of -> of.client.counters().failed(cause, keys));
    }

    final boolean isOf(RemoteOperation<?> other) {
        return operation.isPresent() && operation.get().equals(other);
    }

    /**
     * Writes a value straight from its memory, without a flush.
     *
     * @param head the bytes before it
     * @param tail the bytes behind it
     */
    protected final void write(Channel to, ByteBuf head, List<MemorySegment> value, ByteBuf tail) {
        var _ = to.write(head, to.voidPromise());
        if (value.size() > MOST_PIECES) {
            long bytes = 0;
            for (MemorySegment piece : value) {
                bytes += piece.byteSize();
            }
            ByteBuf together = to.alloc().directBuffer(Math.toIntExact(bytes));
            value.forEach(piece -> together.writeBytes(piece.asByteBuffer()));
            var _ = to.write(together, to.voidPromise());
        } else {
            for (MemorySegment piece : value) {
                var _ = to.write(Unpooled.wrappedBuffer(piece.asByteBuffer()), to.voidPromise());
            }
        }
        writing = true;
        var _ = to.write(tail).addListener(_ -> {
            writing = false;
            endIfOver();
        });
    }

    /** @param replies that it will have, at least one */
    final void sent(int replies) {
        sent = true;
        repliesLeft = replies;
    }

    public final boolean isAbandoned() {
        return abandoned;
    }

    /** One reply is complete. Whether it was the last one. */
    final boolean replied() {
        repliesLeft--;
        if (repliesLeft == 0) {
            over = true;
            endIfOver();
        }
        return repliesLeft == 0;
    }

    final void fail(Failure cause) {
        if (over) {
            return;
        }
        over = true;
        if (!abandoned) {
            failed(cause);
        }
        endIfOver();
    }

    /** Nothing waits for it: its memory is not used any more, except by bytes that are being sent. */
    final void abandon() {
        abandoned = true;
        endIfOver();
    }

    /** Abandons it if its operation is. Whether it must not be sent. */
    final boolean isUnwanted() {
        if (operation.isPresent() && operation.get().isAbandoned()) {
            abandon();
        }
        return abandoned && !sent;
    }

    private void endIfOver() {
        if ((over || abandoned) && !writing && !ended) {
            ended = true;
            ended();
        }
    }
}
