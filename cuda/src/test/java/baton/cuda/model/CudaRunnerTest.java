package baton.cuda.model;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.assertj.core.api.Assertions.within;

import baton.cuda.driver.CudaException;
import baton.cuda.driver.Driver;
import baton.cuda.driver.Gpu;
import baton.cuda.driver.NativeDriver.Search;
import baton.cuda.sim.SimulatedDriver;
import baton.engine.backend.CpuBackend;
import baton.engine.backend.ModelBackends;
import baton.engine.model.Batch;
import baton.engine.model.Checkpoint;
import baton.engine.model.Device;
import baton.engine.model.Logits;
import baton.engine.model.ModelConfig;
import baton.engine.model.ModelOptions;
import baton.engine.model.ModelRanks;
import baton.engine.model.ModelRunner;
import baton.engine.model.ModelRunner.LayerHooks;
import baton.engine.model.ModelRunner.SequenceSlice;
import baton.engine.model.Quantization;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.KvCache;
import baton.kv.KvCopier;
import baton.kv.KvDevice;
import baton.kv.KvDigest;
import baton.kv.KvFence;
import baton.kv.KvMemory;
import baton.kv.connector.HiddenState;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.IntUnaryOperator;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** A runner's hooks, hidden states, copies and ends, with a small random checkpoint on a device. */
class CudaRunnerTest {
    private static final int BLOCK = 16;
    private static final int BLOCKS = 10;
    private static final int PROMPT = 21;
    private static final int[] TABLE = {4, 1};
    private static final int[] TOKENS = new Random(6).ints(PROMPT + 1, 0, 192).toArray();

    private static ModelOptions options(Quantization quantization, int ranks) {
        return new ModelOptions(
                DType.F32, quantization, DType.F32, BLOCK, BLOCKS, OptionalInt.of(1), 64, ranks, 1, false, false);
    }

    private static ModelRanks llama(CudaBackend backend) throws IOException {
        try (Checkpoint checkpoint = Checkpoint.open(TestBackends.family("llama3"))) {
            return backend.load(checkpoint, options(Quantization.NONE, 1));
        }
    }

    private static SequenceSlice prompt(int logits) {
        return new SequenceSlice(Arrays.copyOf(TOKENS, PROMPT), 0, TABLE, logits);
    }

    private static SequenceSlice next() {
        return new SequenceSlice(new int[] {TOKENS[PROMPT]}, PROMPT, TABLE, 1);
    }

    private static float[] row(ModelRunner runner, LayerHooks hooks, SequenceSlice slice) {
        try (Logits logits = runner.forward(List.of(slice), hooks)) {
            return logits.row(0).toArray(ValueLayout.JAVA_FLOAT);
        }
    }

    /** A hidden state has all that the next token is chosen by, on the other device too. */
    @Test
    void hiddenStatesAreTakenByTheOtherDevice() throws IOException {
        try (Checkpoint checkpoint = Checkpoint.open(TestBackends.family("llama3"));
                ModelRanks cpu = new CpuBackend().load(checkpoint, options(Quantization.NONE, 1));
                ModelRanks gpu = TestBackends.backend().load(checkpoint, options(Quantization.NONE, 1))) {
            assertThat(gpu.first().fingerprint()).isEqualTo(cpu.first().fingerprint());
            for (List<ModelRanks> way : List.of(List.of(cpu, gpu), List.of(gpu, cpu))) {
                List<HiddenState> states = new ArrayList<>();
                float[] expected = row(way.getFirst().first(), keeping(states), prompt(1));
                ModelRunner other = way.getLast().first();
                assertThat(states).hasSize(1).allMatch(other::takes);
                SequenceSlice given = new SequenceSlice(new int[0], PROMPT, TABLE, 1, Optional.of(states.getFirst()));
                assertThat(row(other, LayerHooks.NONE, given)).containsExactly(expected, within(1e-4f));
                // Among the rows of another sequence.
                try (Logits logits = other.forward(List.of(prompt(1), given), LayerHooks.NONE)) {
                    assertThat(logits.row(1).toArray(ValueLayout.JAVA_FLOAT)).containsExactly(expected, within(1e-4f));
                    assertThat(logits.row(0).toArray(ValueLayout.JAVA_FLOAT)).containsExactly(expected, within(1e-4f));
                }
            }
        }
    }

    private static LayerHooks keeping(List<HiddenState> states) {
        return new LayerHooks() {
            @Override
            public Set<Integer> hiddenWanted() {
                return Set.of(0);
            }

            @Override
            public void hidden(int slice, HiddenState state) {
                states.add(state.copy());
            }
        };
    }

