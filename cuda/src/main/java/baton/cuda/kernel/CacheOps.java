package baton.cuda.kernel;

import baton.cuda.driver.Gpu.Stream;
import baton.cuda.ptx.Is;
import baton.cuda.ptx.Operand.U32;
import baton.cuda.ptx.Operand.U64;
import baton.cuda.ptx.PtxAssembler;
import baton.cuda.ptx.PtxKernel;
import baton.kv.DType;
import baton.kv.KvCache;
import baton.kv.KvLayout;
import java.util.ArrayList;
import java.util.List;

/** Writes of new entries into a paged cache. */
public record CacheOps(Functions functions) {
    /** A place in {@code slots} of a row that is not saved. */
    public static final long NO_SLOT = -1;

    private static final int THREADS = 256;

    /** Neighbouring elements that a thread converts. */
    private static final int ELEMENTS = 4;

    static List<PtxKernel> kernels(DType computed) {
        List<PtxKernel> kernels = new ArrayList<>();
        for (DType cache : DType.values()) {
            kernels.add(save(computed, cache));
            if (computed != DType.F32) {
                kernels.add(save(DType.F32, cache));
            }
        }
        return kernels;
    }

    private static String name(DType entries, DType cache) {
        return "save_%s_%s".formatted(entries, cache);
    }

    private static PtxKernel save(DType from, DType to) {
        PtxAssembler k = new PtxAssembler(name(from, to), THREADS);
        View entries = View.parameters(k, "entries", from);
        U64 slots = k.parameterU64("slots");
        U64 layer = k.parameterU64("layer");
        U32 headBytes = k.parameterU32("headBytes");
        U32 count = k.parameterU32("count");
        U32 heads = k.parameterU32("heads");
        U32 ofHead = k.parameterU32("ofHead");

        HeadPart own = HeadPart.ofThread(k, count, heads, ofHead);
        U32 column = k.mul(own.part(), ELEMENTS);
        U32 head = own.head();
        U32 row = own.row();
        U64 slot = k.loadU64(k.at(slots, row, Long.BYTES), 0);
        k.exitIf(k.test(slot, Is.EQ, PtxAssembler.u64(NO_SLOT)));
        U64 entry = k.at(k.add(layer, slot), head, headBytes);
        k.store(to, k.at(entry, column, to.bytes()), 0, k.load(from, ELEMENTS, entries.at(k, row, head, column), 0));
        return k.kernel();
    }

    /**
     * Converts entries to the cache's type and copies them into their slots of a layer.
     *
     * @param entries by token, one for each key/value head: {@code [K | V]}, aligned to 4 elements, of the type of computation or of fp32
     * @param slots address of a u64 for each token: {@code block * blockBytes + slot of the block * entryBytes}, or {@link #NO_SLOT}
     */
    public void save(Stream stream, DeviceRows entries, long slots, KvCache cache, int layer) {
        KvLayout layout = cache.layout();
        if (!entries.isAligned(ELEMENTS)
                || entries.heads() != layout.kvHeads()
                || entries.columns() != layout.entryElements()) {
            throw new IllegalArgumentException("entries=%s must be %d heads of %d elements, aligned to %d elements"
                    .formatted(entries, layout.kvHeads(), layout.entryElements(), ELEMENTS));
        }
        int ofHead = entries.columns() / ELEMENTS;
        int count = entries.rows() * entries.heads() * ofHead;
        functions.launch(
                stream,
                name(entries.type(), layout.dtype()),
                Math.ceilDiv(count, THREADS),
                new Arguments()
                        .add(entries)
                        .add(slots)
                        .add(cache.memory().address() + cache.layerStart(0, layer))
                        .add(layout.headBytes())
                        .add(count)
                        .add(entries.heads())
                        .add(ofHead)
                        .toArray());
    }
}
