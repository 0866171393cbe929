package baton.engine.core;

import java.util.Arrays;
import java.util.Set;

/** The blocks of one sequence in order; grows at its end. */
final class BlockTable {
    private int[] blocks = new int[8];
    private int size;

    int size() {
        return size;
    }

    int get(int index) {
        return blocks[index];
    }

    void add(int block) {
        if (size == blocks.length) {
            blocks = Arrays.copyOf(blocks, size * 2);
        }
        blocks[size++] = block;
    }

    int[] toArray() {
        return Arrays.copyOf(blocks, size);
    }

    /** How many of these are among {@code wanted}. */
    int count(Set<Integer> wanted) {
        int count = 0;
        for (int i = 0; i < size; i++) {
            if (wanted.contains(blocks[i])) {
                count++;
            }
        }
        return count;
    }

    void clear() {
        size = 0;
    }
}
