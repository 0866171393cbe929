package baton.store.redis;

import baton.kv.BlockHash;
import baton.store.StoreTask;
import baton.store.ValueRanges;
import baton.store.remote.RangesByKey;
import baton.store.remote.StoreCounters;
import baton.store.remote.ValueHeader;
import io.lettuce.core.protocol.CommandType;
import io.netty.buffer.ByteBuf;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/** Writes a batch: asks which values are there, so that they are not sent again, and sets the other ones unless they have come since. */
final class Write extends Presence {
    private final RedisBlockStore store;
    private final List<BlockHash> keys;
    private final RangesByKey from;

    Write(RedisBlockStore store, StoreTask task, List<BlockHash> keys, long bytes, List<ValueRanges> from) {
        super(store.operations(), task, KeyList.of(store.keys(), keys), bytes);
        this.store = store;
        this.keys = List.copyOf(keys);
        this.from = new RangesByKey(keys.size(), from);
        for (int key = 0; key < keys.size(); key++) {
            long covered = this.from.bytes(key);
            if (covered != store.format().valueBytes()) {
                throw new IllegalArgumentException("ranges of key %d have %d bytes, a value has %d"
                        .formatted(key, covered, store.format().valueBytes()));
            }
        }
    }

    @Override
    protected void submit() {
        store.ttlMillis().ifPresentOrElse(this::touch, this::ask);
    }

    @Override
    protected void known(int first, int end, boolean present) {
        if (present) {
            for (int key = first; key < end; key++) {
                task.succeed(key);
            }
            store.counters().count(StoreCounters.Result.PRESENT, end - first);
            return;
        }
        List<Request> requests = new ArrayList<>(end - first);
        for (int key = first; key < end; key++) {
            requests.add(new Set(key));
        }
        opened(requests.size());
        store.operations().connections().transfer(requests);
    }

    private final class Set extends Part {
        private final int key;
        private boolean set;

        private Set(int key) {
            super(
                    Write.this,
                    CommandType.SET,
                    store.storedBytes() + store.keys().bytes(),
                    1);
            this.key = key;
        }

        @Override
        protected void write(ByteBuf to, boolean getex) {
            if (!use(() -> writeValue(to))) {
                writePing(to);
            }
        }

        private void writeValue(ByteBuf to) {
            int bytes = Math.toIntExact(store.storedBytes());
            to.ensureWritable(bytes + 256);
            Keys.command(to, store.ttlMillis().isPresent() ? 6 : 4, "SET");
            store.keys().write(to, keys.get(key));
            to.writeByte('$');
            Keys.number(to, bytes);
            int at = to.writerIndex();
            to.writerIndex(at + bytes);
            from.gather(key, MemorySegment.ofBuffer(to.nioBuffer(at, bytes)), ValueHeader.BYTES);
            store.header().write(to, at, keys.get(key));
            Keys.lineEnd(to);
            Keys.argument(to, "NX");
            store.ttlMillis().ifPresent(millis -> {
                Keys.argument(to, "PX");
                Keys.argument(to, Long.toString(millis));
            });
        }

        /** {@code OK}, or nothing if the value has come in the meantime; {@code PONG} where {@code PING} was sent in place of it. */
        @Override
        public void set(@Nullable ByteBuffer bytes) {
            set = bytes != null && bytes.remaining() == 2;
        }

        @Override
        protected void apply() {
            store.operations().writes().succeeded();
            if (set) {
                store.counters().stored(keys.get(key), store.format().valueBytes());
            } else if (!isOver()) {
                store.counters().count(StoreCounters.Result.PRESENT, 1);
            }
            task.succeed(key);
        }
    }
}
