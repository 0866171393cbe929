package baton.cuda.kernel;

import baton.cuda.ptx.Operand.U32;
import baton.cuda.ptx.Operand.U64;
import baton.cuda.ptx.PtxAssembler;
import baton.kv.DType;

/** {@link DeviceRows} as parameters of a kernel, which {@link Arguments#add(DeviceRows)} has arguments for. */
record View(DType type, U64 address, U64 rowStride, U32 headStride) {
    /** Declares the parameters: the address, then the strides in bytes. */
    static View parameters(PtxAssembler k, String name, DType type) {
        return new View(
                type, k.parameterU64(name), k.parameterU64(name + "RowStride"), k.parameterU32(name + "HeadStride"));
    }

    /** The address of a head of a row. */
    U64 at(PtxAssembler k, U32 row, U32 head) {
        return k.at(k.at(address, row, rowStride), head, headStride);
    }

    /** The address of an element. */
    U64 at(PtxAssembler k, U32 row, U32 head, U32 column) {
        return k.at(at(k, row, head), column, type.bytes());
    }
}
