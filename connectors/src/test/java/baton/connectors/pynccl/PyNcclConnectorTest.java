package baton.connectors.pynccl;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.connectors.WiredRuntime;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.KvCache;
import baton.kv.KvGroups;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.HiddenState;
import baton.kv.connector.KvMatch;
import baton.kv.connector.Measurement;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector.RequestEnd;
import baton.kv.connector.WorkerConnector;
import baton.kv.connector.WorkerReport;
import baton.pipe.LookupBuffer;
import baton.pipe.Tensor;
import baton.pipe.TensorMemory;
import baton.pipe.memory.MemoryTransport;
import baton.testkit.FakeEngine;
import baton.testkit.FakeEngine.Running;
import baton.testkit.FakeEngine.Share;
import baton.testkit.FakeKvRequest;
import java.lang.foreign.Arena;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.function.BooleanSupplier;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Two engines without a model in one process: complete, incomplete and failed hand-overs. */
class PyNcclConnectorTest {
    private static final int BLOCK_SIZE = 4;
    private static final int HEADS = 2;
    private static final Duration DEADLINE = Duration.ofMinutes(2);

    private final MemoryTransport wires = new MemoryTransport();
    private final List<FakeEngine> engines = new ArrayList<>();
    private final List<Measurement> measured = new ArrayList<>();
    private final Map<String, HiddenState> hidden = new HashMap<>();

    @AfterEach
    void close() {
        engines.forEach(FakeEngine::close);
        wires.close();
    }

    private PyNcclConnector connector() {
        // Closing an engine must not close the other engine's wires.
        return new PyNcclConnector(new WiredRuntime(Borrowed.of(wires)));
    }

    private static KvTransferConfig.Builder config(KvRole role) {
        return KvTransferConfig.builder("PyNcclConnector", role)
                .parallelSize(2)
                .extra("connect_wait_seconds", 20)
                .extra("lookup_timeout_seconds", 20);
    }

    private static ConnectorContext context(KvTransferConfig config, int tensorParallelSize, int layers) {
        return context(config, tensorParallelSize, layers, () -> {});
    }

    private static ConnectorContext context(
            KvTransferConfig config, int tensorParallelSize, int layers, Runnable wake) {
        return new ConnectorContext(
                config,
                new ModelFingerprint("fake", "00"),
                new KvLayout(layers, HEADS / tensorParallelSize, 4, BLOCK_SIZE, DType.BF16),
                new KvLayout(layers, HEADS, 4, BLOCK_SIZE, DType.BF16),
                KvGroups.one(layers),
                tensorParallelSize,
                1,
                Ticker.system(),
                wake);
    }

    private FakeEngine engine(
            KvRole role, UnaryOperator<KvTransferConfig.Builder> settings, int tensorParallelSize, int layers) {
        KvTransferConfig config = settings.apply(config(role)).build();
        return engine(context(config, tensorParallelSize, layers));
    }

    private FakeEngine engine(ConnectorContext context) {
        FakeEngine engine = new FakeEngine(connector(), context, 64);
        engines.add(engine);
        return engine;
    }

    private FakeEngine engine(KvRole role) {
        return engine(role, config -> config, 1, 3);
    }

    private static FakeKvRequest request(String id, int first, int length) {
        return new FakeKvRequest(id, FakeKvRequest.counting(first, length), BLOCK_SIZE);
    }

