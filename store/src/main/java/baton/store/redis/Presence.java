package baton.store.redis;

import baton.store.StoreTask;
import baton.store.remote.Breaker;
import baton.store.remote.Failure;
import baton.store.remote.StoreCounters;
import io.netty.buffer.ByteBuf;
import java.util.ArrayList;
import java.util.List;

/**
 * Finds out which keys are there. {@code EXISTS} of many keys returns only how many are: so groups are asked about, and of those that are there
 * in part each key. As keys follow each other in sequences, those are few.
 */
abstract class Presence extends RedisOperation {
    private static final int GROUP = 64;

    private final KeyList keys;

    Presence(RedisClient redis, Breaker breaker, StoreTask task, KeyList keys, long bytes) {
        super(redis, breaker, task, keys.size(), bytes);
        this.keys = keys;
    }

    /** Reports that consecutive keys are all there, or all absent. Called once for each key, on any thread. */
    protected abstract void known(int from, int to, boolean present);

    /** Asks about all keys. */
    protected final void ask() {
        List<RedisRequest> requests = new ArrayList<>(Math.ceilDiv(keys.size(), GROUP));
        for (int from = 0; from < keys.size(); from += GROUP) {
            requests.add(new Exists(from, Math.min(keys.size(), from + GROUP)));
        }
        lookUp(requests);
    }

    private void askEach(int from, int to) {
        List<RedisRequest> requests = new ArrayList<>(to - from);
        for (int key = from; key < to; key++) {
            requests.add(new Exists(key, key + 1));
        }
        lookUp(requests);
    }

    /** Asks about each key, and lets those that are there expire that much later. */
    protected final void touch(long ttlMillis) {
        List<RedisRequest> requests = new ArrayList<>(keys.size());
        for (int key = 0; key < keys.size(); key++) {
            requests.add(new Touch(key, ttlMillis));
        }
        lookUp(requests);
    }

    private final class Exists extends RedisRequest.Part {
        private final int from;
        private final int to;
        private long found = -1;

        private Exists(int from, int to) {
            super(Presence.this, (long) (to - from) * keys.bytes(), to - from);
            this.from = from;
            this.to = to;
        }

        @Override
        protected void write(ByteBuf buffer, boolean getex) {
            buffer.ensureWritable((int) cost() + 64);
            Keys.command(buffer, 1 + to - from, "EXISTS");
            for (int key = from; key < to; key++) {
                keys.write(buffer, key);
            }
        }

        @Override
        protected void number(long integer) {
            found = integer;
        }

        @Override
        protected void apply() {
            if (found == to - from) {
                known(from, to, true);
            } else if (found == 0) {
                known(from, to, false);
            } else if (to - from > 1 && found > 0) {
                askEach(from, to);
            } else {
                client.counters().failed(Failure.ERROR, to - from);
            }
        }
    }

    private final class Touch extends RedisRequest.Part {
        private final int key;
        private final long ttlMillis;
        private boolean found;

        private Touch(int key, long ttlMillis) {
            super(Presence.this, keys.bytes(), 1);
            this.key = key;
            this.ttlMillis = ttlMillis;
        }

        @Override
        protected void write(ByteBuf buffer, boolean getex) {
            Keys.command(buffer, 3, "PEXPIRE");
            keys.write(buffer, key);
            Keys.argument(buffer, Long.toString(ttlMillis));
        }

        @Override
        protected void number(long integer) {
            found = integer == 1;
        }

        @Override
        protected void apply() {
            known(key, key + 1, found);
        }
    }

    /** The look-up of a batch. */
    static final class Lookup extends Presence {
        Lookup(RedisClient redis, StoreTask task, KeyList keys) {
            super(redis, redis.reads(), task, keys, (long) keys.size() * keys.bytes());
        }

        @Override
        protected void submit() {
            ask();
        }

        @Override
        protected void known(int from, int to, boolean present) {
            client.counters().count(present ? StoreCounters.Result.FOUND : StoreCounters.Result.ABSENT, to - from);
            if (present) {
                for (int key = from; key < to; key++) {
                    task.succeed(key);
                }
            }
        }
    }
}
