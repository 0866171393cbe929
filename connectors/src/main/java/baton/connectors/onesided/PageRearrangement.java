package baton.connectors.onesided;

import baton.kv.KvLayout;
import java.lang.foreign.MemorySegment;

/** Brings a layer's share of a block from a vLLM instance's order into Baton's, in place. One thread's. */
final class PageRearrangement {
    private final KvLayout layout;
    private final BlockInterior from;
    private final byte[] before;
    private final byte[] after;

    /** @param layout of the blocks, the same on both sides */
    PageRearrangement(KvLayout layout, BlockInterior from) {
        this.layout = layout;
        this.from = from;
        int bytes = Math.toIntExact(from.isByHead() ? layout.headBytes() : layout.layerBytes());
        this.before = new byte[bytes];
        this.after = new byte[bytes];
    }

    /**
     * @param page a layer of a block
     * @param firstHead of those that are to be rearranged
     */
    void rearrange(MemorySegment page, int firstHead, int heads) {
        if (from.isByHead()) {
            for (int head = firstHead; head < firstHead + heads; head++) {
                apply(page.asSlice(head * layout.headBytes(), layout.headBytes()));
            }
        } else {
            apply(page.asSlice(0, layout.layerBytes()));
        }
    }

    private void apply(MemorySegment area) {
        MemorySegment.copy(area, 0, MemorySegment.ofArray(before), 0, before.length);
        switch (from) {
            case HEADS -> System.arraycopy(before, 0, after, 0, before.length);
            case TOKENS -> tokens();
            case CPU_VEC, CPU_AMX -> packed();
            case CPU_UNKNOWN -> throw new IllegalStateException("blocks of an unknown order");
        }
        MemorySegment.copy(MemorySegment.ofArray(after), 0, area, 0, after.length);
    }

    private void tokens() {
        int entry = Math.toIntExact(layout.entryBytes());
        int heads = layout.kvHeads();
        int size = layout.blockSize();
        for (int token = 0; token < size; token++) {
            for (int head = 0; head < heads; head++) {
                System.arraycopy(before, (token * heads + head) * entry, after, (head * size + token) * entry, entry);
            }
        }
    }

    private void packed() {
        int size = layout.blockSize();
        int dims = layout.headDim();
        int bytes = layout.dtype().bytes();
        boolean amx = from == BlockInterior.CPU_AMX;
        for (int token = 0; token < size; token++) {
            for (int dim = 0; dim < dims; dim++) {
                int key = amx ? amxKey(token, dim, dims) : dim * size + token;
                int value = size * dims + (amx ? amxValue(token, dim, size) : token * dims + dim);
                int to = 2 * token * dims + dim;
                System.arraycopy(before, key * bytes, after, to * bytes, bytes);
                System.arraycopy(before, value * bytes, after, (to + dims) * bytes, bytes);
            }
        }
    }

    private static int amxKey(int token, int dim, int dims) {
        return token / 16 * 16 * dims + dim / 2 * 32 + token % 16 * 2 + dim % 2;
    }

    private static int amxValue(int token, int dim, int size) {
        return dim / 16 * 16 * size + token / 2 * 32 + dim % 16 * 2 + token % 2;
    }
}
