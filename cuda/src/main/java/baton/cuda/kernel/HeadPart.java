package baton.cuda.kernel;

import baton.cuda.ptx.Operand.U32;
import baton.cuda.ptx.PtxAssembler;

/** The part of a head of a row that a thread computes. */
record HeadPart(U32 row, U32 head, U32 part) {
    /**
     * Parts in order of threads; threads that are too many end.
     *
     * @param count parts of all rows
     * @param parts of a head
     */
    static HeadPart ofThread(PtxAssembler k, U32 count, U32 heads, U32 parts) {
        U32 number = k.threadBelow(count);
        U32 head = k.div(number, parts);
        return new HeadPart(k.div(head, heads), k.rem(head, heads), k.rem(number, parts));
    }
}
