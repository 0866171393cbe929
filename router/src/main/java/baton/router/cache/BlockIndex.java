package baton.router.cache;

import baton.messages.events.ExtraKeys;
import baton.messages.events.ReceivedKvEvent;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.util.ArrayList;
import java.util.List;

/**
 * The blocks that one publisher's caches hold. An entry has the publisher's hash of a block, the router's ({@link TokenChain}) and the places (medium,
 * KV cache group, tier) where the block is. Removals name the publisher's hash only; prompts are looked up by the router's. Both are found by open
 * addressing in arrays of primitives: about 43 bytes for each block when a table is about to grow, 86 after that.
 *
 * <p>Blocks of unknown parents are left out, as their own hash cannot be known; so are those of sliding windows and states, which do not
 * make a prefix. Blocks without room are left out, too. Any thread; a lock for each table, held for one event or one look-up.
 */
public final class BlockIndex {
    private static final int LEAST = 1 << 10;
    private static final int MOST_PLACES = 31;
    private static final int MOST_SIZES = 4;

    private final IndexBudget budget;

    /** The blocks by the publisher's hash; 0 is a free place. The key of a hash 0 is {@link #ZERO}. */
    @GuardedBy("this")
    private long[] keys = new long[0];

    @GuardedBy("this")
    private long[] hashes = new long[0];

    /** Bit i: the block is in {@link #placeNames} i. */
    @GuardedBy("this")
    private int[] places = new int[0];

    @GuardedBy("this")
    private int size;

    /** The router's hashes, and how many entries have each. */
    @GuardedBy("this")
    private long[] held = new long[0];

    @GuardedBy("this")
    private int[] holders = new int[0];

    @GuardedBy("this")
    private int heldSize;

    @GuardedBy("this")
    private final List<String> placeNames = new ArrayList<>(4);

    @GuardedBy("this")
    private final List<Span> spans = new ArrayList<>(MOST_SIZES);

    @GuardedBy("this")
    private long leftOut;

    /** Tokens of a block, and those behind it that its hash covers, as vLLM's do for drafts of EAGLE. */
    private record Span(int block, int lookahead) {}

    private static final long ZERO = 0x5DEECE66D1234567L;
    private static final long SPREAD = 0x9E3779B97F4A7C15L;

    public BlockIndex(IndexBudget budget) {
        this.budget = budget;
    }

    /** How many tokens from the front of a prompt are in whole blocks that are held. */
    public synchronized int known(TokenChain prompt) {
        int most = 0;
        for (Span span : spans) {
            long[] chain = prompt.hashes(span.block, span.lookahead);
            int blocks = 0;
            while (blocks < chain.length && isHeld(chain[blocks])) {
                blocks++;
            }
            most = Math.max(most, blocks * span.block);
        }
        return most;
    }

    /** Blocks that are held somewhere. */
    public synchronized int size() {
        return size;
    }

    /** The number of stored blocks that were left out: of an unknown parent, or without room. */
    public synchronized long leftOut() {
        return leftOut;
    }

    /** Bytes of the arrays. */
    public synchronized long bytes() {
        return 20L * keys.length + 12L * held.length;
    }

    public void apply(ReceivedKvEvent event) {
        switch (event) {
            case ReceivedKvEvent.Stored stored -> store(stored);
            case ReceivedKvEvent.Removed removed -> remove(removed);
            case ReceivedKvEvent.Cleared _ -> clear();
        }
    }

    private synchronized void store(ReceivedKvEvent.Stored event) {
        if (!makesPrefix(event.kind())) {
            return;
        }
        int bit = place(event.place());
        if (bit == 0) {
            return;
        }
        Span span = new Span(event.blockSize(), event.lookahead());
        int hashed = span.block + span.lookahead;
        boolean told = event.tokens().length >= (long) hashed * event.hashes().length;
        if (told && !spans.contains(span)) {
            if (spans.size() == MOST_SIZES) {
                leftOut += event.hashes().length;
                return;
            }
            spans.add(span);
        }
        long own = TokenChain.ROOT;
        if (event.parent().isPresent()) {
            own = hash(key(event.parent().getAsLong()));
        }
        for (int i = 0; i < event.hashes().length; i++) {
            long key = key(event.hashes()[i]);
            int at = keys.length == 0 ? -1 : find(key);
            if (at >= 0 && keys[at] == key) {
                places[at] |= bit;
                own = hashes[at];
                continue;
            }
            // 0 stands for a parent that is not known.
            if (!told || own == 0) {
                leftOut++;
                own = 0;
                continue;
            }
            long extra = i < event.extra().length ? event.extra()[i] : ofLora(event);
            own = TokenChain.next(own, event.tokens(), i * hashed, hashed, extra);
            if (!add(key, own, bit)) {
                leftOut++;
                own = 0;
            }
        }
    }

    private static long ofLora(ReceivedKvEvent.Stored event) {
        return event.lora().isEmpty() || event.extra().length > 0 ? 0 : ExtraKeys.of(List.of(event.lora()));
    }

    /**
     * Whether blocks of this kind make a prefix. Whether blocks of this kind make a prefix. Of a sliding window or a state only the end is
     * kept.
     */
    private static boolean makesPrefix(String kind) {
        return switch (kind) {
            case "sliding_window",
                    "sliding_window_mla",
                    "mamba",
                    "chunked_local_attention",
                    "encoder_only_attention",
                    "cross_attention" -> false;
            default -> true;
        };
    }

