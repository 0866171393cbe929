package baton.cuda.kernel;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cuda.driver.Driver;
import baton.cuda.driver.Gpu;
import baton.cuda.driver.NativeDriver;
import baton.cuda.sim.SimulatedDriver;
import baton.kv.DType;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.Random;

/**
 * A device for tests that fill and read its memory: a simulated one, or one that exists, if {@code BATON_CUDA_TESTS} is {@code device}.
 * Buffers end where their contents end, so that accesses behind them are found.
 */
final class TestDevice implements AutoCloseable {
    private final Arena arena = Arena.ofShared();
    private final List<Gpu.Buffer> buffers = new ArrayList<>();
    private final Driver driver;
    private final Gpu gpu;
    private final Gpu.Stream stream;

    TestDevice() {
        driver = driver();
        gpu = new Gpu(driver, 0);
        stream = gpu.stream();
    }

    private static Driver driver() {
        if (!Objects.equals(System.getenv("BATON_CUDA_TESTS"), "device")) {
            return new SimulatedDriver();
        }
        return switch (NativeDriver.find()) {
            case NativeDriver.Search.Found found -> found.driver();
            case NativeDriver.Search.Absent absent ->
                throw new AssertionError("BATON_CUDA_TESTS=device: " + absent.why());
        };
    }

    Gpu gpu() {
        return gpu;
    }

    Gpu.Stream stream() {
        return stream;
    }

    /** Memory that nothing is written to. */
    long room(long bytes) {
        Gpu.Buffer buffer = gpu.allocate(bytes);
        buffers.add(buffer);
        return buffer.address();
    }

    /** The address of a copy. */
    long put(MemorySegment bytes) {
        long address = room(bytes.byteSize());
        stream.copyToDevice(address, bytes);
        stream.synchronize();
        return address;
    }

    long put(int... numbers) {
        return put(arena.allocateFrom(ValueLayout.JAVA_INT, numbers));
    }

    long put(long... numbers) {
        return put(arena.allocateFrom(ValueLayout.JAVA_LONG, numbers));
    }

    long put(float... numbers) {
        return put(arena.allocateFrom(ValueLayout.JAVA_FLOAT, numbers));
    }

    /** Rows without gaps, with numbers rounded to the type. */
    DeviceRows put(DType type, int rows, int heads, int columns, float[] numbers) {
        MemorySegment bytes = arena.allocate((long) numbers.length * type.bytes(), 16);
        for (int i = 0; i < numbers.length; i++) {
            type.set(bytes, (long) i * type.bytes(), numbers[i]);
        }
        return new DeviceRows(put(bytes), type, rows, (long) heads * columns, heads, columns, columns);
    }

    /** Rows that nothing is written to. */
    DeviceRows room(DType type, int rows, int heads, int columns) {
        long address = room((long) rows * heads * columns * type.bytes());
        return new DeviceRows(address, type, rows, (long) heads * columns, heads, columns, columns);
    }

    /** The bytes at an address, after all enqueued work. */
    MemorySegment get(long address, long bytes) {
        MemorySegment copy = arena.allocate(bytes, 16);
        stream.copyToHost(copy, address);
        stream.synchronize();
        return copy;
    }

    int[] ints(long address, int count) {
        return get(address, (long) count * Integer.BYTES).toArray(ValueLayout.JAVA_INT);
    }

    long[] longs(long address, int count) {
        return get(address, (long) count * Long.BYTES).toArray(ValueLayout.JAVA_LONG);
    }

    float[] floats(DType type, long address, int count) {
        MemorySegment bytes = get(address, (long) count * type.bytes());
        float[] numbers = new float[count];
        for (int i = 0; i < count; i++) {
            numbers[i] = type.get(bytes, (long) i * type.bytes());
        }
        return numbers;
    }

    /** All numbers of rows without gaps. */
    float[] floats(DeviceRows rows) {
        return floats(rows.type(), rows.address(), rows.rows() * rows.heads() * rows.columns());
    }

    /** Numbers between -1 and 1, rounded to a type. */
    static float[] numbers(Random random, DType type, int count) {
        MemorySegment element = MemorySegment.ofArray(new int[1]);
        float[] numbers = new float[count];
        for (int i = 0; i < count; i++) {
            type.set(element, 0, 2 * random.nextFloat() - 1);
            numbers[i] = type.get(element, 0);
        }
        return numbers;
    }

    @Override
    public void close() {
        try (arena;
                gpu;
                stream) {
            buffers.forEach(Gpu.Buffer::close);
        }
        if (driver instanceof SimulatedDriver simulated) {
            assertThat(simulated.unreleased()).isEmpty();
        }
    }
}
