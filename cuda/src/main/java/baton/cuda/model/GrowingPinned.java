package baton.cuda.model;

import baton.cuda.driver.Gpu;
import java.lang.foreign.MemorySegment;

/** Pinned memory that is made anew where more is asked for. */
final class GrowingPinned implements AutoCloseable {
    private final Gpu gpu;
    private Gpu.Pinned pinned;

    GrowingPinned(Gpu gpu) {
        this.gpu = gpu;
        this.pinned = gpu.pinned(1 << 12);
    }

    /** The first bytes, with any content if there were fewer before. */
    MemorySegment of(long bytes) {
        if (pinned.memory().byteSize() < bytes) {
            Gpu.Pinned larger = gpu.pinned(bytes + bytes / 2);
            pinned.close();
            pinned = larger;
        }
        return pinned.memory().asSlice(0, bytes);
    }

    @Override
    public void close() {
        pinned.close();
    }
}
