package baton.pipe.nccl;

import baton.memory.NativeFunctions;
import baton.memory.Posix;
import baton.pipe.PipeException;
import java.lang.foreign.AddressLayout;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.GroupLayout;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Optional;

/**
 * The functions of NCCL (2.14 and later, {@code nccl.h}) and of CUDA's runtime ({@code cuda_runtime_api.h}) that wires need.
 * Handles are addresses of native objects. CUDA's functions are for the device that the calling thread has chosen.
 *
 * <p>The libraries stay loaded for the life of the process.
 */
final class NcclApi extends NativeFunctions {
    /** File of NCCL's library, or the directory that has it. */
    static final String NCCL_VARIABLE = "BATON_NCCL_LIBRARY";

    /** File of the CUDA runtime's library, or the directory that has it. */
    static final String CUDA_VARIABLE = "BATON_CUDA_RUNTIME";

    static final int UNIQUE_ID_BYTES = 128;

    private static final List<String> NCCL_FILES = List.of("libnccl.so.2");
    private static final List<String> CUDA_FILES = List.of("libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0");
    private static final String REMEDY = "install NVIDIA's driver, CUDA's runtime and NCCL 2.14 or later"
            + " (`pip install nvidia-nccl-cu12 nvidia-cuda-runtime-cu12` has both libraries) where the loader finds them, or name"
            + " them by the environment variables " + NCCL_VARIABLE + " and " + CUDA_VARIABLE;

    private static final ValueLayout.OfInt INT = ValueLayout.JAVA_INT;
    private static final ValueLayout.OfLong LONG = ValueLayout.JAVA_LONG;
    private static final AddressLayout POINTER = ValueLayout.ADDRESS;
    private static final GroupLayout UNIQUE_ID = MemoryLayout.structLayout(
            MemoryLayout.sequenceLayout(UNIQUE_ID_BYTES, ValueLayout.JAVA_BYTE).withName("internal"));

    /** {@code ncclConfig_t} as of 2.14; later versions use defaults for missing fields. */
    private static final GroupLayout CONFIG = MemoryLayout.structLayout(
            LONG.withName("size"),
            INT.withName("magic"),
            INT.withName("version"),
            INT.withName("blocking"),
            MemoryLayout.paddingLayout(4));

    private static final int CONFIG_MAGIC = 0xcafebeef;
    private static final int CONFIG_VERSION = 21400;

    private static final int NCCL_SUCCESS = 0;
    private static final int NCCL_IN_PROGRESS = 7;
    private static final int NCCL_INT8 = 0;
    private static final int CUDA_NOT_READY = 600;
    private static final int CUDA_NON_BLOCKING = 1;

    private static final FunctionDescriptor WORDS = FunctionDescriptor.of(
            POINTER.withTargetLayout(MemoryLayout.sequenceLayout(Integer.MAX_VALUE, ValueLayout.JAVA_BYTE)), INT);

    private final MethodHandle getUniqueId = function("ncclGetUniqueId", POINTER);
    private final MethodHandle commInitRankConfig =
            function("ncclCommInitRankConfig", POINTER, INT, UNIQUE_ID, INT, POINTER);
    private final MethodHandle send = function("ncclSend", LONG, LONG, INT, INT, LONG, LONG);
    private final MethodHandle receive = function("ncclRecv", LONG, LONG, INT, INT, LONG, LONG);
    private final MethodHandle groupStart = function("ncclGroupStart");
    private final MethodHandle groupEnd = function("ncclGroupEnd");
    private final MethodHandle commAbort = function("ncclCommAbort", LONG);
    private final MethodHandle commGetAsyncError = function("ncclCommGetAsyncError", LONG, POINTER);
    private final MethodHandle ncclErrorString = function("ncclGetErrorString", WORDS);
    private final MethodHandle getDeviceCount = function("cudaGetDeviceCount", POINTER);
    private final MethodHandle setDevice = function("cudaSetDevice", INT);
    private final MethodHandle malloc = function("cudaMalloc", POINTER, LONG);
    private final MethodHandle free = function("cudaFree", LONG);
    private final MethodHandle mallocHost = function("cudaMallocHost", POINTER, LONG);
    private final MethodHandle freeHost = function("cudaFreeHost", LONG);
    private final MethodHandle memcpyAsync = function("cudaMemcpyAsync", LONG, LONG, LONG, INT, LONG);
    private final MethodHandle streamCreate = function("cudaStreamCreateWithFlags", POINTER, INT);
    private final MethodHandle streamDestroy = function("cudaStreamDestroy", LONG);
    private final MethodHandle streamQuery = function("cudaStreamQuery", LONG);
    private final MethodHandle cudaErrorString = function("cudaGetErrorString", WORDS);

    private NcclApi(SymbolLookup nccl, SymbolLookup cuda) {
        super(nccl.or(cuda), "");
    }

    /** @throws PipeException if a library is missing, too old or finds no GPU; with the remedy */
    static NcclApi load(Map<String, String> environment) throws PipeException {
        NcclApi api;
        try {
            SymbolLookup cuda = library(Optional.ofNullable(environment.get(CUDA_VARIABLE)), CUDA_FILES);
            api = new NcclApi(library(Optional.ofNullable(environment.get(NCCL_VARIABLE)), NCCL_FILES), cuda);
        } catch (NoSuchElementException e) {
            throw new PipeException("NCCL is not available (%s); %s".formatted(e.getMessage(), REMEDY), e);
        }
        if (api.devices() == 0) {
            throw new PipeException("there is no GPU that CUDA can use here");
        }
        return api;
    }