    /** Keys and values are saved while a step goes on, and arrive while another one does. */
    @Test
    void layersAreCopiedByFences() throws IOException {
        CudaBackend backend = TestBackends.backend();
        try (ModelRanks from = llama(backend);
                ModelRanks to = llama(backend);
                Arena arena = Arena.ofShared()) {
            MemorySegment host = arena.allocate(pool(from).bytes());
            List<KvFence> saved = new ArrayList<>();
            row(
                    from.first(),
                    new LayerHooks() {
                        @Override
                        public void afterLayer(int layer, KvFence computed) {
                            saved.add(pool(from)
                                    .copier()
                                    .toHost(layer(from.first().cache(), layer), host, computed));
                        }
                    },
                    prompt(1));
            float[] expected = row(from.first(), LayerHooks.NONE, next());
            saved.forEach(KvFence::await);
            float[] loaded = row(
                    to.first(),
                    new LayerHooks() {
                        @Override
                        public KvFence beforeLayer(int layer) {
                            return pool(to).copier().toDevice(layer(to.first().cache(), layer), host, KvFence.PASSED);
                        }
                    },
                    next());
            assertThat(loaded).isEqualTo(expected);
        }
    }

    private static KvMemory.Device pool(ModelRanks ranks) {
        return (KvMemory.Device) ranks.first().cache().memory();
    }

    private static List<KvCopier.Range> layer(KvCache cache, int layer) {
        return Arrays.stream(TABLE)
                .mapToLong(block -> cache.layerStart(block, layer))
                .mapToObj(at -> new KvCopier.Range(at, at, cache.layout().layerBytes()))
                .toList();
    }

    @Test
    void digestsAreTheHosts() throws IOException {
        try (ModelRanks ranks = llama(TestBackends.backend());
                Arena arena = Arena.ofShared()) {
            row(ranks.first(), LayerHooks.NONE, prompt(1));
            KvMemory.Device pool = pool(ranks);
            MemorySegment host = arena.allocate(pool.bytes());
            pool.copier()
                    .toHost(List.of(new KvCopier.Range(0, 0, pool.bytes())), host, KvFence.PASSED)
                    .await();
            long block = ranks.first().cache().layout().blockBytes();
            long head = ranks.first().cache().layout().headBytes();
            List<KvCopier.Runs> values = List.of(
                    new KvCopier.Runs(4 * block, block, 1, block), new KvCopier.Runs(block + head, 2 * head, 2, head));
            long[] expected = values.stream()
                    .mapToLong(runs -> {
                        KvDigest.Running digest = KvDigest.SUM61.begin();
                        for (int run = 0; run < runs.count(); run++) {
                            digest.add(host.asSlice(runs.first() + run * runs.stride(), runs.bytes())
                                    .asByteBuffer());
                        }
                        return digest.value();
                    })
                    .toArray();
            for (int round = 0; round < 2; round++) {
                long[] digests = new long[values.size()];
                pool.copier()
                        .digest(KvDigest.SUM61, values, digests, KvFence.PASSED)
                        .await();
                assertThat(digests).isEqualTo(expected);
            }
        }
    }

    /** Each device reads the keys and values that the other one computed, entries of latent attention included. */
    @ParameterizedTest
    @ValueSource(strings = {"llama3", "deepseek-v3"})
    void keysAndValuesAreTheSameOnBothDevices(String family) throws IOException {
        try (Checkpoint checkpoint = Checkpoint.open(TestBackends.family(family));
                ModelRanks cpu = new CpuBackend().load(checkpoint, options(Quantization.NONE, 1));
                ModelRanks gpu = TestBackends.backend().load(checkpoint, options(Quantization.NONE, 1))) {
            MemorySegment host = cpu.first().cache().host();
            List<KvCopier.Range> all = List.of(new KvCopier.Range(0, 0, host.byteSize()));
            var _ = row(cpu.first(), LayerHooks.NONE, prompt(1));
            pool(gpu).copier().toDevice(all, host, KvFence.PASSED).await();
            float[] expected = row(cpu.first(), LayerHooks.NONE, next());
            assertThat(row(gpu.first(), LayerHooks.NONE, next())).containsExactly(expected, within(1e-4f));
            var _ = row(gpu.first(), LayerHooks.NONE, prompt(1));
            host.fill((byte) 0);
            pool(gpu).copier().toHost(all, host, KvFence.PASSED).await();
            assertThat(row(cpu.first(), LayerHooks.NONE, next())).containsExactly(expected, within(1e-4f));
        }
    }

