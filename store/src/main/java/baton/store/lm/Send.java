package baton.store.lm;

import baton.store.remote.Destination;
import baton.store.remote.Failure;
import baton.store.remote.RemoteOperation;
import baton.store.remote.StoreCounters;
import io.netty.buffer.ByteBuf;
import io.netty.channel.Channel;
import java.lang.foreign.MemorySegment;
import java.util.List;
import java.util.Optional;

/** Writes a value straight from its memory, and asks whether it is there behind it. */
abstract class Send extends LmRequest {
    private static final int HEAD_BYTES = 128;

    private final StoreCounters counters;
    private final LmKeys keys;
    private final int key;
    private final int length;

    /** @param length of the value, with its head */
    Send(RemoteOperation<LmRequest> of, StoreCounters counters, LmKeys keys, int key, int length) {
        super(of, (long) length + 2 * LmWire.REQUEST_BYTES, 1);
        this.counters = counters;
        this.keys = keys;
        this.key = key;
        this.length = length;
    }

    protected abstract LmMetadata metadata();

    /**
     * The value. Its first bytes may be written into a buffer.
     *
     * @return the memory of all other bytes
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
        ByteBuf question = to.alloc().directBuffer(LmWire.REQUEST_BYTES);
        LmWire.writeRequest(question, LmWire.EXIST, 0, LmMetadata.NONE);
        keys.write(question, key);
        write(to, head, pieces, question);
        return 1;
    }

    @Override
    protected final Optional<Destination> reply(int index, LmReply reply) {
        if (reply.isSuccess()) {
            stored(key);
        } else {
            counters.failed(Failure.OUT_OF_MEMORY, 1);
        }
        return Optional.empty();
    }
}
