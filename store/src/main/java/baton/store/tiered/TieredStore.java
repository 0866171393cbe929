package baton.store.tiered;

import baton.kv.BlockHash;
import baton.kv.Deadline;
import baton.kv.Ticker;
import baton.kv.connector.Measurement;
import baton.store.BlockStore;
import baton.store.StoreEvent;
import baton.store.StoreFormat;
import baton.store.StoreTask;
import baton.store.ValueCache;
import baton.store.ValueRanges;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.IntStream;

/*
 * All reads and writes of a caller's memory go through the memory tier: other tiers read into its slots and write from them. So a file system
 * that hangs holds slots, never blocks of an engine's pool.
 *
 * Writing
 *
 *   put copies into memory, and then, behind the caller's back, into every other tier (a cascade): a value that is evicted from memory is
 *   there already. A cascade pins its values. It is dropped, and counted, if the tier is under pressure or cascades pin half of all slots.
 *
 * Reading
 *
 *   acquire pins the values in memory and looks the rest up in all other tiers at the same time. A value is promoted from the first tier
 *   with a copy: a slot is reserved, filled and committed. A value that could not be read in time is a miss; the values before it are used.
 *   Two callers that want the same value at the same time share its promotion.
 *
 * Locks
 *
 *   The monitor guards the state. The memory tier is called under it, other tiers never are, nor listeners.
 */

/** A memory store in front of slower ones. */
public final class TieredStore implements BlockStore {
    private static final String PREFIX = "vllm:kv_offload_tiering_";

    private final ValueCache memory;
    private final List<Tier> tiers;
    private final Timeouts timeouts;
    private final Ticker ticker;
    private final TierStats stats;

    /** Values that are being promoted, and the readers that wait for them beside the one that began. */
    @GuardedBy("this")
    private final Map<BlockHash, Set<Reader>> promoting = new HashMap<>();

    /** Operations of other tiers under way: a deadline is noticed by a caller that asks, and a reader that has left does not ask. */
    private final Set<StoreTask> underWay = ConcurrentHashMap.newKeySet();

    @GuardedBy("this")
    private int cascadeSlots;

    /** Values that are being written to other tiers, and to how many. */
    @GuardedBy("this")
    private final Map<BlockHash, Integer> writing = new HashMap<>();

    /** Values that other tiers have taken. */
    @GuardedBy("this")
    private long written;

    @GuardedBy("this")
    private boolean closed;

    /**
     * @param lookup for asking other tiers which values they have
     * @param cascade for a write to another tier
     */
    public record Timeouts(Duration lookup, Duration cascade) {}

    /**
     * Takes the stores over: they are closed with this one.
     *
     * @param tiers the others, the first is asked first
     */
    public TieredStore(ValueCache memory, List<Tier> tiers, Timeouts timeouts, Ticker ticker) {
        this.memory = memory;
        this.tiers = List.copyOf(tiers);
        this.timeouts = timeouts;
        this.ticker = ticker;
        this.stats = new TierStats(
                PREFIX,
                IntStream.rangeClosed(0, tiers.size()).mapToObj(this::tierName).toList());
    }

    /** Label of a tier in metrics: {@code 0:primary} is the memory. */
    public String tierName(int tier) {
        return tier + ":" + (tier == 0 ? "primary" : tiers.get(tier - 1).store().name());
    }

    @Override
    public String name() {
        return "tiered";
    }

    @Override
    public StoreFormat format() {
        return memory.format();
    }

    /** The tier in memory. */
    public ValueCache memory() {
        return memory;
    }

    /** The other tiers. */
    public List<Tier> tiers() {
        return tiers;
    }

    /**
     * Pins the longest run of values from the front that can be had by the deadline.
     *
     * @param others whether tiers beside the memory are asked
     * @param ready called once, on any thread, when it is ready, unless that is noticed by {@link Acquired#isReady} first
     */
    public Acquired acquire(List<BlockHash> keys, boolean others, Deadline deadline, Runnable ready) {
        noticeDeadlines();
        Reader reader = new Reader(keys, others, true, deadline, ready);
        reader.start();
        return reader;
    }

    private void noticeDeadlines() {
        underWay.forEach(StoreTask::isDone);
    }

