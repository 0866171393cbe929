package baton.connectors.sharedstorage;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.DType;
import baton.kv.KvGroups;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.KvMatch;
import baton.kv.connector.Measurement;
import baton.kv.connector.SchedulerConnector.RequestEnd;
import baton.kv.connector.WorkerReport;
import baton.store.FileOperations;
import baton.store.IoThreads;
import baton.testkit.FakeEngine;
import baton.testkit.FakeEngine.Running;
import baton.testkit.FakeEngine.Share;
import baton.testkit.FakeKvRequest;
import baton.testkit.VirtualTicker;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Work on files that is late or never done, under a clock that moves only when something waits for it. */
class SlowStorageTest {
    private static final int BLOCK = 16;
    private static final KvLayout LAYOUT = new KvLayout(3, 2, 8, BLOCK, DType.BF16);
    private static final int THREADS = 8;

    private final VirtualTicker ticker = new VirtualTicker();
    private final HeldThreads threads = new HeldThreads();
    private final AtomicInteger wakes = new AtomicInteger();
    private final List<FakeEngine> engines = new ArrayList<>();
    private int requests;

    @TempDir
    Path root;

    /** Runs tasks in the thread that starts them, unless they are held. */
    private final class HeldThreads implements IoThreads {
        private final Deque<Runnable> held = new ArrayDeque<>();
        private boolean holds;

        @Override
        public void start(Runnable task) {
            if (holds) {
                held.add(task);
            } else {
                task.run();
            }
        }

        @Override
        public void awaitChange(Object monitor) {
            ticker.advance(Duration.ofMillis(10));
        }

        private void release() {
            holds = false;
            while (!held.isEmpty()) {
                held.removeFirst().run();
            }
        }
    }

    @AfterEach
    void closeEngines() throws IOException {
        threads.release();
        engines.forEach(FakeEngine::close);
        try (Stream<Path> left = Files.list(root)) {
            assertThat(left).noneMatch(path -> path.getFileName().toString().startsWith(".baton"));
        }
    }

    @Test
    void aMatchIsPendingUntilTheLookUpIsDoneAndThenStaysTheSame() throws IOException {
        engine(KvRole.PRODUCER).prefill(request(0, 40));
        FakeEngine consumer = engine(KvRole.CONSUMER);
        FakeKvRequest request = request(0, 40);
        consumer.scheduler().onNewRequest(request);
        wakes.set(0);
        threads.holds = true;

        assertThat(consumer.scheduler().match(request, 0)).isEqualTo(new KvMatch.Pending());
        assertThat(consumer.scheduler().match(request, 0)).isEqualTo(new KvMatch.Pending());
        assertThat(threads.held).hasSize(1);
        threads.release();

        assertThat(wakes).hasValue(1);
        assertThat(consumer.scheduler().match(request, 0)).isEqualTo(new KvMatch.Tokens(32, true));
        deleteEntries();
        assertThat(consumer.scheduler().match(request, 0)).isEqualTo(new KvMatch.Tokens(32, true));
        assertThat(consumer.scheduler().takeMeasurements()).isEmpty();
    }

    @Test
    void aLookUpThatIsOverItsDeadlineIsAMissAndCountedOnce() {
        engine(KvRole.PRODUCER).prefill(request(0, 40));
        FakeEngine consumer = engine(KvRole.CONSUMER);
        FakeKvRequest request = request(0, 40);
        threads.holds = true;

        assertThat(consumer.scheduler().match(request, 0)).isEqualTo(new KvMatch.Pending());
        ticker.advance(EntryLookups.TIMEOUT);
        assertThat(consumer.scheduler().match(request, 0)).isEqualTo(new KvMatch.None());
        threads.release();

        assertThat(consumer.scheduler().match(request, 0)).isEqualTo(new KvMatch.None());
        // Also if more of the prompt is in the pool meanwhile: the deadline is the request's.
        assertThat(consumer.scheduler().match(request, BLOCK)).isEqualTo(new KvMatch.None());
        assertThat(consumer.scheduler().takeMeasurements())
                .containsExactly(Measurement.count("baton:kv_lookup_timeouts", 1));
    }