    private void await(String what, BooleanSupplier condition, FakeEngine... stepped) {
        long deadline = System.nanoTime() + DEADLINE.toNanos();
        while (!condition.getAsBoolean()) {
            assertThat(System.nanoTime() - deadline).as(what).isNegative();
            for (FakeEngine engine : stepped) {
                step(engine);
            }
            LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(1));
        }
    }

    private WorkerReport step(FakeEngine engine) {
        WorkerReport report = engine.idleStep();
        measured.addAll(report.measurements());
        measured.addAll(engine.scheduler().takeMeasurements());
        hidden.putAll(report.hidden());
        return report;
    }

    private double counted(String name, String cause) {
        return measured.stream()
                .filter(each -> each.name().equals(name))
                .filter(each -> cause.isEmpty() || cause.equals(each.labels().get("cause")))
                .mapToDouble(Measurement::value)
                .sum();
    }

    /** Computes a prompt in chunks and ends the request; its blocks are free when they are read. */
    private void prefill(FakeEngine engine, FakeKvRequest request, int chunk) {
        Running running = engine.admit(request, 0);
        assertThat(running.isLoading()).isFalse();
        while (running.remainingTokens() > 0) {
            Share share = new Share(running, Math.min(chunk, running.remainingTokens()));
            measured.addAll(engine.step(share).measurements());
        }
        engine.end(running, RequestEnd.LENGTH);
        await("the prompt is read", running::isFreed, engine);
    }

    private Running load(FakeEngine engine, FakeKvRequest request, int local) {
        Running running = engine.admit(request, local);
        assertThat(running.isLoading()).isTrue();
        assertThat(running.externalTokens()).isEqualTo(request.promptLength() - local);
        await("the load is over", () -> !running.isLoading(), engine);
        return running;
    }

    private void assertHidden(Running running) {
        HiddenState state = hidden.remove(running.request().id());
        assertThat(state).as("hidden state of " + running.request().id()).isNotNull();
        assertThat(state.dtype()).isEqualTo(DType.F32);
        assertThat(state.data().mismatch(FakeEngine.hidden(running).data())).isEqualTo(-1);
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void promptsAreTakenInAnotherOrderThanTheyWereComputed(int tensorParallelSize) {
        FakeEngine prefill = engine(KvRole.PRODUCER, config -> config, tensorParallelSize, 3);
        FakeEngine decode = engine(KvRole.CONSUMER, config -> config, tensorParallelSize, 3);
        List<FakeKvRequest> requests = new ArrayList<>();
        for (int i = 0; i < 12; i++) {
            requests.add(request("r" + i, 100 * i, 1 + 3 * i));
            prefill(prefill, requests.getLast(), i % 2 == 0 ? 5 : 64);
        }
        Collections.shuffle(requests, new Random(7));
        for (FakeKvRequest request : requests) {
            int local = request.promptLength() > 8 ? 8 : 0;
            Running running = load(decode, request, local);
            assertHidden(running);
            assertThat(decode.holds(running, 0, request.promptLength())).isTrue();
            decode.finish(running);
        }
        assertThat(counted("baton:kv_lookups", "")).isEqualTo(12 * tensorParallelSize);
        assertThat(counted("baton:kv_lookup_failures", "")).isZero();
        assertThat(prefill.usedBlocks()).isZero();
    }

    @Test
    void aPromptMayBeAskedForBeforeItIsThereAndManyAtOnce() {
        FakeEngine decode = engine(KvRole.CONSUMER);
        List<Running> waiting = new ArrayList<>();
        for (int i = 0; i < 8; i++) {
            waiting.add(decode.admit(request("d" + i, 50 * i, 9), 0));
        }
        step(decode);
        FakeEngine prefill = engine(KvRole.PRODUCER);
        for (int i = 7; i >= 0; i--) {
            prefill(prefill, request("p" + i, 50 * i, 9), 9);
        }
        await("all loads are over", () -> waiting.stream().noneMatch(Running::isLoading), decode);
        for (Running running : waiting) {
            assertHidden(running);
            assertThat(decode.holds(running, 0, 9)).isTrue();
        }
    }

    @Test
    void nothingIsSentOfARequestWithLogitsThatAreNotFinite() {
        FakeEngine prefill = engine(KvRole.PRODUCER);
        FakeEngine decode = engine(KvRole.CONSUMER, config -> config.extra("lookup_timeout_seconds", 0.3), 1, 3);
        FakeKvRequest request = request("p", 0, 20);
        prefill.discardSavesOf(request);
        prefill(prefill, request, 20);

        assertThat(load(decode, request("d", 0, 20), 0).computedTokens()).isZero();
    }

    /** Neither a prompt's beginning nor another's salt or adapter leads to an entry. */
    @Test
    void aLookupGetsOnlyAMatchingEntry() {
        FakeEngine prefill = engine(KvRole.PRODUCER);
        FakeEngine decode = engine(KvRole.CONSUMER, config -> config.extra("lookup_timeout_seconds", 0.3), 1, 3);
        FakeKvRequest salted = request("salted", 0, 20).withCacheSalt("mine");
        prefill(prefill, salted, 20);
        for (FakeKvRequest other : List.of(
                request("plain", 0, 20),
                request("salt", 0, 20).withCacheSalt("yours"),
                request("lora", 0, 20).withLora("mine"),
                request("longer", 0, 21).withCacheSalt("mine"),
                request("shorter", 0, 19).withCacheSalt("mine"))) {
            Running running = load(decode, other, 0);
            assertThat(running.computedTokens()).as(other.id()).isZero();
            assertThat(hidden).isEmpty();
            decode.finish(running);
        }
        assertThat(counted("baton:kv_lookup_failures", "timeout")).isEqualTo(5);
        Running own = load(decode, request("own", 0, 20).withCacheSalt("mine"), 0);
        assertHidden(own);
        assertThat(decode.holds(own, 0, 20)).isTrue();
    }

    @Test
    void aFullBufferStopsTheProducerUntilTheConsumerTakes() {
        // Room for one prompt of 40 tokens, which has 3 layers x 2 heads x 4 elements x 2 bytes x 2 a token.
        long one = 40 * 96 + 9 * 45 + 1000;
        FakeEngine prefill = engine(KvRole.PRODUCER, config -> config.bufferSize(one), 1, 3);
        FakeEngine decode = engine(KvRole.CONSUMER);
        List<Running> running = new ArrayList<>();
        for (int i = 0; i < 4; i++) {
            Running each = prefill.admit(request("r" + i, 100 * i, 40), 0);
            prefill.step(new Share(each, 40));
            prefill.end(each, RequestEnd.LENGTH);
            running.add(each);
        }
        // The first one is in the buffer, the second one copied out of the pool, the other ones stay in it.
        await("two prompts are read", () -> running.get(1).isFreed(), prefill);
        for (int i = 0; i < 50; i++) {
            step(prefill);
            LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(1));
        }
        assertThat(running.get(2).isFreed()).isFalse();
        assertThat(running.get(3).isFreed()).isFalse();
        assertThat(prefill.usedBlocks()).isEqualTo(20);
        for (int i = 0; i < 4; i++) {
            Running loaded = load(decode, request("d" + i, 100 * i, 40), 0);
            assertHidden(loaded);
            assertThat(decode.holds(loaded, 0, 40)).isTrue();
            decode.finish(loaded);
        }
        await("all are read", () -> running.stream().allMatch(Running::isFreed), prefill);
        assertThat(counted("baton:kv_lookup_insert_failures", "")).isZero();
    }

    @Test
    void aPromptWithoutRoomInTimeIsGivenUpAndTheConsumerComputesIt() {
        long one = 40 * 96 + 9 * 45 + 1000;
        FakeEngine prefill =
                engine(KvRole.PRODUCER, config -> config.bufferSize(one).extra("insert_timeout_seconds", 2), 1, 3);
        FakeEngine decode = engine(KvRole.CONSUMER);
        prefill(prefill, request("a", 0, 40), 40);
        prefill(prefill, request("b", 100, 40), 40);
        await("it is given up", () -> counted("baton:kv_lookup_insert_failures", "full") == 1, prefill);
        prefill(prefill, request("large", 200, 60), 60);
        await("it is given up", () -> counted("baton:kv_lookup_insert_failures", "full") == 2, prefill);
        Running first = load(decode, request("da", 0, 40), 0);
        assertHidden(first);
        // The last one has room for notifying the consumer at once.
        Running second = load(decode, request("dlarge", 200, 60), 0);
        assertThat(second.computedTokens()).isZero();
        assertThat(counted("baton:kv_lookup_failures", "never")).isEqualTo(1);
    }

    @Test
    void aDeadProducerIsNotWaitedForAndItsSuccessorIsConnected() {
        FakeEngine prefill = engine(KvRole.PRODUCER);
        FakeEngine decode = engine(KvRole.CONSUMER, config -> config.extra("connect_wait_seconds", 0.2), 1, 3);
        prefill(prefill, request("a", 0, 9), 9);
        Running first = load(decode, request("da", 0, 9), 0);
        assertHidden(first);
        Running waiting = decode.admit(request("waits", 50, 9), 0);
        step(decode);
        prefill.close();
        engines.remove(prefill);
        await("the load is over", () -> !waiting.isLoading(), decode);
        assertThat(waiting.computedTokens()).isZero();
        Running alone = load(decode, request("alone", 70, 9), 0);
        assertThat(alone.computedTokens()).isZero();
        assertThat(counted("baton:kv_lookup_failures", "disconnected")).isEqualTo(2);
        FakeEngine successor = engine(KvRole.PRODUCER);
        prefill(successor, request("b", 90, 9), 9);
        // Until the consumer has found it, requests are not waited for.
        List<Running> loads = new ArrayList<>();
        await(
                "the successor is found",
                () -> {
                    loads.forEach(decode::finish);
                    loads.clear();
                    loads.add(load(decode, request("db" + measured.size(), 90, 9), 0));
                    return !hidden.isEmpty();
                },
                decode);
        assertHidden(loads.getFirst());
        assertThat(decode.holds(loads.getFirst(), 0, 9)).isTrue();
    }

    @Test
    void aProducerWithoutConsumerGoesOn() {
        FakeEngine prefill = engine(KvRole.PRODUCER, config -> config.extra("connect_wait_seconds", 0.1), 1, 3);
        prefill(prefill, request("a", 0, 9), 9);
        await("it is given up", () -> counted("baton:kv_lookup_insert_failures", "disconnected") == 1, prefill);
        assertThat(prefill.usedBlocks()).isZero();
    }

    @Test
    void peersWithDifferentConfigurationsExchangeNothing() {
        FakeEngine prefill = engine(KvRole.PRODUCER, config -> config.extra("connect_wait_seconds", 1), 1, 4);
        FakeEngine decode = engine(KvRole.CONSUMER, config -> config.extra("connect_wait_seconds", 1), 1, 3);
        prefill(prefill, request("a", 0, 9), 9);
        Running running = load(decode, request("da", 0, 9), 0);
        assertThat(running.computedTokens()).isZero();
        assertThat(counted("baton:kv_lookup_failures", "disconnected")).isEqualTo(1);
    }

    @Test
    void theEntryOfARequestThatDoesNotLoadIsDiscarded() {
        FakeEngine prefill = engine(KvRole.PRODUCER);
        FakeEngine decode = engine(KvRole.CONSUMER, config -> config.extra("lookup_timeout_seconds", 0.3), 1, 3);
        prefill(prefill, request("a", 0, 9), 9);
        prefill(prefill, request("b", 50, 9), 9);
        // One that ends while it waits for its turn.
        FakeKvRequest aborted = request("aborted", 0, 9);
        decode.scheduler().onNewRequest(aborted);
        Running loaded = load(decode, request("db", 50, 9), 0);
        assertHidden(loaded);
        decode.scheduler().onFinished(aborted, RequestEnd.ABORTED, new int[0]);
        assertThat(decode.scheduler().hasPendingWork()).isTrue();
        step(decode);
        assertThat(decode.scheduler().hasPendingWork()).isFalse();
        await(
                "the entry is gone",
                () -> {
                    Running running = load(decode, request("late" + measured.size(), 0, 9), 0);
                    boolean gone = running.computedTokens() == 0;
                    decode.finish(running);
                    return gone;
                },
                decode);
    }

    @Test
    void aPreemptedPromptIsSentOnceItIsComputedAgain() {
        FakeEngine prefill = engine(KvRole.PRODUCER);
        FakeEngine decode = engine(KvRole.CONSUMER);
        FakeKvRequest request = request("a", 0, 12);
        Running running = prefill.admit(request, 0);
        prefill.step(new Share(running, 8));
        prefill.free(running);
        Running again = prefill.admitAgain(request, 0);
        prefill.step(Set.of("a"), new Share(again, 12));
        prefill.end(again, RequestEnd.LENGTH);
        await("the prompt is read", again::isFreed, prefill);
        Running loaded = load(decode, request("da", 0, 12), 0);
        assertHidden(loaded);
        assertThat(decode.holds(loaded, 0, 12)).isTrue();
    }

    /** Further samples share the first one's blocks, so the prompt is sent once. */
    @Test
    void aPromptIsSentOnceForAllItsSamples() {
        FakeEngine prefill = engine(KvRole.PRODUCER);
        FakeEngine decode = engine(KvRole.CONSUMER);
        for (int sample = 0; sample < 3; sample++) {
            FakeKvRequest request = request("a-" + sample, 0, 9);
            prefill(prefill, sample == 0 ? request : request.withFirstSample("a-0"), 9);
        }
        prefill(prefill, request("b", 50, 9), 9);
        assertHidden(load(decode, request("da", 0, 9), 0));
        // Behind all that were sent before it.
        assertHidden(load(decode, request("db", 50, 9), 0));
        await("the sent entries are counted", () -> counted("baton:kv_lookup_inserts", "") >= 2, prefill);
        assertThat(counted("baton:kv_lookup_inserts", "")).isEqualTo(2);
    }

    /** A consumer's pool bounds its entries, as larger ones cannot be asked for; its buffer holds nothing. */
    @Test
    void theConsumersBufferSizeIsNoBoundOfPrompts() {
        FakeEngine prefill = engine(KvRole.PRODUCER);
        FakeEngine decode = engine(KvRole.CONSUMER, config -> config.bufferSize(1000), 1, 3);
        prefill(prefill, request("a", 0, 40), 40);
        Running running = load(decode, request("da", 0, 40), 0);
        assertHidden(running);
        assertThat(decode.holds(running, 0, 40)).isTrue();
    }

    @Test
    void theEngineIsWokenWhenAPromptIsReadOrTaken() throws Exception {
        CountDownLatch read = new CountDownLatch(1);
        CountDownLatch taken = new CountDownLatch(1);
        FakeEngine prefill = engine(context(config(KvRole.PRODUCER).build(), 1, 3, read::countDown));
        FakeEngine decode = engine(context(config(KvRole.CONSUMER).build(), 1, 3, taken::countDown));
        Running here = decode.admit(request("d", 0, 9), 0);
        assertThat(step(decode).received()).isEmpty();
        Running there = prefill.admit(request("p", 0, 9), 0);
        prefill.step(new Share(there, 9));
        prefill.end(there, RequestEnd.LENGTH);
        assertThat(read.await(DEADLINE.toSeconds(), TimeUnit.SECONDS)).isTrue();
        step(prefill);
        assertThat(there.isFreed()).isTrue();
        assertThat(taken.await(DEADLINE.toSeconds(), TimeUnit.SECONDS)).isTrue();
        assertThat(step(decode).received()).containsExactly("d");
        assertHidden(here);
    }

    @Test
    void aRequestAsksOnlyOnce() {
        FakeEngine decode = engine(KvRole.CONSUMER, config -> config.extra("connect_wait_seconds", 0.1), 1, 3);
        FakeKvRequest request = request("a", 0, 12);
        Running running = load(decode, request, 4);
        assertThat(running.computedTokens()).isEqualTo(4);
        assertThat(decode.scheduler().match(request, 0)).isEqualTo(new KvMatch.None());
    }

    /** A problem of an entry, and how many of its tokens are valid. */
    @Test
    void missingPartsAreLoggedAndTheRestIsUsed() {
        try (Arena arena = Arena.ofShared()) {
            KvLayout layout = new KvLayout(3, 2, 4, BLOCK_SIZE, DType.BF16);
            KvTensors tensors = new KvTensors(
                    new KvCache(arena.allocate(4 * layout.blockBytes(), 64), layout, 4, List.of("a", "b", "c")),
                    TensorMemory.HOST,
                    true);
            int[] key = new int[PromptKey.HEAD + 10];
            key[PromptKey.HEAD - 1] = 10;
            boolean[] all = new boolean[key.length];
            Arrays.fill(all, true);
            PyNcclConnectorMetadata.Load load = new PyNcclConnectorMetadata.Load("r", key, new int[] {3, 1, 0}, 10, 0);
            Tensor whole = tensor(arena, Tensor.Type.BF16, 3, 10, 2, 4);
            Tensor state = tensor(arena, Tensor.Type.F32, 1, 8);
            Tensor none = tensor(arena, Tensor.Type.F32, 0, 8);

            KvTensors.Received good = tensors.scatter(new LookupBuffer.Entry(key, all, whole, whole, state), load);
            assertThat(good.missing()).isEmpty();
            assertThat(good.tokens()).isEqualTo(10);
            assertThat(good.hidden()).isPresent();

            KvTensors.Received blind = tensors.scatter(new LookupBuffer.Entry(key, all, whole, whole, none), load);
            assertThat(blind.missing()).containsExactly("the last token's hidden state");
            assertThat(blind.tokens()).isEqualTo(10);

            Tensor fewer = tensor(arena, Tensor.Type.BF16, 3, 7, 2, 4);
            KvTensors.Received part = tensors.scatter(new LookupBuffer.Entry(key, all, fewer, fewer, state), load);
            assertThat(part.missing()).containsExactly("tokens from 7 on");
            assertThat(part.tokens()).isEqualTo(7);

            Tensor layers = tensor(arena, Tensor.Type.BF16, 2, 10, 2, 4);
            KvTensors.Received thin = tensors.scatter(new LookupBuffer.Entry(key, all, layers, layers, state), load);
            assertThat(thin.missing()).containsExactly("all, for there are 2 of 3 layers");
            assertThat(thin.tokens()).isZero();

            Tensor floats = tensor(arena, Tensor.Type.F32, 3, 10, 2, 4);
            KvTensors.Received wide = tensors.scatter(new LookupBuffer.Entry(key, all, floats, floats, state), load);
            assertThat(wide.missing())
                    .containsExactly("all, for there are float32[3, 10, 2, 4] in place of bfloat16[3, 10, 2, 4]");

            assertThat(tensors.scatter(new LookupBuffer.Entry(key, all, whole, fewer, state), load)
                            .missing())
                    .containsExactly("all, for keys and values differ: bfloat16[3, 10, 2, 4], bfloat16[3, 7, 2, 4]");

            boolean[] roi = all.clone();
            roi[PromptKey.HEAD + 5] = false;
            KvTensors.Received holed = tensors.scatter(new LookupBuffer.Entry(key, roi, whole, whole, state), load);
            assertThat(holed.missing()).containsExactly("tokens from 5 on, which are no region of interest");
            assertThat(holed.tokens()).isEqualTo(5);

            int[] other = key.clone();
            other[PromptKey.HEAD]++;
            assertThat(tensors.scatter(new LookupBuffer.Entry(other, all, whole, whole, state), load)
                            .tokens())
                    .isZero();
        }
    }

    private static Tensor tensor(Arena arena, Tensor.Type type, long... shape) {
        List<Long> sizes = Arrays.stream(shape).boxed().toList();
        long bytes = Tensor.bytes(type, sizes);
        return new Tensor(type, sizes, arena.allocate(Math.max(1, bytes), 64).asSlice(0, bytes));
    }

    @Test
    void configurationsThatCannotWorkAreNamed() {
        assertRefused(config(KvRole.BOTH), "kv_role: is kv_both");
        assertRefused(config(KvRole.PRODUCER).parallelSize(1), "kv_parallel_size: is 1, must be 2");
        assertRefused(config(KvRole.PRODUCER).port(0), "kv_port: is 0");
        assertRefused(config(KvRole.PRODUCER).port(65535), "kv_port: is 65535");
        assertRefused(config(KvRole.PRODUCER).bufferSize(0), "kv_buffer_size: is 0");
        assertRefused(
                config(KvRole.PRODUCER).extra("insert_timeout_seconds", -1),
                "kv_connector_extra_config.insert_timeout_seconds: is -1.0");
        assertRefused(config(KvRole.PRODUCER).ip("0.0.0.0"), "kv_ip: is 0.0.0.0, with which other hosts");
        assertRefused(
                config(KvRole.CONSUMER).extra("transport", "gloo"),
                "kv_connector_extra_config.transport: is gloo, with which other hosts");
        assertThatThrownBy(() -> new PyNcclConnector()
                        .worker(
                                context(
                                        config(KvRole.PRODUCER)
                                                .extra("transport", "pigeon")
                                                .build(),
                                        1,
                                        3),
                                Rank.FIRST))
                .isInstanceOf(ConfigException.class)
                .hasMessageContaining("kv_connector_extra_config.transport")
                .hasMessageContaining("pigeon");
    }

    /** The worker has no orders, as after a failure of the scheduler's side. */
    @Test
    void aWorkerTakesAStepWithoutOrders() {
        WorkerConnector worker =
                connector().worker(context(config(KvRole.PRODUCER).build(), 1, 3), Rank.FIRST);
        worker.startLoad(new ConnectorMetadata.None());
        worker.waitForSave();
        assertThat(worker.report(Set.of()).sent()).isEmpty();
        worker.close();
    }

    private void assertRefused(KvTransferConfig.Builder config, String message) {
        assertThatThrownBy(() -> connector().scheduler(context(config.build(), 1, 3)))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith(message);
    }
}
