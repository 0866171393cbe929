package baton.cuda.sim;

import baton.cuda.driver.CudaException;
import baton.cuda.driver.Driver;
import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.stream.LongStream;

/**
 * Plays devices over ordinary memory, without one. Kernels are executed from their PTX text by an interpreter, which is slow and checks
 * more than a device does: accesses outside of allocations and of freed memory, misaligned ones, reads of bytes that nothing has
 * written, races in shared memory between barriers and in global memory between blocks, barriers that not all threads reach, and
 * instructions of a warp that lanes are missing from. Such a finding is a {@link CudaException} that says the kernel, the line of the text, the
 * block and the thread. It ends the work of the device: each later launch, copy and wait throws it again.
 *
 * <p>Work is done as late as a device may do it, when something waits for its stream or for an event behind it. So code that does not
 * wait sees the bytes of before. An event that is asked for is passed at the third time.
 *
 * <p>Copies of memory that is not pinned are done at once, after the work of the stream. A handle of memory is valid in this object only.
 */
public final class SimulatedDriver implements Driver {
    private static final int VERSION = 12_000;
    private static final int CAPABILITY = 90;
    private static final int MULTIPROCESSORS = 132;
    private static final int SHARED_BYTES = 227 << 10;
    private static final int SHARED_BYTES_AT_FIRST = 48 << 10;
    private static final int MAX_GRID_YZ = 0xffff;
    private static final int POLLS = 3;
    private static final int HANDLE_BYTES = 64;
    private static final long DEFAULT_BYTES = 1 << 30;
    private static final int TAGS = Integer.MAX_VALUE;
    private static final double NANOS_IN_MILLI = 1e6;

    private final int devices;

    /** Used under this object's lock; by kernels while the thread that launched them holds it. */
    private final DeviceMemory memory;

    @GuardedBy("this")
    private final Map<Long, Object> objects = new HashMap<>();

    @GuardedBy("this")
    private final TreeMap<Long, Long> pinned = new TreeMap<>();

    @GuardedBy("this")
    private final Map<Long, Arena> pinnedArenas = new HashMap<>();

    @GuardedBy("this")
    private long lastHandle = 0x5100;

    @GuardedBy("this")
    private Optional<CudaException> failure = Optional.empty();

    @GuardedBy("this")
    private int nextTag = 1;

    @GuardedBy("this")
    private long launches;

    @GuardedBy("this")
    private long nanos;

    /** One device of 1 GiB. */
    public SimulatedDriver() {
        this(1, DEFAULT_BYTES);
    }

    /** @param bytesOfDevice memory of each device */
    public SimulatedDriver(int devices, long bytesOfDevice) {
        this.devices = devices;
        this.memory = new DeviceMemory(devices, bytesOfDevice);
    }

    private record Loaded(Map<String, Long> functions) {}

    private static final class Function {
        private final KernelCode code;
        private int allowedSharedBytes = SHARED_BYTES_AT_FIRST;

        private Function(KernelCode code) {
            this.code = code;
        }
    }

    private record Graph(List<Runnable> work) {}

    /** Objects that have been made and not been released, one line for each. Empty if nothing leaks. */
    public synchronized List<String> unreleased() {
        List<String> all = new ArrayList<>(memory.live());
        pinned.forEach((address, bytes) -> all.add("%d bytes of pinned host memory".formatted(bytes)));
        for (Object object : objects.values()) {
            if (!(object instanceof Function)) {
                String kind = kind(object.getClass());
                all.add((kind.startsWith("e") ? "an " : "a ") + kind);
            }
        }
        return all;
    }

    private static String kind(Class<?> type) {
        return type == Loaded.class
                ? "module"
                : type.getSimpleName().replace("Sim", "").toLowerCase(java.util.Locale.ROOT);
    }

    @GuardedBy("this")
    private long add(Object object) {
        objects.put(++lastHandle, object);
        return lastHandle;
    }

    @GuardedBy("this")
    private <T> T get(String function, Class<T> type, long handle) {
        Object object = objects.get(handle);
        if (!type.isInstance(object)) {
            throw new CudaException(
                    function, 400, "CUDA_ERROR_INVALID_HANDLE", "0x%x is no %s".formatted(handle, kind(type)));
        }
        return type.cast(object);
    }

    @GuardedBy("this")
    private void remove(String function, Class<?> type, long handle) {
        get(function, type, handle);
        objects.remove(handle);
    }