    /** Rows of long chunks are the last ones of a step, and go through products apart from the others. */
    @Test
    void aLongChunkBesideOthers() throws IOException {
        ModelOptions longer = new ModelOptions(
                DType.F32, Quantization.NONE, DType.F32, BLOCK, 20, OptionalInt.of(1), 256, 1, 1, false, false);
        int[] tokens = new Random(9).ints(150, 0, 192).toArray();
        int[] table = IntStream.range(10, 20).toArray();
        List<SequenceSlice> step = List.of(
                new SequenceSlice(tokens, 0, table, 2),
                prompt(1),
                new SequenceSlice(new int[] {TOKENS[3]}, 0, new int[] {7}, 1));
        try (Checkpoint checkpoint = Checkpoint.open(TestBackends.family("llama3"));
                ModelRanks cpu = new CpuBackend().load(checkpoint, longer);
                ModelRanks gpu = TestBackends.backend().load(checkpoint, longer);
                Logits expected = cpu.first().forward(step, LayerHooks.NONE);
                Logits computed = gpu.first().forward(step, LayerHooks.NONE)) {
            for (int row = 0; row < 4; row++) {
                assertThat(computed.row(row).toArray(ValueLayout.JAVA_FLOAT))
                        .containsExactly(expected.row(row).toArray(ValueLayout.JAVA_FLOAT), within(1e-4f));
            }
            KvCache cache = gpu.first().cache();
            try (Gpu device = new Gpu(new SimulatedDriver(), 0);
                    Gpu.Stream stream = device.stream();
                    StepInputs inputs = new StepInputs(device, cache, 48)) {
                Batch batch = new Batch(step, checkpoint.config(), cache, 256, IntUnaryOperator.identity());
                StepInputs.Step laidOut = inputs.write(batch, new int[0], false, stream);
                stream.synchronize();
                assertThat(laidOut.few()).isEqualTo(PROMPT + 1);
                assertThat(laidOut.rows()).isEqualTo(PROMPT + 1 + 150);
            }
        }
    }

    @Test
    void aStepThatIsLargerThanAllBeforeAndManySmallOnes() throws IOException {
        try (Checkpoint checkpoint = Checkpoint.open(TestBackends.family("llama3"));
                ModelRanks cpu = new CpuBackend().load(checkpoint, options(Quantization.NONE, 1));
                ModelRanks gpu = TestBackends.backend().load(checkpoint, options(Quantization.NONE, 1))) {
            List<SequenceSlice> nine = IntStream.range(0, 9)
                    .mapToObj(block -> new SequenceSlice(new int[] {TOKENS[block]}, 0, new int[] {block}, 1))
                    .toList();
            List<List<SequenceSlice>> steps = List.of(
                    List.of(prompt(0)),
                    List.of(next()),
                    List.of(next()),
                    // More rows than activations have had room for, all with logits.
                    Stream.of(TABLE, new int[] {0, 2}, new int[] {5, 3})
                            .map(table -> new SequenceSlice(Arrays.copyOf(TOKENS, PROMPT), 0, table, PROMPT))
                            .toList(),
                    List.of(next()),
                    List.of(next()),
                    List.of(next()),
                    nine,
                    nine,
                    nine);
            for (List<SequenceSlice> step : steps) {
                try (Logits expected = cpu.first().forward(step, LayerHooks.NONE);
                        Logits computed = gpu.first().forward(step, LayerHooks.NONE)) {
                    assertThat(computed.rows()).isEqualTo(expected.rows());
                    for (int row = 0; row < expected.rows(); row++) {
                        assertThat(computed.row(row).toArray(ValueLayout.JAVA_FLOAT))
                                .containsExactly(expected.row(row).toArray(ValueLayout.JAVA_FLOAT), within(1e-4f));
                    }
                }
            }
        }
    }

