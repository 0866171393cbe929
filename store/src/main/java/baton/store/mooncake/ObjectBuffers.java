package baton.store.mooncake;

import java.lang.foreign.MemorySegment;

/**
 * Memory of one thread, in which values are put together and taken apart.
 *
 * @param value room for one
 * @param objects room for the objects of several
 */
record ObjectBuffers(ObjectFormat format, MemorySegment value, MemorySegment objects) {
    /** Where an object is, with its header. */
    MemorySegment object(int key, int share) {
        return format.object(objects, key, share);
    }

    MemorySegment checksum(int key, int share) {
        return format.checksum(objects, key, share);
    }
}