    private void watch(StoreTask task) {
        underWay.add(task);
        task.onDone(() -> underWay.remove(task));
    }

    @Override
    public StoreTask contains(List<BlockHash> keys, Deadline deadline) {
        StoreTask task = new StoreTask(keys.size(), deadline);
        List<StoreTask> asked = new ArrayList<>();
        for (int i = 0; i < keys.size(); i++) {
            if (memory.isPresent(keys.get(i))) {
                task.succeed(i);
            }
        }
        for (Tier tier : tiers) {
            asked.add(tier.store().contains(keys, deadline.atMost(timeouts.lookup)));
        }
        whenAll(asked, () -> {
            for (StoreTask each : asked) {
                for (int i = 0; i < keys.size(); i++) {
                    if (each.succeeded(i)) {
                        task.succeed(i);
                    }
                }
            }
            task.end();
        });
        return task;
    }

    @Override
    public StoreTask get(List<BlockHash> keys, List<ValueRanges> to, Deadline deadline) {
        StoreTask task = new StoreTask(keys.size(), deadline);
        Reader[] own = new Reader[1];
        Reader reader = new Reader(keys, true, false, deadline, () -> {
            Reader ready = own[0];
            if (task.isDone()) {
                ready.release();
                task.end();
                return;
            }
            StoreTask copied = memory.get(keys, to, deadline);
            copied.onDone(() -> {
                for (int i = 0; i < keys.size(); i++) {
                    if (copied.succeeded(i)) {
                        task.succeed(i);
                    }
                }
                task.cancel();
            });
            copied.onQuiet(() -> {
                ready.release();
                task.end();
            });
        });
        own[0] = reader;
        reader.start();
        return task;
    }

    @Override
    public StoreTask put(List<BlockHash> keys, List<ValueRanges> from, Deadline deadline) {
        noticeDeadlines();
        StoreTask task = memory.put(keys, from, deadline);
        if (!tiers.isEmpty()) {
            task.onDone(() -> {
                List<BlockHash> stored = new ArrayList<>(keys.size());
                for (int i = 0; i < keys.size(); i++) {
                    if (task.succeeded(i)) {
                        stored.add(keys.get(i));
                    }
                }
                for (int i = 0; i < tiers.size(); i++) {
                    cascade(i + 1, tiers.get(i), stored);
                }
            });
        }
        return task;
    }

    private void cascade(int index, Tier tier, List<BlockHash> keys) {
        List<BlockHash> pinned = new ArrayList<>(keys.size());
        int[] slots = new int[keys.size()];
        if (tier.backpressure().map(pressure -> !pressure.admits()).orElse(false)) {
            stats.dropped(index, keys.size());
            return;
        }
        int dropped;
        synchronized (this) {
            // The front of a sequence is worth more than its end.
            int room = closed ? 0 : Math.max(1, memory.slots() / 2) - cascadeSlots;
            int most = Math.clamp(room, 0, keys.size());
            dropped = keys.size() - most;
            for (BlockHash key : keys.subList(0, most)) {
                int slot = memory.hold(key);
                if (slot != ValueCache.NONE) {
                    slots[pinned.size()] = slot;
                    pinned.add(key);
                    writing.merge(key, 1, Integer::sum);
                }
            }
            cascadeSlots += pinned.size();
        }
        if (dropped > 0) {
            stats.dropped(index, dropped);
        }
        if (pinned.isEmpty()) {
            return;
        }
        long bytes = pinned.size() * format().valueBytes();
        long start = ticker.nanos();
        stats.cascading(index, 1);
        StoreTask task = tier.store()
                .put(pinned, List.of(inMemory(slots, pinned.size())), Deadline.after(ticker, timeouts.cascade));
        watch(task);
        task.onDone(() -> {
            double seconds = (ticker.nanos() - start) / 1e9;
            int taken = task.succeededCount();
            synchronized (this) {
                pinned.forEach(key -> writing.computeIfPresent(key, (_, count) -> count == 1 ? null : count - 1));
                written += taken;
            }
            stats.written(index, taken * format().valueBytes(), seconds, taken == pinned.size());
            tier.backpressure().ifPresent(pressure -> {
                // One that was rejected says nothing of the tier's speed.
                if (taken > 0 || task.deadline().isOver()) {
                    pressure.written(seconds, bytes);
                } else {
                    pressure.failed();
                }
                stats.pressure(index, pressure.average(), pressure.failures());
            });
        });
        task.onQuiet(() -> {
            stats.cascading(index, -1);
            synchronized (this) {
                cascadeSlots -= pinned.size();
                for (int i = 0; i < pinned.size(); i++) {
                    memory.unpin(slots[i]);
                }
            }
        });
    }

