package baton.kv.safetensors;

/** A file with packed tensors: {@link #data} is the packed form, and rows are unpacked to fp32. */
public interface PackedTensorFile extends TensorFile {
    /**
     * Of one tensor.
     *
     * @param name of {@link #names}
     */
    Rows rows(String name);

    /** Reads rows of a tensor; a vector is one row. Used by one thread. */
    @FunctionalInterface
    interface Rows {
        /** @param to from its first element on */
        void read(long row, float[] to);
    }
}
