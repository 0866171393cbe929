package baton.connectors.sharedstorage;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.DType;
import baton.kv.KvCache;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.HandshakeMetadata;
import baton.kv.connector.KvMatch;
import baton.kv.connector.Measurement;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.SchedulerConnector.ScheduledRequest;
import baton.kv.connector.SchedulerConnector.ScheduledStep;
import baton.kv.connector.WorkerConnector;
import baton.kv.connector.WorkerReport;
import baton.testkit.FakeEngine;
import baton.testkit.FakeKvRequest;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Several ranks save and load one entry, all of it or nothing. */
class RanksTest {
    private static final KvLayout MODEL_LAYOUT = new KvLayout(3, 2, 4, 16, DType.F32);
    private static final int BLOCKS = 8;

    @TempDir
    Path root;

    /** Two stages, of one layer and of two, with two ranks each. */
    private final class Engine implements AutoCloseable {
        private final Arena arena = Arena.ofShared();
        private final List<KvCache> caches = new ArrayList<>();
        private final List<WorkerConnector> workers = new ArrayList<>();
        private final SchedulerConnector scheduler;
        private final ExecutorService threads = Executors.newVirtualThreadPerTaskExecutor();

        private Engine() {
            SharedStorageConnector connector = new SharedStorageConnector();
            Map<Rank, HandshakeMetadata> handshakes = new HashMap<>();
            scheduler = connector.scheduler(context(1));
            for (int index = 0; index < 4; index++) {
                Rank rank = new Rank(index / 2, index % 2);
                KvLayout layout = new KvLayout(rank.pipeline() + 1, 1, 4, 16, DType.F32);
                KvCache cache = new KvCache(
                        arena.allocate(BLOCKS * layout.blockBytes()),
                        layout,
                        BLOCKS,
                        rank.pipeline() == 0 ? List.of("layer.0") : List.of("layer.1", "layer.2"));
                WorkerConnector worker = connector.worker(context(rank.pipeline() + 1), rank);
                worker.register(cache);
                handshakes.put(rank, worker.handshakeMetadata().orElseThrow());
                caches.add(cache);
                workers.add(worker);
            }
            scheduler.onHandshakeMetadata(handshakes);
        }

        private ConnectorContext context(int layers) {
            return new ConnectorContext(
                    KvTransferConfig.builder("SharedStorageConnector", KvRole.BOTH)
                            .extra("shared_storage_path", root)
                            .build(),
                    new ModelFingerprint("model", "00ff"),
                    new KvLayout(layers, 1, 4, 16, DType.F32),
                    MODEL_LAYOUT,
                    2,
                    2,
                    Ticker.system());
        }

        private void fill(int seed) {
            Random random = new Random(seed);
            for (KvCache cache : caches) {
                byte[] bytes = new byte[(int) cache.host().byteSize()];
                random.nextBytes(bytes);
                cache.host().asByteBuffer().put(bytes);
            }
        }

        /** One step of all ranks at once, in which the last rank computes so many of its two layers. */
        private List<WorkerReport> step(ScheduledRequest request, int lastRanksLayers) throws Exception {
            ConnectorMetadata metadata =
                    scheduler.buildMetadata(new ScheduledStep(List.of(request), Set.of(), Set.of()));
            List<Future<?>> ranks = new ArrayList<>();
            for (int index = 0; index < 4; index++) {
                WorkerConnector worker = workers.get(index);
                int layers = index == 3
                        ? lastRanksLayers
                        : caches.get(index).layout().layers();
                ranks.add(threads.submit(() -> {
                    worker.startLoad(metadata);
                    for (int layer = 0; layer < layers; layer++) {
                        worker.waitForLayerLoad(layer);
                        worker.saveLayer(layer);
                    }
                    worker.waitForSave();
                }));
            }
            for (Future<?> rank : ranks) {
                rank.get(120, TimeUnit.SECONDS);
            }
            List<WorkerReport> reports =
                    workers.stream().map(worker -> worker.report(Set.of())).toList();
            reports.forEach(scheduler::onStepDone);
            return reports;
        }

        /** Steps without a forward pass until all ranks have reported the load of a request. */
        private List<WorkerReport> load(String request) {
            List<WorkerReport> all = new ArrayList<>();
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(120);
            while (all.stream()
                            .filter(report -> report.received().contains(request))
                            .count()
                    < workers.size()) {
                assertThat(System.nanoTime() - end).as("nanoseconds too late").isNegative();
                ConnectorMetadata metadata = scheduler.buildMetadata(new ScheduledStep(List.of(), Set.of(), Set.of()));
                for (WorkerConnector worker : workers) {
                    worker.startLoad(metadata);
                    WorkerReport report = worker.report(Set.of());
                    scheduler.onStepDone(report);
                    all.add(report);
                }
            }
            return all;
        }

