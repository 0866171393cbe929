package baton.store.lm;

import baton.store.StoreTask;
import baton.store.remote.Destination;
import baton.store.remote.Failure;
import baton.store.remote.RemoteClient;
import baton.store.remote.RemoteOperation;
import baton.store.remote.StoreCounters;
import io.netty.buffer.ByteBuf;
import io.netty.channel.Channel;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/** Reads values, each into its place. */
abstract class Fetch extends RemoteOperation<LmRequest> {
    private final LmKeys keys;

    Fetch(RemoteClient<LmRequest> client, StoreTask task, long bytes, LmKeys keys) {
        super(client, task, keys.size(), bytes);
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

    /** The server has replied that it has no value under a key. */
    protected void absent(int key) {}

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
        transfer(requests);
    }

    /** Whether {@link #arrived} verifies a value: so it may be copied from memory that the server could give to another one meanwhile. */
    protected boolean verifies() {
        return false;
    }

    private final class Get extends LmRequest {
        private final int key;
        private Optional<LmReply> hit = Optional.empty();

        /** Where the server holds the value; empty: it comes over the connection. */
        private Optional<MemorySegment> memory = Optional.empty();

        /** Pieces of the value there. */
        private ByteBuffer pieces = ByteBuffer.allocate(0);

        private Get(int key) {
            super(Fetch.this, Math.max(LmWire.REQUEST_BYTES, valueBytes(key)), 1);
            this.key = key;
        }

        @Override
        protected int write(Channel to, Additions additions) {
            memory = verifies() ? additions.memory() : Optional.empty();
            ByteBuf request = to.alloc().directBuffer(LmWire.REQUEST_BYTES);
            LmWire.writeRequest(request, memory.isPresent() ? LmWire.HOLD : LmWire.GET, 0, LmMetadata.NONE);
            keys.write(request, key);
            var _ = to.write(request, to.voidPromise());
            return 1;
        }

        @Override
        protected int headBytes() {
            return memory.isPresent() ? 0 : Math.max(1, Fetch.this.headBytes());
        }

        @Override
        protected boolean holds() {
            return memory.isPresent() && hit.isPresent();
        }

        @Override
        protected Optional<Destination> reply(int index, LmReply reply) {
            if (!reply.isSuccess()) {
                client.counters().count(StoreCounters.Result.MISS, 1);
                absent(key);
                return Optional.empty();
            }
            hit = Optional.of(reply);
            if (memory.isPresent()) {
                pieces = ByteBuffer.allocate(reply.length()).order(ByteOrder.LITTLE_ENDIAN);
                if (reply.length() == 0) {
                    copy(reply, memory.get());
                }
                return Optional.of(new Destination(List.of(MemorySegment.ofBuffer(pieces)), reply.length()));
            }
            Optional<Destination> place = place(key, reply);
            if (place.isPresent() && reply.length() == 0) {
                arrived(key, reply);
            }
            return place;
        }

        @Override
        protected void received(int index) {
            LmReply reply = hit.orElseThrow();
            memory.ifPresentOrElse(from -> copy(reply, from), () -> arrived(key, reply));
        }

        private void copy(LmReply held, MemorySegment from) {
            long bytes = 0;
            boolean fits = pieces.capacity() % LmWire.PIECE_BYTES == 0;
            for (int at = 0; fits && at < pieces.capacity(); at += LmWire.PIECE_BYTES) {
                long offset = pieces.getLong(at);
                long length = pieces.getLong(at + Long.BYTES);
                fits = offset >= 0 && length > 0 && length <= from.byteSize() && offset <= from.byteSize() - length;
                bytes += length;
            }
            if (!fits || bytes > Integer.MAX_VALUE) {
                client.counters().failed(Failure.ERROR, 1);
                return;
            }
            LmReply reply = new LmReply(held.code(), (int) bytes, held.metadata());
            place(key, reply).ifPresent(place -> {
                for (int at = 0; at < pieces.capacity(); at += LmWire.PIECE_BYTES) {
                    place.copy(from.asSlice(pieces.getLong(at), pieces.getLong(at + Long.BYTES)));
                }
                arrived(key, reply);
            });
        }
    }
}
