package baton.engine.kernel;

import baton.kv.DType;

/** The element type of a matrix of weights. Products are summed up in fp32 for all types. */
public enum WeightType {
    FP32(Float.BYTES),
    BF16(Short.BYTES),
    FP16(Short.BYTES),
    /**
     * bf16, two neighbouring inputs of an output side by side: VDPBF16PS multiplies them with two elements of a row of bf16. For AVX-512
     * and a multiple of 32 inputs, see {@link PanelMatrix#takesPairs}.
     */
    BF16_PAIRS(Short.BYTES),
    /** 8-bit integers with one scale for each output. */
    INT8(Byte.BYTES),
    /** The same in the order of {@link #BF16_PAIRS}, which they become when they are multiplied; bf16 has all 8-bit integers exactly. */
    INT8_PAIRS(Byte.BYTES),
    /** MXFP4 in {@link Mxfp4Panels}, which becomes {@link #BF16_PAIRS} some inputs at a time. */
    MXFP4_PAIRS(0);

    private final int bytes;

    WeightType(int bytes) {
        this.bytes = bytes;
    }

    /** The type of weights that are kept in {@code type}, one output's beside another's. */
    public static WeightType of(DType type) {
        return switch (type) {
            case F32 -> FP32;
            case BF16 -> BF16;
            case F16 -> FP16;
            case F8_E4M3 -> throw new IllegalArgumentException("weights are not kept in " + type.torchName());
        };
    }

    /** Bytes of so many inputs of a panel. */
    public long bytes(int inputs, int panelWidth) {
        return this == MXFP4_PAIRS
                ? (long) inputs / Mxfp4Panels.INPUTS * Mxfp4Panels.BYTES
                : (long) inputs * panelWidth * bytes;
    }

    /** Bytes of an element; 0 if elements have parts of bytes. */
    public int bytes() {
        return bytes;
    }

    /** Whether two neighbouring inputs are multiplied at once, and the rows in bf16. */
    public boolean inPairs() {
        return this == BF16_PAIRS || this == INT8_PAIRS || this == MXFP4_PAIRS;
    }

    /** Whether each output has a scale. */
    public boolean hasScales() {
        return this == INT8 || this == INT8_PAIRS;
    }
}