    /** One step has inputs, another activations, that do not fit the device. */
    @Test
    void aStepThatFailsForWantOfMemoryLeavesTheOthersRight() throws IOException {
        SimulatedDriver driver = new SimulatedDriver(1, 1 << 26);
        List<SequenceSlice> large = IntStream.range(0, 300)
                .mapToObj(_ -> new SequenceSlice(Arrays.copyOf(TOKENS, PROMPT), 0, TABLE, PROMPT))
                .toList();
        try (ModelRanks ranks = llama(new CudaBackend(() -> new Search.Found(driver)));
                Gpu gpu = new Gpu(driver, 0)) {
            ModelRunner runner = ranks.first();
            float[] expected = row(runner, LayerHooks.NONE, prompt(1));
            float[] expectedNext = row(runner, LayerHooks.NONE, next());
            for (long left : new long[] {1 << 10, 1 << 20}) {
                try (Gpu.Buffer _ = gpu.allocate(gpu.freeBytes() - left)) {
                    assertThatThrownBy(() -> runner.forward(large, LayerHooks.NONE))
                            .isInstanceOf(CudaException.class)
                            .hasMessageContaining("CUDA_ERROR_OUT_OF_MEMORY");
                    assertThat(row(runner, LayerHooks.NONE, prompt(1))).isEqualTo(expected);
                    for (int i = 0; i < 3; i++) {
                        assertThat(row(runner, LayerHooks.NONE, next())).isEqualTo(expectedNext);
                    }
                }
            }
        }
        assertThat(driver.unreleased()).isEmpty();
    }

    /** The engine ends by an error; after an exception it would go on. */
    @Test
    void aFaultOfAKernelEndsTheModelAndClosingReleasesTheRest() throws IOException {
        SimulatedDriver driver = new SimulatedDriver();
        ModelRanks ranks = llama(new CudaBackend(() -> new Search.Found(driver)));
        try (Gpu gpu = new Gpu(driver, 0)) {
            driver.free(gpu.context(), pool(ranks).address());
            assertThatThrownBy(() -> ranks.first().forward(List.of(prompt(1)), LayerHooks.NONE))
                    .isInstanceOf(Error.class)
                    .hasMessageContaining("CUDA_ERROR_ILLEGAL_ADDRESS");
            assertThatThrownBy(ranks::close).isInstanceOf(CudaException.class);
        }
        assertThat(driver.unreleased()).isEmpty();
    }

    @Test
    void stepsAreLaunchedWithoutGraphsIfTheDriverMakesNone() throws IOException {
        SimulatedDriver simulated = new SimulatedDriver();
        AtomicInteger tried = new AtomicInteger();
        Driver driver = (Driver) Proxy.newProxyInstance(
                Driver.class.getClassLoader(), new Class<?>[] {Driver.class}, (_, method, arguments) -> {
                    Object result;
                    try {
                        result = method.invoke(simulated, arguments);
                    } catch (InvocationTargetException e) {
                        throw e.getCause();
                    }
                    if (method.getName().equals("endCapture")) {
                        tried.incrementAndGet();
                        simulated.destroyGraph((long) arguments[0], (long) result);
                        throw new CudaException("cuGraphInstantiate", 801, "CUDA_ERROR_NOT_SUPPORTED", "no graphs");
                    }
                    return result;
                });
        try (ModelRanks ranks = llama(new CudaBackend(() -> new Search.Found(driver)))) {
            row(ranks.first(), LayerHooks.NONE, prompt(1));
            float[] first = row(ranks.first(), LayerHooks.NONE, next());
            for (int i = 0; i < 3; i++) {
                assertThat(row(ranks.first(), LayerHooks.NONE, next())).isEqualTo(first);
            }
        }
        assertThat(tried).hasValue(1);
    }

    @Test
    void aDeviceWithTooLittleMemoryIsRefusedWithTheRemedy() throws IOException {
        SimulatedDriver driver = new SimulatedDriver(1, 100 << 20);
        CudaBackend backend = new CudaBackend(() -> new Search.Found(driver));
        try (Checkpoint checkpoint = Checkpoint.open(TestBackends.family("llama3"));
                Gpu gpu = new Gpu(driver, 0);
                Gpu.Buffer _ = gpu.allocate(95 << 20)) {
            assertThat(backend.memoryBytes()).isEqualTo(5 << 20);
            assertThat(backend.whyNot(checkpoint.config(), Quantization.NONE, 1).orElseThrow())
                    .contains("of which 5 MiB are free");
            assertThat(ModelBackends.computing(backend, Device.AUTO, checkpoint.config(), Quantization.NONE, 1))
                    .isInstanceOf(CpuBackend.class);
            assertThatThrownBy(() -> backend.load(checkpoint, options(Quantization.NONE, 1)))
                    .isInstanceOf(ConfigException.class)
                    .hasMessageStartingWith("kv_cache_memory_bytes: gives a KV cache of 10 blocks")
                    .hasMessageEndingWith("give less, or use --device cpu");
        }
        assertThat(driver.unreleased()).isEmpty();
    }

