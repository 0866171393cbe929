package baton.cuda.driver;

import java.lang.foreign.MemorySegment;

/**
 * The functions of NVIDIA's driver API that Baton calls, by their numbers and handles. {@link Gpu} and its objects own handles and
 * release them. Safe for use by several threads; every method that takes a context's handle makes it current for its call.
 *
 * <p>Copies to and from host memory and launches are enqueued on a stream and return at once, if the host memory is pinned. The host
 * memory must stay as it is until the stream has passed the copy.
 *
 * <p>Each method throws {@link CudaException} if the driver reports an error.
 */
public interface Driver {
    /** The least capability of a device for Baton's kernels, as in {@link DeviceInfo#capability}. */
    int LEAST_CAPABILITY = 80;

    /** The version of CUDA that the driver speaks, as {@code cuDriverGetVersion} writes it: 1000 * major + 10 * minor. */
    int version();

    int deviceCount();

    /** @param device its ordinal among those that {@code CUDA_VISIBLE_DEVICES} leaves */
    DeviceInfo device(int device);

    /** Retains the primary context of a device. */
    long retainContext(int device);

    void releaseContext(int device);

    /** Makes a context that of the calling thread, for libraries beside the driver. */
    void makeCurrent(long context);

    /** Free bytes of the device's memory, of all its processes. */
    long freeBytes(long context);

    long allocate(long context, long bytes);

    void free(long context, long address);

    /** Pinned host memory, valid until {@link #freeHost}. */
    MemorySegment allocateHost(long context, long bytes);

    void freeHost(long context, MemorySegment memory);

    /** Pins memory that exists. */
    void registerHost(long context, MemorySegment memory);

    void unregisterHost(long context, MemorySegment memory);

    long createStream(long context);

    void destroyStream(long context, long stream);

    /** Returns when all that was enqueued on the stream is done. */
    void synchronizeStream(long context, long stream);

    long createEvent(long context);

    void destroyEvent(long context, long event);

    void recordEvent(long context, long event, long stream);

    /** Work that is enqueued on the stream after this call waits for the event. */
    void waitForEvent(long context, long stream, long event);

    /** Whether the event is passed; false as long as work before it is not done. */
    boolean isPassed(long context, long event);

    /** Milliseconds from one recorded and passed event to another. */
    float elapsedMillis(long context, long from, long to);

    void copyToDevice(long context, long to, MemorySegment from, long stream);

    void copyToHost(long context, MemorySegment to, long from, long stream);

    /** @param from from the begin of the first row to the end of the last one */
    void copyToDevice(long context, long to, MemorySegment from, Rows rows, long stream);

    /** @param to from the begin of the first row to the end of the last one */
    void copyToHost(long context, MemorySegment to, long from, Rows rows, long stream);

    void copy(long context, long to, long from, long bytes, long stream);

    /** Fills bytes of the device with one value. */
    void fill(long context, long to, int value, long bytes, long stream);

    /**
     * Compiles PTX.
     *
     * @param ptx the text of a module
     * @throws CudaException with the compiler's log
     */
    long loadModule(long context, String ptx);

    void unloadModule(long context, long module);

    long function(long context, long module, String name);

    /** Lets a function be launched with as much dynamic shared memory, which may be more than 48 KiB. */
    void allowSharedBytes(long context, long function, int bytes);

    /**
     * Enqueues a kernel.
     *
     * @param arguments one for each parameter of the kernel, of up to 8 bytes each: {@code u64} addresses, {@code u32} in the low half,
     *     {@code f32} as the bits of {@link Float#floatToRawIntBits}
     */
    void launch(long context, long function, LaunchShape shape, long stream, long... arguments);

    /** Begins a capture: work enqueued on the stream from here on is recorded in a graph and not executed. */
    void beginCapture(long context, long stream);

    /** The graph since {@link #beginCapture}, ready to be launched. */
    long endCapture(long context, long stream);

    void launchGraph(long context, long graph, long stream);

    void destroyGraph(long context, long graph);

    /** A handle of an allocation, from which another process of the same user can open it on the same device. */
    byte[] exportMemory(long context, long address);

    /** @return the address in this process, until {@link #closeMemory} */
    long openMemory(long context, byte[] handle);

    void closeMemory(long context, long address);

    /**
     * Bytes that are copied by one call, equally far apart.
     *
     * @param bytes of a row
     * @param onDevice bytes from one row to the next there, no less than a row has, and less than 2 GiB
     * @param onHost the same in host memory
     */
    record Rows(int count, long bytes, long onDevice, long onHost) {}

    /**
     * A device.
     *
     * @param capability 10 * major + minor of its compute capability: 90 for Hopper
     * @param sharedBytes shared memory that one block can have at most
     * @param uuid its 16 bytes in hexadecimal
     */
    record DeviceInfo(String name, int capability, long bytes, int multiprocessors, int sharedBytes, String uuid) {}

    /** How many blocks and threads a kernel runs with, and the bytes of its dynamic shared memory. */
    record LaunchShape(int gridX, int gridY, int gridZ, int threads, int sharedBytes) {
        public LaunchShape(int gridX, int threads) {
            this(gridX, 1, 1, threads, 0);
        }
    }
}
