package baton.engine.kernel;

/** The element type of a matrix of weights. Products are summed up in fp32 for all types. */
public enum WeightType {
    FP32(Float.BYTES),
    BF16(Short.BYTES),
    /**
     * bf16, two neighbouring inputs of an output side by side: what VDPBF16PS multiplies with two elements of a row, which are rounded to
     * bf16 for that. For AVX-512 and an even number of inputs, see {@link PanelMatrix#takesPairs}.
     */
    BF16_PAIRS(Short.BYTES),
    /** 8-bit integers with one scale for each output. */
    INT8(Byte.BYTES);

    private final int bytes;

    WeightType(int bytes) {
        this.bytes = bytes;
    }

    /** Bytes of an element. */
    public int bytes() {
        return bytes;
    }
}