    @Test
    void aModelIsOnTheDeviceThatWasAskedFor() throws IOException {
        SimulatedDriver driver = new SimulatedDriver(2, 256 << 20);
        CudaBackend backend = new CudaBackend(() -> new Search.Found(driver));
        Device second = Device.parse("device", "cuda:1");
        assertThat(backend.whyNot(second)).isEmpty();
        assertThat(backend.whyNot(Device.parse("device", "cuda:2")).orElseThrow())
                .isEqualTo("there are 2 GPUs, numbered from 0; CUDA_VISIBLE_DEVICES may hide others");
        try (Gpu other = new Gpu(driver, 0);
                ModelRanks there = llama(backend.on(second))) {
            assertThat(pool(there).device()).isEqualTo(new KvDevice("cuda", 1));
            assertThat(other.freeBytes()).isEqualTo(256 << 20);
            assertThat(backend.on(second).memoryBytes()).isLessThan(256 << 20);
            float[] computed = row(there.first(), LayerHooks.NONE, prompt(1));
            try (ModelRanks here = llama(backend)) {
                assertThat(row(here.first(), LayerHooks.NONE, prompt(1))).isEqualTo(computed);
            }
        }
        assertThat(driver.unreleased()).isEmpty();
    }

    @Test
    void rowsOfLogitsAreFetchedTogetherOrOneByOne() throws IOException {
        List<float[]> rows = new ArrayList<>();
        try (ModelRanks ranks = llama(TestBackends.backend())) {
            try (Logits logits = ranks.first().forward(List.of(prompt(5)), LayerHooks.NONE)) {
                logits.fetch(3, 1, 3);
                for (int row = 0; row < 5; row++) {
                    rows.add(logits.row(row).toArray(ValueLayout.JAVA_FLOAT));
                }
            }
            for (int row = 0; row < 5; row++) {
                assertThat(row(ranks.first(), LayerHooks.NONE, prompt(5 - row))).isEqualTo(rows.get(row));
            }
        }
    }

    @Test
    void headsThatKernelsDoNotComputeAreRefusedByName() {
        ModelConfig odd =
                new ModelConfig("odd", 192, 48, 96, 2, 4, 2, 12, 64, 1e-5, 10000, Optional.empty(), true, DType.F32);
        assertThat(TestBackends.backend().whyNot(odd, Quantization.NONE, 1).orElseThrow())
                .endsWith("not of head_dim=12");
    }

    @Test
    void closingReleasesAllOfTheDevice() throws IOException {
        SimulatedDriver driver = new SimulatedDriver();
        try (ModelRanks ranks = llama(new CudaBackend(() -> new Search.Found(driver)))) {
            row(ranks.first(), LayerHooks.NONE, prompt(1));
            row(ranks.first(), LayerHooks.NONE, next());
            row(ranks.first(), LayerHooks.NONE, next());
            pool(ranks)
                    .copier()
                    .digest(KvDigest.SUM61, List.of(new KvCopier.Runs(0, 16, 1, 16)), new long[1], KvFence.PASSED);
        }
        assertThat(driver.unreleased()).isEmpty();
    }

    @ParameterizedTest
    @CsvSource({
        "llama3, INT8, 1, keeps no weights of quantization 'int8'",
        "llama3, NONE, 2, does not share a model among 2 ranks"
    })
    void modelsThatItDoesNotComputeAreRefusedWithTheReason(
            String family, Quantization quantization, int ranks, String reason) throws IOException {
        CudaBackend backend = TestBackends.backend();
        try (Checkpoint checkpoint = Checkpoint.open(TestBackends.family(family))) {
            assertThat(backend.whyNot(checkpoint.config(), quantization, ranks).orElseThrow())
                    .contains(reason);
            assertThat(ModelBackends.computing(backend, Device.AUTO, checkpoint.config(), quantization, ranks))
                    .isInstanceOf(CpuBackend.class);
            assertThat(ModelBackends.computing(backend, Device.CUDA, checkpoint.config(), quantization, ranks))
                    .isSameAs(backend);
            assertThatThrownBy(() -> backend.load(checkpoint, options(quantization, ranks)))
                    .isInstanceOf(ConfigException.class)
                    .hasMessageStartingWith("device: is 'cuda', but ")
                    .hasMessageContaining(reason);
        }
    }

    @Test
    void aMachineWithoutADriverIsRefusedWithTheRemedy() {
        CudaBackend backend = new CudaBackend(() -> new Search.Absent("there is no libcuda.so.1"));
        assertThat(backend.whyNot(Device.CUDA).orElseThrow())
                .startsWith("there is no libcuda.so.1; install NVIDIA's driver");
        assertThat(TestBackends.backend().whyNot(Device.AUTO)).isEmpty();
        assertThat(TestBackends.backend().whyNot(Device.CPU)).isPresent();
    }
}
