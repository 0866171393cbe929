package baton.connectors.nixl;

import static org.assertj.core.api.Assertions.assertThat;

import baton.connectors.onesided.BlockChecksums;
import baton.connectors.onesided.BlockInterior;
import baton.connectors.onesided.LayerRegions;
import baton.connectors.onesided.PromptProgress;
import baton.connectors.onesided.RankInfo;
import baton.connectors.onesided.RemoteBlocks;
import baton.connectors.onesided.SuspectPeers;
import baton.connectors.onesided.TransferMode;
import baton.kv.DType;
import baton.kv.JsonFields;
import baton.kv.KvDigest;
import baton.kv.KvGroups;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.KvMatch;
import baton.kv.connector.Rank;
import baton.kv.connector.SchedulerConnector;
import baton.kv.connector.SchedulerConnector.RequestEnd;
import baton.kv.connector.SchedulerConnector.ScheduledRequest;
import baton.kv.connector.SchedulerConnector.ScheduledStep;
import baton.kv.connector.WorkerReport;
import baton.testkit.FakeKvRequest;
import baton.testkit.VirtualTicker;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.Set;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** Generations of blocks, and when blocks get their checksums. */
class NixlSchedulerTest {
    private static final KvLayout LAYOUT = new KvLayout(1, 1, 4, 4, DType.F32);
    private static final JsonFields KEEP = JsonFields.parse("kv_transfer_params", "{\"do_remote_decode\": true}");

    private final VirtualTicker ticker = new VirtualTicker();
    private final ConnectorContext context = new ConnectorContext(
            KvTransferConfig.builder("NixlConnector", KvRole.BOTH).engineId("p").build(),
            new ModelFingerprint("fake", "00"),
            LAYOUT,
            ticker);

    @AutoClose
    private final NixlScheduler scheduler = new NixlScheduler(
            context,
            NixlSettings.of(JsonFields.empty(""), Map.of()),
            new MemoryNet(new VirtualTicker()).runtime(),
            TransferMode.PULL);

    @BeforeEach
    void start() {
        begin(scheduler);
    }

    private static void begin(NixlScheduler scheduler) {
        scheduler.onHandshakeMetadata(Map.of(
                Rank.FIRST,
                new RankInfo(
                        "p",
                        "",
                        List.of(),
                        "00",
                        Rank.FIRST,
                        1,
                        1,
                        new byte[0],
                        LAYOUT,
                        1,
                        LayerRegions.ofPool(0, LAYOUT, OptionalInt.empty()),
                        List.of(),
                        BlockInterior.HEADS,
                        1,
                        16,
                        Optional.of(new BlockChecksums.Table(KvDigest.CRC32C, 0)),
                        Optional.empty())));
    }

    private static FakeKvRequest request(String id, int length) {
        return new FakeKvRequest(id, FakeKvRequest.counting(1, length), 4).withKvTransferParams(KEEP);
    }

    private NixlConnectorMetadata step(Set<String> preempted, ScheduledRequest... requests) {
        return (NixlConnectorMetadata)
                scheduler.buildMetadata(new ScheduledStep(List.of(requests), Set.of(), preempted));
    }

    private static NixlConnectorMetadata step(NixlScheduler scheduler, ScheduledRequest request) {
        return (NixlConnectorMetadata) scheduler.buildMetadata(new ScheduledStep(List.of(request), Set.of(), Set.of()));
    }

    private List<Integer> opened(NixlConnectorMetadata step) {
        return step.opened().stream().map(NixlConnectorMetadata.Opened::block).toList();
    }

    @Test
    void advertisedParametersAreReadAsAReferenceWithoutBlocks() {
        JsonFields told = scheduler.advertisedKvTransferParams().orElseThrow();
        assertThat(told.names())
                .containsExactlyInAnyOrder(
                        "do_remote_prefill",
                        "do_remote_decode",
                        "remote_engine_id",
                        "remote_host",
                        "remote_port",
                        "tp_size",
                        "pp_size");
        RemoteBlocks read = RemoteBlocks.read(told, TransferMode.PULL, "cmpl-r-0-0badcafe");
        assertThat(read.mode()).isEqualTo(TransferMode.PUSH);
        assertThat(read.engineId()).isEqualTo("p");
        assertThat(read.requestId()).isEqualTo("cmpl-r-0");
        // A proxy's id, as vLLM's sends it, is not that by which the prefill instance knows the request.
        JsonFields ofProxy = JsonFields.of("kv_transfer_params", told.toJson().put("remote_request_id", "r"));
        assertThat(RemoteBlocks.read(ofProxy, TransferMode.PULL, "cmpl-r-0-0badcafe")
                        .requestId())
                .isEqualTo("cmpl-r-0");
        // An answer's reference leads to the same place.
        FakeKvRequest request = request("a", 4);
        scheduler.onNewRequest(request);
        scheduler.onAllocated(request, new int[] {3}, 0, 0);
        step(Set.of(), new ScheduledRequest(request, new int[] {3}, 0, 4));
        JsonFields answered = scheduler
                .onFinished(request, RequestEnd.LENGTH, new int[] {3})
                .kvTransferParams()
                .orElseThrow();
        for (String name : told.names()) {
            assertThat(told.value(name)).as(name).isEqualTo(answered.value(name));
        }
    }

