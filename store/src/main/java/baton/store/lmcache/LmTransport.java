package baton.store.lmcache;

import baton.kv.Deadline;
import baton.kv.connector.Measurement;
import baton.store.StoreTask;
import baton.store.lm.LmClient;
import baton.store.lm.LmMetadata;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/**
 * Objects at a server of LMCache's {@code lm} protocol. An {@link ObjectCheck} is an object of its own, with one more tag in its key, as servers
 * take only keys of LMCache's form. An object with a key that is too long for the protocol is not stored; a check with such a key is left out.
 *
 * @param client closed with this
 */
public record LmTransport(LmClient client) implements ObjectTransport {
    private static final String CHECK = "@baton%check";

    @Override
    public String name() {
        return "lm";
    }

    @Override
    public boolean takes(String key) {
        return bytes(key) <= LmClient.MOST_KEY_BYTES;
    }

    private static boolean hasCheck(String key) {
        return bytes(key + CHECK) <= LmClient.MOST_KEY_BYTES;
    }

    private static int bytes(String key) {
        return key.getBytes(StandardCharsets.UTF_8).length;
    }

    @Override
    public StoreTask contains(List<String> keys, Deadline deadline) {
        return client.contains(keys, deadline);
    }

    @Override
    public StoreTask put(List<Entry> objects, Deadline deadline) {
        List<LmClient.Put> puts = new ArrayList<>(2 * objects.size());
        int[] object = new int[objects.size()];
        for (int i = 0; i < objects.size(); i++) {
            Entry entry = objects.get(i);
            if (hasCheck(entry.key())) {
                puts.add(new LmClient.Put(
                        entry.key() + CHECK, LmMetadata.bytes(ObjectCheck.BYTES), List.of(entry.check())));
            }
            object[i] = puts.size();
            puts.add(new LmClient.Put(
                    entry.key(), ObjectMetadata.read(entry.metadata()).chunk(), List.of(entry.bytes())));
        }
        StoreTask sent = client.put(puts, deadline);
        // An old check beside a new object would make it useless.
        return sent.forKeys(
                object.length, i -> sent.succeeded(object[i]) && (object[i] == 0 || sent.succeeded(object[i] - 1)));
    }

    @Override
    public Reads get(List<Entry> objects, Deadline deadline) {
        List<LmClient.Get> gets = new ArrayList<>(2 * objects.size());
        int[] object = new int[objects.size()];
        int[] check = new int[objects.size()];
        for (int i = 0; i < objects.size(); i++) {
            Entry entry = objects.get(i);
            object[i] = gets.size();
            gets.add(new LmClient.Get(entry.key(), List.of(entry.bytes())));
            check[i] = -1;
            if (hasCheck(entry.key())) {
                check[i] = gets.size();
                gets.add(new LmClient.Get(entry.key() + CHECK, List.of(entry.check())));
            }
        }
        LmClient.Reads reads = client.get(gets, deadline);
        StoreTask task = reads.task().forKeys(object.length, i -> {
            Optional<LmClient.Value> value = reads.value(object[i]);
            // Without its check an object could pass for LMCache's, which has none.
            boolean isCheckKnown = check[i] < 0 || reads.task().succeeded(check[i]) || reads.isAbsent(check[i]);
            boolean whole = reads.task().succeeded(object[i]) && value.isPresent() && isCheckKnown;
            if (whole) {
                new ObjectMetadata(value.get().bytes(), value.get().metadata())
                        .write(objects.get(i).metadata());
            }
            return whole;
        });
        return new Reads(task, i -> {
            int checkBytes = check[i] >= 0 && reads.task().succeeded(check[i])
                    ? reads.value(check[i]).map(LmClient.Value::bytes).orElse(0)
                    : 0;
            int bytes = reads.value(object[i]).map(LmClient.Value::bytes).orElse(0);
            return new Found(ObjectMetadata.BYTES, bytes, checkBytes);
        });
    }

    @Override
    public List<Measurement> takeMeasurements() {
        return client.takeMeasurements();
    }

    @Override
    public void close() {
        client.close();
    }
}
