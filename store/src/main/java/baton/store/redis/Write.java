package baton.store.redis;

import baton.kv.BlockHash;
import baton.store.BatchRanges;
import baton.store.StoreTask;
import baton.store.ValueRanges;
import baton.store.remote.StoreCounters;
import io.netty.buffer.ByteBuf;
import io.netty.channel.Channel;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;

/** Writes a batch: asks which values are there, so that they are not sent again, and sets the other ones unless they have come since. */
final class Write extends Presence {
    private final RedisBlockStore store;
    private final List<BlockHash> keys;
    private final BatchRanges from;

    Write(RedisBlockStore store, StoreTask task, List<BlockHash> keys, List<ValueRanges> from) {
        super(
                store.redis(),
                store.redis().writes(),
                task,
                KeyList.of(store.keys(), keys),
                keys.size() * store.header().storedBytes());
        this.store = store;
        this.keys = List.copyOf(keys);
        this.from = BatchRanges.ofValues(from, keys.size(), store.header().valueBytes());
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
            client.counters().count(StoreCounters.Result.PRESENT, end - first);
            return;
        }
        List<RedisRequest> requests = new ArrayList<>(end - first);
        for (int key = first; key < end; key++) {
            requests.add(new Set(key));
        }
        transfer(requests);
    }

    private final class Set extends RedisRequest.Part {
        private static final int HEAD_BYTES = 512;

        private final int key;
        private boolean set;

        private Set(int key) {
            super(Write.this, store.header().storedBytes() + store.keys().bytes(), 1);
            this.key = key;
        }

        @Override
        protected void write(Channel to, boolean getex) {
            ByteBuf head = to.alloc().directBuffer(HEAD_BYTES);
            write(head, getex);
            List<MemorySegment> value =
                    from.pieces(key, store.header().valueBytes()).orElseThrow();
            store.header().write(head, value, keys.get(key));
            ByteBuf tail = to.alloc().directBuffer(64);
            Keys.lineEnd(tail);
            Keys.argument(tail, "NX");
            store.ttlMillis().ifPresent(millis -> {
                Keys.argument(tail, "PX");
                Keys.argument(tail, Long.toString(millis));
            });
            write(to, head, value, tail);
        }

        /** Writes the command in front of the value. */
        @Override
        protected void write(ByteBuf head, boolean getex) {
            Keys.command(head, store.ttlMillis().isPresent() ? 6 : 4, "SET");
            store.keys().write(head, keys.get(key));
            head.writeByte('$');
            Keys.number(head, store.header().storedBytes());
        }

        @Override
        protected void word() {
            set = true;
        }

        /** The value has come in the meantime. */
        @Override
        protected void missing(int index) {}

        @Override
        protected void apply() {
            if (set) {
                client.counters().stored(keys.get(key), store.header().valueBytes());
            } else {
                client.counters().count(StoreCounters.Result.PRESENT, 1);
            }
            task.succeed(key);
        }
    }
}
