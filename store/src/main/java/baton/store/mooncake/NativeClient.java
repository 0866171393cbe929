package baton.store.mooncake;

import baton.kv.Deadline;
import baton.kv.Ticker;
import java.lang.foreign.MemorySegment;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeoutException;
import java.util.function.LongFunction;

/** A client of a Mooncake store by its library. Its calls have time limits of their own. */
final class NativeClient implements ObjectClient {
    private static final int BATCH = 64;
    private static final Duration SETUP_TIMEOUT = Duration.ofSeconds(60);

    /** The buffer for objects that the library copies itself. Baton's objects are read from and written to registered memory. */
    private static final long LOCAL_BUFFER_BYTES = 16L << 20;

    private static final int NO_AVAILABLE_HANDLE = -200;
    private static final int BUFFER_OVERFLOW = -10;
    private static final int INVALID_PARAMS = -600;
    private static final int OBJECT_NOT_FOUND = -704;
    private static final int OBJECT_ALREADY_EXISTS = -705;
    private static final int OBJECT_HAS_LEASE = -706;
    private static final int CHECKSUM_MISMATCH = -801;
    private static final int RPC_FAIL = -900;
    private static final int RPC_TIMEOUT = -901;

    private final StoreApi api;
    private final MemorySegment store;
    private final MooncakeSetup setup;
    private final List<MemorySegment> registered = new CopyOnWriteArrayList<>();

    private NativeClient(StoreApi api, MemorySegment store, MooncakeSetup setup) {
        this.api = api;
        this.store = store;
        this.setup = setup;
    }

    /** @throws IllegalStateException if the store cannot be reached, or does not take the segment */
    static NativeClient open(StoreLibrary.Found library, MooncakeSetup setup, Ticker ticker) {
        StoreApi api = library.api();
        MemorySegment store = api.create();
        if (store.address() == 0) {
            throw new IllegalStateException("Mooncake's library makes no client");
        }
        FutureTask<Integer> task = new FutureTask<>(() -> api.setup(store, setup, LOCAL_BUFFER_BYTES));
        Thread.ofPlatform().daemon().name("mooncake-setup").start(task);
        int code;
        try {
            code = Deadline.after(ticker, SETUP_TIMEOUT).get(task);
        } catch (TimeoutException e) {
            // The handle is in use still.
            throw new IllegalStateException(
                    "the master at " + setup.masterServerAddress() + " has not answered in " + SETUP_TIMEOUT.toSeconds()
                            + " s",
                    e);
        } catch (ExecutionException e) {
            throw new IllegalStateException("Mooncake's library failed: " + e.getCause(), e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException("interrupted while the store was set up", e);
        }
        if (code != 0) {
            api.destroy(store);
            throw new IllegalStateException(
                    "Mooncake's library could not set up a client of the master at %s, metadata server %s, with %d bytes for the store: code %d"
                            .formatted(
                                    setup.masterServerAddress(), setup.metadataServer(), setup.segmentBytes(), code));
        }
        return new NativeClient(api, store, setup);
    }

    @Override
    public int batch() {
        return BATCH;
    }

    @Override
    public long mostBytes() {
        return Long.MAX_VALUE;
    }

    @Override
    public void register(MemorySegment memory) {
        int code = api.register(store, memory);
        if (code != 0) {
            throw new IllegalStateException(
                    "Mooncake could not register " + memory.byteSize() + " bytes: code " + code);
        }
        registered.add(memory);
    }

    @Override
    public List<Outcome> exist(List<String> keys, Deadline deadline) {
        return keys.isEmpty()
                ? List.of()
                : outcomes(
                        api.exist(store, keys),
                        found -> found > 0 ? Outcome.DONE : found == 0 ? Outcome.ABSENT : failure(found));
    }

    @Override
    public List<Outcome> get(List<String> keys, List<MemorySegment> to, Deadline deadline) {
        if (keys.isEmpty()) {
            return List.of();
        }
        long[] results = api.get(store, keys, to);
        List<Outcome> outcomes = new ArrayList<>(results.length);
        for (int i = 0; i < results.length; i++) {
            outcomes.add(
                    results[i] < 0
                            ? failure(results[i])
                            : results[i] == to.get(i).byteSize() ? Outcome.DONE : Outcome.LENGTH);
        }
        return outcomes;
    }

    @Override
    public List<Outcome> put(List<String> keys, List<MemorySegment> from, Deadline deadline) {
        return keys.isEmpty()
                ? List.of()
                : outcomes(
                        api.put(store, keys, from, setup.preferredSegments()),
                        code -> code == 0 || code == OBJECT_ALREADY_EXISTS
                                ? Outcome.DONE
                                : code == INVALID_PARAMS ? Outcome.ERROR : failure(code));
    }

    @Override
    public Outcome remove(String key, Deadline deadline) {
        int code = api.remove(store, key);
        return code == 0 ? Outcome.DONE : failure(code);
    }

    private static List<Outcome> outcomes(long[] results, LongFunction<Outcome> meaning) {
        return Arrays.stream(results).mapToObj(meaning).toList();
    }

    private static Outcome failure(long code) {
        return switch (Math.toIntExact(code)) {
            case OBJECT_NOT_FOUND -> Outcome.ABSENT;
            case NO_AVAILABLE_HANDLE -> Outcome.OUT_OF_MEMORY;
            // A read into memory that is too small.
            case BUFFER_OVERFLOW, INVALID_PARAMS -> Outcome.LENGTH;
            case OBJECT_HAS_LEASE -> Outcome.LEASED;
            case CHECKSUM_MISMATCH -> Outcome.CHECKSUM;
            case RPC_FAIL -> Outcome.UNAVAILABLE;
            case RPC_TIMEOUT -> Outcome.TIMEOUT;
            default -> Outcome.ERROR;
        };
    }

    /** A call cannot be ended from outside. */
    @Override
    public void stop() {}

    @Override
    public void close() {
        registered.forEach(memory -> api.unregister(store, memory));
        api.destroy(store);
    }
}
