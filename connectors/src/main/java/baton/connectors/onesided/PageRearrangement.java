package baton.connectors.onesided;

import baton.kv.KvLayout;
import java.lang.foreign.MemorySegment;
import java.util.Arrays;

/** Brings a layer's share of a block from a vLLM instance's order into Baton's, in place. One thread's. */
final class PageRearrangement {
    private final KvLayout layout;
    private final boolean byHead;
    /** By half word of the area: which one of the other order belongs there. */
    private final int[] sources;

    private final short[] before;
    private final short[] after;

    /** @param layout of the blocks, the same on both sides */
    PageRearrangement(KvLayout layout, BlockInterior from) {
        this.layout = layout;
        this.byHead = from.isByHead();
        int[] elements = sources(layout, from);
        int halves = layout.dtype().bytes() / Short.BYTES;
        this.sources = new int[elements.length * halves];
        Arrays.setAll(sources, i -> elements[i / halves] * halves + i % halves);
        this.before = new short[sources.length];
        this.after = new short[sources.length];
    }

    /**
     * @param page a layer of a block
     * @param firstHead of those that are to be rearranged
     */
    void rearrange(MemorySegment page, int firstHead, int heads) {
        if (byHead) {
            for (int head = firstHead; head < firstHead + heads; head++) {
                rearrange(page.asSlice(head * layout.headBytes(), layout.headBytes()));
            }
        } else {
            rearrange(page.asSlice(0, layout.layerBytes()));
        }
    }

    private void rearrange(MemorySegment area) {
        MemorySegment.ofArray(before).copyFrom(area);
        for (int i = 0; i < after.length; i++) {
            after[i] = before[sources[i]];
        }
        area.copyFrom(MemorySegment.ofArray(after));
    }

    /** By element: which one of the other order belongs there. */
    private static int[] sources(KvLayout layout, BlockInterior from) {
        int size = layout.blockSize();
        int dims = layout.headDim();
        int heads = from.isByHead() ? 1 : layout.kvHeads();
        int[] sources = new int[2 * heads * size * dims];
        int to = 0;
        for (int head = 0; head < heads; head++) {
            for (int token = 0; token < size; token++) {
                for (int value = 0; value < 2; value++) {
                    for (int dim = 0; dim < dims; dim++) {
                        sources[to] = switch (from) {
                            case HEADS -> to;
                            case TOKENS -> 2 * (token * heads + head) * dims + value * dims + dim;
                            case CPU_VEC -> value == 0 ? dim * size + token : size * dims + token * dims + dim;
                            case CPU_AMX ->
                                value == 0 ? amxKey(token, dim, dims) : size * dims + amxValue(token, dim, size);
                            case CPU_UNKNOWN -> throw new IllegalStateException("blocks of an unknown order");
                        };
                        to++;
                    }
                }
            }
        }
        return sources;
    }

    private static int amxKey(int token, int dim, int dims) {
        return token / 16 * 16 * dims + dim / 2 * 32 + token % 16 * 2 + dim % 2;
    }

    private static int amxValue(int token, int dim, int size) {
        return dim / 16 * 16 * size + token / 2 * 32 + dim % 16 * 2 + token % 2;
    }
}
