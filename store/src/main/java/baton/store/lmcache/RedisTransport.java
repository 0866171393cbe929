package baton.store.lmcache;

import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.kv.connector.Measurement;
import baton.store.StoreTask;
import baton.store.redis.RedisSettings;
import baton.store.redis.RedisStrings;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;

/**
 * Objects at a Redis server, as LMCache's {@code redis://} keeps them: the strings {@code <key>kv_bytes} and {@code <key>metadata}. An
 * {@link ObjectCheck} is the string {@code <key>baton}. All three are set at once, and read at once.
 */
public final class RedisTransport implements ObjectTransport {
    private static final String BYTES = "kv_bytes";
    private static final String CHECK = "baton";
    private static final String METADATA = "metadata";

    private final RedisStrings strings;

    /** @param objectBytes of an object, about */
    public RedisTransport(RedisSettings settings, long objectBytes, Ticker ticker) {
        strings = new RedisStrings("redis", settings, objectBytes, ticker);
    }

    /** Whether the server can be asked at present. */
    public boolean isConnected() {
        return strings.isConnected();
    }

    @Override
    public String name() {
        return "redis";
    }

    private static List<RedisStrings.Entry> entries(List<Entry> objects) {
        List<RedisStrings.Entry> entries = new ArrayList<>(objects.size());
        for (Entry object : objects) {
            List<String> keys = List.of(object.key() + BYTES, object.key() + CHECK, object.key() + METADATA);
            List<MemorySegment> values = List.of(object.bytes(), object.check(), object.metadata());
            entries.add(new RedisStrings.Entry(keys, values));
        }
        return entries;
    }

    @Override
    public StoreTask contains(List<String> keys, Deadline deadline) {
        return strings.contains(keys.stream().map(key -> key + METADATA).toList(), deadline);
    }

    @Override
    public StoreTask put(List<Entry> objects, Deadline deadline) {
        return strings.set(entries(objects), deadline);
    }

    @Override
    public Reads get(List<Entry> objects, Deadline deadline) {
        RedisStrings.Reads reads = strings.get(entries(objects), deadline);
        StoreTask task = reads.task()
                .forKeys(
                        objects.size(),
                        i -> reads.task().succeeded(i) && reads.bytes(i, 0) >= 0 && reads.bytes(i, 2) >= 0);
        // Metadata that is empty is not that of an object without.
        return new Reads(
                task,
                i -> new Found(Math.max(1, reads.bytes(i, 2)), reads.bytes(i, 0), Math.max(0, reads.bytes(i, 1))));
    }

    @Override
    public List<Measurement> takeMeasurements() {
        return strings.takeMeasurements();
    }

    @Override
    public void close() {
        strings.close();
    }
}