    private synchronized void remove(ReceivedKvEvent.Removed event) {
        int index = placeNames.indexOf(event.place());
        if (index < 0) {
            return;
        }
        int bit = 1 << index;
        for (long each : event.hashes()) {
            long key = key(each);
            int at = keys.length == 0 ? -1 : find(key);
            if (at < 0 || keys[at] != key) {
                continue;
            }
            places[at] &= ~bit;
            if (places[at] == 0) {
                release(hashes[at]);
                delete(at);
            }
        }
    }

    /** Forgets everything, and gives its memory back. */
    public synchronized void clear() {
        budget.giveBack(capacity(keys.length));
        keys = new long[0];
        hashes = new long[0];
        places = new int[0];
        held = new long[0];
        holders = new int[0];
        size = 0;
        heldSize = 0;
        spans.clear();
    }

    /** The place's bit; 0 if there are too many. */
    @GuardedBy("this")
    private int place(String name) {
        int index = placeNames.indexOf(name);
        if (index < 0) {
            if (placeNames.size() == MOST_PLACES) {
                return 0;
            }
            index = placeNames.size();
            placeNames.add(name);
        }
        return 1 << index;
    }

    private static long key(long hash) {
        return hash == 0 ? ZERO : hash;
    }

    /** The router's hash of an entry; 0 if there is none. */
    @GuardedBy("this")
    private long hash(long key) {
        if (keys.length == 0) {
            return 0;
        }
        int at = find(key);
        return keys[at] == key ? hashes[at] : 0;
    }

    @GuardedBy("this")
    private boolean add(long key, long own, int bit) {
        if (size >= capacity(keys.length) && !grow()) {
            return false;
        }
        int at = find(key);
        keys[at] = key;
        hashes[at] = own;
        places[at] = bit;
        size++;
        retain(own);
        return true;
    }

    /** Entries in arrays of that length: three quarters. */
    private static long capacity(int length) {
        return length / 4 * 3L;
    }

    @GuardedBy("this")
    private boolean grow() {
        int length = Math.max(LEAST, keys.length * 2);
        if (length < keys.length || !budget.take(capacity(length) - capacity(keys.length))) {
            return false;
        }
        long[] oldKeys = keys;
        long[] oldHashes = hashes;
        int[] oldPlaces = places;
        keys = new long[length];
        hashes = new long[length];
        places = new int[length];
        for (int i = 0; i < oldKeys.length; i++) {
            if (oldKeys[i] != 0) {
                int at = find(oldKeys[i]);
                keys[at] = oldKeys[i];
                hashes[at] = oldHashes[i];
                places[at] = oldPlaces[i];
            }
        }
        long[] oldHeld = held;
        int[] oldHolders = holders;
        held = new long[length];
        holders = new int[length];
        for (int i = 0; i < oldHeld.length; i++) {
            if (oldHeld[i] != 0) {
                int at = findHeld(oldHeld[i]);
                held[at] = oldHeld[i];
                holders[at] = oldHolders[i];
            }
        }
        return true;
    }

    private static int slot(long key, int length) {
        return (int) (key * SPREAD >>> 33) & (length - 1);
    }

    /** Where the key is, or where it would be put. */
    @GuardedBy("this")
    private int find(long key) {
        int mask = keys.length - 1;
        int at = slot(key, keys.length);
        while (keys[at] != 0 && keys[at] != key) {
            at = at + 1 & mask;
        }
        return at;
    }

    @GuardedBy("this")
    private int findHeld(long hash) {
        int mask = held.length - 1;
        int at = slot(hash, held.length);
        while (held[at] != 0 && held[at] != hash) {
            at = at + 1 & mask;
        }
        return at;
    }

    /** Frees a place, and moves entries back that would not be found behind it. */
    @GuardedBy("this")
    private void delete(int place) {
        int mask = keys.length - 1;
        int free = place;
        int at = place + 1 & mask;
        while (keys[at] != 0) {
            if ((at - slot(keys[at], keys.length) & mask) >= (at - free & mask)) {
                keys[free] = keys[at];
                hashes[free] = hashes[at];
                places[free] = places[at];
                free = at;
            }
            at = at + 1 & mask;
        }
        keys[free] = 0;
        size--;
    }

    @GuardedBy("this")
    private boolean isHeld(long hash) {
        return held.length > 0 && held[findHeld(hash)] == hash;
    }

    @GuardedBy("this")
    private void retain(long hash) {
        int at = findHeld(hash);
        if (held[at] == 0) {
            held[at] = hash;
            heldSize++;
        }
        holders[at]++;
    }

    @GuardedBy("this")
    private void release(long hash) {
        int place = findHeld(hash);
        if (held[place] != hash) {
            return;
        }
        if (--holders[place] != 0) {
            return;
        }
        int mask = held.length - 1;
        int free = place;
        int at = place + 1 & mask;
        while (held[at] != 0) {
            if ((at - slot(held[at], held.length) & mask) >= (at - free & mask)) {
                held[free] = held[at];
                holders[free] = holders[at];
                free = at;
            }
            at = at + 1 & mask;
        }
        held[free] = 0;
        holders[free] = 0;
        heldSize--;
    }

    @Override
    public synchronized String toString() {
        return size + " blocks of " + spans + ", " + heldSize + " different";
    }
}
