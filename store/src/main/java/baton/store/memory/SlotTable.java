package baton.store.memory;

import baton.kv.BlockHash;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.VarHandle;

/**
 * The content of each slot: a record of 64 bytes {@code [key: 32 | word: 8 | checksum: 4 | filler: 4 | has checksum: 4 | pad: 12]}. The word decides:
 * {@code state: 2 bits | generation: 30 | pins: 32}, a pin bit for each process. It changes by compare-and-set only, and its
 * generation with each value, so a word that is as it was read means that the record is, too. So a record is right
 * whichever process dies when; everything else, as the index and lists, can be made from records.
 */
final class SlotTable {
    static final int FREE = 0;
    /** Its value is not there yet; {@link #filler} writes it. */
    static final int FILLING = 1;

    static final int PRESENT = 2;
    /** A present slot that is selected for eviction; the selection can be undone. */
    static final int EVICTING = 3;

    static final long RECORD = 64;

    private static final ValueLayout.OfInt INT = ValueLayout.JAVA_INT;
    private static final VarHandle WORD = ValueLayout.JAVA_LONG.varHandle();
    private static final long WORD_AT = KeyIndex.KEY_BYTES;
    private static final long CHECKSUM_AT = WORD_AT + 8;
    private static final long FILLER_AT = CHECKSUM_AT + 4;
    private static final long HAS_CHECKSUM_AT = FILLER_AT + 4;

    private static final int STATE_SHIFT = 62;
    private static final long GENERATION = 1L << 32;
    private static final long GENERATIONS = (1L << STATE_SHIFT) - GENERATION;
    private static final long PINS = GENERATION - 1;

    private final MemorySegment records;
    private final KeyIndex index;
    private final int slots;

    SlotTable(MemorySegment records, MemorySegment places) {
        this.records = records;
        this.index = new KeyIndex(places, records, RECORD);
        this.slots = Math.toIntExact(records.byteSize() / RECORD);
    }

    int slots() {
        return slots;
    }

    KeyIndex index() {
        return index;
    }

    long word(int slot) {
        return (long) WORD.getVolatile(records, slot * RECORD + WORD_AT);
    }

    boolean change(int slot, long from, long to) {
        return WORD.compareAndSet(records, slot * RECORD + WORD_AT, from, to);
    }

    static int state(long word) {
        return (int) (word >>> STATE_SHIFT);
    }

    static boolean isPinned(long word) {
        return (word & PINS) != 0;
    }

    /** The word of the same value in another state. */
    static long in(int state, long word) {
        return word & ~(3L << STATE_SHIFT) | (long) state << STATE_SHIFT;
    }

    /** The word of another value, without pins. */
    static long renewed(int state, long word) {
        return (long) state << STATE_SHIFT | (word + GENERATION & GENERATIONS);
    }

    static long pin(int place) {
        return 1L << place;
    }

    /** The word with some of its pins only. */
    static long withPins(long word, long pins) {
        return word & (~PINS | pins);
    }

    /** Sets a word whatever it was: for the one thread that repairs. */
    void setWord(int slot, long word) {
        WORD.setVolatile(records, slot * RECORD + WORD_AT, word);
    }

    /** The process that fills it. */
    int filler(int slot) {
        return records.get(INT, slot * RECORD + FILLER_AT);
    }

    void setFiller(int slot, int place) {
        records.set(INT, slot * RECORD + FILLER_AT, place);
    }

    boolean hasChecksum(int slot) {
        return records.get(INT, slot * RECORD + HAS_CHECKSUM_AT) != 0;
    }

    int checksum(int slot) {
        return records.get(INT, slot * RECORD + CHECKSUM_AT);
    }

    void setChecksum(int slot, boolean has, int crc32c) {
        records.set(INT, slot * RECORD + CHECKSUM_AT, crc32c);
        records.set(INT, slot * RECORD + HAS_CHECKSUM_AT, has ? 1 : 0);
    }

    /** Whether a slot has that value, complete. */
    boolean isPresent(int slot, BlockHash key) {
        long word = word(slot);
        if (state(word) != PRESENT || !index.isKey(slot, key)) {
            return false;
        }
        VarHandle.acquireFence();
        return word(slot) == word;
    }
}
