package baton.store.mooncake;

import baton.kv.BlockHash;
import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.store.BatchRanges;
import baton.store.remote.Failure;
import baton.store.remote.StoreCounters;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Serves a few keys of a batch at once: looks up their objects, reads and checks them, and writes absent ones. One thread owns it.
 */
final class KeyCall {
    private static final Logger log = LoggerFactory.getLogger(KeyCall.class);

    private final Means means;
    private final Batch batch;
    private final int from;
    private final ObjectBuffers staging;
    private final ObjectClient client;
    private final ObjectFormat objects;
    private final int shares;
    private final StoreCounters counters;
    private final DamagedKeys damaged;
    private final Deadline deadline;

    /** Indexes in the call of keys that are asked for. */
    private final List<Integer> asked = new ArrayList<>();

    /**
     * The parts that all calls of a store have.
     *
     * @param valueBytes of a value
     * @param lease for which a reader keeps others from removing an object
     */
    record Means(
            ObjectClient client,
            ObjectFormat objects,
            long valueBytes,
            StoreCounters counters,
            DamagedKeys damaged,
            Ticker ticker,
            Duration lease) {}

    /** The operation that a call is part of. */
    interface Batch {
        BlockHash key(int index);

        BatchRanges ranges();

        Deadline deadline();

        /** The call has succeeded for a key. */
        void succeeded(int index);

        /** The store has answered, without success for a key. */
        void answered();

        /** The call has failed for a key. */
        void failed(Outcome cause);
    }

    KeyCall(Means means, Batch batch, int from, int to, ObjectBuffers staging) {
        this.means = means;
        this.batch = batch;
        this.from = from;
        this.staging = staging;
        client = means.client();
        objects = means.objects();
        shares = objects.shares();
        counters = means.counters();
        damaged = means.damaged();
        deadline = batch.deadline();
        for (int i = 0; i < to - from; i++) {
            asked.add(i);
        }
    }

    private BlockHash key(int index) {
        return batch.key(from + index);
    }

    private List<String> names(List<Integer> keys) {
        List<String> names = new ArrayList<>(keys.size() * shares);
        for (int index : keys) {
            for (int share = 0; share < shares; share++) {
                names.add(objects.name(share, key(index)));
            }
        }
        return names;
    }

    /** The outcome of a key's objects: the first that is not done decides. */
    private static Outcome ofKey(List<Outcome> outcomes, int position, int shares) {
        Outcome worst = Outcome.DONE;
        for (Outcome outcome : outcomes.subList(position * shares, (position + 1) * shares)) {
            if (outcome != Outcome.DONE && (worst == Outcome.DONE || worst == Outcome.ABSENT)) {
                worst = outcome;
            }
        }
        return worst;
    }

    private void leaveOutDamaged() {
        int before = asked.size();
        asked.removeIf(index -> damaged.has(key(index)));
        if (asked.size() < before) {
            counters.count(StoreCounters.Result.ABSENT, before - asked.size());
        }
    }

    void contains() {
        leaveOutDamaged();
        List<Outcome> outcomes = client.exist(names(asked), deadline);
        for (int i = 0; i < asked.size(); i++) {
            switch (ofKey(outcomes, i, shares)) {
                case DONE -> {
                    counters.count(StoreCounters.Result.FOUND, 1);
                    batch.succeeded(from + asked.get(i));
                }
                case ABSENT -> {
                    counters.count(StoreCounters.Result.ABSENT, 1);
                    batch.answered();
                }
                case Outcome failure -> batch.failed(failure);
            }
        }
    }

    void get() {
        leaveOutDamaged();
        List<MemorySegment> to = new ArrayList<>(asked.size() * shares);
        for (int i = 0; i < asked.size(); i++) {
            for (int share = 0; share < shares; share++) {
                to.add(staging.object(i, share));
            }
        }
        List<String> names = names(asked);
        List<Outcome> outcomes = new ArrayList<>(client.get(names, to, deadline));
        verify(names, to, outcomes);
        for (int i = 0; i < asked.size(); i++) {
            int index = asked.get(i);
            Outcome outcome = ofKey(outcomes, i, shares);
            if (outcome == Outcome.DONE) {
                for (int share = 0; share < shares; share++) {
                    objects.scatter(share, staging.object(i, share), staging.value());
                }
                batch.ranges().scatter(from + index, 0, staging.value(), means.valueBytes());
                counters.read(means.valueBytes());
                batch.succeeded(from + index);
            } else if (outcome == Outcome.ABSENT) {
                counters.count(StoreCounters.Result.MISS, 1);
                batch.answered();
            } else {
                batch.failed(outcome);
                if (outcome.isOfValue() && objects.mayRemove(outcome)) {
                    damaged(index, outcome);
                }
            }
        }
    }

