package baton.kvserver;

import baton.memory.MappableMemory;
import baton.store.lm.LmMetadata;
import baton.store.lm.ServerMemory;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ThreadLocalRandom;
import org.jspecify.annotations.Nullable;

/**
 * Values by their keys, in memory of a fixed size, in the order of their use; the least recently used ones go first. With files behind it,
 * values are written to them before they go, as memory gets short. Thread-safe: a value's bytes are used without the monitor by those that
 * hold the value, and its memory is not given to another one until the last of them has let go.
 */
final class Cache implements AutoCloseable {
    /** Bytes of a unit of memory. */
    static final int UNIT = 4096;

    /** Free share of the memory below which values are written to files ahead of their eviction. */
    private static final int SPILL_BELOW = 4;

    private static final int SPILLS = 2;

    /** The limit of values that are examined to find one that can be evicted. */
    private static final int MOST_LOOKED_AT = 4096;

    /** Keys of a batch. */
    private static final int LOOKED_UP_TOGETHER = 32;

    /** Scopes beyond them are keys as any other. */
    private static final int MOST_SCOPES = 1024;

    /** Whether there is room. */
    enum Room {
        TAKEN,
        /** There will be some when a value has been written to a file. */
        LATER,
        NONE
    }

    private final Arena arena = Arena.ofShared();
    private final MemorySegment memory;
    private final Optional<byte[]> description;
    private final Counters counters;
    private final Optional<Files> files;
    private final long seed = ThreadLocalRandom.current().nextLong();

    /** Units that values may have that are coming. */
    private final int mostComing;

    @GuardedBy("this")
    private final Extents extents;

    @GuardedBy("this")
    private @Nullable Entry[] buckets = new Entry[1024];

    /** Scopes of keys that have come; none goes, so that a key is always looked for in the same way. */
    @GuardedBy("this")
    private final Map<Scope, Scope> scopes = new HashMap<>();

    @GuardedBy("this")
    private int indexed;

    @GuardedBy("this")
    private int resident;

    @GuardedBy("this")
    private @Nullable Entry oldest;

    @GuardedBy("this")
    private @Nullable Entry newest;

    @GuardedBy("this")
    private long coming;

    @GuardedBy("this")
    private int spills;

    @GuardedBy("this")
    private final ArrayDeque<Runnable> awaitingRoom = new ArrayDeque<>();

    /** Whether room was wanted that values in use keep. */
    private volatile boolean starved;

    private volatile boolean closed;

    /** @throws IllegalStateException if the system has not that much memory */
    Cache(long bytes, Optional<Files> files, Counters counters) {
        int units = Math.toIntExact(bytes / UNIT);
        this.counters = counters;
        this.files = files;
        extents = new Extents(units);
        mostComing = units / 2;
        long size = (long) units * UNIT;
        try {
            if (MappableMemory.whyNone().isEmpty()) {
                MappableMemory mappable = MappableMemory.allocate(arena, size, "kv-server");
                memory = mappable.memory();
                description = ServerMemory.describe(mappable);
            } else {
                memory = arena.allocate(size, UNIT);
                description = Optional.empty();
            }
        } catch (IllegalStateException | OutOfMemoryError e) {
            arena.close();
            throw e;
        }
        files.ifPresent(each -> each.found().forEach(this::add));
    }

    /** A value that was found in a file. */
    private synchronized void add(Files.Found found) {
        Entry entry = entry(found.key(), found.metadata(), found.length());
        entry.file = found.number();
        index(entry);
        files.orElseThrow().keep(entry);
    }

    /** Mixes eight bytes at a time with a seed that clients do not know. */
    private long hash(byte[] key, int bytes) {
        long hash = seed ^ bytes;
        int at = 0;
        for (; at + 8 <= bytes; at += 8) {
            long word = (long) Words.LITTLE.get(key, at);
            hash = (hash ^ word) * 0x9e3779b97f4a7c15L;
            hash ^= hash >>> 32;
        }
        for (; at < bytes; at++) {
            hash = (hash ^ key[at]) * 0xff51afd7ed558ccdL;
        }
        hash = (hash ^ seed) * 0xc4ceb9fe1a85ec53L;
        return hash ^ hash >>> 29;
    }

    private static long hash(long seed, long a, long b, long c, long d) {
        long hash = (seed ^ a) * 0x9e3779b97f4a7c15L;
        hash = (hash ^ hash >>> 32 ^ b) * 0xff51afd7ed558ccdL;
        hash = (hash ^ hash >>> 32 ^ c) * 0xc4ceb9fe1a85ec53L;
        hash = (hash ^ hash >>> 32 ^ d) * 0x9e3779b97f4a7c15L;
        return hash ^ hash >>> 29;
    }

