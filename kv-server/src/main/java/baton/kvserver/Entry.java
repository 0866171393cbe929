package baton.kvserver;

import baton.store.lm.LmMetadata;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.jspecify.annotations.Nullable;

/** A value, or one that is coming. All fields that change belong to the {@link Cache}'s monitor, but for its bytes. */
final class Entry {
    private static final byte[] NONE = {};

    /** The key; absent if it is in {@link #scope}. */
    private final byte[] text;

    /** The parts of the key beside its four numbers; null if the key has another form. */
    final @Nullable Scope scope;

    final long a;
    final long b;
    final long c;
    final long d;
    final long hash;
    final LmMetadata metadata;
    final int length;

    /** Runs of units with its bytes, see {@link Extents}. */
    private long[] runs = new long[1];

    private int runCount;
    private long room;

    /** Readers of its bytes, and one if it is in memory. Its units are free when there are none. */
    int users;

    /** Whether a look-up finds it. */
    boolean indexed;

    /** Whether its bytes are in memory, complete. */
    boolean resident;

    /** The number of the entry's file; 0 if it is in none. */
    long file;

    /** Whether it is being written to a file. */
    boolean spilling;

    /** Waiting until it is in memory; null if it is not being loaded. */
    @Nullable
    List<Runnable> loading;

    @Nullable
    Entry nextInBucket;

    /** Neighbours in the order of use: of values in memory, or of those that are in files only. */
    @Nullable
    Entry older;

    @Nullable
    Entry newer;

    Entry(byte[] text, long hash, LmMetadata metadata, int length) {
        this.text = text;
        this.scope = null;
        a = 0;
        b = 0;
        c = 0;
        d = 0;
        this.hash = hash;
        this.metadata = metadata;
        this.length = length;
    }

    /** @param scope the one that the cache has for this scope */
    Entry(Scope scope, Scope.Key key, long hash, LmMetadata metadata, int length) {
        this.text = NONE;
        this.scope = scope;
        a = key.a();
        b = key.b();
        c = key.c();
        d = key.d();
        this.hash = hash;
        this.metadata = metadata;
        this.length = length;
    }

    byte[] key() {
        return scope == null ? text : scope.text(a, b, c, d);
    }

    boolean isFor(byte[] other, int bytes, long otherHash) {
        return hash == otherHash && scope == null && Arrays.equals(text, 0, text.length, other, 0, bytes);
    }

    @SuppressWarnings("ReferenceEquality") // there is one object for a scope
    boolean isFor(Scope otherScope, long otherA, long otherB, long otherC, long otherD) {
        return a == otherA && b == otherB && c == otherC && d == otherD && scope == otherScope;
    }

    /** Bytes that its units have. */
    long room() {
        return room;
    }

    void add(long run) {
        if (runCount > 0) {
            long last = runs[runCount - 1];
            if (Extents.first(last) + Extents.count(last) == Extents.first(run)) {
                runs[runCount - 1] = Extents.run(Extents.first(last), Extents.count(last) + Extents.count(run));
                room += (long) Extents.count(run) * Cache.UNIT;
                return;
            }
        }
        if (runCount == runs.length) {
            runs = Arrays.copyOf(runs, 2 * runCount);
        }
        runs[runCount++] = run;
        room += (long) Extents.count(run) * Cache.UNIT;
    }

    void giveBack(Extents extents) {
        for (int i = 0; i < runCount; i++) {
            extents.give(runs[i]);
        }
        runs = new long[1];
        runCount = 0;
        room = 0;
    }

    /** Its bytes from some offset on, as far as they have room, each piece contiguous. */
    List<MemorySegment> bytes(MemorySegment memory, long from) {
        List<MemorySegment> pieces = new ArrayList<>(runCount);
        long at = 0;
        for (int i = 0; i < runCount; i++) {
            long bytes = Math.min((long) Extents.count(runs[i]) * Cache.UNIT, length - at);
            long skip = Math.clamp(from - at, 0, bytes);
            if (bytes > skip) {
                pieces.add(memory.asSlice((long) Extents.first(runs[i]) * Cache.UNIT + skip, bytes - skip));
            }
            at += bytes;
        }
        return pieces;
    }
}
