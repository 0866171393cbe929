package baton.cuda.driver;

import baton.kv.DType;
import baton.memory.NativeFunctions;
import baton.memory.Posix;
import java.io.IOException;
import java.lang.foreign.AddressLayout;
import java.lang.foreign.Arena;
import java.lang.foreign.GroupLayout;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Optional;

/**
 * The functions of cuBLASLt ({@code cublasLt.h} of CUDA 12 and 13) that products with weights need. It works in the calling thread's context, see
 * {@link Driver#makeCurrent}, and stays loaded for the life of the process. Numbers of rows, strides and columns are in elements.
 */
public final class CublasLt extends NativeFunctions {
    /** File of the library, or the directory that has it. */
    public static final String VARIABLE = "BATON_CUBLAS_LIBRARY";

    private static final List<String> FILES = List.of("libcublasLt.so.13", "libcublasLt.so.12");

    /** Environment variables that name a Python environment, and the places in its packages that have the library. */
    private static final List<String> ENVIRONMENTS = List.of("VIRTUAL_ENV", "CONDA_PREFIX");

    private static final List<String> PACKAGES = List.of("nvidia/cu13/lib", "nvidia/cublas/lib");

    private static final ValueLayout.OfInt INT = ValueLayout.JAVA_INT;
    private static final ValueLayout.OfLong LONG = ValueLayout.JAVA_LONG;
    private static final AddressLayout POINTER = ValueLayout.ADDRESS;

    /** Statuses of products that the library refuses, of which it enqueues nothing. */
    private static final int INVALID_VALUE = 7;

    private static final int NOT_SUPPORTED = 15;
    private static final int COMPUTE_F32 = 68;
    private static final int DATA_F32 = 0;
    private static final int DATA_F16 = 2;
    private static final int DATA_BF16 = 14;

    private static final int DESC_TRANSPOSE_A = 3;
    private static final int DESC_EPILOGUE = 7;
    private static final int DESC_BIAS = 8;
    private static final int TRANSPOSED = 1;
    private static final int EPILOGUE_BIAS = 4;
    private static final int LAYOUT_COLUMNS = 3;
    private static final int PREFER_WORKSPACE_BYTES = 1;
    private static final int PREFER_REDUCTION_SCHEMES = 3;
    private static final int PREFER_ALIGNMENT_A = 5;
    private static final int MATRICES = 4;

    /** Rows, columns and biases begin at multiples of this number of bytes. */
    public static final int ALIGNMENT = 16;

    private static final long ALGORITHM_BYTES = 64;
    private static final GroupLayout RESULT = MemoryLayout.structLayout(
            MemoryLayout.sequenceLayout(ALGORITHM_BYTES / Long.BYTES, LONG).withName("algo"),
            LONG.withName("workspaceSize"),
            INT.withName("state"),
            ValueLayout.JAVA_FLOAT.withName("wavesCount"),
            MemoryLayout.sequenceLayout(4, INT).withName("reserved"));

    private final MethodHandle create = function("cublasLtCreate", POINTER);
    private final MethodHandle destroy = function("cublasLtDestroy", LONG);
    private final MethodHandle descCreate = function("cublasLtMatmulDescCreate", POINTER, INT, INT);
    private final MethodHandle descDestroy = function("cublasLtMatmulDescDestroy", LONG);
    private final MethodHandle descSet = function("cublasLtMatmulDescSetAttribute", LONG, INT, POINTER, LONG);
    private final MethodHandle layoutCreate = function("cublasLtMatrixLayoutCreate", POINTER, INT, LONG, LONG, LONG);
    private final MethodHandle layoutDestroy = function("cublasLtMatrixLayoutDestroy", LONG);
    private final MethodHandle layoutSet = function("cublasLtMatrixLayoutSetAttribute", LONG, INT, POINTER, LONG);
    private final MethodHandle preferenceCreate = function("cublasLtMatmulPreferenceCreate", POINTER);
    private final MethodHandle preferenceDestroy = function("cublasLtMatmulPreferenceDestroy", LONG);
    private final MethodHandle preferenceSet =
            function("cublasLtMatmulPreferenceSetAttribute", LONG, INT, POINTER, LONG);
    private final MethodHandle heuristic =
            function("cublasLtMatmulAlgoGetHeuristic", LONG, LONG, LONG, LONG, LONG, LONG, LONG, INT, POINTER, POINTER);
    private final MethodHandle matmul = function(
            "cublasLtMatmul",
            LONG,
            LONG,
            POINTER,
            LONG,
            LONG,
            LONG,
            LONG,
            POINTER,
            LONG,
            LONG,
            LONG,
            LONG,
            POINTER,
            LONG,
            LONG,
            LONG);