    private static CudaException invalid(String function, String detail) {
        return new CudaException(function, 1, "CUDA_ERROR_INVALID_VALUE", detail);
    }

    private int device(long context) {
        if (context < 1 || context > devices) {
            throw new CudaException("cuCtxSetCurrent", 201, "CUDA_ERROR_INVALID_CONTEXT", "context=" + context);
        }
        return (int) context - 1;
    }

    @Override
    public int version() {
        return VERSION;
    }

    @Override
    public int deviceCount() {
        return devices;
    }

    @Override
    public synchronized DeviceInfo device(int device) {
        return new DeviceInfo(
                "Simulated GPU",
                CAPABILITY,
                memory.bytesOfDevice(),
                MULTIPROCESSORS,
                SHARED_BYTES,
                "%032x".formatted(device + 1));
    }

    @Override
    public long retainContext(int device) {
        return device + 1L;
    }

    @Override
    public synchronized void releaseContext(int device) {
        runAll();
    }

    @GuardedBy("this")
    private void runAll() {
        for (Object object : List.copyOf(objects.values())) {
            if (object instanceof SimStream stream && failure.isEmpty()) {
                waitFor(stream::synchronize);
            }
        }
    }

    /** No library computes with this device's memory. */
    @Override
    public void makeCurrent(long context) {}

    @Override
    public synchronized long freeBytes(long context) {
        return memory.freeBytes(device(context));
    }

    @Override
    public synchronized long allocate(long context, long bytes) {
        return memory.allocate(device(context), bytes);
    }

    @Override
    public synchronized void free(long context, long address) {
        memory.free(address);
    }

    @Override
    public synchronized MemorySegment allocateHost(long context, long bytes) {
        if (bytes <= 0) {
            throw invalid("cuMemHostAlloc", "bytes=" + bytes);
        }
        Arena arena = Arena.ofShared();
        MemorySegment segment = arena.allocate(bytes, Page.BYTES);
        pinned.put(segment.address(), bytes);
        pinnedArenas.put(segment.address(), arena);
        return segment;
    }

    @Override
    public synchronized void freeHost(long context, MemorySegment segment) {
        Arena arena = pinnedArenas.remove(segment.address());
        if (arena == null) {
            throw invalid("cuMemFreeHost", "%s is no pinned memory that was allocated".formatted(segment));
        }
        pinned.remove(segment.address());
        arena.close();
    }

