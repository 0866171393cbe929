package baton.engine.kernel;

/** How a matrix of weights is kept. Whatever it is, products are computed in fp32. */
public enum WeightType {
    FP32(Float.BYTES),
    BF16(Short.BYTES),
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