    /** One for a key, which it has the scope of from now on. */
    @GuardedBy("this")
    private Entry entry(byte[] key, LmMetadata metadata, int length) {
        Optional<Scope.Key> parsed = Scope.parse(key, key.length);
        if (parsed.isPresent()) {
            Scope.Key words = parsed.get();
            Scope scope = scopes.get(words.scope());
            if (scope == null && scopes.size() < MOST_SCOPES) {
                scope = words.scope();
                scopes.put(scope, scope);
            }
            if (scope != null) {
                long hash = hash(seed, words.a(), words.b(), words.c(), words.d());
                return new Entry(scope, words, hash, metadata, length);
            }
        }
        return new Entry(key, hash(key, key.length), metadata, length);
    }

    @GuardedBy("this")
    private int bucket(long hash) {
        return (int) (hash & buckets.length - 1);
    }

    @GuardedBy("this")
    private @Nullable Entry find(byte[] key, int bytes) {
        Optional<Scope.Key> parsed = Scope.parse(key, bytes);
        if (parsed.isPresent()) {
            Scope.Key words = parsed.get();
            Scope scope = scopes.get(words.scope());
            if (scope != null) {
                return find(scope, words.a(), words.b(), words.c(), words.d());
            }
        }
        long hash = hash(key, bytes);
        Entry entry = buckets[bucket(hash)];
        while (entry != null && !entry.isFor(key, bytes, hash)) {
            entry = entry.nextInBucket;
        }
        return entry;
    }

    @GuardedBy("this")
    private @Nullable Entry find(Scope scope, long a, long b, long c, long d) {
        Entry entry = buckets[bucket(hash(seed, a, b, c, d))];
        while (entry != null && !entry.isFor(scope, a, b, c, d)) {
            entry = entry.nextInBucket;
        }
        return entry;
    }

    /** The cache's number of a scope; empty if it has no key of it. */
    synchronized Optional<Scope> known(Scope scope) {
        return Optional.ofNullable(scopes.get(scope));
    }

    /**
     * As {@link #contains(byte[], int)}, of many keys of a {@link #known} scope.
     *
     * @param words the four numbers of each key, one key after the other
     * @param bits get a bit for each that is there, the lowest of a byte first
     * @param firstBit for the first key
     * @return how many are there
     */
    synchronized int contains(Scope scope, long[] words, int keys, byte[] bits, int firstBit) {
        int hits = 0;
        @Nullable Entry[] first = new Entry[Math.min(keys, LOOKED_UP_TOGETHER)];
        for (int from = 0; from < keys; from += LOOKED_UP_TOGETHER) {
            int count = Math.min(LOOKED_UP_TOGETHER, keys - from);
            // Asks for the memory of all of these before it compares the first.
            for (int i = 0, at = from * Scope.HASH_WORDS; i < count; i++, at += Scope.HASH_WORDS) {
                first[i] = buckets[bucket(hash(seed, words[at], words[at + 1], words[at + 2], words[at + 3]))];
            }
            for (int i = 0, at = from * Scope.HASH_WORDS; i < count; i++, at += Scope.HASH_WORDS) {
                Entry entry = first[i];
                while (entry != null && !entry.isFor(scope, words[at], words[at + 1], words[at + 2], words[at + 3])) {
                    entry = entry.nextInBucket;
                }
                if (entry != null) {
                    int bit = firstBit + from + i;
                    bits[bit >>> 3] |= (byte) (1 << (bit & 7));
                    hits++;
                }
            }
        }
        return hits;
    }

    @GuardedBy("this")
    private void index(Entry entry) {
        byte[] key = entry.key();
        Entry old = find(key, key.length);
        if (old != null) {
            forget(old);
        }
        if (indexed > buckets.length * 3 / 4) {
            grow();
        }
        int bucket = bucket(entry.hash);
        entry.nextInBucket = buckets[bucket];
        buckets[bucket] = entry;
        entry.indexed = true;
        indexed++;
    }

    @GuardedBy("this")
    private void grow() {
        @Nullable Entry[] old = buckets;
        buckets = new Entry[2 * old.length];
        for (Entry first : old) {
            for (Entry entry = first; entry != null; ) {
                Entry next = entry.nextInBucket;
                int bucket = bucket(entry.hash);
                entry.nextInBucket = buckets[bucket];
                buckets[bucket] = entry;
                entry = next;
            }
        }
    }

    /** Look-ups do not find it any more, and its memory and file go. */
    @GuardedBy("this")
    private void forget(Entry entry) {
        if (entry.indexed) {
            int bucket = bucket(entry.hash);
            Entry before = buckets[bucket];
            if (entry.equals(before)) {
                buckets[bucket] = entry.nextInBucket;
            } else {
                while (before != null && !entry.equals(before.nextInBucket)) {
                    before = before.nextInBucket;
                }
                if (before != null) {
                    before.nextInBucket = entry.nextInBucket;
                }
            }
            entry.nextInBucket = null;
            entry.indexed = false;
            indexed--;
        }
        dropFromMemory(entry);
        if (entry.file != 0) {
            files.orElseThrow().discard(entry);
        }
    }

