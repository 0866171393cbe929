package baton.store.redis;

import baton.store.StoreTask;
import baton.store.remote.Failure;
import baton.store.remote.StoreCounters;
import io.lettuce.core.protocol.CommandType;
import io.netty.buffer.ByteBuf;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/**
 * Finds out which keys are there. {@code EXISTS} of many keys tells only how many are: so groups are asked about, and of those that are there
 * in part each key. As keys follow each other in sequences, those are few.
 */
abstract class Presence extends Operation {
    private static final int GROUP = 64;

    protected final Operations operations;
    private final KeyList keys;

    Presence(Operations operations, StoreTask task, KeyList keys, long bytes) {
        super(operations, task, keys.size(), bytes);
        this.operations = operations;
        this.keys = keys;
    }

    /** Of keys that follow each other, all are there or none is. Called once for each key, on any thread. */
    protected abstract void known(int from, int to, boolean present);

    /** Asks about all keys. */
    protected final void ask() {
        List<Request> requests = new ArrayList<>(Math.ceilDiv(keys.size(), GROUP));
        for (int from = 0; from < keys.size(); from += GROUP) {
            requests.add(new Exists(from, Math.min(keys.size(), from + GROUP)));
        }
        opened(requests.size());
        operations.connections().lookUp(requests);
    }

    private void askEach(int from, int to) {
        List<Request> requests = new ArrayList<>(to - from);
        for (int key = from; key < to; key++) {
            requests.add(new Exists(key, key + 1));
        }
        opened(requests.size());
        operations.connections().lookUp(requests);
    }

    /** Asks about each key, and lets those that are there expire that much later. */
    protected final void touch(long ttlMillis) {
        List<Request> requests = new ArrayList<>(keys.size());
        for (int key = 0; key < keys.size(); key++) {
            requests.add(new Touch(key, ttlMillis));
        }
        opened(requests.size());
        operations.connections().lookUp(requests);
    }

    private final class Exists extends Part {
        private final int from;
        private final int to;
        private long found = -1;

        private Exists(int from, int to) {
            super(Presence.this, CommandType.EXISTS, (long) (to - from) * keys.bytes(), to - from);
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
        public void set(long integer) {
            found = integer;
        }

        @Override
        protected void apply() {
            operations.reads().succeeded();
            if (found == to - from) {
                known(from, to, true);
            } else if (found == 0) {
                known(from, to, false);
            } else if (to - from > 1 && found > 0) {
                askEach(from, to);
            } else {
                operations.counters().failed(Failure.ERROR, to - from);
            }
        }
    }

    private final class Touch extends Part {
        private final int key;
        private final long ttlMillis;
        private Optional<Boolean> found = Optional.empty();

        private Touch(int key, long ttlMillis) {
            super(Presence.this, CommandType.PEXPIRE, keys.bytes(), 1);
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
        public void set(long integer) {
            found = Optional.of(integer == 1);
        }

        @Override
        protected void apply() {
            found.ifPresentOrElse(
                    present -> known(key, key + 1, present),
                    () -> operations.counters().failed(Failure.ERROR, 1));
        }
    }

    /** The look-up of a batch. */
    static final class Lookup extends Presence {
        Lookup(Operations operations, StoreTask task, KeyList keys) {
            super(operations, task, keys, (long) keys.size() * keys.bytes());
        }

        @Override
        protected void submit() {
            ask();
        }

        @Override
        protected void known(int from, int to, boolean present) {
            operations.counters().count(present ? StoreCounters.Result.FOUND : StoreCounters.Result.ABSENT, to - from);
            if (present) {
                for (int key = from; key < to; key++) {
                    task.succeed(key);
                }
            }
        }
    }
}
