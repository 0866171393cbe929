package baton.router.policy;

import java.util.Arrays;

/** A bounded set of digests: open addressing with linear probing, at most half full. 0 is no member. One thread at a time. */
final class LongSet {
    private final long[] places;
    private final int mask;
    private final int most;
    private int size;

    /** @param most members; 16 bytes each, or up to twice as many */
    LongSet(int most) {
        this.most = most;
        this.places = new long[Math.max(16, Integer.highestOneBit(2 * most - 1) * 2)];
        this.mask = places.length - 1;
    }

    boolean contains(long member) {
        return places[place(member)] != 0;
    }

    /** @return whether it was not there; false also if the set is full */
    boolean add(long member) {
        int place = place(member);
        if (places[place] != 0 || size == most) {
            return false;
        }
        places[place] = member;
        size++;
        return true;
    }

    boolean isFull() {
        return size == most;
    }

    int size() {
        return size;
    }

    void clear() {
        Arrays.fill(places, 0);
        size = 0;
    }

    /** Where the member is, or where it would be put. */
    private int place(long member) {
        int place = (int) (member >>> 32) & mask;
        while (places[place] != 0 && places[place] != member) {
            place = place + 1 & mask;
        }
        return place;
    }
}
