package baton.grammar.automaton;

import java.util.Arrays;

/** A set of tokens: bits, or the numbers of the few. */
record TokenSet(long[] bits, int[] few) {
    static TokenSet of(long[] bits) {
        int count = 0;
        for (long word : bits) {
            count += Long.bitCount(word);
        }
        if (count > bits.length) {
            return new TokenSet(bits.clone(), new int[0]);
        }
        int[] few = new int[count];
        int next = 0;
        for (int i = 0; i < bits.length; i++) {
            for (long rest = bits[i]; rest != 0; rest &= rest - 1) {
                few[next++] = i * Long.SIZE + Long.numberOfTrailingZeros(rest);
            }
        }
        return new TokenSet(new long[0], few);
    }

    long bytes() {
        return 64 + 8L * bits.length + 4L * few.length;
    }

    void addTo(long[] mask) {
        for (int i = 0; i < bits.length; i++) {
            mask[i] |= bits[i];
        }
        for (int token : few) {
            mask[token >> 6] |= 1L << token;
        }
    }

    /** Writes the set, and nothing else, to the mask. */
    void writeTo(long[] mask) {
        if (few.length == 0) {
            System.arraycopy(bits, 0, mask, 0, bits.length);
            Arrays.fill(mask, bits.length, mask.length, 0);
        } else {
            Arrays.fill(mask, 0);
            addTo(mask);
        }
    }
}
