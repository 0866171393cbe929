package baton.bench.gpu;

import baton.cuda.driver.Driver.DeviceInfo;
import baton.cuda.driver.Gpu;
import baton.cuda.driver.NativeDriver;
import baton.cuda.kernel.DeviceRows;
import baton.cuda.kernel.GpuKernels;
import baton.cuda.kernel.Weight;
import baton.cuda.model.CudaPeers;
import baton.kv.DType;
import baton.kv.DevicePeers;
import baton.kv.DevicePeers.Copy;
import baton.kv.Ticker;
import java.io.IOException;
import java.lang.foreign.ValueLayout;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Random;
import java.util.stream.IntStream;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/** Steps that need the driver and kernels only. */
final class DriverSteps {
    private static final int REPETITIONS = 10;
    private static final byte PATTERN = 0x5a;
    private static final int BLOCK_BYTES = 512 << 10;

    /** The period of operands; a prime, so that rows differ. */
    private static final int PERIOD = 4099;

    /** The tolerance of sums of products in fp32, for the root of their number. */
    private static final double SUM_TOLERANCE = 1e-3;

    /** Rows, outputs and inputs of products. */
    private static final int[][] SHAPES = {
        {8192, 8192, 8192}, {2048, 8192, 2048}, {512, 8192, 2048}, {1, 8192, 2048}, {32, 8192, 2048}
    };

    private static final int[][] SMALL_SHAPES = {{17, 64, 64}};

    private DriverSteps() {}

    static void device(GpuCheck check, ObjectNode json) {
        try (Gpu gpu = check.gpu()) {
            DeviceInfo info = gpu.info();
            json.put("cuda", NativeDriver.versionText(gpu.driver().version()))
                    .put("devices", gpu.driver().deviceCount())
                    .put("name", info.name())
                    .put("capability", info.capability())
                    .put("bytes", info.bytes())
                    .put("free_bytes", gpu.freeBytes())
                    .put("multiprocessors", info.multiprocessors())
                    .put("shared_bytes", info.sharedBytes())
                    .put("uuid", info.uuid());
        }
    }

    /** Milliseconds of work on a stream, by its own clock. */
    private static double millis(Gpu gpu, Gpu.Stream stream, Runnable work) {
        try (Gpu.Event from = gpu.event();
                Gpu.Event to = gpu.event()) {
            from.record(stream);
            work.run();
            to.record(stream);
            stream.synchronize();
            return gpu.driver().elapsedMillis(gpu.context(), from.handle(), to.handle());
        }
    }

    /** The least milliseconds of several runs, after one that is not counted. */
    private static double best(Gpu gpu, Gpu.Stream stream, Runnable work) {
        work.run();
        return IntStream.range(0, REPETITIONS)
                .mapToDouble(_ -> millis(gpu, stream, work))
                .min()
                .orElseThrow();
    }

    private static double rate(double bytes, double millis) {
        return bytes / millis * 1e3;
    }

    /** Within the device read and written bytes are added, as PyTorch's copies are counted. */
    static void copies(GpuCheck check, ObjectNode json) {
        long bytes = check.simulated() ? 1 << 20 : 1L << 30;
        try (Gpu gpu = check.gpu();
                Gpu.Stream stream = gpu.stream();
                Gpu.Buffer from = gpu.allocate(bytes);
                Gpu.Buffer to = gpu.allocate(bytes);
                Gpu.Pinned host = gpu.pinned(bytes / 4)) {
            stream.fill(from.address(), PATTERN, bytes);
            double within = best(gpu, stream, () -> stream.copy(to.address(), from.address(), bytes));
            json.put("device_bytes_per_second", rate(2.0 * bytes, within));
            host.memory().fill((byte) 1);
            double up = best(gpu, stream, () -> stream.copyToDevice(to.address(), host.memory()));
            json.put("to_device_bytes_per_second", rate(bytes / 4.0, up));
            double down = best(gpu, stream, () -> stream.copyToHost(host.memory(), from.address()));
            json.put("to_host_bytes_per_second", rate(bytes / 4.0, down));
            require(host.memory().get(ValueLayout.JAVA_BYTE, bytes / 4 - 1) == PATTERN, "the copied bytes");
        }
    }

