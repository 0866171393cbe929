package baton.store.redis;

import baton.kv.BlockHash;
import baton.store.StoreTask;
import baton.store.ValueRanges;
import baton.store.remote.Failure;
import baton.store.remote.RangesByKey;
import baton.store.remote.StoreCounters;
import baton.store.remote.ValueHeader;
import io.lettuce.core.protocol.CommandType;
import io.netty.buffer.ByteBuf;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.jspecify.annotations.Nullable;

/** Reads a batch. A value is verified in the network's buffer, and copied from there to its ranges. */
final class Read extends Operation {
    private final RedisBlockStore store;
    private final List<BlockHash> keys;
    private final RangesByKey to;

    Read(RedisBlockStore store, StoreTask task, List<BlockHash> keys, long bytes, List<ValueRanges> to) {
        super(store.operations(), task, keys.size(), bytes);
        this.store = store;
        this.keys = List.copyOf(keys);
        this.to = new RangesByKey(keys.size(), to);
    }

    @Override
    protected void submit() {
        boolean refresh =
                store.ttlMillis().isPresent() && store.operations().writes().isClosed();
        List<Request> requests = new ArrayList<>(keys.size());
        for (int key = 0; key < keys.size(); key++) {
            requests.add(new Get(key, refresh));
        }
        opened(requests.size());
        store.operations().connections().transfer(requests);
    }

    private final class Get extends Part {
        private final int key;
        private final boolean refresh;
        private boolean refreshed;
        private boolean copied;
        private boolean missing;
        private Optional<Failure> wrong = Optional.empty();

        /** @param refresh whether the value is to expire later for having been read */
        private Get(int key, boolean refresh) {
            super(Read.this, CommandType.GET, store.storedBytes(), 1);
            this.key = key;
            this.refresh = refresh;
        }

        @Override
        protected void write(ByteBuf buffer, boolean getex) {
            refreshed = refresh && getex;
            if (isOver()) {
                writePing(buffer);
            } else if (refreshed) {
                Keys.command(buffer, 4, "GETEX");
                store.keys().write(buffer, keys.get(key));
                Keys.argument(buffer, "PX");
                Keys.argument(buffer, Long.toString(store.ttlMillis().orElseThrow()));
            } else {
                Keys.command(buffer, 2, "GET");
                store.keys().write(buffer, keys.get(key));
            }
        }

        @Override
        public void set(@Nullable ByteBuffer bytes) {
            if (isOver()) {
                return;
            }
            missing = bytes == null;
            if (bytes == null) {
                return;
            }
            wrong = store.header().check(bytes, keys.get(key));
            if (wrong.isEmpty()) {
                copied = use(() -> to.scatter(key, MemorySegment.ofBuffer(bytes), ValueHeader.BYTES));
            }
        }

        @Override
        protected void apply() {
            store.operations().reads().succeeded();
            if (copied) {
                if (refresh && !refreshed) {
                    store.refresh(keys.get(key));
                }
                store.counters().read(store.format().valueBytes());
                task.succeed(key);
            } else if (wrong.isPresent()) {
                store.damaged(keys.get(key), wrong.get());
            } else if (missing) {
                store.counters().count(StoreCounters.Result.MISS, 1);
            }
        }

        @Override
        protected boolean retried(Failure cause) {
            if (cause == Failure.FOREIGN) {
                store.damaged(keys.get(key), cause);
                return true;
            }
            if (cause != Failure.READ_ONLY || !refreshed) {
                return false;
            }
            // A replica refuses to change when the value expires, not to read it.
            store.operations().writes().refused();
            opened(1);
            store.operations().connections().transfer(List.of(new Get(key, false)));
            return true;
        }
    }
}
