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
import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.Optional;

/** Asks which keys are there: in groups, so that the server looks the first ones up while the next are written. */
abstract class LookUp extends RemoteOperation<LmRequest> {
    private static final int LEAST_GROUP = 1024;
    private static final int GROUPS = 4;

    protected final LmKeys keys;

    LookUp(RemoteClient<LmRequest> client, StoreTask task, long bytes, LmKeys keys) {
        super(client, task, keys.size(), bytes);
        this.keys = keys;
    }

    /**
     * Of keys that follow each other it is known which are there. Called once for each key, on a connection's thread.
     *
     * @param present bit 0 is for the key {@code from}
     */
    protected abstract void known(int from, int to, BitSet present);

    /** Asks about all keys. */
    protected final void ask() {
        int group = Math.clamp(Math.ceilDiv(keys.size(), GROUPS), LEAST_GROUP, LmWire.MOST_BATCH);
        List<Exist> requests = new ArrayList<>(Math.ceilDiv(keys.size(), group));
        for (int from = 0; from < keys.size(); from += group) {
            requests.add(new Exist(from, Math.min(keys.size(), from + group)));
        }
        lookUp(requests);
    }

    private final class Exist extends LmRequest {
        private final int from;
        private final int to;
        private boolean batch;
        private byte[] bits = {};
        private final BitSet found = new BitSet();

        private Exist(int from, int to) {
            super(LookUp.this, (long) (to - from) * LmWire.REQUEST_BYTES, to - from);
            this.from = from;
            this.to = to;
        }

        @Override
        protected int write(Channel channel, Additions additions) {
            batch = additions.batches() && to - from > 1;
            ByteBuf request = channel.alloc()
                    .directBuffer(batch ? LmWire.REQUEST_BYTES + 64 * (to - from) : LmWire.REQUEST_BYTES * (to - from));
            if (batch) {
                writeBatch(request);
            } else {
                for (int key = from; key < to; key++) {
                    LmWire.writeRequest(request, LmWire.EXIST, 0, LmMetadata.NONE);
                    keys.write(request, key);
                }
            }
            // The server looks these up while the next ones are written.
            var _ = channel.writeAndFlush(request, channel.voidPromise());
            return batch ? 1 : to - from;
        }

        private void writeBatch(ByteBuf request) {
            byte[] prefix = keys.prefix();
            byte[] suffix = keys.suffix();
            request.writeZero(LmWire.KEY_AT);
            byte[] both = new byte[prefix.length + suffix.length];
            System.arraycopy(prefix, 0, both, 0, prefix.length);
            System.arraycopy(suffix, 0, both, prefix.length, suffix.length);
            LmWire.writeKey(request, both);
            keys.writeRests(request, from, to);
            int end = request.writerIndex();
            request.writerIndex(0);
            LmWire.writeRequest(
                    request,
                    LmWire.BATCH_EXIST,
                    end - LmWire.REQUEST_BYTES,
                    new LmMetadata(
                            LmMetadata.NONE.format(),
                            LmMetadata.NONE.dtype(),
                            to - from,
                            prefix.length,
                            suffix.length,
                            keys.areHashes() ? LmWire.HASHES : 0));
            request.writerIndex(end);
        }

        @Override
        protected Optional<Destination> reply(int index, LmReply reply) {
            if (!batch) {
                found.set(index, reply.isSuccess());
                if (index == to - from - 1) {
                    known(from, to, found);
                }
                return Optional.empty();
            }
            bits = new byte[Math.ceilDiv(to - from, 8)];
            if (!reply.isSuccess() || reply.length() != bits.length) {
                client.counters().failed(Failure.ERROR, to - from);
                return Optional.empty();
            }
            return Optional.of(new Destination(List.of(MemorySegment.ofArray(bits)), bits.length));
        }

        @Override
        protected void received(int index) {
            BitSet present = BitSet.valueOf(bits);
            present.clear(to - from, bits.length * Byte.SIZE);
            known(from, to, present);
        }
    }

    /** The look-up of a batch. */
    static class Contains extends LookUp {
        Contains(RemoteClient<LmRequest> client, StoreTask task, LmKeys keys) {
            super(client, task, (long) keys.size() * LmWire.REQUEST_BYTES, keys);
        }

        @Override
        protected void submit() {
            ask();
        }

        @Override
        protected void known(int from, int to, BitSet present) {
            task.succeed(from, present);
            int found = present.cardinality();
            client.counters().count(StoreCounters.Result.FOUND, found);
            client.counters().count(StoreCounters.Result.ABSENT, (long) to - from - found);
        }
    }
}
