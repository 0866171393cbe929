package baton.store.redis;

import baton.kv.BlockHash;
import baton.store.StoreTask;
import baton.store.ValueRanges;
import baton.store.remote.ArrivingValues;
import baton.store.remote.Destination;
import baton.store.remote.Failure;
import baton.store.remote.StoreCounters;
import baton.store.remote.ValueHeader;
import io.netty.buffer.ByteBuf;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/** Reads a batch. */
final class Read extends RedisOperation {
    private final RedisBlockStore store;
    private final List<BlockHash> keys;
    private final ArrivingValues values;

    Read(RedisBlockStore store, StoreTask task, List<BlockHash> keys, List<ValueRanges> to) {
        super(
                store.redis(),
                store.redis().reads(),
                task,
                keys.size(),
                keys.size() * store.header().storedBytes());
        this.store = store;
        this.keys = List.copyOf(keys);
        values = new ArrivingValues(store.header(), keys, to);
    }

    @Override
    protected void submit() {
        boolean refresh = store.ttlMillis().isPresent() && redis.writes().isClosed();
        List<RedisRequest> requests = new ArrayList<>(keys.size());
        for (int key = 0; key < keys.size(); key++) {
            requests.add(new Get(key, refresh));
        }
        transfer(requests);
    }

    private final class Get extends RedisRequest.Part {
        private final int key;
        private final boolean refresh;
        private boolean refreshed;
        private boolean missing;
        private Optional<Failure> wrong = Optional.empty();
        private long storedBytes;

        /** @param refresh whether the value is to expire later for having been read */
        private Get(int key, boolean refresh) {
            super(Read.this, store.header().storedBytes(), 1);
            this.key = key;
            this.refresh = refresh;
        }

        @Override
        protected void write(ByteBuf buffer, boolean getex) {
            refreshed = refresh && getex;
            if (refreshed) {
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
        protected int headBytes() {
            return store.header().storedBytes() < Destination.LEAST_DIRECT ? 0 : ValueHeader.BYTES;
        }

        @Override
        protected Optional<Destination> string(int index, int bytes) {
            storedBytes = bytes;
            if (isOfRightLength()) {
                return Optional.of(values.place(key));
            }
            if (bytes == 0) {
                wrong = Optional.of(Failure.FOREIGN);
                return Optional.empty();
            }
            return Optional.of(values.headOnly(key, bytes));
        }

        private boolean isOfRightLength() {
            return storedBytes == store.header().storedBytes();
        }

        @Override
        protected void received(int index) {
            wrong = isOfRightLength() ? values.verify(key) : Optional.of(values.wrongLength(key, storedBytes));
        }

        @Override
        protected void missing(int index) {
            missing = true;
        }

        @Override
        protected void apply() {
            if (missing) {
                client.counters().count(StoreCounters.Result.MISS, 1);
            } else if (wrong.isPresent()) {
                store.damaged(keys.get(key), wrong.get());
            } else {
                if (refresh && !refreshed) {
                    store.refresh(keys.get(key));
                }
                client.counters().read(store.header().valueBytes());
                task.succeed(key);
            }
        }

        @Override
        protected boolean retried(Failure cause) {
            if (cause == Failure.FOREIGN) {
                store.damaged(keys.get(key), cause);
                return true;
            }
            if (cause != Failure.READ_ONLY || !refreshed || isAbandoned()) {
                return false;
            }
            // A replica refuses to change when the value expires, not to read it.
            redis.writes().refused();
            transfer(List.of(new Get(key, false)));
            return true;
        }
    }
}
