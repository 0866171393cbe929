package baton.cuda.driver;

import baton.cuda.driver.Driver.DeviceInfo;
import baton.cuda.driver.Driver.LaunchShape;
import java.lang.foreign.MemorySegment;
import java.util.Objects;
import java.util.Optional;

/** One device, in its primary context. Objects that it makes are closed before it. Safe for use by several threads. */
public final class Gpu implements AutoCloseable {
    private final Driver driver;
    private final int device;
    private final long context;
    private final DeviceInfo info;
    private volatile Optional<String> failure = Optional.empty();

    /** @param device its ordinal among those that {@code CUDA_VISIBLE_DEVICES} leaves */
    public Gpu(Driver driver, int device) {
        this.driver = driver;
        this.device = Objects.checkIndex(device, driver.deviceCount());
        this.info = driver.device(device);
        this.context = driver.retainContext(device);
    }

    /** Each later {@link #requireWorking} fails, and so do steps and copies. */
    public void fail(String why) {
        failure = Optional.of(failure.orElse(why));
    }

    /** @throws IllegalStateException if the device has failed */
    void requireWorking() {
        failure.ifPresent(why -> {
            throw new IllegalStateException("%s has failed: %s".formatted(info.name(), why));
        });
    }

    public DeviceInfo info() {
        return info;
    }

    public int ordinal() {
        return device;
    }

    public Driver driver() {
        return driver;
    }

    public long context() {
        return context;
    }

    public long freeBytes() {
        return driver.freeBytes(context);
    }

    /** Memory of the device, with any content. */
    public Buffer allocate(long bytes) {
        return new Buffer(this, driver.allocate(context, bytes), bytes);
    }

    /** Pinned host memory. */
    public Pinned pinned(long bytes) {
        return new Pinned(this, driver.allocateHost(context, bytes));
    }

    public Stream stream() {
        return new Stream(this, driver.createStream(context));
    }

    public Event event() {
        return new Event(this, driver.createEvent(context));
    }

    /**
     * Compiles PTX.
     *
     * @throws CudaException with the compiler's log
     */
    public Module load(String ptx) {
        return new Module(this, driver.loadModule(context, ptx));
    }

    @Override
    public void close() {
        driver.releaseContext(device);
    }

    /** An allocation in the device's memory. */
    public record Buffer(Gpu gpu, long address, long bytes) implements AutoCloseable {
        @Override
        public void close() {
            gpu.driver.free(gpu.context, address);
        }
    }

    /** An allocation of pinned host memory. */
    public record Pinned(Gpu gpu, MemorySegment memory) implements AutoCloseable {
        @Override
        public void close() {
            gpu.driver.freeHost(gpu.context, memory);
        }
    }

    /** Work in the order in which it is enqueued. */
    public record Stream(Gpu gpu, long handle) implements AutoCloseable {
        public void copyToDevice(long to, MemorySegment from) {
            gpu.driver.copyToDevice(gpu.context, to, from, handle);
        }

        public void copyToHost(MemorySegment to, long from) {
            gpu.driver.copyToHost(gpu.context, to, from, handle);
        }

        public void copyToDevice(long to, MemorySegment from, Driver.Rows rows) {
            if (rows.count() == 1) {
                copyToDevice(to, from);
                return;
            }
            gpu.driver.copyToDevice(gpu.context, to, from, rows, handle);
        }

        public void copyToHost(MemorySegment to, long from, Driver.Rows rows) {
            if (rows.count() == 1) {
                copyToHost(to, from);
                return;
            }
            gpu.driver.copyToHost(gpu.context, to, from, rows, handle);
        }

        public void copy(long to, long from, long bytes) {
            gpu.driver.copy(gpu.context, to, from, bytes, handle);
        }

        public void fill(long to, int value, long bytes) {
            gpu.driver.fill(gpu.context, to, value, bytes, handle);
        }

        public void launch(Function function, LaunchShape shape, long... arguments) {
            gpu.driver.launch(gpu.context, function.handle, shape, handle, arguments);
        }

        public void waitFor(Event event) {
            gpu.driver.waitForEvent(gpu.context, handle, event.handle);
        }

        /**
         * Makes a graph of enqueued work.
         *
         * @param work enqueues on this stream; the enqueued work is not executed
         */
        public Graph capture(Runnable work) {
            gpu.driver.beginCapture(gpu.context, handle);
            try {
                work.run();
            } catch (RuntimeException | Error e) {
                try {
                    new Graph(gpu, gpu.driver.endCapture(gpu.context, handle)).close();
                } catch (CudaException ended) {
                    e.addSuppressed(ended);
                }
                throw e;
            }
            return new Graph(gpu, gpu.driver.endCapture(gpu.context, handle));
        }

        public void launch(Graph graph) {
            gpu.driver.launchGraph(gpu.context, graph.handle, handle);
        }

        /** Returns when all that was enqueued is done. */
        public void synchronize() {
            gpu.driver.synchronizeStream(gpu.context, handle);
        }

        @Override
        public void close() {
            gpu.driver.destroyStream(gpu.context, handle);
        }
    }

    /** Work that was captured from a stream. */
    public record Graph(Gpu gpu, long handle) implements AutoCloseable {
        @Override
        public void close() {
            gpu.driver.destroyGraph(gpu.context, handle);
        }
    }

    /** A point in a stream. */
    public record Event(Gpu gpu, long handle) implements AutoCloseable {
        public void record(Stream stream) {
            gpu.driver.recordEvent(gpu.context, handle, stream.handle);
        }

        public boolean isPassed() {
            return gpu.driver.isPassed(gpu.context, handle);
        }

        @Override
        public void close() {
            gpu.driver.destroyEvent(gpu.context, handle);
        }
    }

    /** Compiled kernels. */
    public record Module(Gpu gpu, long handle) implements AutoCloseable {
        public Function function(String name) {
            return new Function(gpu, gpu.driver.function(gpu.context, handle, name), name);
        }

        @Override
        public void close() {
            gpu.driver.unloadModule(gpu.context, handle);
        }
    }

    /** A kernel of a module that is loaded. */
    public record Function(Gpu gpu, long handle, String name) {}
}
