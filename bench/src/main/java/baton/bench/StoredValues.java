package baton.bench;

import baton.bench.frame.Rounds;
import baton.kv.BlockHash;
import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.store.BlockStore;
import baton.store.StoreTask;
import baton.store.ValueRanges;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.stream.LongStream;

/**
 * Batches of values that are put into a store and got from it. Each operation returns the seconds that it took.
 *
 * @param count values of a batch
 * @param put where the values of a batch are
 * @param got where they are copied to
 */
record StoredValues(BlockStore store, int count, List<ValueRanges> put, List<ValueRanges> got) {
    private static final Duration DEADLINE = Duration.ofMinutes(2);

    /** Keys of a batch; other numbers are other keys. */
    List<BlockHash> keys(long batch) {
        long first = batch * count;
        return LongStream.range(first, first + count)
                .mapToObj(i -> new BlockHash(0x9e3779b97f4a7c15L * (i + 1), i, ~i, 31 * i))
                .toList();
    }

    double put(List<BlockHash> keys) throws IOException {
        return seconds("put", deadline -> store.put(keys, put, deadline), count);
    }

    double get(List<BlockHash> keys) throws IOException {
        return seconds("get", deadline -> store.get(keys, got, deadline), count);
    }

    /** @param expected how many of the keys are there */
    double contains(List<BlockHash> keys, int expected) throws IOException {
        return seconds("contains", deadline -> store.contains(keys, deadline), expected);
    }

    private static double seconds(String what, Function<Deadline, StoreTask> operation, int expected)
            throws IOException {
        return Rounds.run(() -> Rounds.seconds(() -> {
            StoreTask task = operation.apply(Deadline.after(Ticker.system(), DEADLINE));
            CountDownLatch over = new CountDownLatch(1);
            task.onQuiet(over::countDown);
            await(over);
            if (task.succeededCount() != expected) {
                throw new IOException(
                        "%s has succeeded for %d of %d keys".formatted(what, task.succeededCount(), expected));
            }
        }));
    }

    /** Waits without taking a processor from the threads that copy. */
    static void await(CountDownLatch over) throws IOException, InterruptedException {
        if (!over.await(DEADLINE.toNanos(), TimeUnit.NANOSECONDS)) {
            throw new IOException("copying took longer than " + DEADLINE.toSeconds() + " s");
        }
    }

    /** Ranges of whole values that follow each other in memory. */
    static List<ValueRanges> inARow(MemorySegment memory, int count, long bytes) {
        ValueRanges ranges = new ValueRanges(memory);
        for (int i = 0; i < count; i++) {
            ranges.add(i, 0, i * bytes, bytes);
        }
        return List.of(ranges);
    }
}