    @Test
    void aStorageThatHasAnsweredInTimeIsAskedAgainWhenMoreOfThePromptIsInThePool() {
        engine(KvRole.PRODUCER).prefill(request(0, 40));
        FakeEngine consumer = engine(KvRole.CONSUMER);
        FakeKvRequest request = request(0, 40);
        threads.holds = true;

        assertThat(consumer.scheduler().match(request, 0)).isEqualTo(new KvMatch.Pending());
        threads.release();
        // The request is kept waiting for something else, longer than a look-up may take.
        ticker.advance(EntryLookups.TIMEOUT.multipliedBy(3));

        assertThat(consumer.scheduler().match(request, BLOCK)).isEqualTo(new KvMatch.Tokens(32 - BLOCK, true));
        assertThat(consumer.scheduler().takeMeasurements()).isEmpty();
    }

    @Test
    void whileLookUpsHangFurtherRequestsNeitherWaitNorPileUp() {
        engine(KvRole.PRODUCER).prefill(request(0, 40));
        FakeEngine consumer = engine(KvRole.CONSUMER);
        List<FakeKvRequest> hanging =
                Stream.generate(() -> request(0, 40)).limit(3 * THREADS).toList();
        threads.holds = true;

        assertThat(hanging)
                .allSatisfy(request ->
                        assertThat(consumer.scheduler().match(request, 0)).isEqualTo(new KvMatch.Pending()));
        ticker.advance(EntryLookups.TIMEOUT);
        assertThat(hanging)
                .allSatisfy(request ->
                        assertThat(consumer.scheduler().match(request, 0)).isEqualTo(new KvMatch.None()));
        for (int i = 0; i < 2000; i++) {
            assertThat(consumer.scheduler().match(request(0, 40), 0)).isEqualTo(new KvMatch.None());
        }
        assertThat(threads.held).hasSize(THREADS);
        assertThat(consumer.scheduler().takeMeasurements())
                .containsExactly(Measurement.count("baton:kv_lookup_timeouts", 3 * THREADS + 2000));
        threads.release();

        assertThat(consumer.scheduler().match(request(0, 40), 0)).isEqualTo(new KvMatch.Tokens(32, true));
    }

    @Test
    void theQueueOfLookUpsIsBoundedBeforeAnyDeadlineHasPassed() {
        FakeEngine consumer = engine(KvRole.CONSUMER);
        threads.holds = true;
        int pending = 0;
        for (int i = 0; i < 5000; i++) {
            pending += consumer.scheduler().match(request(0, 40), 0) instanceof KvMatch.Pending ? 1 : 0;
        }

        assertThat(pending).isBetween(THREADS, 4999);
        assertThat(threads.held).hasSize(THREADS);
    }

    @Test
    void aRequestThatEndsWhileItWaitsIsNotLookedUp() {
        engine(KvRole.PRODUCER).prefill(request(0, 40));
        FakeEngine consumer = engine(KvRole.CONSUMER);
        FakeKvRequest request = request(0, 40);
        wakes.set(0);
        threads.holds = true;
        assertThat(consumer.scheduler().match(request, 0)).isEqualTo(new KvMatch.Pending());
        consumer.scheduler().onFinished(request, RequestEnd.ABORTED, new int[0]);
        threads.release();

        assertThat(wakes).hasValue(0);
    }

    @Test
    void aPromptWithALateLookUpIsNotSaved() throws IOException {
        FakeEngine producer = engine(KvRole.PRODUCER);
        FakeKvRequest request = request(0, 40);
        threads.holds = true;
        assertThat(producer.scheduler().match(request, 0)).isEqualTo(new KvMatch.Pending());
        ticker.advance(EntryLookups.TIMEOUT);
        Running running = producer.admit(request, 0);
        WorkerReport report = producer.step(new Share(running, 40));

        assertThat(report).isEqualTo(WorkerReport.NOTHING);
        assertThat(producer.scheduler().takeMeasurements())
                .containsExactlyInAnyOrder(
                        Measurement.count("baton:kv_lookup_timeouts", 1),
                        Measurement.count("baton:kv_save_failures", 1, "cause", "timeout"));
        assertThat(entries()).isEmpty();
        threads.release();
        producer.prefill(request(0, 40));
        assertThat(entries()).hasSize(1);
    }

