package baton.testkit;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.DType;
import baton.kv.KvCache;
import baton.kv.KvCopier;
import baton.kv.KvFence;
import baton.kv.KvLayout;
import baton.kv.KvMemory;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.ConnectorMetadata;
import baton.kv.connector.KvConnector;
import baton.kv.connector.KvMatch;
import baton.kv.connector.KvRequest;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.SchedulerConnector.ScheduledRequest;
import baton.kv.connector.SchedulerConnector.ScheduledStep;
import baton.kv.connector.WorkerConnector;
import baton.kv.connector.WorkerReport;
import baton.kv.staging.StagedConnector;
import baton.transfer.Region;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** Which bytes a staging pool copies, and when its connector is called. */
class StagedConnectorTest {
    private static final KvLayout LAYOUT = new KvLayout(2, 1, 2, 4, DType.F32);
    private static final int BLOCKS = 6;
    private static final KvTransferConfig CONFIG =
            KvTransferConfig.builder("Scripted", KvRole.BOTH).build();

    private final Arena arena = Arena.ofShared();
    private final MemorySegment bytes = arena.allocate(BLOCKS * LAYOUT.blockBytes());
    private final RefusingMemory device = new RefusingMemory(bytes);
    /** Of each batch, how many ranges of how many bytes. */
    private final List<String> copies = new ArrayList<>();

    private final List<String> calls = new ArrayList<>();
    private boolean byLayer;
    private boolean needsHost = true;
    private KvMatch match = new KvMatch.None();
    private Set<String> received = Set.of();

    private final class Recorder implements KvCopier {
        @Override
        public KvFence toHost(List<Range> ranges, MemorySegment host, KvFence after) {
            copies.add("to host: %d of %d bytes"
                    .formatted(ranges.size(), ranges.getFirst().bytes()));
            return device.toHost(ranges, host, after);
        }

        @Override
        public KvFence toDevice(List<Range> ranges, MemorySegment host, KvFence after) {
            copies.add("to device: %d of %d bytes"
                    .formatted(ranges.size(), ranges.getFirst().bytes()));
            return device.toDevice(ranges, host, after);
        }
    }

    private final KvCache pool = new KvCache(
            new KvMemory.Device(
                    device.memory().address(), bytes.byteSize(), device.memory().device(), new Recorder()),
            LAYOUT,
            BLOCKS,
            List.of("0", "1"));

    /** Notes its calls, with the first byte of each layer of block 1 as it finds it; a load writes 9 to block 2. */
    private final class Scripted implements KvConnector {
        private KvCache mirror = pool;

        @Override
        public Set<String> names() {
            return Set.of("Scripted");
        }

        @Override
        public boolean needsHostMemory(KvTransferConfig config) {
            return needsHost;
        }

        @Override
        public SchedulerConnector scheduler(ConnectorContext context) {
            return new SchedulerConnector() {
                @Override
                public KvMatch match(KvRequest request, int computedTokens) {
                    return match;
                }

                @Override
                public void onAllocated(KvRequest request, int[] blockTable, int computedTokens, int externalTokens) {}

                @Override
                public ConnectorMetadata buildMetadata(ScheduledStep step) {
                    return new ConnectorMetadata.None();
                }

                @Override
                public void close() {}
            };
        }

        @Override
        public WorkerConnector worker(ConnectorContext context, Rank rank) {
            return new WorkerConnector() {
                @Override
                public void register(KvCache cache) {
                    mirror = cache;
                }

                @Override
                public void startLoad(ConnectorMetadata metadata) {
                    if (match instanceof KvMatch.Tokens) {
                        mirror.block(2).fill((byte) 9);
                    }
                }

                @Override
                public void saveLayer(int layer) {
                    calls.add("layer " + layer + ": " + first(mirror.host(), 1, layer));
                }

                @Override
                public boolean savesByLayer() {
                    return byLayer;
                }

                @Override
                public void waitForSave() {
                    calls.add("save: " + first(mirror.host(), 1, 0) + first(mirror.host(), 1, 1));
                }

                @Override
                public WorkerReport report(Set<String> finished) {
                    calls.add("report");
                    return new WorkerReport(Set.of(), received, Set.of(), List.of());
                }

                @Override
                public void close() {
                    calls.add("close");
                }
            };
        }
    }

    private final KvConnector staged = staged();
    private final ConnectorContext context =
            new ConnectorContext(CONFIG, new ModelFingerprint("fake", "00"), LAYOUT, new VirtualTicker());
    private final SchedulerConnector scheduler = staged.scheduler(context);
    private final WorkerConnector worker = staged.worker(context, new Rank(0, 0));
    private final FakeKvRequest request = new FakeKvRequest("a", FakeKvRequest.counting(1, 10), 4);