    private static void require(boolean right, String what) {
        if (!right) {
            throw new IllegalStateException("wrong: " + what);
        }
    }

    /** A pool of this process is read by another one, in blocks of a hand-over of 2,048 tokens of a 1B model. */
    static void ipc(GpuCheck check, ObjectNode json) throws IOException, InterruptedException {
        long bytes = check.simulated() ? 4L * BLOCK_BYTES : 128L * BLOCK_BYTES;
        try (Gpu gpu = check.gpu();
                Gpu.Stream stream = gpu.stream();
                GpuKernels kernels = new GpuKernels(gpu, DType.F32);
                Gpu.Buffer pool = gpu.allocate(bytes);
                CudaPeers peers = new CudaPeers(pool, kernels.copies(), Ticker.system())) {
            stream.fill(pool.address(), PATTERN, bytes);
            stream.synchronize();
            try (Gpu.Buffer other = gpu.allocate(bytes);
                    CudaPeers reader = new CudaPeers(other, kernels.copies(), Ticker.system())) {
                read(gpu, other, reader, peers.exported(), json.putObject("same_process"));
            }
            if (check.simulated()) {
                json.put(GpuCheck.LEFT_OUT, "another process does not reach the simulated device");
            } else {
                json.set(
                        "other_process",
                        check.inProcess(GpuStep.IPC, HexFormat.of().formatHex(peers.exported())));
            }
        }
    }

    /** The other process. */
    static void readPeer(GpuCheck check, String exported, ObjectNode json) throws IOException {
        byte[] pool = HexFormat.of().parseHex(exported);
        try (Gpu gpu = check.gpu();
                GpuKernels kernels = new GpuKernels(gpu, DType.F32);
                Gpu.Buffer own = gpu.allocate(128L * BLOCK_BYTES);
                CudaPeers peers = new CudaPeers(own, kernels.copies(), Ticker.system())) {
            read(gpu, own, peers, pool, json);
        }
    }

    private static void read(Gpu gpu, Gpu.Buffer own, CudaPeers peers, byte[] exported, ObjectNode json)
            throws IOException {
        // Apart from each other, as most blocks of a prompt are.
        int blocks = (int) (own.bytes() / BLOCK_BYTES);
        List<Copy> scattered = IntStream.range(0, blocks)
                .mapToObj(block ->
                        new Copy((long) block * BLOCK_BYTES, (long) (blocks - 1 - block) * BLOCK_BYTES, BLOCK_BYTES))
                .toList();
        try (Gpu.Stream stream = gpu.stream();
                Gpu.Pinned host = gpu.pinned(own.bytes())) {
            stream.fill(own.address(), 0, own.bytes());
            stream.synchronize();
            DevicePeers.PeerPool pool = peers.open(exported);
            double best = Double.MAX_VALUE;
            for (int i = 0; i < REPETITIONS; i++) {
                long begun = System.nanoTime();
                pool.copy(scattered).await();
                best = Math.min(best, (System.nanoTime() - begun) * 1e-6);
            }
            json.put("millis", best).put("bytes_per_second", rate(own.bytes(), best));
            stream.copyToHost(host.memory(), own.address());
            stream.synchronize();
            pool.close();
            for (long at = 0; at < own.bytes(); at += 4096) {
                require(host.memory().get(ValueLayout.JAVA_BYTE, at) == PATTERN, "the peer's bytes");
            }
        }
    }

