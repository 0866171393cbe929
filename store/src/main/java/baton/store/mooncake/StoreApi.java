package baton.store.mooncake;

import baton.memory.NativeFunctions;
import baton.memory.Posix;
import java.lang.foreign.AddressLayout;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemoryLayout.PathElement;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.StructLayout;
import java.lang.foreign.SymbolLookup;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.util.Arrays;
import java.util.List;
import java.util.NoSuchElementException;

/**
 * The functions of Mooncake's {@code store_c.h} that a client of the store needs, in Java's types. Results below 0 are codes of Mooncake's
 * {@code types.h}.
 */
final class StoreApi extends NativeFunctions {
    private static final ValueLayout.OfInt INT = ValueLayout.JAVA_INT;
    private static final ValueLayout.OfLong LONG = ValueLayout.JAVA_LONG;
    private static final AddressLayout POINTER = ValueLayout.ADDRESS;

    /** {@code mooncake_replicate_config_t}. */
    static final StructLayout REPLICATION = MemoryLayout.structLayout(
            LONG.withName("replica_num"),
            INT.withName("with_soft_pin"),
            INT.withName("with_hard_pin"),
            POINTER.withName("preferred_segments"),
            LONG.withName("preferred_segments_count"));

    private final MethodHandle create = function("create", FunctionDescriptor.of(POINTER));
    private final MethodHandle destroy = function("destroy", FunctionDescriptor.ofVoid(POINTER));
    private final MethodHandle setup =
            function("setup", POINTER, POINTER, POINTER, LONG, LONG, POINTER, POINTER, POINTER);
    private final MethodHandle batchPutFrom =
            function("batch_put_from", POINTER, POINTER, POINTER, POINTER, LONG, POINTER, POINTER);
    private final MethodHandle batchGetInto =
            function("batch_get_into", POINTER, POINTER, POINTER, POINTER, LONG, POINTER);
    private final MethodHandle batchIsExist = function("batch_is_exist", POINTER, POINTER, LONG, POINTER);
    private final MethodHandle remove = function("remove", POINTER, POINTER, INT);
    private final MethodHandle registerBuffer = function("register_buffer", POINTER, POINTER, LONG);
    private final MethodHandle unregisterBuffer = function("unregister_buffer", POINTER, POINTER);

    /** @throws NoSuchElementException if a function is missing */
    StoreApi(SymbolLookup symbols) {
        super(symbols, "mooncake_store_");
    }

    /** A handle; its address is 0 if there is none. */
    MemorySegment create() {
        return Posix.call(() -> (MemorySegment) create.invokeExact());
    }

    void destroy(MemorySegment store) {
        try {
            destroy.invokeExact(store);
        } catch (Throwable e) {
            throw Posix.thrown(e);
        }
    }

    /** Connects to the master, and gives the store a segment of this process's memory unless its size is 0. */
    int setup(MemorySegment store, MooncakeSetup setup, long localBufferBytes) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment hostname = arena.allocateFrom(setup.localHostname());
            MemorySegment metadata = arena.allocateFrom(setup.metadataServer());
            MemorySegment protocol = arena.allocateFrom(setup.protocol());
            MemorySegment device = arena.allocateFrom(setup.deviceName());
            MemorySegment master = arena.allocateFrom(setup.masterServerAddress());
            return Posix.call(() -> (int) this.setup.invokeExact(
                    store, hostname, metadata, setup.segmentBytes(), localBufferBytes, protocol, device, master));
        }
    }

    int register(MemorySegment store, MemorySegment memory) {
        return Posix.call(() -> (int) registerBuffer.invokeExact(store, memory, memory.byteSize()));
    }

    int unregister(MemorySegment store, MemorySegment memory) {
        return Posix.call(() -> (int) unregisterBuffer.invokeExact(store, memory));
    }

    /** Looks keys up; for each key 1, 0 or an error. */
    long[] exist(MemorySegment store, List<String> keys) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment names = names(arena, keys);
            MemorySegment results = arena.allocate(INT, keys.size());
            int code = Posix.call(() -> (int) batchIsExist.invokeExact(store, names, (long) keys.size(), results));
            return code == 0 ? ints(results) : all(code, keys.size());
        }
    }

    /** Reads objects; for each key the bytes read, or an error. */
    long[] get(MemorySegment store, List<String> keys, List<MemorySegment> to) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment names = names(arena, keys);
            MemorySegment buffers = addresses(arena, to);
            MemorySegment sizes = sizes(arena, to);
            MemorySegment results = arena.allocate(LONG, keys.size());
            int code = Posix.call(
                    () -> (int) batchGetInto.invokeExact(store, names, buffers, sizes, (long) keys.size(), results));
            return code == 0 ? results.toArray(LONG) : all(code, keys.size());
        }
    }

    /**
     * For each key 0, or an error.
     *
     * @param preferredSegments where the store is asked to put the objects; may be empty
     */
    long[] put(MemorySegment store, List<String> keys, List<MemorySegment> from, List<String> preferredSegments) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment names = names(arena, keys);
            MemorySegment buffers = addresses(arena, from);
            MemorySegment sizes = sizes(arena, from);
            MemorySegment replication = replication(arena, preferredSegments);
            MemorySegment results = arena.allocate(INT, keys.size());
            int code = Posix.call(() -> (int)
                    batchPutFrom.invokeExact(store, names, buffers, sizes, (long) keys.size(), replication, results));
            return code == 0 ? ints(results) : all(code, keys.size());
        }
    }

    /** One replica. */
    static MemorySegment replication(Arena arena, List<String> preferredSegments) {
        MemorySegment config = arena.allocate(REPLICATION);
        config.set(LONG, REPLICATION.byteOffset(PathElement.groupElement("replica_num")), 1);
        config.set(
                POINTER,
                REPLICATION.byteOffset(PathElement.groupElement("preferred_segments")),
                preferredSegments.isEmpty() ? MemorySegment.NULL : names(arena, preferredSegments));
        config.set(
                LONG,
                REPLICATION.byteOffset(PathElement.groupElement("preferred_segments_count")),
                preferredSegments.size());
        return config;
    }

    /** Also if readers have leases on it. */
    int remove(MemorySegment store, String key) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment name = arena.allocateFrom(key);
            return Posix.call(() -> (int) remove.invokeExact(store, name, 1));
        }
    }

    private static MemorySegment names(Arena arena, List<String> names) {
        return addresses(arena, names.stream().map(arena::allocateFrom).toList());
    }

    private static MemorySegment addresses(Arena arena, List<MemorySegment> segments) {
        MemorySegment addresses = arena.allocate(POINTER, segments.size());
        for (int i = 0; i < segments.size(); i++) {
            addresses.setAtIndex(POINTER, i, segments.get(i));
        }
        return addresses;
    }

    private static MemorySegment sizes(Arena arena, List<MemorySegment> segments) {
        return arena.allocateFrom(
                LONG, segments.stream().mapToLong(MemorySegment::byteSize).toArray());
    }

    private static long[] ints(MemorySegment results) {
        return Arrays.stream(results.toArray(INT)).asLongStream().toArray();
    }

    private static long[] all(int code, int count) {
        long[] codes = new long[count];
        // A positive one would be taken for a success.
        Arrays.fill(codes, Math.min(code, -1));
        return codes;
    }
}
