package baton.store.memory;

import baton.memory.MappableMemory;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.file.Path;
import java.util.Optional;

/** The memory of a store: slots with values, and the tables that describe their content. */
interface Slab extends AutoCloseable {
    Geometry geometry();

    MemorySegment slots();

    /** The file by which other processes of this host can map {@link #slots} for as long as this process lives, where there is one. */
    default Optional<Path> file() {
        return Optional.empty();
    }

    /** The memory of the tables, of {@link Geometry#tableBytes}. */
    MemorySegment tables();

    /** Pin bit and filler of this process. */
    int place();

    /** Whether another process uses it too, maybe. */
    boolean isShared();

    /** Whether nothing has been stored in it yet. */
    boolean isNew();

    /** The places of processes that are there, as bits. */
    long alive();

    /**
     * Has other processes not change the tables until {@link #unlock}.
     *
     * @return false if that cannot be had in time
     */
    boolean lock();

    /** Locks as {@link #lock} does, without waiting. */
    boolean tryLock();

    /** Locks as {@link #lock} does, for a caller that may wait long: another process may be repairing large tables. */
    boolean lockToOpen();

    void unlock();

    /** Gives the memory back. */
    @Override
    void close();

    /** Memory of this process alone. */
    final class Private implements Slab {
        private final Geometry geometry;
        private final Arena arena = Arena.ofShared();
        private final MemorySegment slots;
        private final Optional<Path> file;
        private final MemorySegment tables;

        Private(Geometry geometry) {
            this.geometry = geometry;
            try {
                Optional<MappableMemory> mappable = MappableMemory.whyNone().isEmpty()
                        ? Optional.of(MappableMemory.allocate(arena, geometry.slotsBytes(), "host-memory store"))
                        : Optional.empty();
                slots = mappable.map(MappableMemory::memory)
                        .orElseGet(() -> arena.allocate(geometry.slotsBytes(), Geometry.ALIGNMENT));
                file = mappable.map(MappableMemory::file);
                tables = arena.allocate(geometry.tableBytes(), Geometry.ALIGNMENT);
            } catch (IllegalStateException | OutOfMemoryError e) {
                arena.close();
                throw e;
            }
        }

        @Override
        public Geometry geometry() {
            return geometry;
        }

        @Override
        public MemorySegment slots() {
            return slots;
        }

        @Override
        public Optional<Path> file() {
            return file;
        }

        @Override
        public MemorySegment tables() {
            return tables;
        }

        @Override
        public int place() {
            return 0;
        }

        @Override
        public boolean isShared() {
            return false;
        }

        @Override
        public boolean isNew() {
            return true;
        }

        @Override
        public long alive() {
            return SlotTable.pin(place());
        }

        @Override
        public boolean lock() {
            return true;
        }

        @Override
        public boolean tryLock() {
            return true;
        }

        @Override
        public boolean lockToOpen() {
            return true;
        }

        @Override
        public void unlock() {}

        @Override
        public void close() {
            arena.close();
        }
    }
}