    /** A reference of a vLLM instance, which has no checksums. */
    private static FakeKvRequest reader(String id) {
        return new FakeKvRequest(id, FakeKvRequest.counting(1, 8), 4)
                .withKvTransferParams(JsonFields.parse("kv_transfer_params", """
                        {"do_remote_prefill": true, "remote_engine_id": "vllm", "remote_request_id": "%s",
                         "remote_block_ids": [[1, 2]], "remote_host": "127.0.0.1", "remote_port": 9, "tp_size": 1}
                        """.formatted(id)));
    }

    @Test
    void nothingIsLoadedFromAnEngineOfWhichTheModelFoundSeveralLoadsWrong() {
        for (int i = 0; i < SuspectPeers.WRONG_LOADS; i++) {
            FakeKvRequest request = reader("r" + i);
            scheduler.onNewRequest(request);
            // Of another connector.
            scheduler.onWrongLoad(request);
            assertThat(scheduler.match(request, 0)).isInstanceOf(KvMatch.Tokens.class);
            scheduler.onAllocated(request, new int[] {3, 4}, 0, 8);
            scheduler.onStepDone(new WorkerReport(Set.of(), Set.of(request.id()), Set.of(), List.of()));
            scheduler.onWrongLoad(request);
            scheduler.onFinished(request, RequestEnd.LENGTH, new int[] {3, 4});
        }
        FakeKvRequest next = reader("next");
        scheduler.onNewRequest(next);
        assertThat(scheduler.match(next, 0)).isInstanceOf(KvMatch.None.class);
        scheduler.onAllocated(next, new int[] {3, 4}, 0, 0);
        assertThat(step(Set.of()).unused()).extracting(RemoteBlocks::requestId).containsExactly("next");
    }

    @Test
    void aConsumerAdvertisesNoParameters() {
        ConnectorContext consumer = new ConnectorContext(
                KvTransferConfig.builder("NixlConnector", KvRole.CONSUMER).build(),
                new ModelFingerprint("fake", "00"),
                LAYOUT,
                new VirtualTicker());
        try (NixlScheduler other = new NixlScheduler(
                consumer,
                NixlSettings.of(JsonFields.empty(""), Map.of()),
                new MemoryNet(new VirtualTicker()).runtime(),
                TransferMode.PULL)) {
            assertThat(other.advertisedKvTransferParams()).isEmpty();
        }
    }

    /** The requests that hold the blocks here may wait for the blocks of such leases. */
    @Test
    void leasesOfRequestsWithoutBlocksEndWhereNothingIsComputed() {
        Duration lease = NixlSettings.of(JsonFields.empty(""), Map.of()).lease();
        FakeKvRequest pushed = new FakeKvRequest("pushed", FakeKvRequest.counting(1, 8), 4)
                .withKvTransferParams(scheduler.advertisedKvTransferParams().orElseThrow());
        scheduler.onNewRequest(pushed);
        scheduler.onAllocated(pushed, new int[] {3, 4}, 0, 8);
        scheduler.onNewRequest(reader("waiting"));
        assertThat(heartbeats()).containsExactly("pushed", "waiting");
        ticker.advance(lease.minusNanos(1));
        assertThat(heartbeats()).containsExactly("pushed", "waiting");
        ticker.advance(lease);
        scheduler.onNewRequest(reader("new"));
        assertThat(heartbeats()).containsExactly("pushed", "new");
        ticker.advance(lease);
        FakeKvRequest computed = request("computed", 4);
        step(Set.of(), new ScheduledRequest(computed, new int[] {5}, 0, 4));
        ticker.advance(lease.minusNanos(1));
        assertThat(heartbeats()).containsExactly("pushed", "waiting", "new");
    }

