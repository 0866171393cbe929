package baton.engine.core;

import baton.kv.KvGroups;
import java.util.Arrays;
import java.util.Set;
import java.util.function.IntUnaryOperator;

/**
 * The blocks of one sequence in order, for each group of layers; grows at its end. At the beginning a group with a window has null blocks:
 * those that its window has left behind.
 */
final class BlockTable {
    private final int[][] blocks;
    /** By group, the number of null blocks. */
    private final int[] firsts;

    private int size;

    BlockTable(int groups) {
        blocks = new int[groups][8];
        firsts = new int[groups];
    }

    /** Blocks of each group, null blocks included. */
    int size() {
        return size;
    }

    /** A block of the first group, which may be the only one. */
    int get(int index) {
        return get(0, index);
    }

    int get(int group, int index) {
        return blocks[group][index];
    }

    /** The index of a group's first block that is not a null block; {@link #size} if there is none. */
    int first(int group) {
        return firsts[group];
    }

    /** Blocks of a group without null blocks. */
    int held(int group) {
        return size - firsts[group];
    }

    /** Adds a block to each group. */
    void add(IntUnaryOperator blockOfGroup) {
        for (int group = 0; group < blocks.length; group++) {
            if (size == blocks[group].length) {
                blocks[group] = Arrays.copyOf(blocks[group], size * 2);
            }
            blocks[group][size] = blockOfGroup.applyAsInt(group);
        }
        size++;
    }

    /** Puts a null block in the place of a group's first block, which is returned. */
    int leaveBehind(int group) {
        int block = blocks[group][firsts[group]];
        blocks[group][firsts[group]++] = KvGroups.NULL_BLOCK;
        return block;
    }

    /** The blocks of the first group, which may be the only one. */
    int[] toArray() {
        return Arrays.copyOf(blocks[0], size);
    }

    /** The blocks by group. */
    int[][] toArrays() {
        int[][] all = new int[blocks.length][];
        Arrays.setAll(all, group -> Arrays.copyOf(blocks[group], size));
        return all;
    }

    /** How many blocks of the first group are among {@code wanted}. */
    int count(Set<Integer> wanted) {
        int count = 0;
        for (int i = 0; i < size; i++) {
            if (wanted.contains(get(i))) {
                count++;
            }
        }
        return count;
    }

    void clear() {
        size = 0;
        Arrays.fill(firsts, 0);
    }
}
