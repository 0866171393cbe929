package baton.bench.gpu;

import baton.cuda.driver.Gpu;
import baton.cuda.kernel.GpuKernels;
import baton.cuda.model.CudaCopier;
import baton.kv.DType;
import baton.kv.KvCopier;
import baton.kv.KvDevice;
import baton.kv.KvFence;
import baton.kv.KvMemory;
import baton.kv.Ticker;
import baton.messages.PeerAccess;
import baton.pipe.PipeException;
import baton.pipe.TensorBytes;
import baton.pipe.Wire;
import baton.pipe.WireTransport;
import baton.pipe.nccl.NcclTransport;
import java.io.File;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import tools.jackson.databind.json.JsonMapper;
import tools.jackson.databind.node.ArrayNode;
import tools.jackson.databind.node.ObjectNode;

/** Steps that other programs and libraries do. */
final class Programs {
    private static final JsonMapper JSON = JsonMapper.builder().build();

    /** Its answer is JSON. */
    private static final String TORCH = """
            import json, torch
            def best(work):
                work(); torch.cuda.synchronize(); times = []
                for _ in range(10):
                    a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                    a.record(); work(); b.record(); torch.cuda.synchronize(); times.append(a.elapsed_time(b) * 1e-3)
                return min(times)
            out = {"version": torch.__version__, "cuda": torch.version.cuda, "device": torch.cuda.get_device_name(0), "products": []}
            for m, n, k in [(8192, 8192, 8192), (2048, 8192, 2048), (512, 8192, 2048), (1, 8192, 2048), (32, 8192, 2048)]:
                x = torch.full((m, k), 0.0115, dtype=torch.bfloat16, device="cuda"); w = torch.full((n, k), 0.0115, dtype=torch.bfloat16, device="cuda")
                t = best(lambda: x @ w.T)
                out["products"].append({"rows": m, "outputs": n, "inputs": k, "millis": t * 1e3, "flops_per_second": 2 * m * n * k / t})
            a = torch.empty(1 << 30, dtype=torch.uint8, device="cuda"); b = torch.empty_like(a)
            out["device_bytes_per_second"] = 2 * (1 << 30) / best(lambda: b.copy_(a))
            print(json.dumps(out))
            """;

    /** Packages of tests that use the device, each of which is run in a process of its own. */
    private static final List<String> TESTED = List.of("driver", "kernel", "model");

    private static final int WIRE_SECONDS = 6;
    private static final Duration WIRE_TIMEOUT = Duration.ofSeconds(WIRE_SECONDS);
    private static final long WIRE_BYTES = 64 << 20;
    private static final int WIRE_RUNS = 3;

    private Programs() {}

    /** The tests of the module cuda, of which most are of kernels, on the device. */
    static void tests(GpuCheck check, ObjectNode json) throws IOException, InterruptedException {
        if (check.tests().isEmpty()) {
            json.put(GpuCheck.LEFT_OUT, "no directory with the tests was named");
            return;
        }
        ArrayNode failed = json.putArray("failed");
        ArrayNode skipped = json.putArray("skipped");
        json.put("passed", 0);
        long end = System.nanoTime() + GpuStep.TESTS.timeout().minusSeconds(10).toNanos();
        for (String tested : TESTED) {
            ObjectNode results = JSON.createObjectNode();
            tests(check, check.tests().get(), tested, end - System.nanoTime(), results);
            results.path("failed").forEach(failed::add);
            results.path("skipped").forEach(skipped::add);
            json.put(
                    "passed",
                    json.path("passed").asInt() + results.path("passed").asInt());
            if (results.has("error")) {
                json.put("error", tested + ": " + results.path("error").asString());
            }
        }
    }

    /** Runs tests in a process of their own: after a fault of a kernel its process can do nothing more on the device. */
    private static void tests(GpuCheck check, Path directory, String tested, long nanos, ObjectNode json)
            throws IOException, InterruptedException {
        Path result = Files.createTempFile("baton-gpu-tests", ".json");
        String classes = String.join(
                File.pathSeparator, directory.resolve("*").toString(), System.getProperty("java.class.path"));
        List<String> command = new ArrayList<>(List.of(
                ProcessHandle.current().info().command().orElse("java"),
                "--enable-native-access=ALL-UNNAMED",
                "--sun-misc-unsafe-memory-access=allow",
                "-Dbaton.root=" + directory.toAbsolutePath().getParent(),
                "-cp",
                classes,
                "baton.cuda.DeviceTests",
                result.toString(),
                tested));
        ProcessBuilder builder = new ProcessBuilder(command).inheritIO();
        builder.environment().put("BATON_CUDA_TESTS", check.simulated() ? "simulated" : "device");
        Process process = builder.start();
        try {
            boolean ended = process.waitFor(nanos, TimeUnit.NANOSECONDS);
            String text = Files.readString(result);
            if (!text.isEmpty()) {
                json.setAll((ObjectNode) JSON.readTree(text));
            }
            if (!ended) {
                json.put("error", "the tests did not end in time");
            } else if (process.exitValue() != 0) {
                json.put("error", "the tests ended with status " + process.exitValue());
            }
        } finally {
            process.destroyForcibly();
        }
    }

