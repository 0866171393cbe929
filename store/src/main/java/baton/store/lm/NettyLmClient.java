package baton.store.lm;

import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.kv.connector.Measurement;
import baton.store.StoreTask;
import baton.store.remote.Failure;
import baton.store.remote.StoreCounters;
import io.netty.buffer.ByteBuf;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicReferenceArray;

/** A client over pooled connections. */
final class NettyLmClient implements LmClient {
    private final StoreCounters counters;
    private final LmConnections connections;

    NettyLmClient(LmSettings settings, Ticker ticker) {
        counters = new StoreCounters("lm");
        connections = new LmConnections(settings, counters, ticker);
        connections.start();
    }

    @Override
    public StoreTask contains(List<String> keys, Deadline deadline) {
        LmKeys asked = LmKeys.of(keys);
        return connections.run(
                new LookUp.Contains(connections, new StoreTask(keys.size(), deadline), asked), keys.size());
    }

    @Override
    public Reads get(List<Get> gets, Deadline deadline) {
        Reading reading = new Reading(new StoreTask(gets.size(), deadline), List.copyOf(gets));
        StoreTask task = connections.run(reading, gets.size());
        return new Reads() {
            @Override
            public StoreTask task() {
                return task;
            }

            @Override
            public Optional<Value> value(int key) {
                return Optional.ofNullable(reading.values.get(key));
            }

            @Override
            public boolean isAbsent(int key) {
                return reading.absent.get(key) != 0;
            }
        };
    }

    private final class Reading extends Fetch {
        private final List<Get> gets;
        private final AtomicReferenceArray<Value> values;
        private final AtomicIntegerArray absent;

        private Reading(StoreTask task, List<Get> gets) {
            super(
                    NettyLmClient.this.connections,
                    task,
                    gets.stream().mapToLong(Reading::room).sum(),
                    LmKeys.of(gets.stream().map(Get::key).toList()));
            this.gets = gets;
            values = new AtomicReferenceArray<>(gets.size());
            absent = new AtomicIntegerArray(gets.size());
        }

        private static long room(Get get) {
            return get.into().stream().mapToLong(MemorySegment::byteSize).sum();
        }

        @Override
        protected long valueBytes(int key) {
            return room(gets.get(key));
        }

        @Override
        protected Optional<Destination> place(int key, LmReply reply) {
            if (reply.length() > room(gets.get(key))) {
                counters.failed(Failure.LENGTH, 1);
                return Optional.empty();
            }
            return Optional.of(new Destination(gets.get(key).into(), reply.length()));
        }

        @Override
        protected void absent(int key) {
            absent.set(key, 1);
        }

        @Override
        protected void arrived(int key, LmReply reply) {
            counters.read(reply.length());
            values.set(key, new Value(reply.metadata(), reply.length()));
            task.succeed(key);
        }
    }

    @Override
    public StoreTask put(List<Put> puts, Deadline deadline) {
        Writing writing = new Writing(new StoreTask(puts.size(), deadline), List.copyOf(puts));
        return connections.run(writing, puts.size());
    }

    private final class Writing extends LmOperation {
        private final List<Put> puts;
        private final LmKeys keys;

        private Writing(StoreTask task, List<Put> puts) {
            super(
                    NettyLmClient.this.connections,
                    task,
                    puts.stream().mapToLong(Put::bytes).sum());
            this.puts = puts;
            keys = LmKeys.of(puts.stream().map(Put::key).toList());
        }

        @Override
        protected void submit() {
            List<Send> requests = new ArrayList<>(puts.size());
            for (int key = 0; key < puts.size(); key++) {
                requests.add(send(key, puts.get(key)));
            }
            opened(requests);
            connections.transfer(requests);
        }

        private Send send(int index, Put put) {
            return new Send(this, keys, index, put.bytes()) {
                @Override
                protected LmMetadata metadata() {
                    return put.metadata();
                }

                @Override
                protected List<MemorySegment> value(int key, ByteBuf head) {
                    return put.from();
                }

                @Override
                protected void stored(int key) {
                    counters.stored(put.bytes());
                    task.succeed(key);
                }
            };
        }
    }

    @Override
    public boolean isConnected() {
        return connections.isUsable();
    }

    @Override
    public List<Measurement> takeMeasurements() {
        return counters.takeMeasurements(connections.usable());
    }

    @Override
    public void close() {
        connections.close();
    }
}
