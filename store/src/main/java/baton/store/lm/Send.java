package baton.store.lm;

import baton.store.remote.Failure;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.channel.Channel;
import java.lang.foreign.MemorySegment;
import java.util.List;
import java.util.Optional;

/** Writes a value straight from its memory, and asks whether it is there behind it. */
abstract class Send extends LmOperation.Part {
    /** Above it pieces are put together: the operating system takes so many at once only. */
    private static final int MOST_PIECES = 64;

    private static final int HEAD_BYTES = 128;

    private final LmKeys keys;
    private final int key;
    private final int length;

    /** @param length of the value, with its head */
    Send(LmOperation of, LmKeys keys, int key, int length) {
        super(of, (long) length + 2 * LmWire.REQUEST_BYTES, 1);
        this.keys = keys;
        this.key = key;
        this.length = length;
    }

    protected abstract LmMetadata metadata();

    /**
     * The value, of whose bytes the first may be written into a buffer.
     *
     * @return the memory of all that is not
     */
    protected abstract List<MemorySegment> value(int key, ByteBuf head);

    /** The value is there. */
    protected abstract void stored(int key);

    @Override
    protected final int write(Channel to, Additions additions) {
        ByteBuf head = to.alloc().directBuffer(LmWire.REQUEST_BYTES + HEAD_BYTES);
        LmWire.writeRequest(head, LmWire.PUT, length, metadata());
        keys.write(head, key);
        List<MemorySegment> pieces = value(key, head);
        var _ = to.write(head, to.voidPromise());
        if (pieces.size() > MOST_PIECES) {
            ByteBuf together = to.alloc().directBuffer(length);
            pieces.forEach(piece -> together.writeBytes(piece.asByteBuffer()));
            var _ = to.write(together, to.voidPromise());
        } else {
            for (MemorySegment piece : pieces) {
                var _ = to.write(Unpooled.wrappedBuffer(piece.asByteBuffer()), to.voidPromise());
            }
        }
        ByteBuf question = to.alloc().directBuffer(LmWire.REQUEST_BYTES);
        LmWire.writeRequest(question, LmWire.EXIST, 0, LmMetadata.NONE);
        keys.write(question, key);
        writing();
        var _ = to.write(question).addListener(_ -> written());
        return 1;
    }

    @Override
    protected final Optional<Destination> reply(int index, LmReply reply) {
        if (reply.isSuccess()) {
            stored(key);
        } else {
            operation().connections.counters().failed(Failure.OUT_OF_MEMORY, 1);
        }
        return Optional.empty();
    }
}