    private List<String> heartbeats() {
        return step(Set.of()).heartbeats().stream().map(RemoteBlocks::requestId).toList();
    }

    /** Of a window of 8, token 19 attends to blocks 3 and 4, token 24 to blocks 4 to 6. */
    @Test
    void aPromptWithBlocksBehindTheWindowIsNotHandedOver() {
        try (NixlScheduler other = windowed()) {
            FakeKvRequest request = request("a", 20);
            other.onNewRequest(request);
            assertThat(other.onFinished(request, RequestEnd.LENGTH, new int[] {0, 0, 0, 0, 5, 6, 7}))
                    .isEqualTo(SchedulerConnector.Release.NOW);
            NixlConnectorMetadata step =
                    (NixlConnectorMetadata) other.buildMetadata(new ScheduledStep(List.of(), Set.of(), Set.of()));
            assertThat(step.abandoned()).containsExactly("a");
            assertThat(step.leases()).isEmpty();
        }
    }

    /** The blocks that the prompt's end needs, as far as they are there; and none from the step on that may write to one. */
    @Test
    void blocksThatAWindowReachesArePushedUntilItHasLeftThem() {
        try (NixlScheduler other = windowed()) {
            FakeKvRequest request = request("a", 20);
            other.onNewRequest(request);
            NixlConnectorMetadata first = step(other, new ScheduledRequest(request, new int[] {1, 2, 3, 4}, 0, 16));
            assertThat(first.progress()).extracting(PromptProgress::after).containsExactly(0, 16);
            assertThat(first.progress().getLast()).satisfies(progress -> {
                assertThat(progress.blocks()).containsExactly(4, 0);
                assertThat(progress.ofGroups()).containsExactly(2);
            });
            NixlConnectorMetadata last = step(other, new ScheduledRequest(request, new int[] {0, 0, 3, 4, 5}, 16, 4));
            assertThat(last.progress().getFirst().blocks()).containsExactly(4, 5);
            NixlConnectorMetadata kept =
                    step(other, new ScheduledRequest(request, new int[] {0, 0, 0, 4, 5, 6}, 22, 1));
            assertThat(kept.progress()).isEmpty();
            assertThat(kept.abandoned()).isEmpty();
            NixlConnectorMetadata left =
                    step(other, new ScheduledRequest(request, new int[] {0, 0, 0, 0, 5, 6}, 23, 1));
            assertThat(left.abandoned()).containsExactly("a");
        }
    }

    private NixlScheduler windowed() {
        ConnectorContext windowed = new ConnectorContext(
                context.config(),
                context.model(),
                LAYOUT,
                LAYOUT,
                KvGroups.of(List.of(OptionalInt.of(8))),
                1,
                1,
                context.ticker(),
                () -> {});
        NixlScheduler made = new NixlScheduler(
                windowed,
                NixlSettings.of(JsonFields.empty(""), Map.of()),
                new MemoryNet(new VirtualTicker()).runtime(),
                TransferMode.PULL);
        begin(made);
        return made;
    }

    @Test
    void aBlockHasANewGenerationForEachWriterAndNoneForEachStep() {
        FakeKvRequest first = request("a", 10);
        scheduler.onNewRequest(first);
        scheduler.onAllocated(first, new int[] {3, 4}, 0, 0);
        NixlConnectorMetadata one = step(Set.of(), new ScheduledRequest(first, new int[] {3, 4}, 0, 6));
        assertThat(one.opened())
                .containsExactly(new NixlConnectorMetadata.Opened(3, 1), new NixlConnectorMetadata.Opened(4, 1));
        assertThat(one.completed()).containsExactly(3);
        NixlConnectorMetadata two = step(Set.of(), new ScheduledRequest(first, new int[] {3, 4, 5}, 6, 4));
        assertThat(two.opened()).containsExactly(new NixlConnectorMetadata.Opened(5, 1));
        assertThat(two.completed()).containsExactly(4, 5);

        FakeKvRequest second = request("b", 9);
        scheduler.onNewRequest(second);
        scheduler.onAllocated(second, new int[] {3, 5, 6}, 4, 0);
        NixlConnectorMetadata three = step(Set.of(), new ScheduledRequest(second, new int[] {3, 5, 6}, 4, 5));
        assertThat(three.opened())
                .containsExactly(new NixlConnectorMetadata.Opened(5, 2), new NixlConnectorMetadata.Opened(6, 1));
        assertThat(three.completed()).containsExactly(5, 6);
    }

