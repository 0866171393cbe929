package baton.store.lm;

import baton.store.StoreTask;
import baton.store.remote.StoreCounters;
import io.netty.buffer.ByteBuf;
import io.netty.channel.Channel;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/** Reads values, each into its place. */
abstract class Fetch extends LmOperation {
    private final LmKeys keys;

    Fetch(LmConnections connections, StoreTask task, long bytes, LmKeys keys) {
        super(connections, task, bytes);
        this.keys = keys;
    }

    /** Bytes that a value has, about, for sharing connections out. */
    protected abstract long valueBytes(int key);

    /**
     * Where a value goes.
     *
     * @return a place of just its bytes; empty: it is not to be read, which has been counted
     */
    protected abstract Optional<Destination> place(int key, LmReply reply);

    /** A value is in its place. */
    protected abstract void arrived(int key, LmReply reply);

    /** Bytes at the front of a value that have a place of their own. */
    protected int headBytes() {
        return 0;
    }

    @Override
    protected final void submit() {
        List<Get> requests = new ArrayList<>(keys.size());
        for (int key = 0; key < keys.size(); key++) {
            requests.add(new Get(key));
        }
        opened(requests);
        connections.transfer(requests);
    }

    private final class Get extends LmOperation.Part {
        private final int key;
        private Optional<LmReply> hit = Optional.empty();

        private Get(int key) {
            super(Fetch.this, Math.max(LmWire.REQUEST_BYTES, valueBytes(key)), 1);
            this.key = key;
        }

        @Override
        protected int write(Channel to, boolean batches) {
            ByteBuf request = to.alloc().directBuffer(LmWire.REQUEST_BYTES);
            LmWire.writeRequest(request, LmWire.GET, 0, LmMetadata.NONE);
            keys.write(request, key);
            var _ = to.write(request, to.voidPromise());
            return 1;
        }

        @Override
        protected int headBytes() {
            return Math.max(1, Fetch.this.headBytes());
        }

        @Override
        protected Optional<Destination> reply(int index, LmReply reply) {
            if (!reply.isSuccess()) {
                connections.counters().count(StoreCounters.Result.MISS, 1);
                return Optional.empty();
            }
            hit = Optional.of(reply);
            Optional<Destination> place = place(key, reply);
            if (place.isPresent() && reply.length() == 0) {
                arrived(key, reply);
            }
            return place;
        }

        @Override
        protected void received(int index) {
            hit.ifPresent(reply -> arrived(key, reply));
        }
    }
}