    private CublasLt(SymbolLookup library) {
        super(library, "");
    }

    /**
     * Loads the library that the environment names, or one of the loader's path, or of a Python environment's packages.
     *
     * @throws NoSuchElementException if no library is found; its message names the files tried
     */
    public static CublasLt load(Map<String, String> environment) {
        List<String> files = new ArrayList<>(FILES);
        for (String variable : ENVIRONMENTS) {
            Optional.ofNullable(environment.get(variable))
                    .map(root -> Path.of(root, "lib"))
                    .ifPresent(root -> files.addAll(ofPackages(root)));
        }
        return new CublasLt(library(Optional.ofNullable(environment.get(VARIABLE)), files));
    }

    private static List<String> ofPackages(Path root) {
        List<String> found = new ArrayList<>();
        try (DirectoryStream<Path> pythons = Files.newDirectoryStream(root, "python3*")) {
            for (Path python : pythons) {
                for (String each : PACKAGES) {
                    for (String file : FILES) {
                        Path candidate =
                                python.resolve("site-packages").resolve(each).resolve(file);
                        if (Files.exists(candidate)) {
                            found.add(candidate.toString());
                        }
                    }
                }
            }
        } catch (IOException _) {
            return List.of();
        }
        return found;
    }

    /**
     * A product of rows with a weight: {@code out[row][output] = sum over inputs of in[row][input] * weight[output][input]} and its bias.
     *
     * @param type of weights and rows; results are fp32
     * @param rows that the algorithm is chosen for
     * @param inStride from one row to the next
     */
    public record Shape(DType type, int outputs, int inputs, int rows, long inStride, long outStride, boolean biased) {}

    /** A product with its algorithm. */
    public record Plan(
            Shape shape, long description, long weights, long in, long out, MemorySegment algorithm, Arena arena) {}

    private static void run(String name, Posix.Call<Integer> call) {
        check(name, Posix.call(call));
    }

    private static void check(String name, int code) {
        if (code != 0) {
            throw new CudaException(name, code, "cublasStatus_t", "see cublas_api.h");
        }
    }

    private interface Out {
        int of(MemorySegment result) throws Throwable;
    }