    StagedConnectorTest() {
        worker.register(pool);
    }

    @AfterEach
    void end() {
        worker.close();
        arena.close();
    }

    private KvConnector staged() {
        return StagedConnector.where(
                new Scripted(),
                CONFIG,
                pool,
                (of, length) -> Region.allocate(of, length, "a staging pool").asPool());
    }

    private static byte first(MemorySegment memory, int block, int layer) {
        return memory.get(ValueLayout.JAVA_BYTE, block * LAYOUT.blockBytes() + LAYOUT.layerOffset(layer));
    }

    private void begin(ScheduledRequest... requests) {
        worker.startLoad(scheduler.buildMetadata(new ScheduledStep(List.of(requests), Set.of(), Set.of())));
    }

    /** "Computes" tokens 4 to 9, in blocks 1 and 2. */
    private ScheduledRequest share() {
        return new ScheduledRequest(request, new int[] {0, 1, 2}, 4, 6);
    }

    private void compute(int layer) {
        worker.layerLoaded(layer).await();
        bytes.asSlice(LAYOUT.blockBytes() + LAYOUT.layerOffset(layer), LAYOUT.layerBytes())
                .fill((byte) (layer + 5));
        worker.saveLayer(layer, KvFence.PASSED);
    }

    @Test
    void layersReachTheMirrorBeforeTheConnectorIsAskedToSaveThem() {
        byLayer = true;
        begin(share());
        compute(0);
        compute(1);
        worker.waitForSave();
        worker.report(Set.of());
        assertThat(calls).containsExactly("layer 0: 5", "layer 1: 6", "save: 56", "report");
        assertThat(copies).containsExactly("to host: 2 of 64 bytes", "to host: 2 of 64 bytes");
    }

    @Test
    void aConnectorThatSavesNoLayersGetsEachBlockInOneCopy() {
        begin(share());
        compute(0);
        compute(1);
        worker.waitForSave();
        worker.report(Set.of());
        assertThat(calls).containsExactly("save: 56", "report");
        assertThat(copies).containsExactly("to host: 2 of 128 bytes");
    }

    @Test
    void aStepThatFailsIsNotSaved() {
        byLayer = true;
        begin(share());
        compute(0);
        worker.report(Set.of());
        begin();
        worker.report(Set.of());
        assertThat(calls).containsExactly("report", "report");
    }

    @Test
    void aLoadWithinAStepReachesTheDeviceLayerByLayer() {
        match = new KvMatch.Tokens(4, false);
        assertThat(scheduler.match(request, 4)).isEqualTo(match);
        scheduler.onAllocated(request, new int[] {0, 2, 3}, 4, 4);
        begin();
        worker.layerLoaded(0).await();
        assertThat(first(bytes, 2, 0)).isEqualTo((byte) 9);
        assertThat(first(bytes, 2, 1)).isZero();
        worker.layerLoaded(1).await();
        assertThat(first(bytes, 2, 1)).isEqualTo((byte) 9);
        assertThat(copies).containsExactly("to device: 1 of 64 bytes", "to device: 1 of 64 bytes");
        assertThat(bytes.asSlice(0, 2 * LAYOUT.blockBytes()).mismatch(arena.allocate(2 * LAYOUT.blockBytes())))
                .isEqualTo(-1);
    }

    @Test
    void aLoadBetweenStepsReachesTheDeviceWhenItIsReportedAsOver() {
        match = new KvMatch.Tokens(4, true);
        assertThat(scheduler.match(request, 4)).isEqualTo(match);
        scheduler.onAllocated(request, new int[] {0, 2, 3}, 4, 4);
        begin();
        worker.report(Set.of());
        assertThat(copies).isEmpty();
        begin();
        received = Set.of("a");
        assertThat(worker.report(Set.of()).received()).containsExactly("a");
        assertThat(first(bytes, 2, 1)).isEqualTo((byte) 9);
        assertThat(copies).containsExactly("to device: 1 of 128 bytes");
    }

    @Test
    void onlyAConnectorThatNeedsHostMemoryIsStagedAndOnlyOverADevice() {
        assertThat(staged).isInstanceOf(StagedConnector.class);
        needsHost = false;
        assertThat(staged()).isInstanceOf(Scripted.class);
        KvConnector plain = new Scripted();
        assertThat(StagedConnector.where(
                        plain, CONFIG, new KvCache(bytes, LAYOUT, BLOCKS, List.of("0", "1")), (_, _) -> {
                            throw new AssertionError("no memory is needed");
                        }))
                .isSameAs(plain);
    }
}