    @GuardedBy("this")
    private void dropFromMemory(Entry entry) {
        if (entry.resident) {
            entry.resident = false;
            resident--;
            unlink(entry);
            release(entry);
        }
    }

    @GuardedBy("this")
    private void link(Entry entry) {
        entry.older = newest;
        entry.newer = null;
        if (newest == null) {
            oldest = entry;
        } else {
            newest.newer = entry;
        }
        newest = entry;
    }

    @GuardedBy("this")
    private void unlink(Entry entry) {
        Entry older = entry.older;
        Entry newer = entry.newer;
        if (older == null) {
            oldest = newer;
        } else {
            older.newer = newer;
        }
        if (newer == null) {
            newest = older;
        } else {
            newer.older = older;
        }
        entry.older = null;
        entry.newer = null;
    }

    /** Whether a value is there. Does not count as a use. */
    synchronized boolean contains(byte[] key, int bytes) {
        return find(key, bytes) != null;
    }

    /**
     * Finds a value and holds it, which counts as a use. If it is not in memory, {@link #load} brings it there. {@link #release} must
     * follow.
     *
     * @return empty if it is not there
     */
    synchronized Optional<Entry> hold(byte[] key, int bytes) {
        Entry entry = find(key, bytes);
        if (entry == null) {
            return Optional.empty();
        }
        entry.users++;
        if (entry.resident) {
            unlink(entry);
            link(entry);
        }
        return Optional.of(entry);
    }

    /** Whether a value that is held is in memory. */
    synchronized boolean isResident(Entry entry) {
        return entry.resident;
    }

    /** Ends a {@link #hold}. */
    synchronized void release(Entry entry) {
        entry.users--;
        if (entry.users == 0) {
            entry.giveBack(extents);
            starved = false;
            wakeForRoom();
        }
    }

    /** The bytes of a value that is held, or is coming. */
    List<MemorySegment> bytes(Entry entry, long from) {
        return entry.bytes(memory, from);
    }

    /** How processes of this host map the memory; empty if they cannot. */
    Optional<byte[]> description() {
        return description;
    }

    /** Where bytes of a value are in the memory. */
    long offset(MemorySegment piece) {
        return piece.address() - memory.address();
    }

    /** Begins a value that is coming; {@link #commit} or {@link #abort} must follow. */
    synchronized Entry begin(byte[] key, LmMetadata metadata, int length) {
        Entry entry = entry(key, metadata, length);
        entry.users = 1;
        return entry;
    }

    /**
     * Takes more memory for a value that is coming, and lets other ones go for it.
     *
     * @param wanted bytes; it may be fewer
     * @param force whether values go that are in no file, although they could be written to one
     */
    synchronized Room more(Entry entry, long wanted, boolean force) {
        int units = (int) Math.ceilDiv(wanted, UNIT);
        if (coming + units > mostComing) {
            starved = true;
            return Room.NONE;
        }
        long run = extents.take(units);
        while (run == 0) {
            Room room = evict(force);
            if (room == Room.NONE && !force) {
                room = evict(true);
            }
            if (room != Room.TAKEN) {
                starved |= room == Room.NONE;
                return room;
            }
            run = extents.take(units);
        }
        coming += Extents.count(run);
        entry.add(run);
        return Room.TAKEN;
    }

    @GuardedBy("this")
    private Room evict(boolean force) {
        boolean later = false;
        int looked = 0;
        for (Entry entry = oldest; entry != null && looked < MOST_LOOKED_AT; entry = entry.newer) {
            looked++;
            if (entry.users > 1) {
                later |= entry.spilling;
                continue;
            }
            if (files.isPresent() && entry.file == 0 && !force) {
                later = true;
                continue;
            }
            counters.evicted(entry.file == 0);
            if (entry.file == 0) {
                forget(entry);
            } else {
                dropFromMemory(entry);
            }
            return Room.TAKEN;
        }
        if (later && files.isPresent()) {
            spill();
            return spills > 0 ? Room.LATER : Room.NONE;
        }
        return Room.NONE;
    }

    /** Runs something once when there may be room again, at once if a value is given back already. */
    synchronized void whenRoom(Runnable action) {
        if (spills == 0) {
            action.run();
        } else {
            awaitingRoom.add(action);
        }
    }

    @GuardedBy("this")
    private void wakeForRoom() {
        while (!awaitingRoom.isEmpty()) {
            awaitingRoom.removeFirst().run();
        }
    }

    /** A value is complete: look-ups find it instead of one that was there. */
    synchronized void commit(Entry entry) {
        arrived(entry);
        index(entry);
        counters.stored(entry.length);
        if (files.isPresent() && extents.free() < extents.units() / SPILL_BELOW) {
            spill();
        }
    }