    private static long made(String name, Out out) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment result = arena.allocate(LONG);
            run(name, () -> out.of(result));
            return result.get(LONG, 0);
        }
    }

    public long create() {
        return made("cublasLtCreate", out -> (int) create.invokeExact(out));
    }

    public void destroy(long handle) {
        run("cublasLtDestroy", () -> (int) destroy.invokeExact(handle));
    }

    private static void set(MethodHandle function, long object, int attribute, long value, long bytes) {
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment number = arena.allocateFrom(LONG, value);
            run("attribute " + attribute, () -> (int) function.invokeExact(object, attribute, number, bytes));
        }
    }

    private static int data(DType type) {
        return switch (type) {
            case F32 -> DATA_F32;
            case F16 -> DATA_F16;
            case BF16 -> DATA_BF16;
            case F8_E4M3 -> throw new IllegalArgumentException("type=%s".formatted(type));
        };
    }

    /** A matrix with {@code count} columns of {@code length} numbers, which are rows of a matrix in Java's order. */
    private long layout(int data, long length, long count, long stride) {
        return made(
                "cublasLtMatrixLayoutCreate", out -> (int) layoutCreate.invokeExact(out, data, length, count, stride));
    }

    /**
     * Chooses the algorithm: one that does not divide a sum among blocks of threads.
     *
     * @return empty if the library has none
     */
    public Optional<Plan> plan(long handle, Shape shape, long workspaceBytes) {
        Arena arena = Arena.ofShared();
        int data = data(shape.type);
        long description =
                made("cublasLtMatmulDescCreate", out -> (int) descCreate.invokeExact(out, COMPUTE_F32, DATA_F32));
        set(descSet, description, DESC_TRANSPOSE_A, TRANSPOSED, Integer.BYTES);
        if (shape.biased) {
            set(descSet, description, DESC_EPILOGUE, EPILOGUE_BIAS, Integer.BYTES);
            // Not read when an algorithm is chosen, which may rely on an alignment as large as this address has.
            set(descSet, description, DESC_BIAS, ALIGNMENT, Long.BYTES);
        }
        Plan plan = new Plan(
                shape,
                description,
                layout(data, shape.inputs, shape.outputs, shape.inputs),
                layout(data, shape.inputs, shape.rows, shape.inStride),
                layout(DATA_F32, shape.outputs, shape.rows, shape.outStride),
                arena.allocate(RESULT),
                arena);
        long preference = made("cublasLtMatmulPreferenceCreate", out -> (int) preferenceCreate.invokeExact(out));
        try {
            set(preferenceSet, preference, PREFER_WORKSPACE_BYTES, workspaceBytes, Long.BYTES);
            set(preferenceSet, preference, PREFER_REDUCTION_SCHEMES, 0, Integer.BYTES);
            for (int matrix = 0; matrix < MATRICES; matrix++) {
                set(preferenceSet, preference, PREFER_ALIGNMENT_A + matrix, ALIGNMENT, Integer.BYTES);
            }
            MemorySegment found = arena.allocate(INT);
            int code = (int) heuristic.invokeExact(
                    handle,
                    plan.description,
                    plan.weights,
                    plan.in,
                    plan.out,
                    plan.out,
                    preference,
                    1,
                    plan.algorithm,
                    found);
            if (code == 0 && found.get(INT, 0) == 1) {
                return Optional.of(plan);
            }
        } catch (Throwable e) {
            close(plan);
            throw Posix.thrown(e);
        } finally {
            run("cublasLtMatmulPreferenceDestroy", () -> (int) preferenceDestroy.invokeExact(preference));
        }
        close(plan);
        return Optional.empty();
    }

    /**
     * Enqueues a product.
     *
     * @param bias address of a number in fp32 for each output; not read if the shape has none
     * @param rows as many as there are, not those that the algorithm was chosen for
     * @param add adds the results to the numbers that are in {@code out}
     * @return false if the library does not compute so many rows by the algorithm; then nothing is enqueued
     */
    public boolean multiply(
            long handle,
            Plan plan,
            long weight,
            long bias,
            long in,
            long out,
            int rows,
            boolean add,
            Gpu.Buffer workspace,
            Gpu.Stream stream) {
        set(layoutSet, plan.in, LAYOUT_COLUMNS, rows, Long.BYTES);
        set(layoutSet, plan.out, LAYOUT_COLUMNS, rows, Long.BYTES);
        if (plan.shape.biased) {
            set(descSet, plan.description, DESC_BIAS, bias, Long.BYTES);
        }
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment one = arena.allocateFrom(ValueLayout.JAVA_FLOAT, 1);
            MemorySegment beta = arena.allocateFrom(ValueLayout.JAVA_FLOAT, add ? 1 : 0);
            int code = Posix.call(() -> (int) matmul.invokeExact(
                    handle,
                    plan.description,
                    one,
                    weight,
                    plan.weights,
                    in,
                    plan.in,
                    beta,
                    out,
                    plan.out,
                    out,
                    plan.out,
                    plan.algorithm,
                    workspace.address(),
                    workspace.bytes(),
                    stream.handle()));
            if (code != INVALID_VALUE && code != NOT_SUPPORTED) {
                check("cublasLtMatmul", code);
            }
            return code == 0;
        }
    }

    public void close(Plan plan) {
        run("cublasLtMatmulDescDestroy", () -> (int) descDestroy.invokeExact(plan.description));
        for (long layout : new long[] {plan.weights, plan.in, plan.out}) {
            run("cublasLtMatrixLayoutDestroy", () -> (int) layoutDestroy.invokeExact(layout));
        }
        plan.arena.close();
    }
}
