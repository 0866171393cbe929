package baton.engine.kernel;

/** The element type of a matrix of weights. Products are summed up in fp32 for all types. */
public enum WeightType {
    FP32(Float.BYTES),
    BF16(Short.BYTES),
    /**
     * bf16, two neighbouring inputs of an output side by side: what VDPBF16PS multiplies with two elements of a row of
     * bf16. For AVX-512 and a multiple of 32 inputs, see {@link PanelMatrix#takesPairs}.
     */
    BF16_PAIRS(Short.BYTES),
    /** 8-bit integers with one scale for each output. */
    INT8(Byte.BYTES),
    /** The same in the order of {@link #BF16_PAIRS}, which they become when they are multiplied; bf16 has all 8-bit integers exactly. */
    INT8_PAIRS(Byte.BYTES);

    private final int bytes;

    WeightType(int bytes) {
        this.bytes = bytes;
    }

    /** Bytes of an element. */
    public int bytes() {
        return bytes;
    }

    /** Whether two neighbouring inputs are multiplied at once, and the rows in bf16. */
    public boolean inPairs() {
        return this == BF16_PAIRS || this == INT8_PAIRS;
    }

    /** Whether each output has a scale. */
    public boolean hasScales() {
        return this == INT8 || this == INT8_PAIRS;
    }
}