    @GuardedBy("this")
    private void arrived(Entry entry) {
        coming -= entry.room() / UNIT;
        entry.resident = true;
        resident++;
        link(entry);
    }

    /** A value does not become complete. */
    synchronized void abort(Entry entry) {
        coming -= entry.room() / UNIT;
        release(entry);
    }

    /** Writes values to files that will be evicted soon. */
    @GuardedBy("this")
    private void spill() {
        int looked = 0;
        for (Entry entry = oldest; entry != null && spills < SPILLS && looked < MOST_LOOKED_AT; entry = entry.newer) {
            looked++;
            if (entry.file != 0
                    || entry.spilling
                    || closed
                    || !files.orElseThrow().fits(entry)) {
                continue;
            }
            Entry chosen = entry;
            chosen.spilling = true;
            chosen.users++;
            spills++;
            boolean accepted =
                    files.orElseThrow().write(chosen, chosen.bytes(memory, 0), number -> spilled(chosen, number));
            if (!accepted) {
                chosen.spilling = false;
                chosen.users--;
                spills--;
                return;
            }
        }
    }

    /** @param number of the file; 0 if it could not be written */
    private synchronized void spilled(Entry entry, long number) {
        entry.spilling = false;
        spills--;
        Files to = files.orElseThrow();
        if (number != 0) {
            entry.file = number;
            to.keep(entry);
            if (!entry.indexed) {
                to.discard(entry);
            }
        } else if (entry.resident && entry.users == 2) {
            // The device is full or broken: the value goes when its memory is needed, as without files.
            counters.evicted(true);
            forget(entry);
        }
        release(entry);
        for (Entry last : to.overflowing()) {
            to.discard(last);
            if (last.indexed && !last.resident) {
                forget(last);
            }
        }
        if (extents.free() < extents.units() / SPILL_BELOW) {
            spill();
        }
        wakeForRoom();
    }

    /**
     * Brings a value into memory that is held and is in a file.
     *
     * @param then runs once, on any thread, when it is there or cannot be
     */
    synchronized void load(Entry entry, Runnable then) {
        if (entry.resident || entry.file == 0) {
            then.run();
            return;
        }
        if (entry.loading != null) {
            entry.loading.add(then);
            return;
        }
        List<Runnable> waiting = new ArrayList<>();
        waiting.add(then);
        entry.loading = waiting;
        entry.users++;
        while (entry.room() < entry.length) {
            if (more(entry, entry.length - entry.room(), true) != Room.TAKEN) {
                loaded(entry, false);
                return;
            }
        }
        if (!files.orElseThrow().read(entry, entry.bytes(memory, 0), good -> loaded(entry, good))) {
            loaded(entry, false);
        }
    }

    private synchronized void loaded(Entry entry, boolean good) {
        List<Runnable> waiting = entry.loading == null ? List.of() : entry.loading;
        entry.loading = null;
        if (good && entry.indexed && entry.file != 0) {
            arrived(entry);
            files.orElseThrow().keep(entry);
        } else {
            coming -= entry.room() / UNIT;
            entry.giveBack(extents);
            if (!good) {
                forget(entry);
            }
            release(entry);
        }
        waiting.forEach(Runnable::run);
    }

    /** Keys that were used last, at most so many, with a line end after each but the last. */
    synchronized byte[] list(int most) {
        byte[] text = new byte[4096];
        int length = 0;
        int left = most;
        for (Entry entry = newest; entry != null && left > 0; entry = entry.older) {
            byte[] key = entry.key();
            if (length + key.length + 1 > text.length) {
                text = Arrays.copyOf(text, 2 * text.length);
            }
            if (length > 0) {
                text[length++] = '\n';
            }
            System.arraycopy(key, 0, text, length, key.length);
            length += key.length;
            left--;
        }
        return Arrays.copyOf(text, length);
    }

    /** Whether clients that read slowly keep memory that is needed. */
    boolean isStarved() {
        return starved;
    }

    /**
     * Memory and files in use.
     *
     * @param values that look-ups find
     * @param resident those of them that are in memory
     * @param bytes of memory in use, of whole units
     * @param limit of these bytes
     */
    record Usage(int values, int resident, long bytes, long limit) {}

    synchronized Usage usage() {
        return new Usage(
                indexed, resident, (long) (extents.units() - extents.free()) * UNIT, (long) extents.units() * UNIT);
    }

    /** Gives the memory back, unless a file that hangs still uses it. Nothing else holds a value any more. */
    @Override
    public void close() {
        if (closed) {
            return;
        }
        closed = true;
        files.ifPresent(Files::close);
        if (files.isEmpty() || files.get().isQuiet()) {
            arena.close();
        }
    }
}