    static void nccl(GpuCheck check, ObjectNode json) throws Exception {
        if (check.simulated()) {
            json.put(GpuCheck.LEFT_OUT, "NCCL needs a GPU");
            return;
        }
        NcclTransport first;
        try {
            first = NcclTransport.load(0, PeerAccess.everyone(), Ticker.system());
        } catch (PipeException e) {
            json.put(GpuCheck.LEFT_OUT, e.getMessage());
            return;
        }
        json.put("loads", true);
        try (first) {
            NcclTransport second;
            try {
                second = NcclTransport.load(1, PeerAccess.everyone(), Ticker.system());
            } catch (PipeException e) {
                json.put(GpuCheck.LEFT_OUT, "NCCL has one rank on a GPU, so a wire needs two: " + e.getMessage());
                return;
            }
            try (second) {
                wire(first, second, json);
                wireOfDevices(check, first, second, json);
            }
        }
    }

    /** Moves bytes of host memory from one GPU's rank to the other's. */
    static void wire(WireTransport first, WireTransport second, ObjectNode json) throws Exception {
        try (Arena arena = Arena.ofShared()) {
            TensorBytes sent = new TensorBytes.Host(arena.allocate(WIRE_BYTES));
            TensorBytes into = new TensorBytes.Host(arena.allocate(WIRE_BYTES));
            json.put("bytes_per_second", rate(first, second, sent, into));
        }
    }

    /** Moves bytes from memory of one GPU into the other's. */
    private static void wireOfDevices(GpuCheck check, WireTransport first, WireTransport second, ObjectNode json)
            throws Exception {
        try (Gpu from = check.gpu(0);
                Gpu to = check.gpu(1);
                GpuKernels kernelsFrom = new GpuKernels(from, DType.BF16);
                GpuKernels kernelsTo = new GpuKernels(to, DType.BF16);
                Gpu.Buffer sent = from.allocate(WIRE_BYTES);
                Gpu.Buffer into = to.allocate(WIRE_BYTES);
                CudaCopier copierFrom = new CudaCopier(sent, kernelsFrom.copies());
                CudaCopier copierTo = new CudaCopier(into, kernelsTo.copies())) {
            json.put(
                    "device_bytes_per_second",
                    rate(first, second, onDevice(sent, 0, copierFrom), onDevice(into, 1, copierTo)));
        }
    }

    private static TensorBytes onDevice(Gpu.Buffer memory, int ordinal, KvCopier copier) {
        KvDevice device = new KvDevice("cuda", ordinal);
        return new TensorBytes.Device(
                new KvMemory.Device(memory.address(), memory.bytes(), device, copier), 0, memory.bytes());
    }

    private static double rate(WireTransport first, WireTransport second, TensorBytes sent, TensorBytes into)
            throws Exception {
        try (WireTransport.Offer offer = first.offer("127.0.0.1");
                Arena arena = Arena.ofShared();
                ExecutorService other = Executors.newSingleThreadExecutor()) {
            Future<Wire> joining = other.submit(() -> second.join(offer.id(), "127.0.0.1", WIRE_TIMEOUT));
            try (Wire sender = offer.accept(WIRE_TIMEOUT);
                    Wire receiver = joining.get(WIRE_SECONDS, TimeUnit.SECONDS)) {
                MemorySegment threes = arena.allocate(WIRE_BYTES).fill((byte) 3);
                MemorySegment copy = arena.allocate(WIRE_BYTES);
                copy(sent, threes, true);
                double best = Double.MAX_VALUE;
                for (int i = 0; i < WIRE_RUNS; i++) {
                    copy(into, copy.fill((byte) 0), true);
                    long begun = System.nanoTime();
                    Future<?> receiving = other.submit(() -> {
                        receiver.receive(into, WIRE_TIMEOUT);
                        return true;
                    });
                    sender.send(sent, WIRE_TIMEOUT);
                    receiving.get(WIRE_SECONDS, TimeUnit.SECONDS);
                    best = Math.min(best, (System.nanoTime() - begun) * 1e-9);
                    copy(into, copy, false);
                    if (copy.mismatch(threes) >= 0) {
                        throw new IllegalStateException("wrong: the bytes that the wire has moved");
                    }
                }
                return WIRE_BYTES / best;
            }
        }
    }

    /** Copies between bytes of a wire and host memory. */
    private static void copy(TensorBytes bytes, MemorySegment host, boolean toBytes) {
        switch (bytes) {
            case TensorBytes.Host(MemorySegment memory) -> (toBytes ? memory : host).copyFrom(toBytes ? host : memory);
            case TensorBytes.Device device -> {
                KvCopier copier = device.pool().copier();
                List<KvCopier.Range> whole = List.of(new KvCopier.Range(device.offset(), 0, device.byteSize()));
                KvFence copied = toBytes
                        ? copier.toDevice(whole, host, KvFence.PASSED)
                        : copier.toHost(whole, host, KvFence.PASSED);
                copied.await();
            }
        }
    }

    /** PyTorch's rates, where a Python has it. */
    static void torch(GpuCheck check, ObjectNode json) throws IOException, InterruptedException {
        if (check.simulated()) {
            json.put(GpuCheck.LEFT_OUT, "PyTorch needs a GPU");
            return;
        }
        Path out = Files.createTempFile("baton-gpu-torch", ".json");
        Process process;
        try {
            process = new ProcessBuilder("python3", "-c", TORCH)
                    .redirectOutput(out.toFile())
                    .redirectError(ProcessBuilder.Redirect.INHERIT)
                    .start();
        } catch (IOException e) {
            json.put(GpuCheck.LEFT_OUT, "there is no python3: " + e.getMessage());
            return;
        }
        try {
            if (!process.waitFor(80, TimeUnit.SECONDS) || process.exitValue() != 0) {
                json.put(GpuCheck.LEFT_OUT, "python3 has no torch with CUDA, or it failed: see the log");
                return;
            }
        } finally {
            process.destroyForcibly();
        }
        json.setAll((ObjectNode) JSON.readTree(Files.readString(out)));
    }
}