    /** The values in these slots, one after the other. */
    private ValueRanges inMemory(int[] slots, int count) {
        ValueRanges ranges = new ValueRanges(memory.memory());
        for (int i = 0; i < count; i++) {
            ranges.add(i, 0, memory.offset(slots[i]), format().valueBytes());
        }
        return ranges;
    }

    /** Whether values in memory are being written to another tier. */
    public boolean isWriting() {
        noticeDeadlines();
        synchronized (this) {
            return !writing.isEmpty();
        }
    }

    /** Whether the value is in memory and being written to another tier. */
    public synchronized boolean isWriting(BlockHash key) {
        return writing.containsKey(key);
    }

    /** How many values other tiers have taken since the start. */
    public synchronized long written() {
        return written;
    }

    /** Events of the memory tier; those of the others are taken from them. */
    @Override
    public List<StoreEvent> takeEvents() {
        return memory.takeEvents();
    }

    @Override
    public List<Measurement> takeMeasurements() {
        noticeDeadlines();
        List<Measurement> all = new ArrayList<>(memory.takeMeasurements());
        tiers.forEach(tier -> all.addAll(tier.store().takeMeasurements()));
        if (!tiers.isEmpty()) {
            all.addAll(stats.take());
        }
        return all;
    }

    @Override
    public boolean hasReadUnverified() {
        return tiers.stream().anyMatch(tier -> tier.store().hasReadUnverified());
    }

    /** Drops values in memory that are not in use. Other tiers keep their values. */
    public boolean reset() {
        return memory.reset();
    }

    /** Closes the other tiers first, as they read and write the memory. */
    @Override
    public void close() {
        synchronized (this) {
            closed = true;
        }
        tiers.forEach(tier -> tier.store().close());
        memory.close();
    }

    private static void whenAll(List<StoreTask> tasks, Runnable action) {
        Countdown countdown = new Countdown(tasks.size() + 1, action);
        tasks.forEach(task -> task.onDone(countdown::down));
        countdown.down();
    }

    /** Runs an action when it has been counted down to zero. */
    private static final class Countdown {
        @GuardedBy("this")
        private int left;

        private final Runnable action;

        private Countdown(int count, Runnable action) {
            this.left = count;
            this.action = action;
        }

        void down() {
            synchronized (this) {
                if (--left != 0) {
                    return;
                }
            }
            action.run();
        }
    }

    /** A batch of values on their way into memory, from one tier. */
    private record Promotion(int tier, List<BlockHash> keys, int[] slots) {}

    private final class Reader implements Acquired {
        private final List<BlockHash> keys;
        private final boolean others;
        private final boolean frontOnly;
        private final Deadline deadline;
        private final Runnable whenReady;
        private final long startNanos = ticker.nanos();

        /** Each key's slot while it is pinned. Guarded by the store's monitor, as are the fields below. */
        private final int[] slots;

        /** The tier that each key's value came from. */
        private final byte[] sources;

        private final List<StoreTask> tasks = new ArrayList<>();
        private boolean lookedUp;
        private boolean released;
        private int front;
        private volatile boolean ready;

        private Reader(List<BlockHash> keys, boolean others, boolean frontOnly, Deadline deadline, Runnable whenReady) {
            this.keys = List.copyOf(keys);
            this.others = others && !tiers.isEmpty();
            this.frontOnly = frontOnly;
            this.deadline = deadline;
            this.whenReady = whenReady;
            this.slots = new int[keys.size()];
            this.sources = new byte[keys.size()];
            Arrays.fill(slots, ValueCache.NONE);
        }

