package baton.engine.core;

import baton.kv.KvGroups;
import java.util.Arrays;
import java.util.Set;
import java.util.function.IntUnaryOperator;
import java.util.stream.IntStream;

/**
 * The blocks of one sequence in order, for each group of layers; grows at its end. At the beginning a group with a window has null blocks:
 * those that its window has left behind.
 */
final class BlockTable {
    private final int[][] blocks;
    /** The number of null blocks in each group. */
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

    /** Blocks of all groups without null blocks. */
    int heldByAll() {
        return blocks.length * size - Arrays.stream(firsts).sum();
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

    /** The blocks of all groups, one group after the other. */
    int[] toArray() {
        return Arrays.stream(toArrays()).flatMapToInt(Arrays::stream).toArray();
    }

    /** The blocks by group. */
    int[][] toArrays() {
        int[][] all = new int[blocks.length][];
        Arrays.setAll(all, group -> Arrays.copyOf(blocks[group], size));
        return all;
    }

    /** The indices of blocks that are among {@code wanted}, in ascending order; one twice if it is so in two groups. */
    int[] indicesOf(Set<Integer> wanted) {
        return IntStream.range(0, size)
                .flatMap(i -> IntStream.range(0, blocks.length)
                        .filter(group -> i >= firsts[group] && wanted.contains(blocks[group][i]))
                        .map(_ -> i))
                .toArray();
    }

    /** The blocks of all groups at indices from {@code first} to before {@code end}, without null blocks. */
    IntStream between(int first, int end) {
        return IntStream.range(0, blocks.length)
                .flatMap(group -> IntStream.range(Math.max(first, firsts[group]), Math.min(end, size))
                        .map(i -> blocks[group][i]));
    }

    void clear() {
        size = 0;
        Arrays.fill(firsts, 0);
    }
}
