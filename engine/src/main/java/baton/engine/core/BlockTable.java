package baton.engine.core;

import java.util.Arrays;

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

    int indexOf(int block) {
        for (int i = 0; i < size; i++) {
            if (blocks[i] == block) {
                return i;
            }
        }
        return -1;
    }

    void clear() {
        size = 0;
    }
}
