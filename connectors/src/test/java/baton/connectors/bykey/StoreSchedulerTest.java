package baton.connectors.bykey;

import static org.assertj.core.api.Assertions.assertThat;

import baton.connectors.bykey.StoreConnectorMetadata.Save;
import baton.kv.BlockHash;
import baton.kv.DType;
import baton.kv.KvGroups;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.KvMatch;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector.RequestEnd;
import baton.kv.connector.SchedulerConnector.ScheduledRequest;
import baton.kv.connector.SchedulerConnector.ScheduledStep;
import baton.kv.connector.WorkerReport;
import baton.store.MapStore;
import baton.store.StoreFormat;
import baton.store.ValueCache;
import baton.store.memory.HostMemorySettings;
import baton.store.tiered.Tier;
import baton.store.tiered.TieredStore;
import baton.testkit.FakeKvRequest;
import baton.testkit.VirtualTicker;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Set;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;

/** Steps with saves of layers that have a window of two blocks. */
class StoreSchedulerTest {
    private static final int BLOCK = 4;
    private static final KvLayout LAYOUT = new KvLayout(1, 1, 4, BLOCK, DType.F32);
    private static final Duration SECOND = Duration.ofSeconds(1);

    private final VirtualTicker ticker = new VirtualTicker();
    private final StoreFormat format = new StoreFormat(new ModelFingerprint("m", "00"), LAYOUT, 1, 1, 1);
    private final MapStore slow = new MapStore(format);

    @AutoClose
    private final StoreScheduler scheduler = scheduler(64, OptionalInt.of(2 * BLOCK));

    /** A scheduler with a layer for each window. */
    private StoreScheduler scheduler(int slots, OptionalInt... windows) {
        return scheduler(
                new MapStores().memory(format, HostMemorySettings.of(slots * format.valueBytes()), ticker), 1, windows);
    }

    private StoreScheduler scheduler(ValueCache memory, double tenantShare, OptionalInt... windows) {
        ConnectorContext context = new ConnectorContext(
                KvTransferConfig.builder("OffloadingConnector", KvRole.BOTH).build(),
                format.model(),
                LAYOUT,
                LAYOUT,
                KvGroups.of(List.of(windows)),
                1,
                1,
                ticker,
                () -> {});
        TieredStore store = new TieredStore(
                memory,
                List.of(new Tier(slow, Optional.empty(), false)),
                new TieredStore.Timeouts(SECOND, SECOND),
                ticker);
        return new StoreScheduler(
                context,
                new StoreSession(context, store, new StorePolicy(false, 0, 10, SECOND, false, 0, tenantShare, SECOND)));
    }

    private FakeKvRequest begun(String id, int firstToken) {
        FakeKvRequest request = new FakeKvRequest(id, FakeKvRequest.counting(firstToken, 40), BLOCK);
        scheduler.onNewRequest(request);
        return request;
    }

    private StoreConnectorMetadata step(ScheduledRequest... requests) {
        return (StoreConnectorMetadata)
                scheduler.buildMetadata(new ScheduledStep(List.of(requests), Set.of(), Set.of()));
    }

    @Test
    void savesOfBlocksThatAWindowHasLeftEndBeforeTheseAreWritten() {
        FakeKvRequest first = begun("a", 1);
        FakeKvRequest second = begun("b", 100);
        StoreConnectorMetadata begins = step(new ScheduledRequest(first, new int[] {1, 2, 3, 4}, 0, 16));
        assertThat(begins.saves())
                .singleElement()
                .satisfies(save -> assertThat(save.blocks()).containsExactly(1, 2, 3, 4));
        // Its own next block is one that no save reads.
        assertThat(step(new ScheduledRequest(first, new int[] {0, 0, 3, 4, 5}, 16, 2))
                        .flush())
                .isEmpty();
        StoreConnectorMetadata reused = step(
                new ScheduledRequest(first, new int[] {0, 0, 3, 4, 5}, 18, 1),
                new ScheduledRequest(second, new int[] {6, 2}, 0, 6));
        assertThat(reused.flush()).containsExactly("a");
        // The save of the block's new content goes on when the earlier save is reported.
        assertThat(step(new ScheduledRequest(second, new int[] {6, 2}, 6, 2)).saves())
                .singleElement()
                .satisfies(save -> assertThat(save.blocks()).containsExactly(2));
        scheduler.onStepDone(
                WorkerReport.NOTHING,
                Map.of(
                        Rank.FIRST,
                        new SavesDone(List.of(begins.saves().getFirst().id()))));
        assertThat(step(new ScheduledRequest(first, new int[] {0, 0, 0, 4, 5, 2}, 20, 2))
                        .flush())
                .containsExactly("b");
    }