    /** Replaces objects that cannot be trusted by the cause. */
    private void verify(List<String> names, List<MemorySegment> to, List<Outcome> outcomes) {
        if (objects.isFramed()) {
            for (int i = 0; i < outcomes.size(); i++) {
                if (outcomes.get(i) == Outcome.DONE) {
                    outcomes.set(i, objects.check(i % shares, to.get(i), key(asked.get(i / shares))));
                }
            }
            return;
        }
        List<String> checksums = new ArrayList<>(names.size());
        List<MemorySegment> into = new ArrayList<>(names.size());
        for (int i = 0; i < names.size(); i++) {
            checksums.add(names.get(i) + ObjectFormat.CHECKSUM_SUFFIX);
            into.add(staging.checksum(i / shares, i % shares));
        }
        List<Outcome> found = client.get(checksums, into, deadline);
        for (int i = 0; i < outcomes.size(); i++) {
            if (outcomes.get(i) == Outcome.DONE) {
                switch (found.get(i)) {
                    case DONE -> outcomes.set(i, ObjectFormat.checkChecksum(to.get(i), into.get(i)));
                    case ABSENT -> counters.count(StoreCounters.Result.UNVERIFIED, 1);
                    case Outcome failure -> outcomes.set(i, failure);
                }
            }
        }
    }

    void put() {
        asked.removeIf(index -> !isFreeOfDamage(index));
        List<Outcome> present = client.exist(names(asked), deadline);
        List<Integer> absent = new ArrayList<>();
        for (int i = 0; i < asked.size(); i++) {
            switch (ofKey(present, i, shares)) {
                case DONE -> {
                    counters.count(StoreCounters.Result.PRESENT, 1);
                    batch.succeeded(from + asked.get(i));
                }
                case ABSENT -> absent.add(asked.get(i));
                case Outcome failure -> batch.failed(failure);
            }
        }
        if (absent.isEmpty()) {
            return;
        }
        List<MemorySegment> values = new ArrayList<>(absent.size() * shares);
        for (int i = 0; i < absent.size(); i++) {
            batch.ranges().gather(from + absent.get(i), 0, staging.value(), means.valueBytes());
            for (int share = 0; share < shares; share++) {
                MemorySegment object = staging.object(i, share);
                objects.gather(share, staging.value(), object, key(absent.get(i)));
                values.add(object);
            }
        }
        List<String> names = names(absent);
        List<Outcome> outcomes = new ArrayList<>(client.put(names, values, deadline));
        if (!objects.isFramed()) {
            putChecksums(names, values, outcomes);
        }
        for (int i = 0; i < absent.size(); i++) {
            Outcome outcome = ofKey(outcomes, i, shares);
            if (outcome == Outcome.DONE) {
                counters.stored(key(absent.get(i)), means.valueBytes());
                batch.succeeded(from + absent.get(i));
            } else {
                batch.failed(outcome == Outcome.ABSENT ? Outcome.ERROR : outcome);
            }
        }
    }

    private void putChecksums(List<String> names, List<MemorySegment> values, List<Outcome> outcomes) {
        List<String> checksums = new ArrayList<>(names.size());
        List<MemorySegment> from = new ArrayList<>(names.size());
        for (int i = 0; i < names.size(); i++) {
            MemorySegment checksum = staging.checksum(i / shares, i % shares);
            ObjectFormat.writeChecksum(values.get(i), checksum);
            if (outcomes.get(i) == Outcome.DONE) {
                checksums.add(names.get(i) + ObjectFormat.CHECKSUM_SUFFIX);
                from.add(checksum);
            }
        }
        // An object without one is read as one that vLLM wrote.
        List<Outcome> unused = client.put(checksums, from, deadline);
        log.trace("checksums: {}", unused);
    }

    /** Whether nothing that is useless is stored under a key: a put would leave it as it is. */
    private boolean isFreeOfDamage(int index) {
        BlockHash key = key(index);
        if (damaged.isLeased(key)) {
            counters.failed(Failure.LEASED, 1);
            return false;
        }
        return !damaged.has(key) || remove(index, true);
    }

    /** @param ask whether the store is asked, if it did not remove an object, if that is there at all; it is leased then */
    private boolean remove(int index, boolean ask) {
        BlockHash key = key(index);
        boolean gone = true;
        for (String name : names(List.of(index))) {
            if (!objects.isFramed()) {
                Outcome checksum = client.remove(name + ObjectFormat.CHECKSUM_SUFFIX, deadline);
                gone &= checksum == Outcome.DONE || checksum == Outcome.ABSENT;
            }
            Outcome removed = client.remove(name, deadline);
            if (removed == Outcome.LEASED && ask) {
                removed = client.exist(List.of(name), deadline).getFirst();
                gone &= removed == Outcome.ABSENT;
            } else {
                gone &= removed == Outcome.DONE || removed == Outcome.ABSENT;
            }
        }
        if (gone) {
            damaged.removed(key);
            counters.removed(key);
            return true;
        }
        damaged.add(key, Deadline.after(means.ticker(), means.lease()));
        if (ask) {
            counters.failed(Failure.LEASED, 1);
        }
        return false;
    }

    private void damaged(int index, Outcome cause) {
        boolean gone = remove(index, false);
        log.warn(
                "{}: the objects of {} are damaged ({}); {}",
                MooncakeBlockStore.NAME,
                key(index),
                cause.failure().label(),
                gone ? "they have been removed" : "they will be removed when their leases are over");
    }
}
