package baton.cuda.driver;

import baton.memory.NativeFunctions;
import baton.memory.Posix;
import java.lang.foreign.AddressLayout;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Optional;

/**
 * NVIDIA's driver, {@code libcuda.so.1}, by its functions in {@code cuda.h} of CUDA 12.0. The library stays loaded for the life of the
 * process.
 */
public final class NativeDriver extends NativeFunctions implements Driver {
    /** File of the driver's library, or the directory that has it. */
    public static final String VARIABLE = "BATON_CUDA_DRIVER";

    /** How to get it. */
    public static final String REMEDY = "install NVIDIA's driver 525 or newer; in a container give it the GPU"
            + " (`docker run --gpus all`, `nvidia.com/gpu` in Kubernetes), or name libcuda.so.1 by the environment variable "
            + VARIABLE;

    /** The least version of CUDA, as {@link #version} writes it: the first that compiles PTX 8.0. */
    static final int LEAST_VERSION = 12_000;

    private static final List<String> FILES = List.of("libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1");

    private static final int NOT_READY = 600;

    private static final int MULTIPROCESSORS = 16;
    private static final int CAPABILITY_MAJOR = 75;
    private static final int CAPABILITY_MINOR = 76;
    private static final int SHARED_BYTES_OPTIN = 97;
    private static final int NAME_BYTES = 256;
    private static final int UUID_BYTES = 16;

    private static final int MAX_DYNAMIC_SHARED_BYTES = 8;

    private static final int HOST_MEMORY_PORTABLE = 1;
    /** A value of {@code CUmemorytype}. */
    private static final int HOST = 1;

    private static final int DEVICE = 2;
    private static final int STREAM_NON_BLOCKING = 1;
    /** Calls of other threads, such as allocations, stay possible during a capture. */
    private static final int CAPTURE_RELAXED = 2;

    private static final int LAZY_PEER_ACCESS = 1;

    private static final int JIT_ERROR_LOG = 5;
    private static final int JIT_ERROR_LOG_BYTES = 6;
    private static final int LOG_BYTES = 64 << 10;

    private static final ValueLayout.OfByte BYTE = ValueLayout.JAVA_BYTE;
    private static final ValueLayout.OfInt INT = ValueLayout.JAVA_INT;
    private static final ValueLayout.OfLong LONG = ValueLayout.JAVA_LONG;
    private static final AddressLayout POINTER = ValueLayout.ADDRESS;
    private static final MemoryLayout IPC_HANDLE =
            MemoryLayout.structLayout(MemoryLayout.sequenceLayout(64, BYTE).withName("reserved"));

    private final Entry getErrorName = entry("cuGetErrorName", INT, POINTER);
    private final Entry getErrorString = entry("cuGetErrorString", INT, POINTER);
    private final Entry init = entry("cuInit", INT);
    private final Entry driverGetVersion = entry("cuDriverGetVersion", POINTER);
    private final Entry deviceGetCount = entry("cuDeviceGetCount", POINTER);
    private final Entry deviceGet = entry("cuDeviceGet", POINTER, INT);
    private final Entry deviceGetName = entry("cuDeviceGetName", POINTER, INT, INT);
    private final Entry deviceGetUuid = entry("cuDeviceGetUuid_v2", POINTER, INT);
    private final Entry deviceTotalMem = entry("cuDeviceTotalMem_v2", POINTER, INT);
    private final Entry deviceGetAttribute = entry("cuDeviceGetAttribute", POINTER, INT, INT);
    private final Entry primaryCtxRetain = entry("cuDevicePrimaryCtxRetain", POINTER, INT);
    private final Entry primaryCtxRelease = entry("cuDevicePrimaryCtxRelease_v2", INT);
    /** The function stores a pointer for the calling thread, so a call need not let the garbage collector run. */
    private final Entry ctxSetCurrent = new Entry(
            "cuCtxSetCurrent",
            function("cuCtxSetCurrent", FunctionDescriptor.of(INT, LONG), Linker.Option.critical(false)));