    @Test
    void aPreemptedRequestWritesNewGenerationsIntoTheSameBlocks() {
        FakeKvRequest request = request("a", 8);
        scheduler.onNewRequest(request);
        scheduler.onAllocated(request, new int[] {3, 4}, 0, 0);
        step(Set.of(), new ScheduledRequest(request, new int[] {3, 4}, 0, 8));
        scheduler.onAllocated(request, new int[] {4, 3}, 0, 0);
        NixlConnectorMetadata again = step(Set.of("a"), new ScheduledRequest(request, new int[] {4, 3}, 0, 8));
        assertThat(again.opened())
                .containsExactly(new NixlConnectorMetadata.Opened(4, 2), new NixlConnectorMetadata.Opened(3, 2));
        assertThat(again.completed()).containsExactly(4, 3);
    }

    @Test
    void aPreemptedPromptThatIsInThePrefixCacheIsPushedAgain() {
        int[] table = {3, 4, 5, 6};
        FakeKvRequest request = request("a", 9);
        scheduler.onNewRequest(request);
        scheduler.onAllocated(request, table, 0, 0);
        step(Set.of(), new ScheduledRequest(request, table, 0, 9));
        assertThat(step(Set.of(), new ScheduledRequest(request, table, 9, 1)).progress())
                .isEmpty();
        step(Set.of("a"));
        scheduler.onAllocated(request, table, 12, 0);
        assertThat(step(Set.of(), new ScheduledRequest(request, table, 12, 1)).progress())
                .singleElement()
                .satisfies(progress -> {
                    assertThat(progress.blocks()).containsExactly(3, 4, 5);
                    assertThat(progress.before()).isEqualTo(8);
                    assertThat(progress.after()).isEqualTo(9);
                });
    }

    @Test
    void aPromptShorterThanABlockIsComputedOnce() {
        int[] table = {3};
        FakeKvRequest request = request("a", 2);
        scheduler.onNewRequest(request);
        scheduler.onAllocated(request, table, 0, 0);
        assertThat(step(Set.of(), new ScheduledRequest(request, table, 0, 2)).progress())
                .extracting(PromptProgress::after)
                .containsExactly(0, 2);
        assertThat(step(Set.of(), new ScheduledRequest(request, table, 2, 1)).progress())
                .isEmpty();
        step(Set.of("a"));
        scheduler.onAllocated(request, table, 3, 0);
        // A load by another connector.
        step(Set.of());
        assertThat(step(Set.of(), new ScheduledRequest(request, table, 3, 1)).progress())
                .extracting(PromptProgress::after)
                .containsExactly(2);
    }

    @Test
    void blocksWithAFailedLoadGetANewGeneration() {
        FakeKvRequest request = request("a", 8);
        scheduler.onNewRequest(request);
        scheduler.onAllocated(request, new int[] {3, 4}, 0, 0);
        step(Set.of(), new ScheduledRequest(request, new int[] {3, 4}, 0, 8));
        scheduler.onStepDone(new WorkerReport(Set.of(), Set.of(), Set.of(4), List.of()));
        NixlConnectorMetadata again = step(Set.of(), new ScheduledRequest(request, new int[] {3, 4}, 4, 4));
        assertThat(opened(again)).containsExactly(4);
        assertThat(again.completed()).containsExactly(4);
    }

    @Test
    void sharedBlocksWithoutChecksumsGetThemForTheirFirstReader() {
        FakeKvRequest plain = new FakeKvRequest("a", FakeKvRequest.counting(1, 9), 4);
        scheduler.onNewRequest(plain);
        scheduler.onAllocated(plain, new int[] {3, 4, 5}, 0, 0);
        assertThat(step(Set.of(), new ScheduledRequest(plain, new int[] {3, 4, 5}, 0, 9))
                        .completed())
                .isEmpty();
        FakeKvRequest read = request("b", 9);
        scheduler.onNewRequest(read);
        scheduler.onAllocated(read, new int[] {3, 4, 6}, 8, 0);
        assertThat(step(Set.of(), new ScheduledRequest(read, new int[] {3, 4, 6}, 8, 1))
                        .completed())
                .containsExactly(3, 4, 6);
        JsonFields params = scheduler
                .onFinished(read, RequestEnd.STOPPED, new int[] {3, 4, 6})
                .kvTransferParams()
                .orElseThrow();
        assertThat(params.integer("remote_num_tokens")).contains(9L);
        assertThat(params.object("baton").orElseThrow().value("generations").orElseThrow())
                .hasToString("[1,1,1]");
    }
}
