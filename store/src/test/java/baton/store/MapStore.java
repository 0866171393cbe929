package baton.store;

import baton.kv.BlockHash;
import baton.kv.Deadline;
import baton.kv.connector.Measurement;
import java.lang.foreign.MemorySegment;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Consumer;
import java.util.stream.IntStream;

/** A store in a map, which does its operations at once, or when told to. One thread's. */
public final class MapStore implements BlockStore {
    public final Map<BlockHash, byte[]> values;
    /** Reads of these fail. */
    public final Set<BlockHash> broken = new HashSet<>();

    public final Deque<Runnable> held = new ArrayDeque<>();
    public boolean holds;
    /** Writes are held, other operations are not. */
    public boolean holdsWrites;

    public boolean rejects;
    public int lookups;
    private final StoreFormat format;

    public MapStore(StoreFormat format) {
        this(format, new HashMap<>());
    }

    /** @param values that other stores may share */
    public MapStore(StoreFormat format, Map<BlockHash, byte[]> values) {
        this.format = format;
        this.values = values;
    }

    @Override
    public String name() {
        return "map";
    }

    @Override
    public StoreFormat format() {
        return format;
    }

    /** Runs the held operations. */
    public void proceed() {
        while (!held.isEmpty()) {
            held.removeFirst().run();
        }
    }

    private StoreTask start(int keys, Deadline deadline, Consumer<StoreTask> action) {
        return start(keys, deadline, holds, action);
    }

    private StoreTask start(int keys, Deadline deadline, boolean isHeld, Consumer<StoreTask> action) {
        if (rejects) {
            return StoreTask.rejected(keys, deadline);
        }
        StoreTask task = new StoreTask(keys, deadline);
        Runnable work = () -> {
            if (!task.isDone()) {
                action.accept(task);
            }
            task.end();
        };
        if (isHeld) {
            held.add(work);
        } else {
            work.run();
        }
        return task;
    }

    @Override
    public StoreTask contains(List<BlockHash> keys, Deadline deadline) {
        lookups++;
        return start(keys.size(), deadline, task -> {
            for (int i = 0; i < keys.size(); i++) {
                if (values.containsKey(keys.get(i))) {
                    task.succeed(i);
                }
            }
        });
    }

    @Override
    public StoreTask get(List<BlockHash> keys, List<ValueRanges> to, Deadline deadline) {
        return start(keys.size(), deadline, task -> {
            for (ValueRanges ranges : to) {
                for (int i = 0; i < ranges.size(); i++) {
                    byte[] value = values.get(keys.get(ranges.key(i)));
                    if (value != null && !broken.contains(keys.get(ranges.key(i)))) {
                        MemorySegment.copy(
                                MemorySegment.ofArray(value),
                                ranges.valueOffset(i),
                                ranges.memory(),
                                ranges.memoryOffset(i),
                                ranges.bytes(i));
                        task.succeed(ranges.key(i));
                    }
                }
            }
        });
    }

    @Override
    public StoreTask put(List<BlockHash> keys, List<ValueRanges> from, Deadline deadline) {
        return start(keys.size(), deadline, holds || holdsWrites, task -> {
            for (BlockHash key : keys) {
                values.put(key, new byte[(int) format.valueBytes()]);
            }
            for (ValueRanges ranges : from) {
                for (int i = 0; i < ranges.size(); i++) {
                    MemorySegment.copy(
                            ranges.memory(),
                            ranges.memoryOffset(i),
                            MemorySegment.ofArray(values.get(keys.get(ranges.key(i)))),
                            ranges.valueOffset(i),
                            ranges.bytes(i));
                }
            }
            IntStream.range(0, keys.size()).forEach(task::succeed);
        });
    }

    @Override
    public List<StoreEvent> takeEvents() {
        return new ArrayList<>();
    }

    @Override
    public List<Measurement> takeMeasurements() {
        return List.of();
    }

    @Override
    public void close() {
        rejects = true;
        proceed();
    }
}