    private final Entry memGetInfo = entry("cuMemGetInfo_v2", POINTER, POINTER);
    private final Entry memAlloc = entry("cuMemAlloc_v2", POINTER, LONG);
    private final Entry memFree = entry("cuMemFree_v2", LONG);
    private final Entry memHostAlloc = entry("cuMemHostAlloc", POINTER, LONG, INT);
    private final Entry memFreeHost = entry("cuMemFreeHost", POINTER);
    private final Entry memHostRegister = entry("cuMemHostRegister_v2", POINTER, LONG, INT);
    private final Entry memHostUnregister = entry("cuMemHostUnregister", POINTER);
    private final Entry streamCreate = entry("cuStreamCreate", POINTER, INT);
    private final Entry streamDestroy = entry("cuStreamDestroy_v2", LONG);
    private final Entry streamSynchronize = entry("cuStreamSynchronize", LONG);
    private final Entry streamWaitEvent = entry("cuStreamWaitEvent", LONG, LONG, INT);
    private final Entry eventCreate = entry("cuEventCreate", POINTER, INT);
    private final Entry eventDestroy = entry("cuEventDestroy_v2", LONG);
    private final Entry eventRecord = entry("cuEventRecord", LONG, LONG);
    private final Entry eventQuery = entry("cuEventQuery", LONG);
    private final Entry eventElapsedTime = entry("cuEventElapsedTime", POINTER, LONG, LONG);
    private final Entry memcpyToDevice = entry("cuMemcpyHtoDAsync_v2", LONG, POINTER, LONG, LONG);
    private final Entry memcpyToHost = entry("cuMemcpyDtoHAsync_v2", POINTER, LONG, LONG, LONG);
    private final Entry memcpyOnDevice = entry("cuMemcpyDtoDAsync_v2", LONG, LONG, LONG, LONG);
    private final Entry memcpyRows = entry("cuMemcpy2DAsync_v2", POINTER, LONG);
    private final Entry memset = entry("cuMemsetD8Async", LONG, BYTE, LONG, LONG);
    private final Entry moduleLoadData = entry("cuModuleLoadDataEx", POINTER, POINTER, INT, POINTER, POINTER);
    private final Entry moduleUnload = entry("cuModuleUnload", LONG);
    private final Entry moduleGetFunction = entry("cuModuleGetFunction", POINTER, LONG, POINTER);
    private final Entry funcSetAttribute = entry("cuFuncSetAttribute", LONG, INT, INT);
    private final Entry launchKernel =
            entry("cuLaunchKernel", LONG, INT, INT, INT, INT, INT, INT, INT, LONG, POINTER, POINTER);
    private final Entry beginCapture = entry("cuStreamBeginCapture_v2", LONG, INT);
    private final Entry endCapture = entry("cuStreamEndCapture", LONG, POINTER);
    private final Entry graphInstantiate = entry("cuGraphInstantiateWithFlags", POINTER, LONG, LONG);
    private final Entry graphDestroy = entry("cuGraphDestroy", LONG);
    private final Entry graphLaunch = entry("cuGraphLaunch", LONG, LONG);
    private final Entry graphExecDestroy = entry("cuGraphExecDestroy", LONG);
    private final Entry ipcGetMemHandle = entry("cuIpcGetMemHandle", POINTER, LONG);
    private final Entry ipcOpenMemHandle = entry("cuIpcOpenMemHandle_v2", POINTER, IPC_HANDLE, INT);
    private final Entry ipcCloseMemHandle = entry("cuIpcCloseMemHandle", LONG);

    /** {@code CUDA_MEMCPY2D}: the end that is read, the one that is written, the bytes of a row, the number of rows. */
    private static final MemoryLayout COPY_OF_ROWS = MemoryLayout.sequenceLayout(16, LONG);

    private static final long COPY_FROM = 0;
    private static final long COPY_TO = 7L * Long.BYTES;
    private static final long COPY_SIZE = 14L * Long.BYTES;

    private NativeDriver(SymbolLookup library) {
        super(library, "");
    }

    /** The driver, or the reason for which Baton cannot use one. */
    public sealed interface Search {
        /** The driver is loaded and has a device. */
        record Found(Driver driver) implements Search {}

        /** @param why one line, without {@link #REMEDY} */
        record Absent(String why) implements Search {}
    }

    /** Loads the driver's library and initializes it, as this process's environment says. */
    public static Search find() {
        return find(System.getenv());
    }

