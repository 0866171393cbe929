package baton.cuda.kernel;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.assertj.core.api.Assertions.within;

import baton.cuda.driver.CublasLt;
import baton.cuda.driver.FakeCuda;
import baton.cuda.driver.Gpu;
import baton.kv.DType;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.foreign.ValueLayout;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Objects;
import java.util.Random;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Products by a library that plays cuBLASLt on the host's memory, where another one plays the driver. */
class LargeProductsTest {
    private static final long SEED = Long.getLong("tests.seed", 5);

    @TempDir
    private Path directory;

    private @Nullable Path library;

    /** A matrix in memory of the device that is the host's. */
    private record Numbers(Gpu.Buffer buffer, DType type, int rows, int columns, float[] values)
            implements AutoCloseable {
        static Numbers random(Gpu gpu, DType type, int rows, int columns, Random random) {
            Gpu.Buffer buffer = gpu.allocate((long) rows * columns * type.bytes());
            MemorySegment memory = MemorySegment.ofAddress(buffer.address()).reinterpret(buffer.bytes());
            float[] values = new float[rows * columns];
            for (int i = 0; i < values.length; i++) {
                type.set(memory, (long) i * type.bytes(), random.nextFloat() - 0.5f);
                values[i] = type.get(memory, (long) i * type.bytes());
            }
            return new Numbers(buffer, type, rows, columns, values);
        }

        DeviceRows asRows() {
            return DeviceRows.matrix(buffer.address(), type, rows, columns);
        }

        float[] now() {
            return MemorySegment.ofAddress(buffer.address())
                    .reinterpret(buffer.bytes())
                    .toArray(ValueLayout.JAVA_FLOAT);
        }

        @Override
        public void close() {
            buffer.close();
        }
    }

    private Gpu gpu() throws Exception {
        FakeCuda cuda = FakeCuda.build(directory);
        library = FakeCuda.compile(directory, "fakecublaslt.c", "libcublasLt.so.12");
        return new Gpu(cuda.driver(), 0);
    }

    private CublasLt blas() {
        return CublasLt.load(Map.of(CublasLt.VARIABLE, directory.toString()));
    }

    private int count(String function) throws Throwable {
        return (int) Linker.nativeLinker()
                .downcallHandle(
                        SymbolLookup.libraryLookup(Objects.requireNonNull(library), Arena.global())
                                .findOrThrow(function),
                        FunctionDescriptor.of(ValueLayout.JAVA_INT))
                .invoke();
    }

    @Test
    void productsAreThoseOfPlainJava() throws Throwable {
        try (Gpu gpu = gpu();
                Gpu.Stream stream = gpu.stream()) {
            for (DType type : new DType[] {DType.BF16, DType.F16, DType.F32}) {
                try (LargeProducts products = LargeProducts.of(gpu, blas()).orElseThrow()) {
                    check(gpu, stream, products, type, false, false);
                    check(gpu, stream, products, type, true, false);
                    check(gpu, stream, products, type, false, true);
                    check(gpu, stream, products, type, true, true);
                }
            }
        }
        assertThat(count("fake_objects"))
                .as("objects of the library that are left")
                .isZero();
        // One with biases and one without. Neither the number of rows nor adding to the output changes the choice.
        assertThat(count("fake_chosen")).as("chosen algorithms").isEqualTo(3 * 2);
    }

    private static void check(
            Gpu gpu, Gpu.Stream stream, LargeProducts products, DType type, boolean biased, boolean add) {
        Random random = new Random(SEED);
        for (int rows : new int[] {1, 7, 130}) {
            try (Numbers weight = Numbers.random(gpu, type, 32, 48, random);
                    Numbers bias = Numbers.random(gpu, DType.F32, 1, 32, random);
                    Numbers in = Numbers.random(gpu, type, rows, 48, random);
                    Numbers out = Numbers.random(gpu, DType.F32, rows, 32, random)) {
                Weight weights = new Weight(weight.buffer.address(), type, 32, 48, biased ? bias.buffer.address() : 0);
                assertThat(products.product(stream, weights, in.asRows(), out.asRows(), add))
                        .isTrue();
                float[] computed = out.now();
                for (int i = 0; i < computed.length; i++) {
                    int output = i % 32;
                    double expected = (biased ? bias.values[output] : 0) + (add ? out.values[i] : 0);
                    for (int k = 0; k < 48; k++) {
                        expected += (double) weight.values[output * 48 + k] * in.values[i / 32 * 48 + k];
                    }
                    assertThat((double) computed[i]).isCloseTo(expected, within(1e-5));
                }
            }
        }
    }

