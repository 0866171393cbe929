package baton.store.memory;

import baton.kv.BlockHash;
import baton.kv.connector.Measurement;
import baton.store.StoreEvent;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.VarHandle;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.function.IntPredicate;
import java.util.stream.IntStream;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Which value is in which slot, and which one goes when there is no room.
 *
 * <p>Index and lists change under a lock, and between processes under {@link Slab#lock}; the counter of changes is odd meanwhile. If it is
 * odd when a process takes the lock, that process makes them anew from the slots' records, because another one has died in the middle.
 * Looking up, pinning and committing change at most a slot's word, and take no lock. A look-up that finds nothing while the counter moves is
 * repeated.
 *
 * <p>Lock order: {@code lock}, the slab's lock, this object's monitor, the record's.
 */
final class SlotCache {
    private static final Logger LOG = LoggerFactory.getLogger(SlotCache.class);
    private static final VarHandle CHANGES = ValueLayout.JAVA_LONG.varHandle();

    private static final int NONE = KeyIndex.NONE;
    /** Marks a key that is to get a slot from {@code reserve}. */
    private static final int WANTED = -2;

    private static final int TRIES = 3;
    private static final int MOST_NOTED = 8192;

    private final Slab slab;
    private final SlotTable table;
    private final KeyIndex index;
    private final NodeLists lists;
    private final EvictionPolicy policy;
    private final MemorySegment changes;
    private final CacheRecord record;
    private final long ownPin;

    private final Object lock = new Object();

    /** For each slot, the last reservation in which its key was asked for. */
    @GuardedBy("lock")
    private final int[] asked;

    @GuardedBy("lock")
    private int reservation;

    @GuardedBy("lock")
    private int[] victims = new int[64];

    /** For each slot, the pins of this process. */
    @GuardedBy("this")
    private final int[] pins;

    @GuardedBy("this")
    private int pinned;

    @GuardedBy("this")
    private int filling;

    /** Slots that were used since the lists changed last, in order. */
    @GuardedBy("this")
    private int[] noted = new int[64];

    @GuardedBy("this")
    private int notedCount;

    /** Slots to be freed when the lock can be had again. */
    @GuardedBy("this")
    private final List<Integer> aborted = new ArrayList<>();

    SlotCache(Slab slab, boolean keepsEvents) {
        Geometry geometry = slab.geometry();
        this.slab = slab;
        this.record = new CacheRecord(keepsEvents);
        table = geometry.table(slab.tables());
        index = table.index();
        lists = geometry.lists(slab.tables());
        policy = geometry.policy(lists, index, slab.tables());
        changes = geometry.changes(slab.tables());
        ownPin = SlotTable.pin(slab.place());
        asked = new int[table.slots()];
        pins = new int[table.slots()];
    }

    /**
     * To be called before anything else: drops the leftovers of ended processes, and rebuilds index and lists if they are damaged.
     *
     * @return false if another process does not give the lock up in time
     */
    boolean attach() {
        synchronized (lock) {
            if (!slab.lockToOpen()) {
                return false;
            }
            long count = changes();
            // Attached processes change slots' words meanwhile, but make none free or evicted without the lock.
            boolean isBroken = isOdd(count) || !isConsistent();
            CHANGES.setVolatile(changes, 0L, count | 1);
            if (isBroken) {
                if (!slab.isNew()) {
                    LOG.warn("the index of the shared store was left incomplete, or is damaged: it is made anew");
                }
                repair();
            }
            reap(slab.alive() & ~ownPin);
            finish(true);
            return true;
        }
    }

    /** Whether index and lists are as the slots' records say. */
    private boolean isConsistent() {
        try {
            if (!lists.isConsistent() || !policy.isConsistent()) {
                return false;
            }
            for (int slot = 0; slot < table.slots(); slot++) {
                int state = SlotTable.state(table.word(slot));
                boolean isFree = state == SlotTable.FREE;
                if (state == SlotTable.EVICTING
                        || isFree != (lists.listOf(slot) == EvictionPolicy.FREE)
                        || !isFree && index.find(index.key(slot)) != slot) {
                    return false;
                }
            }
            return index.size() == used();
        } catch (IndexOutOfBoundsException _) {
            return false;
        }
    }

    SlotTable table() {
        return table;
    }

    EvictionPolicy policy() {
        return policy;
    }

    int slots() {
        return table.slots();
    }

    int used() {
        return table.slots() - lists.size(EvictionPolicy.FREE);
    }

    private long changes() {
        return (long) CHANGES.getVolatile(changes, 0L);
    }

    private static boolean isOdd(long count) {
        return (count & 1) != 0;
    }

    /** A slot that had the key, or {@link #NONE}; its content is to be checked. */
    int find(BlockHash key) {
        for (int i = 0; i < TRIES; i++) {
            long before = changes();
            int slot = index.find(key);
            if (slot != NONE) {
                return slot;
            }
            VarHandle.acquireFence();
            if (!isOdd(before) && changes() == before) {
                return NONE;
            }
            Thread.onSpinWait();
        }
        if (slab.isShared()) {
            // Another process may have stopped in the middle; a miss costs less than waiting for it.
            return NONE;
        }
        synchronized (lock) {
            return index.find(key);
        }
    }

    boolean isPresent(BlockHash key) {
        int slot = find(key);
        return slot != NONE && table.isPresent(slot, key);
    }

    /** Which of many keys are present. */
    BitSet present(List<BlockHash> keys) {
        BitSet present = new BitSet(keys.size());
        long[] firstWords = new long[keys.size()];
        int[] tries = index.firstTries(keys, firstWords);
        for (int i = 0; i < tries.length; i++) {
            BlockHash key = keys.get(i);
            if (firstWords[i] == key.a() && table.isPresent(tries[i], key) || isPresent(key)) {
                present.set(i);
            }
        }
        return present;
    }

    int presentFromFront(List<BlockHash> keys) {
        int count = 0;
        while (count < keys.size() && isPresent(keys.get(count))) {
            count++;
        }
        return count;
    }

    /** Pins a value; that counts as its use later, by {@link #use}. */
    int pin(BlockHash key) {
        int slot = find(key);
        if (slot == NONE) {
            return NONE;
        }
        synchronized (this) {
            while (true) {
                long word = table.word(slot);
                if (SlotTable.state(word) != SlotTable.PRESENT || !index.isKey(slot, key)) {
                    return NONE;
                }
                if (pins[slot] > 0 || table.change(slot, word, word | ownPin)) {
                    if (pins[slot]++ == 0) {
                        pinned++;
                    }
                    return slot;
                }
            }
        }
    }

    synchronized void unpin(int slot) {
        if (pins[slot] == 0) {
            throw new IllegalStateException("slot=" + slot + " is not pinned");
        }
        pins[slot]--;
        if (pins[slot] == 0) {
            pinned--;
            clearPins(slot, ~ownPin);
        }
    }

    private void clearPins(int slot, long kept) {
        long word = table.word(slot);
        while (!table.change(slot, word, SlotTable.withPins(word, kept))) {
            word = table.word(slot);
        }
    }

    /** The values of slots have been used; the first becomes the last one to go. */
    void use(int[] slots) {
        synchronized (this) {
            for (int i = slots.length - 1; i >= 0; i--) {
                if (slots[i] != NONE) {
                    note(slots[i]);
                }
            }
        }
        applyMany();
    }

    @GuardedBy("this")
    private void note(int slot) {
        if (notedCount == noted.length) {
            if (noted.length >= MOST_NOTED) {
                notedCount = 0;
            } else {
                noted = Arrays.copyOf(noted, 2 * notedCount);
            }
        }
        noted[notedCount++] = slot;
    }

    private void applyMany() {
        synchronized (this) {
            if (notedCount < MOST_NOTED / 2) {
                return;
            }
        }
        synchronized (lock) {
            if (begin()) {
                finish(true);
            }
        }
    }

    /** Takes the lock between processes, repairs, and does the deferred work. */
    @GuardedBy("lock")
    private boolean begin() {
        if (!slab.lock()) {
            record.lockTimedOut();
            return false;
        }
        begun();
        return true;
    }

    /** The lock between processes is taken: repairs, and does the deferred work. */
    @GuardedBy("lock")
    private void begun() {
        long count = changes();
        if (isOdd(count)) {
            LOG.warn("a process ended while it changed the index of the shared store: it is made anew");
            repair();
        } else {
            CHANGES.setVolatile(changes, 0L, count + 1);
        }
        int[] slots;
        List<Integer> free;
        synchronized (this) {
            slots = Arrays.copyOf(noted, notedCount);
            notedCount = 0;
            free = List.copyOf(aborted);
            aborted.clear();
        }
        try {
            for (int each : slots) {
                apply(each);
            }
            free.forEach(this::free);
        } catch (IndexOutOfBoundsException e) {
            mend(e, free.stream().mapToInt(Integer::intValue).toArray());
        }
    }

    /** Makes index and lists anew that were damaged after {@link #attach}; dropped slots become free, negative numbers are passed over. */
    private void mend(IndexOutOfBoundsException damage, int... dropped) {
        if (!slab.isShared()) {
            throw damage;
        }
        LOG.warn("the index of the shared store is damaged: it is made anew", damage);
        IntStream.of(dropped).filter(slot -> slot >= 0).forEach(this::setFree);
        repair();
    }

    private void apply(int slot) {
        int list = lists.listOf(slot);
        if (list != EvictionPolicy.FREE && list != NodeLists.NONE) {
            policy.use(slot, SlotTable.state(table.word(slot)) != SlotTable.FILLING);
        }
    }

    /** @param isWhole false leaves the counter odd, so that index and lists are made anew */
    @GuardedBy("lock")
    private void finish(boolean isWhole) {
        if (isWhole) {
            CHANGES.setVolatile(changes, 0L, changes() + 1);
        }
        slab.unlock();
    }

    /** Makes index and lists anew from the slots' records; frees slots that dead processes were filling. */
    private void repair() {
        long alive = slab.alive();
        index.clear();
        lists.clear();
        policy.forget();
        for (int slot = 0; slot < table.slots(); slot++) {
            dropPinsOfDead(slot, alive);
            long word = table.word(slot);
            boolean isKept = switch (SlotTable.state(word)) {
                        case SlotTable.FREE -> false;
                        case SlotTable.FILLING -> isFilledByLiving(slot, alive);
                        default -> true;
                    }
                    && index.find(index.key(slot)) == NONE;
            if (!isKept) {
                table.setWord(slot, SlotTable.renewed(SlotTable.FREE, word));
                lists.addLast(EvictionPolicy.FREE, slot);
                continue;
            }
            if (SlotTable.state(word) == SlotTable.EVICTING) {
                table.setWord(slot, SlotTable.in(SlotTable.PRESENT, word));
            }
            index.add(slot);
            policy.insert(slot);
        }
    }

    private boolean isFilledByLiving(int slot, long alive) {
        int filler = table.filler(slot);
        return filler >= 0 && filler < Integer.SIZE && (alive & SlotTable.pin(filler)) != 0;
    }

    private void dropPinsOfDead(int slot, long alive) {
        if (SlotTable.withPins(table.word(slot), alive) != table.word(slot)) {
            clearPins(slot, alive);
        }
    }

    /** Drops pins and fills of processes that are not alive. */
    @GuardedBy("lock")
    private void reap(long alive) {
        for (int slot = 0; slot < table.slots(); slot++) {
            dropPinsOfDead(slot, alive);
            if (SlotTable.state(table.word(slot)) == SlotTable.FILLING && !isFilledByLiving(slot, alive)) {
                free(slot);
            }
        }
    }

    private void setFree(int slot) {
        table.setWord(slot, SlotTable.renewed(SlotTable.FREE, table.word(slot)));
    }

    /** Frees a slot that this thread has, in state {@link SlotTable#FILLING} or {@link SlotTable#EVICTING}. */
    private void free(int slot) {
        setFree(slot);
        index.remove(slot);
        policy.remove(slot);
        lists.addLast(EvictionPolicy.FREE, slot);
    }

    /** As {@link baton.store.ValueCache#reserve}. */
    boolean reserve(List<BlockHash> keys, int[] slots) {
        synchronized (lock) {
            if (!begin()) {
                Arrays.fill(slots, NONE);
                return false;
            }
            boolean reserved = false;
            boolean isWhole = false;
            try {
                reserved = reserveLocked(keys, slots);
                isWhole = true;
            } catch (IndexOutOfBoundsException e) {
                mend(e, slots);
                Arrays.fill(slots, NONE);
                isWhole = true;
            } finally {
                finish(isWhole);
            }
            if (!reserved) {
                record.reservationFailed();
            }
            return reserved;
        }
    }

    @GuardedBy("lock")
    private boolean reserveLocked(List<BlockHash> keys, int[] slots) {
        reservation++;
        int wanted = 0;
        for (int i = 0; i < keys.size(); i++) {
            slots[i] = isThere(keys.get(i)) ? NONE : WANTED;
            wanted += slots[i] == WANTED ? 1 : 0;
        }
        if (wanted == 0) {
            return true;
        }
        if (wanted > table.slots()) {
            Arrays.fill(slots, NONE);
            return false;
        }
        long learnt = policy.state();
        for (int i = keys.size() - 1; i >= 0; i--) {
            if (slots[i] == WANTED) {
                policy.miss(keys.get(i));
            }
        }
        if (!makeRoom(wanted)) {
            policy.restore(learnt);
            Arrays.fill(slots, NONE);
            return false;
        }
        // A prefix is of use without its end, not the other way round: its first value goes last.
        for (int i = keys.size() - 1; i >= 0; i--) {
            if (slots[i] == WANTED) {
                int slot = lists.removeFirst(EvictionPolicy.FREE);
                if (SlotTable.state(table.word(slot)) != SlotTable.FREE) {
                    throw new IndexOutOfBoundsException("slot " + slot + " in the list of free slots has a value");
                }
                slots[i] = slot;
                table.setFiller(slot, slab.place());
                table.setWord(slot, SlotTable.renewed(SlotTable.FILLING, table.word(slot)));
                index.add(slot, keys.get(i));
                policy.insert(slot);
            }
        }
        synchronized (this) {
            filling += wanted;
        }
        record.reserved(wanted);
        return true;
    }

    /** Whether a value is there or being filled; then it is not evicted for this reservation. */
    @GuardedBy("lock")
    private boolean isThere(BlockHash key) {
        int slot = index.find(key);
        if (slot == NONE) {
            return false;
        }
        if (SlotTable.state(table.word(slot)) == SlotTable.FILLING && table.filler(slot) != slab.place()) {
            long alive = slab.alive();
            if (!isFilledByLiving(slot, alive)) {
                reap(alive);
                return false;
            }
        }
        asked[slot] = reservation;
        return true;
    }

    @GuardedBy("lock")
    private boolean makeRoom(int wanted) {
        int missing = wanted - freeSlots();
        if (missing > 0 && !evict(missing)) {
            if (!slab.isShared()) {
                return false;
            }
            reap(slab.alive());
            missing = wanted - freeSlots();
            return missing <= 0 || evict(missing);
        }
        return true;
    }

    private int freeSlots() {
        return Objects.checkIndex(lists.size(EvictionPolicy.FREE), table.slots() + 1);
    }

    /** Evicts so many, or none. */
    @GuardedBy("lock")
    private boolean evict(int count) {
        if (victims.length < count) {
            victims = new int[Math.max(count, 2 * victims.length)];
        }
        int[] selected = victims;
        int[] lastAsked = asked;
        int current = reservation;
        // A list that is damaged may have no end.
        int[] tries = new int[1];
        IntPredicate canGo = slot ->
                Objects.checkIndex(tries[0]++, lastAsked.length) >= 0 && lastAsked[slot] != current && take(slot);
        int found = policy.select(count, canGo, selected);
        if (found < count) {
            for (int i = 0; i < found; i++) {
                table.setWord(selected[i], SlotTable.in(SlotTable.PRESENT, table.word(selected[i])));
            }
            return false;
        }
        List<BlockHash> keys = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            int slot = selected[i];
            if (record.keepsEvents()) {
                keys.add(index.key(slot));
            }
            policy.evict(slot);
            setFree(slot);
            index.remove(slot);
            lists.addLast(EvictionPolicy.FREE, slot);
        }
        record.add(keys, false);
        return true;
    }

    private boolean take(int slot) {
        long word = table.word(slot);
        return SlotTable.state(word) == SlotTable.PRESENT
                && !SlotTable.isPinned(word)
                && table.change(slot, word, SlotTable.in(SlotTable.EVICTING, word));
    }

    /** A slot is filled; the caller reports it by {@link #stored}. */
    void commit(int slot, boolean hasChecksum, int crc32c) {
        requireFilledHere(slot);
        long word = table.word(slot);
        table.setChecksum(slot, hasChecksum, crc32c);
        if (!table.change(slot, word, SlotTable.in(SlotTable.PRESENT, word))) {
            throw new IllegalStateException("slot=" + slot + " was changed while it was filled");
        }
        synchronized (this) {
            filling--;
        }
    }

    /** @throws IllegalStateException if this process does not fill the slot */
    private void requireFilledHere(int slot) {
        if (SlotTable.state(table.word(slot)) != SlotTable.FILLING || table.filler(slot) != slab.place()) {
            throw new IllegalStateException("slot=" + slot + " is not being filled by this process");
        }
    }

    /** Slots that this process has pinned or is filling. */
    synchronized int inUse() {
        return pinned + filling;
    }

    void stored(List<BlockHash> keys) {
        record.add(keys, true);
    }

    void abort(int slot) {
        requireFilledHere(slot);
        synchronized (this) {
            filling--;
            aborted.add(slot);
        }
        synchronized (lock) {
            // Otherwise it is freed by the next one that gets the lock; it is not worth waiting for.
            if (slab.tryLock()) {
                begun();
                finish(true);
            }
        }
    }

    /** Removes a value, unless it is pinned. */
    void discard(int slot, BlockHash key) {
        synchronized (lock) {
            if (!begin()) {
                return;
            }
            boolean isWhole = false;
            try {
                if (index.isKey(slot, key) && take(slot)) {
                    record.add(List.of(key), false);
                    free(slot);
                }
                isWhole = true;
            } catch (IndexOutOfBoundsException e) {
                mend(e);
                isWhole = true;
            } finally {
                finish(isWhole);
            }
        }
    }

    /** As {@link baton.store.ValueCache#reset}. */
    boolean reset() {
        synchronized (lock) {
            if (!begin()) {
                return false;
            }
            boolean isWhole = false;
            try {
                // Index and lists may be damaged, and dead processes have pins.
                repair();
                List<BlockHash> removed = new ArrayList<>();
                for (int slot = 0; slot < table.slots(); slot++) {
                    if (take(slot)) {
                        removed.add(index.key(slot));
                        free(slot);
                    }
                }
                policy.forget();
                record.add(removed, false);
                isWhole = true;
                return used() == 0;
            } finally {
                finish(isWhole);
            }
        }
    }

    /** Drops this process's pins and fills. */
    void detach() {
        synchronized (lock) {
            if (slab.isShared() && begin()) {
                try {
                    reap(slab.alive() & ~ownPin);
                } catch (IndexOutOfBoundsException e) {
                    mend(e);
                }
                finish(true);
            }
        }
    }

    List<StoreEvent> takeEvents() {
        return record.takeEvents();
    }

    /** Measurements by vLLM's names: the part in use cannot be evicted. */
    synchronized List<Measurement> takeMeasurements() {
        List<Measurement> taken = record.takeMeasurements();
        taken.add(share("vllm:kv_offload_cpu_cache_usage_perc", pinned + filling));
        taken.add(share("vllm:kv_offload_cpu_cache_write_usage_perc", filling));
        taken.add(share("vllm:kv_offload_cpu_cache_read_usage_perc", pinned));
        taken.add(share("baton:kv_store_cpu_occupied_perc", used()));
        return taken;
    }

    private Measurement share(String name, int count) {
        return new Measurement(name, Measurement.Kind.GAUGE, (double) count / table.slots(), Map.of());
    }
}