    static Search find(Map<String, String> environment) {
        try {
            NativeDriver driver = new NativeDriver(library(Optional.ofNullable(environment.get(VARIABLE)), FILES));
            driver.run(driver.init, f -> (int) f.invokeExact(0));
            int version = driver.version();
            if (version < LEAST_VERSION) {
                return new Search.Absent("NVIDIA's driver is for CUDA %s; PTX 8.0 needs CUDA %s"
                        .formatted(versionText(version), versionText(LEAST_VERSION)));
            }
            return driver.deviceCount() > 0
                    ? new Search.Found(driver)
                    : new Search.Absent("NVIDIA's driver has no device; CUDA_VISIBLE_DEVICES is %s"
                            .formatted(environment.getOrDefault("CUDA_VISIBLE_DEVICES", "not set")));
        } catch (NoSuchElementException | CudaException e) {
            return new Search.Absent("NVIDIA's driver is not available (%s)".formatted(e.getMessage()));
        }
    }

    /** A version of CUDA in the usual form: 12.4. */
    public static String versionText(int version) {
        return "%d.%d".formatted(version / 1000, version % 1000 / 10);
    }

    /** A function that returns a {@code CUresult}. */
    private record Entry(String name, MethodHandle handle) {}

    private Entry entry(String name, MemoryLayout... arguments) {
        return new Entry(name, function(name, arguments));
    }

    private interface Call {
        int of(MethodHandle function) throws Throwable;
    }

    private interface Out {
        int of(MethodHandle function, MemorySegment result) throws Throwable;
    }

    private static int call(Entry entry, Call call) {
        try {
            return call.of(entry.handle);
        } catch (Throwable e) {
            throw Posix.thrown(e);
        }
    }

    private void run(Entry entry, Call call) {
        int code = call(entry, call);
        if (code != 0) {
            throw failure(entry, code, Optional.empty());
        }
    }

    private void run(long context, Entry entry, Call call) {
        use(context);
        run(entry, call);
    }

    private void use(long context) {
        run(ctxSetCurrent, f -> (int) f.invokeExact(context));
    }

