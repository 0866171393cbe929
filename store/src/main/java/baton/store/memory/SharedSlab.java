package baton.store.memory;

import baton.kv.Deadline;
import baton.kv.Sha256;
import baton.kv.Ticker;
import baton.memory.MappedFile;
import baton.store.StoreFormat;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HexFormat;
import java.util.concurrent.locks.LockSupport;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A slab in a file that several processes map: {@code [header: a page | tables | slots]}.
 *
 * <p>Locks of the file say which processes are there, and exclude them from each other; the kernel frees those of one that dies. A process has
 * the lock of its place, a number below {@value #PLACES}, for as long as it is attached; with the table's lock it may change the
 * tables; with the opener's it may make the file.
 *
 * <p>A file of another version, format or geometry, or one that was not finished, is replaced if no process is attached to it.
 */
final class SharedSlab implements Slab {
    private static final Logger LOG = LoggerFactory.getLogger(SharedSlab.class);

    private static final ValueLayout.OfInt INT = ValueLayout.JAVA_INT;
    private static final ValueLayout.OfLong LONG = ValueLayout.JAVA_LONG;

    private static final long MAGIC = 0x3176_6d68_6e6f_7462L;
    private static final int VERSION = 1;
    private static final long PAGE = 4096;

    // Header: [magic: 8 | version: 4 | eviction: 4 | slots: 8 | slot bytes: 8 | digest of the format: 32].
    private static final long VERSION_AT = 8;
    private static final long EVICTION_AT = 12;
    private static final long SLOTS_AT = 16;
    private static final long SLOT_BYTES_AT = 24;
    private static final long DIGEST_AT = 32;
    private static final int DIGEST_BYTES = 32;

    /** The number of places in a slot's word. */
    static final int PLACES = 32;

    private static final int TABLE_LOCK = PLACES;
    private static final int OPENING_LOCK = PLACES + 1;

    /** Making a file means to take its memory from the system. */
    private static final Duration OPENING = Duration.ofMinutes(2);

    /** A process changes only some lists while it has the table's lock, unless it has been stopped. */
    private static final Duration LOCKING = Duration.ofMillis(200);

    /** After that wait the process that has the lock is taken to be stopped for a while: the engine must not wait for it each time. */
    private static final Duration UNAVAILABLE = Duration.ofSeconds(1);

    /** A process that opens may make all of the tables anew. */
    private static final Duration REPAIRING = Duration.ofSeconds(20);

    private static final int SPINS = 100;
    private static final long NAP_NANOS = 50_000;

    private final Geometry geometry;
    private final MappedFile file;
    private final Ticker ticker;
    private final Arena arena;
    private final MemorySegment slots;
    private final MemorySegment tables;
    private final int place;
    private final boolean isNew;
    private volatile long waitedInVain;

    private SharedSlab(
            Geometry geometry,
            MappedFile file,
            Ticker ticker,
            Arena arena,
            MemorySegment memory,
            int place,
            boolean isNew) {
        this.geometry = geometry;
        this.file = file;
        this.ticker = ticker;
        this.arena = arena;
        this.tables = memory.asSlice(PAGE, geometry.tableBytes());
        this.slots = memory.asSlice(slotsAt(geometry), geometry.slotsBytes());
        this.place = place;
        this.isNew = isNew;
        this.waitedInVain = ticker.nanos();
    }

    private static long slotsAt(Geometry geometry) {
        return PAGE + Math.ceilDiv(geometry.tableBytes(), PAGE) * PAGE;
    }

    private static long fileBytes(Geometry geometry) {
        return slotsAt(geometry) + geometry.slotsBytes();
    }

    static Path path(SharedMemory shared, StoreFormat format) {
        String digest = HexFormat.of().formatHex(Sha256.of(format.describe()), 0, 8);
        return shared.directory().resolve("baton-%s-%s".formatted(shared.name(), digest));
    }

    /**
     * Attaches to the file, and makes it if there is none that can be used.
     *
     * @throws IOException if the file cannot be made, or other processes use it with another geometry
     */
    static SharedSlab open(Geometry geometry, StoreFormat format, SharedMemory shared, Ticker ticker)
            throws IOException {
        Path path = path(shared, format);
        Deadline deadline = Deadline.after(ticker, OPENING);
        while (true) {
            MappedFile file = MappedFile.open(path);
            boolean attached = false;
            try {
                if (!lock(file, OPENING_LOCK, deadline)) {
                    throw new IOException(
                            "%s is being made by another process for longer than %s".formatted(path, deadline));
                }
                if (!file.isCurrent()) {
                    continue;
                }
                boolean isNew = file.bytes() == 0;
                if (isNew) {
                    make(file, geometry, format, shared);
                } else if (!isOurs(file, geometry, format)) {
                    requireUnused(file, geometry);
                    LOG.warn("{} is of another version or geometry, or was not finished: it is made anew", path);
                    Files.delete(path);
                    continue;
                }
                SharedSlab slab = attach(file, geometry, ticker, isNew);
                attached = true;
                file.unlock(OPENING_LOCK);
                return slab;
            } finally {
                if (!attached) {
                    file.close();
                }
            }
        }
    }

    private static void make(MappedFile file, Geometry geometry, StoreFormat format, SharedMemory shared)
            throws IOException {
        try {
            file.allocate(fileBytes(geometry));
        } catch (IOException e) {
            Files.deleteIfExists(file.path());
            throw new IOException(
                    "%s; other stores there are named %s-*"
                            .formatted(e.getMessage(), shared.directory().resolve("baton")),
                    e);
        }
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment header = file.map(arena, PAGE + Long.BYTES);
            // The first that attaches finds tables that are not complete.
            header.set(LONG, PAGE, 1);
            header.set(INT, VERSION_AT, VERSION);
            header.set(INT, EVICTION_AT, number(geometry.eviction()));
            header.set(LONG, SLOTS_AT, geometry.slots());
            header.set(LONG, SLOT_BYTES_AT, geometry.slotBytes());
            MemorySegment.copy(Sha256.of(format.describe()), 0, header, ValueLayout.JAVA_BYTE, DIGEST_AT, DIGEST_BYTES);
            LONG.varHandle().setVolatile(header, 0L, MAGIC);
        }
    }

    private static boolean isOurs(MappedFile file, Geometry geometry, StoreFormat format) throws IOException {
        if (file.bytes() != fileBytes(geometry)) {
            return false;
        }
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment header = file.map(arena, PAGE);
            return (long) LONG.varHandle().getVolatile(header, 0L) == MAGIC
                    && header.get(INT, VERSION_AT) == VERSION
                    && header.get(INT, EVICTION_AT) == number(geometry.eviction())
                    && header.get(LONG, SLOTS_AT) == geometry.slots()
                    && header.get(LONG, SLOT_BYTES_AT) == geometry.slotBytes()
                    && header.asSlice(DIGEST_AT, DIGEST_BYTES)
                                    .mismatch(MemorySegment.ofArray(Sha256.of(format.describe())))
                            == -1;
        }
    }

    private static int number(Eviction eviction) {
        return switch (eviction) {
            case LRU -> 0;
            case ARC -> 1;
        };
    }

    private static void requireUnused(MappedFile file, Geometry geometry) throws IOException {
        for (int place = 0; place < PLACES; place++) {
            if (file.isLockedElsewhere(place)) {
                throw new IOException(
                        "%s is used by another process with another capacity or eviction than %d values of %d bytes and %s: give both the same, or another name"
                                .formatted(file.path(), geometry.slots(), geometry.slotBytes(), geometry.eviction()));
            }
        }
    }

    private static SharedSlab attach(MappedFile file, Geometry geometry, Ticker ticker, boolean isNew)
            throws IOException {
        for (int place = 0; place < PLACES; place++) {
            if (file.tryLock(place)) {
                Arena arena = Arena.ofShared();
                try {
                    MemorySegment memory = file.map(arena, fileBytes(geometry));
                    return new SharedSlab(geometry, file, ticker, arena, memory, place, isNew);
                } catch (IOException | RuntimeException e) {
                    arena.close();
                    throw e;
                }
            }
        }
        throw new IOException("%s is used by %d processes, which is the most".formatted(file.path(), PLACES));
    }

    private static boolean lock(MappedFile file, int number, Deadline deadline) {
        for (int i = 0; !file.tryLock(number); i++) {
            if (i < SPINS) {
                Thread.onSpinWait();
            } else if (deadline.isOver()) {
                return false;
            } else {
                LockSupport.parkNanos(NAP_NANOS);
            }
        }
        return true;
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
    public MemorySegment tables() {
        return tables;
    }

    @Override
    public int place() {
        return place;
    }

    @Override
    public boolean isShared() {
        return true;
    }

    @Override
    public boolean isNew() {
        return isNew;
    }

    @Override
    public long alive() {
        long alive = SlotTable.pin(place);
        for (int i = 0; i < PLACES; i++) {
            if (i != place && file.isLockedElsewhere(i)) {
                alive |= SlotTable.pin(i);
            }
        }
        return alive;
    }

    @Override
    public boolean lock() {
        if (ticker.nanos() - waitedInVain < 0) {
            return tryLock();
        }
        if (lock(file, TABLE_LOCK, Deadline.after(ticker, LOCKING))) {
            return true;
        }
        waitedInVain = ticker.nanos() + UNAVAILABLE.toNanos();
        return false;
    }

    @Override
    public boolean tryLock() {
        return file.tryLock(TABLE_LOCK);
    }

    @Override
    public boolean lockToOpen() {
        return lock(file, TABLE_LOCK, Deadline.after(ticker, REPAIRING));
    }

    @Override
    public void unlock() {
        file.unlock(TABLE_LOCK);
    }

    @Override
    public void close() {
        arena.close();
        // Closing does not free the lock while a child process between its fork and its exec has the file open.
        file.unlock(place);
        file.close();
    }
}