    @Override
    public synchronized void registerHost(long context, MemorySegment segment) {
        if (isPinned(segment)) {
            throw new CudaException(
                    "cuMemHostRegister", 712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", segment.toString());
        }
        pinned.put(segment.address(), segment.byteSize());
    }

    @Override
    public synchronized void unregisterHost(long context, MemorySegment segment) {
        if (pinnedArenas.containsKey(segment.address()) || pinned.remove(segment.address()) == null) {
            throw new CudaException(
                    "cuMemHostUnregister", 713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", segment.toString());
        }
    }

    @GuardedBy("this")
    private boolean isPinned(MemorySegment segment) {
        Map.Entry<Long, Long> below = pinned.floorEntry(segment.address());
        return segment.isNative()
                && below != null
                && segment.address() + segment.byteSize() <= below.getKey() + below.getValue();
    }

    @Override
    public synchronized long createStream(long context) {
        device(context);
        return add(new SimStream());
    }

    @Override
    public synchronized void destroyStream(long context, long stream) {
        SimStream destroyed = stream("cuStreamDestroy", stream);
        if (failure.isEmpty()) {
            waitFor(destroyed::synchronize);
        }
        remove("cuStreamDestroy", SimStream.class, stream);
    }

    @GuardedBy("this")
    private SimStream stream(String function, long stream) {
        return get(function, SimStream.class, stream);
    }

    @Override
    public synchronized void synchronizeStream(long context, long stream) {
        SimStream awaited = stream("cuStreamSynchronize", stream);
        checkNotCapturing("cuStreamSynchronize", awaited);
        waitFor(awaited::synchronize);
    }

    /** Does work, until it fails. */
    @GuardedBy("this")
    private void waitFor(Runnable work) {
        checkWorks();
        try {
            work.run();
        } catch (CudaException e) {
            failure = Optional.of(e);
            throw e;
        }
    }

    @GuardedBy("this")
    private void checkWorks() {
        if (failure.isPresent()) {
            throw failure.get();
        }
    }

    private static void checkNotCapturing(String function, SimStream stream) {
        if (stream.isCapturing()) {
            throw new CudaException(
                    function, 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "the stream captures a graph");
        }
    }

    @Override
    public synchronized long createEvent(long context) {
        return add(new SimStream.Event());
    }

    @Override
    public synchronized void destroyEvent(long context, long event) {
        remove("cuEventDestroy", SimStream.Event.class, event);
    }

    @GuardedBy("this")
    private SimStream.Event event(String function, long event) {
        return get(function, SimStream.Event.class, event);
    }

    @Override
    public synchronized void recordEvent(long context, long event, long stream) {
        stream("cuEventRecord", stream).record(event("cuEventRecord", event), this::nanos);
    }

    private synchronized long nanos() {
        return nanos;
    }

    @Override
    public synchronized void waitForEvent(long context, long stream, long event) {
        stream("cuStreamWaitEvent", stream).waitFor(event("cuStreamWaitEvent", event));
    }

    @Override
    public synchronized boolean isPassed(long context, long event) {
        SimStream.Event asked = event("cuEventQuery", event);
        asked.checkNotCaptured("cuEventQuery");
        waitFor(() -> asked.poll(POLLS));
        return asked.isPassed();
    }

    @Override
    public synchronized float elapsedMillis(long context, long from, long to) {
        SimStream.Event first = event("cuEventElapsedTime", from);
        SimStream.Event last = event("cuEventElapsedTime", to);
        if (!first.isRecorded() || !last.isRecorded()) {
            throw new CudaException("cuEventElapsedTime", 400, "CUDA_ERROR_INVALID_HANDLE", "an event is not recorded");
        }
        if (!first.isPassed() || !last.isPassed()) {
            throw new CudaException("cuEventElapsedTime", 600, "CUDA_ERROR_NOT_READY", "an event is not passed");
        }
        return (float) ((last.time() - first.time()) / NANOS_IN_MILLI);
    }

    @Override
    public synchronized void copyToDevice(long context, long to, MemorySegment from, long stream) {
        long bytes = from.byteSize();
        memory.range("cuMemcpyHtoDAsync", to, bytes);
        transfer("cuMemcpyHtoDAsync", stream, from, () -> {
            Allocation allocation = memory.range("cuMemcpyHtoDAsync", to, bytes);
            int first = (int) (to - allocation.base);
            MemorySegment.copy(from, 0, MemorySegment.ofArray(allocation.content.bytes), first, bytes);
            allocation.content.setAllWritten(first, (int) bytes);
        });
    }

    @Override
    public synchronized void copyToHost(long context, MemorySegment to, long from, long stream) {
        long bytes = to.byteSize();
        memory.range("cuMemcpyDtoHAsync", from, bytes);
        transfer("cuMemcpyDtoHAsync", stream, to, () -> {
            Allocation allocation = memory.range("cuMemcpyDtoHAsync", from, bytes);
            MemorySegment.copy(MemorySegment.ofArray(allocation.content.bytes), from - allocation.base, to, 0, bytes);
        });
    }

    @Override
    public synchronized void copyToDevice(long context, long to, MemorySegment from, Rows rows, long stream) {
        checkRows(to, from, rows);
        for (int i = 0; i < rows.count(); i++) {
            copyToDevice(context, to + i * rows.onDevice(), from.asSlice(i * rows.onHost(), rows.bytes()), stream);
        }
    }

    @Override
    public synchronized void copyToHost(long context, MemorySegment to, long from, Rows rows, long stream) {
        checkRows(from, to, rows);
        for (int i = 0; i < rows.count(); i++) {
            copyToHost(context, to.asSlice(i * rows.onHost(), rows.bytes()), from + i * rows.onDevice(), stream);
        }
    }

    /** Nothing is copied of rows that are not within the memories. */
    @GuardedBy("this")
    private void checkRows(long address, MemorySegment host, Rows rows) {
        memory.range("cuMemcpy2DAsync", address, (rows.count() - 1) * rows.onDevice() + rows.bytes());
        boolean apart = rows.bytes() <= Math.min(rows.onDevice(), rows.onHost());
        if (!apart || host.byteSize() != (rows.count() - 1) * rows.onHost() + rows.bytes()) {
            throw invalid("cuMemcpy2DAsync", "%s host=%s".formatted(rows, host));
        }
    }

    /** Enqueues a copy of pinned memory, or waits for one of other memory. */
    @GuardedBy("this")
    private void transfer(String function, long stream, MemorySegment host, Runnable copy) {
        if (!host.isNative()) {
            throw new IllegalArgumentException("host memory is not native: " + host);
        }
        SimStream of = stream(function, stream);
        checkWorks();
        Runnable timed = () -> {
            try {
                copy.run();
            } catch (IllegalStateException e) {
                throw e instanceof CudaException
                        ? e
                        : new CudaException(
                                function,
                                719,
                                "CUDA_ERROR_LAUNCH_FAILED",
                                "the host memory was freed before the copy was awaited: " + e.getMessage());
            }
            pass(host.byteSize());
        };
        boolean isPinned = isPinned(host);
        if (!isPinned) {
            checkNotCapturing(function, of);
        }
        of.enqueue(timed);
        if (!isPinned) {
            waitFor(of::synchronize);
        }
    }

    private synchronized void pass(long steps) {
        nanos += steps;
    }

    @Override
    public synchronized void copy(long context, long to, long from, long bytes, long stream) {
        memory.range("cuMemcpyDtoDAsync", to, bytes);
        memory.range("cuMemcpyDtoDAsync", from, bytes);
        checkWorks();
        stream("cuMemcpyDtoDAsync", stream).enqueue(() -> copyNow(to, from, bytes));
    }

    private synchronized void copyNow(long to, long from, long bytes) {
        Allocation source = memory.range("cuMemcpyDtoDAsync", from, bytes);
        Allocation target = memory.range("cuMemcpyDtoDAsync", to, bytes);
        int fromFirst = (int) (from - source.base);
        int toFirst = (int) (to - target.base);
        System.arraycopy(source.content.bytes, fromFirst, target.content.bytes, toFirst, (int) bytes);
        target.content.copyWritten(source.content, fromFirst, toFirst, (int) bytes);
        pass(bytes);
    }

    @Override
    public synchronized void fill(long context, long to, int value, long bytes, long stream) {
        memory.range("cuMemsetD8Async", to, bytes);
        checkWorks();
        stream("cuMemsetD8Async", stream).enqueue(() -> fillNow(to, value, bytes));
    }

    private synchronized void fillNow(long to, int value, long bytes) {
        Allocation target = memory.range("cuMemsetD8Async", to, bytes);
        int first = (int) (to - target.base);
        java.util.Arrays.fill(target.content.bytes, first, first + (int) bytes, (byte) value);
        target.content.setAllWritten(first, (int) bytes);
        pass(bytes);
    }

    @Override
    public synchronized long loadModule(long context, String ptx) {
        Map<String, Long> functions = new HashMap<>();
        List<KernelCode> kernels =
                PtxParser.parse(ptx).values().stream().map(Decoder::decode).toList();
        for (KernelCode kernel : kernels) {
            functions.put(kernel.name(), add(new Function(kernel)));
        }
        return add(new Loaded(functions));
    }

    @Override
    public synchronized void unloadModule(long context, long module) {
        Loaded unloaded = get("cuModuleUnload", Loaded.class, module);
        for (long function : unloaded.functions.values()) {
            objects.remove(function);
        }
        objects.remove(module);
    }

    @Override
    public synchronized long function(long context, long module, String name) {
        Long function =
                get("cuModuleGetFunction", Loaded.class, module).functions.get(name);
        if (function == null) {
            throw new CudaException(
                    "cuModuleGetFunction", 500, "CUDA_ERROR_NOT_FOUND", "the module has no kernel " + name);
        }
        return function;
    }

    @Override
    public synchronized void allowSharedBytes(long context, long function, int bytes) {
        Function of = get("cuFuncSetAttribute", Function.class, function);
        if (bytes < 0 || bytes + of.code.text().sharedBytes() > SHARED_BYTES) {
            throw invalid("cuFuncSetAttribute", "bytes=%d; a block has at most %d".formatted(bytes, SHARED_BYTES));
        }
        of.allowedSharedBytes = bytes + of.code.text().sharedBytes();
    }

    @Override
    public synchronized void launch(long context, long function, LaunchShape shape, long stream, long... arguments) {
        int device = device(context);
        Function of = get("cuLaunchKernel", Function.class, function);
        KernelText text = of.code.text();
        if (shape.gridX() < 1
                || shape.gridY() < 1
                || shape.gridZ() < 1
                || shape.gridY() > MAX_GRID_YZ
                || shape.gridZ() > MAX_GRID_YZ
                || (long) shape.gridX() * shape.gridY() * shape.gridZ() > Integer.MAX_VALUE) {
            throw invalid("cuLaunchKernel", "%s: %s".formatted(text.name(), shape));
        }
        if (shape.threads() < 1 || shape.threads() > text.maxThreads()) {
            throw invalid(
                    "cuLaunchKernel",
                    "%s: threads=%d, at most %d".formatted(text.name(), shape.threads(), text.maxThreads()));
        }
        int sharedBytes = text.sharedBytes() + shape.sharedBytes();
        if (shape.sharedBytes() < 0 || sharedBytes > Math.max(SHARED_BYTES_AT_FIRST, of.allowedSharedBytes)) {
            throw invalid(
                    "cuLaunchKernel",
                    "%s: %d bytes of shared memory, at most %d are allowed"
                            .formatted(text.name(), sharedBytes, of.allowedSharedBytes));
        }
        if (arguments.length != text.parameters().size()) {
            throw invalid(
                    "cuLaunchKernel",
                    "%s: %d arguments for the parameters %s"
                            .formatted(text.name(), arguments.length, text.parameters()));
        }
        checkWorks();
        long[] values = arguments.clone();
        stream("cuLaunchKernel", stream).enqueue(() -> execute(of.code, device, shape, values));
    }

    private synchronized void execute(KernelCode code, int device, LaunchShape shape, long[] arguments) {
        int blocks = shape.gridX() * shape.gridY() * shape.gridZ();
        if (blocks > TAGS - nextTag) {
            memory.forgetWriters();
            nextTag = 1;
        }
        KernelCode.Launch launch = new KernelCode.Launch(
                code,
                memory,
                device,
                shape.gridX(),
                shape.gridY(),
                shape.gridZ(),
                shape.threads(),
                shape.sharedBytes(),
                arguments,
                nextTag);
        nextTag += blocks;
        List<CudaException> found = Collections.synchronizedList(new ArrayList<>());
        // A block that reads where another writes is found if it runs later, so each second launch runs the last block
        // first.
        boolean lastFirst = launches++ % 2 == 1;
        long steps = LongStream.range(0, blocks)
                .parallel()
                .map(block -> {
                    try {
                        return found.isEmpty() ? code.run(launch, (int) (lastFirst ? blocks - 1 - block : block)) : 0;
                    } catch (CudaException e) {
                        found.add(e);
                        return 0;
                    }
                })
                .sum();
        pass(steps);
        if (!found.isEmpty()) {
            throw found.getFirst();
        }
    }

    @Override
    public synchronized void beginCapture(long context, long stream) {
        SimStream begun = stream("cuStreamBeginCapture", stream);
        checkNotCapturing("cuStreamBeginCapture", begun);
        begun.beginCapture();
    }

    @Override
    public synchronized long endCapture(long context, long stream) {
        SimStream ended = stream("cuStreamEndCapture", stream);
        if (!ended.isOriginOfCapture()) {
            throw new CudaException(
                    "cuStreamEndCapture", 901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "the stream captures no graph");
        }
        return add(new Graph(ended.endCapture()));
    }

    @Override
    public synchronized void launchGraph(long context, long graph, long stream) {
        List<Runnable> work = get("cuGraphLaunch", Graph.class, graph).work;
        checkWorks();
        stream("cuGraphLaunch", stream).enqueue(() -> work.forEach(Runnable::run));
    }

    @Override
    public synchronized void destroyGraph(long context, long graph) {
        remove("cuGraphExecDestroy", Graph.class, graph);
    }

    @Override
    public synchronized byte[] exportMemory(long context, long address) {
        memory.begin("cuIpcGetMemHandle", address);
        return ByteBuffer.allocate(HANDLE_BYTES)
                .putLong(System.identityHashCode(this))
                .putLong(address)
                .array();
    }

    @Override
    public synchronized long openMemory(long context, byte[] handle) {
        ByteBuffer buffer = ByteBuffer.wrap(handle);
        if (handle.length != HANDLE_BYTES || buffer.getLong() != System.identityHashCode(this)) {
            throw invalid("cuIpcOpenMemHandle", "the handle is not of this simulated driver");
        }
        return memory.alias(buffer.getLong());
    }

    @Override
    public synchronized void closeMemory(long context, long address) {
        memory.closeAlias(address);
    }

    /** Alignment of pinned memory. */
    private static final class Page {
        private static final int BYTES = 4096;
    }
}