    /** The value of 8 bytes, or fewer in their low part, that a function writes to the address in its first argument. */
    private long made(Entry entry, Out out) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment result = arena.allocate(LONG);
            run(entry, f -> out.of(f, result));
            return result.get(LONG, 0);
        }
    }

    private long made(long context, Entry entry, Out out) {
        use(context);
        return made(entry, out);
    }

    private CudaException failure(Entry entry, int code, Optional<String> detail) {
        return new CudaException(
                entry.name, code, text(getErrorName, code), detail.orElseGet(() -> text(getErrorString, code)));
    }

    private String text(Entry function, int code) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment out = arena.allocate(POINTER);
            int result = call(function, f -> (int) f.invokeExact(code, out));
            return result == 0
                    ? out.get(POINTER, 0).reinterpret(Integer.MAX_VALUE).getString(0, StandardCharsets.UTF_8)
                    : "an unknown error";
        }
    }

    @Override
    public int version() {
        return (int) made(driverGetVersion, (f, out) -> (int) f.invokeExact(out));
    }

    @Override
    public int deviceCount() {
        return (int) made(deviceGetCount, (f, out) -> (int) f.invokeExact(out));
    }

    private int handle(int device) {
        return (int) made(deviceGet, (f, out) -> (int) f.invokeExact(out, device));
    }

    private int attribute(int handle, int attribute) {
        return (int) made(deviceGetAttribute, (f, out) -> (int) f.invokeExact(out, attribute, handle));
    }

    @Override
    public DeviceInfo device(int device) {
        int handle = handle(device);
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment name = arena.allocate(NAME_BYTES);
            run(deviceGetName, f -> (int) f.invokeExact(name, NAME_BYTES, handle));
            MemorySegment uuid = arena.allocate(UUID_BYTES);
            run(deviceGetUuid, f -> (int) f.invokeExact(uuid, handle));
            return new DeviceInfo(
                    name.getString(0),
                    10 * attribute(handle, CAPABILITY_MAJOR) + attribute(handle, CAPABILITY_MINOR),
                    made(deviceTotalMem, (f, out) -> (int) f.invokeExact(out, handle)),
                    attribute(handle, MULTIPROCESSORS),
                    attribute(handle, SHARED_BYTES_OPTIN),
                    HexFormat.of().formatHex(uuid.toArray(BYTE)));
        }
    }

    @Override
    public long retainContext(int device) {
        int handle = handle(device);
        return made(primaryCtxRetain, (f, out) -> (int) f.invokeExact(out, handle));
    }

    @Override
    public void releaseContext(int device) {
        int handle = handle(device);
        run(primaryCtxRelease, f -> (int) f.invokeExact(handle));
    }

    @Override
    public void makeCurrent(long context) {
        use(context);
    }

    @Override
    public long freeBytes(long context) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment total = arena.allocate(LONG);
            return made(context, memGetInfo, (f, free) -> (int) f.invokeExact(free, total));
        }
    }

    @Override
    public long allocate(long context, long bytes) {
        return made(context, memAlloc, (f, out) -> (int) f.invokeExact(out, bytes));
    }

    @Override
    public void free(long context, long address) {
        run(context, memFree, f -> (int) f.invokeExact(address));
    }

    @Override
    public MemorySegment allocateHost(long context, long bytes) {
        long address = made(context, memHostAlloc, (f, out) -> (int) f.invokeExact(out, bytes, HOST_MEMORY_PORTABLE));
        return MemorySegment.ofAddress(address).reinterpret(bytes);
    }

    @Override
    public void freeHost(long context, MemorySegment memory) {
        run(context, memFreeHost, f -> (int) f.invokeExact(memory));
    }

    @Override
    public void registerHost(long context, MemorySegment memory) {
        run(context, memHostRegister, f -> (int) f.invokeExact(memory, memory.byteSize(), HOST_MEMORY_PORTABLE));
    }

    @Override
    public void unregisterHost(long context, MemorySegment memory) {
        run(context, memHostUnregister, f -> (int) f.invokeExact(memory));
    }

    @Override
    public long createStream(long context) {
        return made(context, streamCreate, (f, out) -> (int) f.invokeExact(out, STREAM_NON_BLOCKING));
    }

    @Override
    public void destroyStream(long context, long stream) {
        run(context, streamDestroy, f -> (int) f.invokeExact(stream));
    }

    @Override
    public void synchronizeStream(long context, long stream) {
        run(context, streamSynchronize, f -> (int) f.invokeExact(stream));
    }

    @Override
    public long createEvent(long context) {
        return made(context, eventCreate, (f, out) -> (int) f.invokeExact(out, 0));
    }

    @Override
    public void destroyEvent(long context, long event) {
        run(context, eventDestroy, f -> (int) f.invokeExact(event));
    }

    @Override
    public void recordEvent(long context, long event, long stream) {
        run(context, eventRecord, f -> (int) f.invokeExact(event, stream));
    }

    @Override
    public void waitForEvent(long context, long stream, long event) {
        run(context, streamWaitEvent, f -> (int) f.invokeExact(stream, event, 0));
    }

    @Override
    public boolean isPassed(long context, long event) {
        use(context);
        int code = call(eventQuery, f -> (int) f.invokeExact(event));
        if (code != 0 && code != NOT_READY) {
            throw failure(eventQuery, code, Optional.empty());
        }
        return code == 0;
    }

    @Override
    public float elapsedMillis(long context, long from, long to) {
        return Float.intBitsToFloat(
                (int) made(context, eventElapsedTime, (f, out) -> (int) f.invokeExact(out, from, to)));
    }

    @Override
    public void copyToDevice(long context, long to, MemorySegment from, long stream) {
        run(context, memcpyToDevice, f -> (int) f.invokeExact(to, from, from.byteSize(), stream));
    }

    @Override
    public void copyToHost(long context, MemorySegment to, long from, long stream) {
        run(context, memcpyToHost, f -> (int) f.invokeExact(to, from, to.byteSize(), stream));
    }

    @Override
    public void copyToDevice(long context, long to, MemorySegment from, Rows rows, long stream) {
        copyRows(context, rows, stream, HOST, from.address(), DEVICE, to);
    }

    @Override
    public void copyToHost(long context, MemorySegment to, long from, Rows rows, long stream) {
        copyRows(context, rows, stream, DEVICE, from, HOST, to.address());
    }

    private void copyRows(long context, Rows rows, long stream, int fromKind, long from, int toKind, long to) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment copy = arena.allocate(COPY_OF_ROWS);
            end(copy, COPY_FROM, fromKind, from, rows);
            end(copy, COPY_TO, toKind, to, rows);
            copy.set(LONG, COPY_SIZE, rows.bytes());
            copy.set(LONG, COPY_SIZE + Long.BYTES, rows.count());
            run(context, memcpyRows, f -> (int) f.invokeExact(copy, stream));
        }
    }

    /** Writes one end of a copy: two offsets, the kind of memory, addresses of the host and of a device, an array, the distance. */
    private static void end(MemorySegment copy, long at, int kind, long address, Rows rows) {
        copy.set(INT, at + 2 * Long.BYTES, kind);
        copy.set(LONG, at + (kind == HOST ? 3L : 4L) * Long.BYTES, address);
        copy.set(LONG, at + 6 * Long.BYTES, kind == HOST ? rows.onHost() : rows.onDevice());
    }

    @Override
    public void copy(long context, long to, long from, long bytes, long stream) {
        run(context, memcpyOnDevice, f -> (int) f.invokeExact(to, from, bytes, stream));
    }

    @Override
    public void fill(long context, long to, int value, long bytes, long stream) {
        run(context, memset, f -> (int) f.invokeExact(to, (byte) value, bytes, stream));
    }

    @Override
    public long loadModule(long context, String ptx) {
        use(context);
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment log = arena.allocate(LOG_BYTES);
            MemorySegment options = arena.allocateFrom(INT, JIT_ERROR_LOG, JIT_ERROR_LOG_BYTES);
            MemorySegment values = arena.allocateFrom(LONG, log.address(), LOG_BYTES);
            MemorySegment module = arena.allocate(LONG);
            MemorySegment text = arena.allocateFrom(ptx);
            int code = call(moduleLoadData, f -> (int) f.invokeExact(module, text, 2, options, values));
            if (code != 0) {
                String errors = log.getString(0).strip();
                throw failure(moduleLoadData, code, Optional.of(errors).filter(each -> !each.isEmpty()));
            }
            return module.get(LONG, 0);
        }
    }

    @Override
    public void unloadModule(long context, long module) {
        run(context, moduleUnload, f -> (int) f.invokeExact(module));
    }

    @Override
    public long function(long context, long module, String name) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment text = arena.allocateFrom(name);
            return made(context, moduleGetFunction, (f, out) -> (int) f.invokeExact(out, module, text));
        }
    }

    @Override
    public void allowSharedBytes(long context, long function, int bytes) {
        run(context, funcSetAttribute, f -> (int) f.invokeExact(function, MAX_DYNAMIC_SHARED_BYTES, bytes));
    }

    @Override
    public void launch(long context, long function, LaunchShape shape, long stream, long... arguments) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment slots = arena.allocateFrom(LONG, arguments);
            MemorySegment addresses = arena.allocate(LONG, arguments.length);
            for (int i = 0; i < arguments.length; i++) {
                addresses.setAtIndex(LONG, i, slots.address() + i * LONG.byteSize());
            }
            run(context, launchKernel, f -> (int) f.invokeExact(
                    function,
                    shape.gridX(),
                    shape.gridY(),
                    shape.gridZ(),
                    shape.threads(),
                    1,
                    1,
                    shape.sharedBytes(),
                    stream,
                    addresses,
                    MemorySegment.NULL));
        }
    }

    @Override
    public void beginCapture(long context, long stream) {
        run(context, beginCapture, f -> (int) f.invokeExact(stream, CAPTURE_RELAXED));
    }

    @Override
    public long endCapture(long context, long stream) {
        long graph = made(context, endCapture, (f, out) -> (int) f.invokeExact(stream, out));
        try {
            return made(graphInstantiate, (f, out) -> (int) f.invokeExact(out, graph, 0L));
        } finally {
            run(graphDestroy, f -> (int) f.invokeExact(graph));
        }
    }

    @Override
    public void launchGraph(long context, long graph, long stream) {
        run(context, graphLaunch, f -> (int) f.invokeExact(graph, stream));
    }

    @Override
    public void destroyGraph(long context, long graph) {
        run(context, graphExecDestroy, f -> (int) f.invokeExact(graph));
    }

    @Override
    public byte[] exportMemory(long context, long address) {
        use(context);
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment handle = arena.allocate(IPC_HANDLE);
            run(ipcGetMemHandle, f -> (int) f.invokeExact(handle, address));
            return handle.toArray(BYTE);
        }
    }

    @Override
    public long openMemory(long context, byte[] handle) {
        if (handle.length != IPC_HANDLE.byteSize()) {
            throw new IllegalArgumentException(
                    "handle has %d bytes, must have %d".formatted(handle.length, IPC_HANDLE.byteSize()));
        }
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment copy = arena.allocate(IPC_HANDLE).copyFrom(MemorySegment.ofArray(handle));
            return made(context, ipcOpenMemHandle, (f, out) -> (int) f.invokeExact(out, copy, LAZY_PEER_ACCESS));
        }
    }

    @Override
    public void closeMemory(long context, long address) {
        run(context, ipcCloseMemHandle, f -> (int) f.invokeExact(address));
    }
}