    private interface Out {
        int fill(MemorySegment result) throws Throwable;
    }

    /** The value that a CUDA function writes to the address in its first argument. */
    private long made(String what, Out function) throws PipeException {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment result = arena.allocate(LONG);
            cuda(what, Posix.call(() -> function.fill(result)));
            return result.get(LONG, 0);
        }
    }

    private void cuda(String what, int code) throws PipeException {
        if (code != 0) {
            MemorySegment words = Posix.call(() -> (MemorySegment) cudaErrorString.invokeExact(code));
            throw new PipeException("%s: CUDA error %d, %s".formatted(what, code, words.getString(0)));
        }
    }

    /** False if the operation is still in progress. */
    private boolean nccl(String what, int code) throws PipeException {
        if (code != NCCL_SUCCESS && code != NCCL_IN_PROGRESS) {
            MemorySegment words = Posix.call(() -> (MemorySegment) ncclErrorString.invokeExact(code));
            throw new PipeException("%s: NCCL error %d, %s".formatted(what, code, words.getString(0)));
        }
        return code == NCCL_SUCCESS;
    }

    /** The number of GPUs; 0 if CUDA finds none. */
    int devices() {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment count = arena.allocate(INT);
            return Posix.call(() -> (int) getDeviceCount.invokeExact(count)) == 0 ? count.get(INT, 0) : 0;
        }
    }

    /** Selects the device for further calls of this thread. */
    void useDevice(int device) throws PipeException {
        cuda("device " + device, Posix.call(() -> (int) setDevice.invokeExact(device)));
    }

    long deviceMemory(long bytes) throws PipeException {
        return made("memory of the GPU", result -> (int) malloc.invokeExact(result, bytes));
    }

    void freeDeviceMemory(long memory) throws PipeException {
        cuda("cudaFree", Posix.call(() -> (int) free.invokeExact(memory)));
    }

    /** Host memory that the GPU can access. */
    long pinnedMemory(long bytes) throws PipeException {
        return made("pinned memory", result -> (int) mallocHost.invokeExact(result, bytes));
    }

    void freePinnedMemory(long memory) throws PipeException {
        cuda("cudaFreeHost", Posix.call(() -> (int) freeHost.invokeExact(memory)));
    }

    long stream() throws PipeException {
        return made("a stream", result -> (int) streamCreate.invokeExact(result, CUDA_NON_BLOCKING));
    }

    void freeStream(long stream) throws PipeException {
        cuda("cudaStreamDestroy", Posix.call(() -> (int) streamDestroy.invokeExact(stream)));
    }

    /** Enqueues a copy in a stream. */
    void copy(long to, long from, long bytes, boolean toDevice, long stream) throws PipeException {
        int kind = toDevice ? 1 : 2;
        cuda("copying", Posix.call(() -> (int) memcpyAsync.invokeExact(to, from, bytes, kind, stream)));
    }

    /** Whether all enqueued work of the stream is done. */
    boolean isDone(long stream) throws PipeException {
        int code = Posix.call(() -> (int) streamQuery.invokeExact(stream));
        if (code != CUDA_NOT_READY) {
            cuda("the stream", code);
        }
        return code != CUDA_NOT_READY;
    }

    byte[] uniqueId() throws PipeException {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment id = arena.allocate(UNIQUE_ID);
            nccl("a unique id", Posix.call(() -> (int) getUniqueId.invokeExact(id)));
            return id.toArray(ValueLayout.JAVA_BYTE);
        }
    }

    /** A non-blocking communicator of two ranks; usable once {@link #isReady}. */
    long communicator(byte[] uniqueId, int rank) throws PipeException {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment id = arena.allocate(UNIQUE_ID).copyFrom(MemorySegment.ofArray(uniqueId));
            MemorySegment made = arena.allocate(LONG);
            MemorySegment config = arena.allocate(CONFIG);
            config.set(LONG, 0, CONFIG.byteSize());
            config.set(INT, 8, CONFIG_MAGIC);
            config.set(INT, 12, CONFIG_VERSION);
            config.set(INT, 16, 0);
            nccl("a communicator", Posix.call(() -> (int) commInitRankConfig.invokeExact(made, 2, id, rank, config)));
            return made.get(LONG, 0);
        }
    }

    /** Whether the last call of the communicator is complete. */
    boolean isReady(long communicator) throws PipeException {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment state = arena.allocate(INT);
            nccl("the communicator", Posix.call(() -> (int) commGetAsyncError.invokeExact(communicator, state)));
            return nccl("the communicator", state.get(INT, 0));
        }
    }

    /** Enqueues a send or a receive in a stream; the communicator has to be {@link #isReady}. */
    void move(boolean sends, long memory, long bytes, int peer, long communicator, long stream) throws PipeException {
        MethodHandle function = sends ? send : receive;
        nccl("a group", Posix.call(() -> (int) groupStart.invokeExact()));
        try {
            nccl(sends ? "sending" : "receiving", Posix.call(() ->
                    (int) function.invokeExact(memory, bytes, NCCL_INT8, peer, communicator, stream)));
        } finally {
            nccl("a group", Posix.call(() -> (int) groupEnd.invokeExact()));
        }
    }

    /** Aborts a communicator's work and frees it. */
    void abort(long communicator) throws PipeException {
        nccl("ncclCommAbort", Posix.call(() -> (int) commAbort.invokeExact(communicator)));
    }
}