    @Test
    void chunksWithBlocksBehindTheWindowAreNotStored() {
        FakeKvRequest request = begun("a", 1);
        // A prefix of four blocks was here.
        StoreConnectorMetadata step = step(new ScheduledRequest(request, new int[] {0, 0, 3, 4, 5}, 16, 4));
        assertThat(step.saves())
                .singleElement()
                .satisfies(save -> assertThat(save.blocks()).containsExactly(3, 4, 5));
    }

    @Test
    void aTenantKeepsItsShareOfTheMemory() {
        ValueCache memory = new MapStores().memory(format, HostMemorySettings.of(32 * format.valueBytes()), ticker);
        try (StoreScheduler shared = scheduler(memory, 0.5, OptionalInt.empty())) {
            FakeKvRequest other = new FakeKvRequest("other", FakeKvRequest.counting(500, 40), BLOCK).withCacheSalt("b");
            FakeKvRequest first = new FakeKvRequest("first", FakeKvRequest.counting(1, 40), BLOCK).withCacheSalt("a:x");
            FakeKvRequest last = new FakeKvRequest("last", FakeKvRequest.counting(100, 40), BLOCK).withCacheSalt("a:y");
            for (FakeKvRequest request : List.of(other, first, last)) {
                fill(memory, request.blockHashes());
                shared.onNewRequest(request);
                int[] table = IntStream.range(0, 10).toArray();
                shared.buildMetadata(
                        new ScheduledStep(List.of(new ScheduledRequest(request, table, 0, 40)), Set.of(), Set.of()));
                var _ = shared.onFinished(request, RequestEnd.STOPPED, table);
            }
            assertThat(memory.presentFromFront(other.blockHashes())).isEqualTo(10);
            assertThat(memory.presentFromFront(last.blockHashes())).isEqualTo(10);
            assertThat(memory.presentFromFront(first.blockHashes())).isEqualTo(6);
            assertThat(memory.used()).isEqualTo(26);
        }
    }

    private static void fill(ValueCache memory, List<BlockHash> keys) {
        int[] slots = new int[keys.size()];
        assertThat(memory.reserve(keys, slots)).isTrue();
        Arrays.stream(slots).forEach(memory::commit);
    }

    @Test
    void aPromptThatIsBeingStoredForAnotherRequestIsAwaited() {
        FakeKvRequest first = begun("a", 1);
        FakeKvRequest second = begun("b", 1);
        Save save = step(new ScheduledRequest(first, new int[] {1, 2, 3, 4}, 0, 16))
                .saves()
                .getFirst();
        assertThat(scheduler.match(second, 0)).isEqualTo(new KvMatch.Pending());
        scheduler.onStepDone(WorkerReport.NOTHING, Map.of(Rank.FIRST, new SavesDone(List.of(save.id()))));
        assertThat(scheduler.match(second, 0)).isEqualTo(new KvMatch.None());
    }

    @Test
    void aPromptWithMoreChunksThanTheMemoryHasSlotsLeavesRoomForWindows() {
        OptionalInt[] windows = {OptionalInt.empty(), OptionalInt.of(2 * BLOCK)};
        FakeKvRequest request = new FakeKvRequest("r", FakeKvRequest.counting(1, 40), BLOCK);
        ChunkKeys keys = ChunkKeys.blockHashes(1);
        new ChunkValues(keys, KvGroups.of(List.of(windows)), BLOCK, 1)
                .all(request, 0, 10)
                .forEach(value -> slow.values.put(value.key(), new byte[(int) format.valueBytes()]));
        StoreScheduler small = scheduler(10, windows);
        small.onNewRequest(request);
        assertThat(small.match(request, 0)).isEqualTo(new KvMatch.Tokens(8 * BLOCK, true));
        small.close();
    }
}