        void start() {
            int first;
            synchronized (TieredStore.this) {
                first = pinPresent();
            }
            if (!others || first == keys.size()) {
                synchronized (TieredStore.this) {
                    lookedUp = true;
                }
                settle();
                return;
            }
            List<BlockHash> rest = keys.subList(first, keys.size());
            List<StoreTask> asked = new ArrayList<>(tiers.size());
            for (Tier tier : tiers) {
                asked.add(tier.store().contains(rest, deadline.atMost(timeouts.lookup)));
            }
            synchronized (TieredStore.this) {
                tasks.addAll(asked);
            }
            whenAll(asked, () -> promote(first, asked));
        }

        /** Pins the values in memory. Returns the index of the first key without one. */
        private int pinPresent() {
            for (int i = 0; i < keys.size(); i++) {
                if (!pinned(i) && frontOnly) {
                    return i;
                }
            }
            return firstUnpinned();
        }

        private int firstUnpinned() {
            int i = 0;
            while (i < slots.length && slots[i] != ValueCache.NONE) {
                i++;
            }
            return i;
        }

        /** Whether the value is pinned, now that it has been tried. */
        private boolean pinned(int key) {
            if (slots[key] == ValueCache.NONE && !released) {
                slots[key] = memory.pin(keys.get(key));
            }
            return slots[key] != ValueCache.NONE;
        }

        /** All tiers have said which values they have from the key {@code first} on, or may have by now. */
        private void promote(int first, List<StoreTask> asked) {
            List<Promotion> promotions = new ArrayList<>();
            synchronized (TieredStore.this) {
                lookedUp = true;
                tasks.clear();
                stats.lookedUp((ticker.nanos() - startNanos) / 1e9);
                if (!ready && !released && !closed && !deadline.isOver()) {
                    plan(first, asked, promotions);
                }
            }
            List<StoreTask> gets = new ArrayList<>();
            for (Promotion promotion : promotions) {
                gets.add(tiers.get(promotion.tier - 1)
                        .store()
                        .get(promotion.keys, List.of(inMemory(promotion.slots, promotion.slots.length)), deadline));
            }
            synchronized (TieredStore.this) {
                tasks.addAll(gets);
            }
            for (int i = 0; i < gets.size(); i++) {
                Promotion promotion = promotions.get(i);
                StoreTask get = gets.get(i);
                long start = ticker.nanos();
                watch(get);
                stats.promoting(promotion.tier, 1);
                get.onDone(() -> promoted(promotion, get, start));
            }
            settle();
        }

        /** Reserves slots for values that another tier has, as many from the front as there is room for. */
        @GuardedBy("TieredStore.this")
        private void plan(int first, List<StoreTask> asked, List<Promotion> promotions) {
            List<BlockHash> wanted = new ArrayList<>();
            List<Integer> from = new ArrayList<>();
            long[] hits = new long[tiers.size()];
            for (int i = first; i < keys.size(); i++) {
                BlockHash key = keys.get(i);
                if (pinned(i)) {
                    continue;
                }
                Set<Reader> waiting = promoting.get(key);
                if (waiting != null) {
                    waiting.add(this);
                    continue;
                }
                int tier = 0;
                while (tier < asked.size() && !asked.get(tier).succeeded(i - first)) {
                    tier++;
                }
                if (tier < asked.size()) {
                    wanted.add(key);
                    from.add(tier + 1);
                    sources[i] = (byte) (tier + 1);
                    hits[tier]++;
                } else if (frontOnly) {
                    break;
                }
            }
            for (int tier = 0; tier < hits.length; tier++) {
                stats.queried(tier + 1, keys.size() - first, hits[tier]);
            }
            int[] reserved = new int[wanted.size()];
            int count = wanted.size();
            while (count > 0 && !memory.reserve(wanted.subList(0, count), reserved)) {
                stats.noRoom();
                count /= 2;
            }
            for (int tier = 1; tier <= tiers.size(); tier++) {
                List<BlockHash> ofTier = new ArrayList<>();
                int[] slotsOfTier = new int[count];
                for (int i = 0; i < count; i++) {
                    if (from.get(i) == tier && reserved[i] != ValueCache.NONE) {
                        slotsOfTier[ofTier.size()] = reserved[i];
                        ofTier.add(wanted.get(i));
                        promoting.put(wanted.get(i), new HashSet<>(Set.of(this)));
                    }
                }
                if (!ofTier.isEmpty()) {
                    promotions.add(new Promotion(tier, ofTier, Arrays.copyOf(slotsOfTier, ofTier.size())));
                }
            }
        }