        @Override
        public void close() {
            workers.forEach(WorkerConnector::close);
            scheduler.close();
            threads.shutdownNow();
            arena.close();
        }
    }

    private static List<Measurement> measured(List<WorkerReport> reports, String name) {
        return reports.stream()
                .flatMap(report -> report.measurements().stream())
                .filter(measurement -> measurement.name().equals(name))
                .toList();
    }

    private List<String> entries() throws IOException {
        try (Stream<Path> paths = Files.list(root)) {
            return paths.map(path -> path.getFileName().toString())
                    .filter(name -> !name.startsWith("."))
                    .toList();
        }
    }

    @Test
    void anEntryExistsOnceAllRanksHaveSavedAllLayers() throws Exception {
        int[] prompt = FakeKvRequest.counting(0, 40);
        int[] table = {5, 2, 7};
        try (Engine producer = new Engine();
                Engine consumer = new Engine()) {
            producer.fill(1);
            FakeKvRequest first = new FakeKvRequest("first", prompt, 16);
            producer.scheduler.onAllocated(first, table, 0, 0);
            List<WorkerReport> reports = producer.step(new ScheduledRequest(first, table, 0, 40), 1);
            assertThat(entries()).isEmpty();
            assertThat(measured(reports, "baton:kv_save_failures"))
                    .containsExactly(Measurement.count("baton:kv_save_failures", 1, "cause", "abandoned"));

            FakeKvRequest second = new FakeKvRequest("second", prompt, 16);
            producer.scheduler.onAllocated(second, table, 0, 0);
            reports = producer.step(new ScheduledRequest(second, table, 0, 40), 2);
            assertThat(entries()).hasSize(1);
            assertThat(measured(reports, "baton:kv_save_bytes"))
                    .containsExactly(Measurement.count("baton:kv_save_bytes", 2.0 * MODEL_LAYOUT.blockBytes()));

            FakeKvRequest third = new FakeKvRequest("third", prompt, 16);
            assertThat(FakeEngine.awaitMatch(consumer.scheduler, third, 0)).isEqualTo(new KvMatch.Tokens(32, true));
            int[] other = {1, 6, 0};
            consumer.scheduler.onAllocated(third, other, 0, 32);
            reports = consumer.load("third");
            assertThat(measured(reports, "baton:kv_load_bytes"))
                    .containsExactly(Measurement.count("baton:kv_load_bytes", 2.0 * MODEL_LAYOUT.blockBytes()));
            for (int rank = 0; rank < 4; rank++) {
                for (int block = 0; block < 2; block++) {
                    assertThat(consumer.caches
                                    .get(rank)
                                    .block(other[block])
                                    .mismatch(producer.caches.get(rank).block(table[block])))
                            .as("rank %d, block %d", rank, block)
                            .isEqualTo(-1);
                }
            }
        }
    }

    @Test
    void aFileThatIsDamagedMakesTheBlocksOfAllRanksInvalid() throws Exception {
        int[] prompt = FakeKvRequest.counting(0, 40);
        int[] table = {5, 2, 7};
        try (Engine producer = new Engine();
                Engine consumer = new Engine()) {
            producer.fill(2);
            FakeKvRequest request = new FakeKvRequest("request", prompt, 16);
            producer.scheduler.onAllocated(request, table, 0, 0);
            producer.step(new ScheduledRequest(request, table, 0, 40), 2);
            Path file = root.resolve(entries().getFirst()).resolve("layer.2.safetensors");
            byte[] bytes = Files.readAllBytes(file);
            bytes[bytes.length - 1] ^= 1;
            Files.write(file, bytes);
            FakeKvRequest again = new FakeKvRequest("again", prompt, 16);
            assertThat(FakeEngine.awaitMatch(consumer.scheduler, again, 0)).isInstanceOf(KvMatch.Tokens.class);
            consumer.scheduler.onAllocated(again, table, 0, 32);
            List<WorkerReport> reports = consumer.load("again");
            assertThat(reports)
                    .filteredOn(report -> report.received().contains("again"))
                    .hasSize(4)
                    .allSatisfy(report -> assertThat(report.invalidBlocks()).containsExactlyInAnyOrder(5, 2));
            assertThat(measured(reports, "baton:kv_load_failures")).hasSize(1);
        }
    }
}
