package baton.connectors.onesided;

import baton.kv.KvLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.Arrays;

/** Brings a layer's share of a block from a vLLM instance's order into Baton's, in place. One thread's. */
final class PageRearrangement {
    private final KvLayout layout;
    private final boolean byHead;
    /** For each unit of the area, its source in the other order. */
    private final int[] sources;

    /** Units of types of one byte, else half words. */
    private final byte[] byteUnits;

    private final short[] shortUnits;

    /** @param layout of the blocks, the same on both sides */
    PageRearrangement(KvLayout layout, BlockInterior from) {
        this.layout = layout;
        this.byHead = from.isByHead();
        int[] elements = sources(layout, from);
        int units = Math.ceilDiv(layout.dtype().bytes(), Short.BYTES);
        this.sources = new int[elements.length * units];
        Arrays.setAll(sources, i -> elements[i / units] * units + i % units);
        boolean inBytes = layout.dtype().bytes() == 1;
        this.byteUnits = new byte[inBytes ? sources.length : 0];
        this.shortUnits = new short[inBytes ? 0 : sources.length];
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
        if (byteUnits.length > 0) {
            MemorySegment.ofArray(byteUnits).copyFrom(area);
            for (int i = 0; i < byteUnits.length; i++) {
                area.set(ValueLayout.JAVA_BYTE, i, byteUnits[sources[i]]);
            }
        } else {
            MemorySegment.ofArray(shortUnits).copyFrom(area);
            for (int i = 0; i < shortUnits.length; i++) {
                area.setAtIndex(ValueLayout.JAVA_SHORT_UNALIGNED, i, shortUnits[sources[i]]);
            }
        }
    }

    /** For each element, its source in the other order. */
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