    static void products(GpuCheck check, ObjectNode json) {
        ArrayNode results = json.putArray("products");
        for (DType type : check.simulated() ? List.of(DType.BF16) : List.of(DType.BF16, DType.F32)) {
            try (Gpu gpu = check.gpu();
                    Gpu.Stream stream = gpu.stream();
                    GpuKernels kernels = new GpuKernels(gpu, type)) {
                for (int[] shape : check.simulated() ? SMALL_SHAPES : SHAPES) {
                    if (type == DType.BF16 || (long) shape[0] * shape[1] <= 1L << 22) {
                        product(gpu, stream, kernels, type, shape, results.addObject());
                    }
                }
            }
        }
    }

    /** Repeats numbers between -1 and 1, so that rows differ; see {@link #element}. */
    private static float[] fill(Gpu.Stream stream, Gpu.Buffer buffer, DType type, int seed) {
        Random random = new Random(seed);
        int period = (int) Math.min(PERIOD, buffer.bytes() / type.bytes());
        float[] numbers = new float[period];
        try (Gpu.Pinned host = buffer.gpu().pinned((long) period * type.bytes())) {
            for (int i = 0; i < period; i++) {
                type.set(host.memory(), (long) i * type.bytes(), 2 * random.nextFloat() - 1);
                numbers[i] = type.get(host.memory(), (long) i * type.bytes());
            }
            stream.copyToDevice(buffer.address(), host.memory());
            long filled = host.memory().byteSize();
            while (filled < buffer.bytes()) {
                long more = Math.min(filled, buffer.bytes() - filled);
                stream.copy(buffer.address() + filled, buffer.address(), more);
                filled += more;
            }
            stream.synchronize();
        }
        return numbers;
    }

    private static float element(float[] numbers, long index) {
        return numbers[(int) (index % numbers.length)];
    }

    private static float read(Gpu.Stream stream, long address) {
        try (Gpu.Pinned host = stream.gpu().pinned(Float.BYTES)) {
            stream.copyToHost(host.memory(), address);
            stream.synchronize();
            return host.memory().get(ValueLayout.JAVA_FLOAT, 0);
        }
    }

    private static void product(
            Gpu gpu, Gpu.Stream stream, GpuKernels kernels, DType type, int[] shape, ObjectNode json) {
        int rows = shape[0];
        int outputs = shape[1];
        int inputs = shape[2];
        long weightBytes = (long) outputs * inputs * type.bytes();
        try (Gpu.Buffer weight = gpu.allocate(weightBytes);
                Gpu.Buffer in = gpu.allocate((long) rows * inputs * type.bytes());
                Gpu.Buffer out = gpu.allocate((long) rows * outputs * Float.BYTES)) {
            float[] weights = fill(stream, weight, type, 1);
            float[] numbers = fill(stream, in, type, 2);
            stream.fill(out.address(), 0, out.bytes());
            double millis = best(
                    gpu,
                    stream,
                    () -> kernels.products()
                            .product(
                                    stream,
                                    new Weight(weight.address(), type, outputs, inputs, 0),
                                    DeviceRows.matrix(in.address(), type, rows, inputs),
                                    DeviceRows.matrix(out.address(), DType.F32, rows, outputs),
                                    false));
            for (int row : new int[] {0, rows / 2, rows - 1}) {
                for (int output : new int[] {0, outputs / 3, outputs - 1}) {
                    double expected = IntStream.range(0, inputs)
                            .mapToDouble(i -> (double) element(numbers, (long) row * inputs + i)
                                    * element(weights, (long) output * inputs + i))
                            .sum();
                    float computed = read(stream, out.address() + ((long) row * outputs + output) * Float.BYTES);
                    require(
                            Math.abs(computed - expected) <= SUM_TOLERANCE * Math.sqrt(inputs),
                            "products of shape %s: %f in place of %f"
                                    .formatted(Arrays.toString(shape), computed, expected));
                }
            }
            json.put("type", type.toString())
                    .put("rows", rows)
                    .put("outputs", outputs)
                    .put("inputs", inputs)
                    .put("millis", millis)
                    .put("flops_per_second", rate(2.0 * rows * outputs * inputs, millis))
                    .put("weight_bytes_per_second", rate(weightBytes, millis));
        }
    }
}