        /** The result of a promotion stands; slots that were not filled are free when the tier does not use them any more. */
        private void promoted(Promotion promotion, StoreTask get, long start) {
            Set<Reader> waiting = new HashSet<>();
            List<Integer> unfilled = new ArrayList<>();
            for (int i = 0; i < promotion.slots.length; i++) {
                if (get.succeeded(i)) {
                    memory.seal(promotion.slots[i]);
                }
            }
            synchronized (TieredStore.this) {
                for (int i = 0; i < promotion.slots.length; i++) {
                    if (get.succeeded(i)) {
                        memory.commit(promotion.slots[i]);
                    } else {
                        unfilled.add(promotion.slots[i]);
                    }
                    Set<Reader> ofKey = promoting.remove(promotion.keys.get(i));
                    if (ofKey != null) {
                        waiting.addAll(ofKey);
                    }
                }
                // Before anything else can evict them.
                for (Reader reader : waiting) {
                    reader.pinWhatIsThere();
                }
            }
            stats.promoting(promotion.tier, -1);
            stats.read(
                    promotion.tier,
                    (promotion.slots.length - unfilled.size()) * format().valueBytes(),
                    (ticker.nanos() - start) / 1e9,
                    unfilled.isEmpty());
            get.onQuiet(() -> {
                synchronized (TieredStore.this) {
                    unfilled.forEach(memory::abort);
                }
            });
            waiting.forEach(Reader::settle);
        }

        /** Called under the monitor. */
        private void pinWhatIsThere() {
            if (!ready) {
                for (int i = 0; i < slots.length; i++) {
                    pinned(i);
                }
            }
        }

        /** Becomes ready if nothing more is coming. */
        private void settle() {
            synchronized (TieredStore.this) {
                if (ready || !lookedUp) {
                    return;
                }
                boolean late = deadline.isOver() || released || closed;
                for (int i = 0; i < keys.size(); i++) {
                    if (pinned(i)) {
                        continue;
                    }
                    Set<Reader> waiting = promoting.get(keys.get(i));
                    if (waiting != null && !late) {
                        waiting.add(this);
                        return;
                    }
                    if (frontOnly) {
                        break;
                    }
                }
                finish();
            }
            whenReady.run();
        }

        @GuardedBy("TieredStore.this")
        private void finish() {
            front = firstUnpinned();
            if (frontOnly) {
                for (int i = front; i < slots.length; i++) {
                    unpin(i);
                }
            }
            stats.queried(0, keys.size(), fromFront(0));
            ready = true;
        }

        private void unpin(int key) {
            if (slots[key] != ValueCache.NONE) {
                memory.unpin(slots[key]);
                slots[key] = ValueCache.NONE;
            }
        }

        @Override
        public boolean isReady() {
            if (!ready && deadline.isOver()) {
                List<StoreTask> open;
                synchronized (TieredStore.this) {
                    open = List.copyOf(tasks);
                }
                // A task that is asked notices its deadline, and calls its listeners.
                open.forEach(StoreTask::isDone);
                synchronized (TieredStore.this) {
                    lookedUp = true;
                }
                settle();
            }
            return ready;
        }

        @Override
        public int fromFront() {
            return ready ? front : 0;
        }

        @Override
        public int fromFront(int tier) {
            int count = 0;
            for (int i = 0; i < front; i++) {
                count += sources[i] == tier ? 1 : 0;
            }
            return count;
        }

        @Override
        public void release() {
            List<StoreTask> open;
            synchronized (TieredStore.this) {
                if (released) {
                    return;
                }
                released = true;
                for (int i = 0; i < slots.length; i++) {
                    unpin(i);
                }
                open = lookedUp ? List.of() : List.copyOf(tasks);
            }
            // A promotion under way goes on: its values were wanted once.
            open.forEach(StoreTask::cancel);
        }
    }
}