    @Test
    void shapesThatTheLibraryDoesNotComputeAreLeftToKernels() throws Throwable {
        try (Gpu gpu = gpu();
                Gpu.Stream stream = gpu.stream();
                LargeProducts products = LargeProducts.of(gpu, blas()).orElseThrow()) {
            // An error, no algorithm found, and rows that do not begin at multiples of 16 bytes.
            for (int[] shape : new int[][] {{24, 48}, {40, 48}, {32, 44}, {30, 48}}) {
                Weight weight = new Weight(4096, DType.BF16, shape[0], shape[1], 0);
                DeviceRows in = DeviceRows.matrix(4096, DType.BF16, 200, shape[1]);
                DeviceRows out = DeviceRows.matrix(4096, DType.F32, 200, shape[0]);
                assertThat(products.product(stream, weight, in, out, false))
                        .as("shape %d x %d", shape[0], shape[1])
                        .isFalse();
            }
            Weight biased = new Weight(4096, DType.BF16, 32, 48, 4104);
            DeviceRows in = DeviceRows.matrix(4096, DType.BF16, 200, 48);
            DeviceRows out = DeviceRows.matrix(4096, DType.F32, 200, 32);
            assertThat(products.product(stream, biased, in, out, false))
                    .as("biases that do not begin at a multiple of 16 bytes")
                    .isFalse();
        }
        assertThat(count("fake_objects")).isZero();
    }

    @Test
    void aShapeOfWhichTheLibraryRefusesANumberOfRowsIsLeftToKernels() throws Throwable {
        try (Gpu gpu = gpu();
                Gpu.Stream stream = gpu.stream();
                Numbers weight = Numbers.random(gpu, DType.F32, 48, 16, new Random(SEED));
                Numbers in = Numbers.random(gpu, DType.F32, 1025, 16, new Random(SEED));
                Numbers out = Numbers.random(gpu, DType.F32, 1025, 48, new Random(SEED));
                LargeProducts products = LargeProducts.of(gpu, blas()).orElseThrow()) {
            Weight weights = new Weight(weight.buffer.address(), DType.F32, 48, 16, 0);
            DeviceRows few = in.asRows().rows(0, 200);
            DeviceRows result = out.asRows();
            assertThat(products.product(stream, weights, few, result.rows(0, 200), false))
                    .isTrue();
            assertThat(products.product(stream, weights, in.asRows(), result, false))
                    .isFalse();
            assertThat(products.product(stream, weights, few, result.rows(0, 200), false))
                    .isFalse();
        }
        assertThat(count("fake_objects")).isZero();
    }

    @Test
    void aLibraryThatDoesNotWorkHereIsNotUsed() throws Throwable {
        try (Gpu gpu = gpu()) {
            FakeCuda.compile(directory, "fakecublaslt.c", "libcublasLt.so.13", "-DCREATED=1");
            assertThat(LargeProducts.of(gpu, blas())).isEmpty();
        }
    }

    @Test
    void theLibraryIsFoundInAPythonEnvironmentOrNamedInTheError() throws Exception {
        Path lib = Files.createDirectories(directory.resolve("lib/python3.12/site-packages/nvidia/cublas/lib"));
        FakeCuda.compile(directory, "fakecublaslt.c", "libcublasLt.so.12");
        Files.copy(directory.resolve("libcublasLt.so.12"), lib.resolve("libcublasLt.so.12"));
        assertThat(CublasLt.load(Map.of("VIRTUAL_ENV", directory.toString()))).isNotNull();
        assertThatThrownBy(() -> CublasLt.load(
                        Map.of(CublasLt.VARIABLE, lib.resolve("none.so").toString())))
                .isInstanceOf(NoSuchElementException.class)
                .hasMessageContaining("none.so");
    }
}