    @Test
    void whenAllThreadsHangInSavesLaterStepsDoNotWaitForTheirs() throws IOException {
        FakeEngine producer = engine(KvRole.PRODUCER);
        List<Running> first = Stream.generate(() -> producer.admit(request(++requests * 100, 40), 0))
                .limit(THREADS)
                .toList();
        Running later = producer.admit(request(7, 40), 0);
        threads.holds = true;
        WorkerReport report = producer.step(
                first.stream().map(running -> new Share(running, 40)).toArray(Share[]::new));
        assertThat(failures(report)).hasSize(THREADS);

        long before = ticker.nanos();
        assertThat(failures(producer.step(new Share(later, 40)))).hasSize(1);
        assertThat(ticker.nanos()).isEqualTo(before);
        assertThat(threads.held).hasSize(THREADS);

        threads.release();
        assertThat(entries()).isEmpty();
        producer.prefill(request(9, 40));
        assertThat(entries()).hasSize(1);
    }

    @Test
    void aLoadThatHangsHoldsUpNoStepAndFailsAtItsDeadline() throws IOException {
        engine(KvRole.PRODUCER).prefill(request(0, 40));
        FakeEngine consumer = engine(KvRole.CONSUMER);
        Running loading = consumer.admit(request(0, 40), 0);
        threads.holds = true;
        consumer.idleStep();
        wakes.set(0);
        long before = ticker.nanos();
        Running beside = consumer.admit(request(7, BLOCK), 0);
        WorkerReport report = consumer.step(new Share(beside, BLOCK));

        assertThat(report.received()).isEmpty();
        assertThat(report.busy()).isTrue();
        assertThat(ticker.nanos()).isEqualTo(before);
        assertThat(consumer.holds(beside, 0, BLOCK)).isTrue();
        ticker.advance(Duration.ofSeconds(60));
        report = consumer.idleStep();
        assertThat(report.received()).containsExactly(loading.request().id());
        assertThat(report.invalidBlocks()).isEqualTo(loading.externalBlocks(BLOCK));
        assertThat(report.measurements())
                .containsExactly(Measurement.count("baton:kv_load_failures", 1, "cause", "timeout"));
        assertThat(wakes).hasValue(1);

        // The blocks have other contents by the time the file answers.
        consumer.cache().host().fill((byte) 0x55);
        threads.release();
        assertThat(consumer.cache().host().asByteBuffer()).satisfies(pool -> {
            while (pool.hasRemaining()) {
                assertThat(pool.get()).isEqualTo((byte) 0x55);
            }
        });
        assertThat(consumer.idleStep()).isEqualTo(WorkerReport.NOTHING);
    }

    @Test
    void aRequestThatEndsWhileItLoadsKeepsItsBlocksUntilTheLoadIsOver() {
        engine(KvRole.PRODUCER).prefill(request(0, 40));
        FakeEngine consumer = engine(KvRole.CONSUMER);
        Running loading = consumer.admit(request(0, 40), 0);
        threads.holds = true;
        consumer.idleStep();
        consumer.end(loading, RequestEnd.ABORTED);
        consumer.idleStep();
        assertThat(loading.isFreed()).isFalse();
        assertThat(consumer.hasPendingWork()).isTrue();
        threads.release();
        consumer.idleStep();

        assertThat(loading.isFreed()).isTrue();
        assertThat(consumer.hasPendingWork()).isFalse();
    }

    private static List<Measurement> failures(WorkerReport report) {
        return report.measurements().stream()
                .filter(Measurement.count("baton:kv_save_failures", 1, "cause", "timeout")::equals)
                .toList();
    }

    private FakeEngine engine(KvRole role) {
        KvTransferConfig config = KvTransferConfig.builder("SharedStorageConnector", role)
                .extra("shared_storage_path", root)
                .build();
        FakeEngine engine = new FakeEngine(
                new SharedStorageConnector(threads, FileOperations.SYSTEM),
                new ConnectorContext(
                        config,
                        new ModelFingerprint("tiny", "feed"),
                        LAYOUT,
                        LAYOUT,
                        KvGroups.one(LAYOUT.layers()),
                        1,
                        1,
                        ticker,
                        wakes::incrementAndGet),
                64);
        engines.add(engine);
        return engine;
    }

    private FakeKvRequest request(int first, int length) {
        return new FakeKvRequest("request-" + requests++, FakeKvRequest.counting(first, length), BLOCK);
    }

    private List<Path> entries() throws IOException {
        try (Stream<Path> list = Files.list(root)) {
            return list.filter(path -> !path.getFileName().toString().startsWith("."))
                    .toList();
        }
    }

    private void deleteEntries() throws IOException {
        for (Path entry : entries()) {
            try (Stream<Path> files = Files.list(entry)) {
                for (Path file : files.toList()) {
                    Files.delete(file);
                }
            }
            Files.delete(entry);
        }
    }
}
