package baton.kv;

/** A point in the work of a device, or of a copier. When it is passed, the bytes that were announced with it are in place. */
public interface KvFence {
    /** The fence of bytes that are in place already. */
    KvFence PASSED = new KvFence() {
        @Override
        public boolean isPassed() {
            return true;
        }

        @Override
        public void await() {}
    };

    boolean isPassed();

    /**
     * Returns when the fence is passed.
     *
     * @throws IllegalStateException if the device fails, or is not there within a deadline of the fence's own
     */
    void await();
}
