package baton.connectors.offloading;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.connectors.bykey.MapStores;
import baton.connectors.bykey.StoreOpener;
import baton.kv.BlockHash;
import baton.kv.DType;
import baton.kv.Deadline;
import baton.kv.InvalidFieldException;
import baton.kv.JsonFields;
import baton.kv.KvEvent;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.KvMatch;
import baton.kv.connector.Measurement;
import baton.kv.connector.SchedulerConnector.RequestEnd;
import baton.kv.connector.WorkerReport;
import baton.store.StoreFormat;
import baton.store.StoreTask;
import baton.store.ValueCache;
import baton.store.memory.HostMemorySettings;
import baton.testkit.FakeEngine;
import baton.testkit.FakeEngine.Running;
import baton.testkit.FakeEngine.Share;
import baton.testkit.FakeKvRequest;
import baton.testkit.VirtualTicker;
import java.lang.reflect.Proxy;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** The values stored and loaded, by settings and requests. */
class OffloadingConnectorTest {
    private static final int BLOCK = 16;
    private static final KvLayout LAYOUT = new KvLayout(3, 2, 8, BLOCK, DType.BF16);

    private final VirtualTicker ticker = new VirtualTicker();
    private final MapStores stores = new MapStores();
    private final Map<String, Object> settings = new HashMap<>(Map.of("cpu_bytes_to_use", 1_000_000));

    @AutoClose
    @SuppressWarnings("NullAway.Init")
    private FakeEngine engine;

    private int requests;

    private void start() {
        start(stores);
    }

    private void start(StoreOpener opener) {
        KvTransferConfig.Builder config = KvTransferConfig.builder("OffloadingConnector", KvRole.BOTH);
        settings.forEach(config::extra);
        engine = new FakeEngine(
                new OffloadingConnector(opener),
                new ConnectorContext(config.build(), new ModelFingerprint("tiny", "feed"), LAYOUT, ticker),
                64);
    }

    private FakeKvRequest request(int length) {
        return new FakeKvRequest("r" + requests++, FakeKvRequest.counting(1, length), BLOCK);
    }

    private static FakeKvRequest with(FakeKvRequest request, String params) {
        return request.withKvTransferParams(JsonFields.parse("kv_transfer_params", params));
    }

    /** Computes a prompt, in one step, and ends the request. */
    private void computed(FakeKvRequest request) {
        Running running = engine.admit(request, 0);
        if (running.isLoading()) {
            while (running.isLoading()) {
                engine.idleStep();
            }
            engine.resume(running);
        }
        engine.step(new Share(running, running.remainingTokens()));
        engine.end(running, RequestEnd.LENGTH);
        while (engine.usedBlocks() > 0) {
            engine.idleStep();
        }
    }

    private int matched(FakeKvRequest request) {
        engine.scheduler().onNewRequest(request);
        KvMatch match = engine.scheduler().match(request, 0);
        engine.endWithoutBlocks(request, RequestEnd.ABORTED);
        return match instanceof KvMatch.Tokens(int count, boolean async, boolean _) && async ? count : 0;
    }

    @Test
    void aPromptIsFoundUpToTheTokensThatMayBeLoaded() {
        start();
        computed(request(100));
        assertThat(matched(request(100))).isEqualTo(96);
        assertThat(matched(with(request(100), "{\"max_load_tokens\": 50}"))).isEqualTo(48);
        assertThat(matched(with(request(100), "{\"max_load_tokens\": 0}"))).isZero();
    }

    @Test
    void nothingIsStoredOfARequestWithLogitsThatAreNotFinite() {
        start();
        FakeKvRequest request = request(100);
        engine.discardSavesOf(request);
        computed(request);
        assertThat(matched(request(100))).isZero();
    }

    @Test
    void noMoreTokensAreStoredThanTheRequestSays() {
        start();
        computed(with(request(100), "{\"max_offload_tokens\": 40}"));
        assertThat(matched(request(100))).isEqualTo(32);
    }

    @ParameterizedTest
    @CsvSource({"[], 0", "[{\"medium\": \"STORAGE\"}], 0", "[{\"medium\": \"CPU\"}], 96", "[{}], 96"})
    void onlyTiersThatTheRequestNamesAreRead(String tiers, int tokens) {
        start();
        computed(request(100));
        assertThat(matched(with(request(100), "{\"kv_load_tiers\": " + tiers + "}")))
                .isEqualTo(tokens);
    }

    @ParameterizedTest
    @ValueSource(strings = {"max_load_tokens", "max_offload_tokens"})
    void aNegativeLimitIsRefusedByName(String name) {
        start();
        FakeKvRequest request = with(request(20), "{\"" + name + "\": -1}");
        assertThatThrownBy(() -> engine.scheduler().onNewRequest(request))
                .isInstanceOf(InvalidFieldException.class)
                .hasMessage("kv_transfer_params." + name + ": is -1, must be at least 0");
    }

    @Test
    void chunksAreStoredWhole() {
        settings.put("blocks_per_chunk", 4);
        start();
        computed(request(7 * BLOCK));
        assertThat(matched(request(7 * BLOCK))).isEqualTo(4 * BLOCK);
    }

    @Test
    void chunksThatWereComputedTooSeldomAreNotStored() {
        settings.put("store_threshold", 2);
        start();
        computed(request(100));
        assertThat(matched(request(100))).isZero();
        computed(request(100));
        assertThat(matched(request(100))).isEqualTo(96);
    }

    @Test
    void evictedValuesComeFromTheTierBehindMemory() {
        settings.put("cpu_bytes_to_use", 12 * LAYOUT.blockBytes());
        settings.put("secondary_tiers", List.of(Map.of("type", "fs", "root_dir", "unused")));
        start();
        computed(request(6 * BLOCK));
        computed(new FakeKvRequest("other", FakeKvRequest.counting(5000, 10 * BLOCK), BLOCK));
        assertThat(matched(with(request(6 * BLOCK), "{\"kv_load_tiers\": [{\"medium\": \"CPU\"}]}")))
                .isLessThan(6 * BLOCK);
        assertThat(matched(request(6 * BLOCK))).isEqualTo(6 * BLOCK);
    }

    @Test
    void aTierThatHangsIsAMissAtTheDeadline() {
        settings.put("secondary_tiers", List.of(Map.of("type", "fs", "root_dir", "unused")));
        settings.put("load_timeout_seconds", 1);
        start();
        stores.stores.getFirst().holds = true;
        FakeKvRequest request = request(100);
        engine.scheduler().onNewRequest(request);
        assertThat(engine.scheduler().match(request, 0)).isInstanceOf(KvMatch.Pending.class);
        ticker.advance(Duration.ofMillis(999));
        assertThat(engine.scheduler().match(request, 0)).isInstanceOf(KvMatch.Pending.class);
        ticker.advance(Duration.ofMillis(1));
        assertThat(engine.scheduler().match(request, 0)).isInstanceOf(KvMatch.None.class);
        engine.endWithoutBlocks(request, RequestEnd.ABORTED);
    }

    /** Of 96 tokens that are in memory; a block of 16 has 3,072 bytes. */
    @ParameterizedTest
    @CsvSource({"0, 100, true", "18431, 100, true", "18432, 100, false", "18432, 96, true"})
    void aLoadThatFitsIntoTheBudgetIsPartOfTheStep(long budget, int length, boolean between) {
        settings.put("sync_load_budget_bytes", budget);
        start();
        computed(request(100));
        Running running = engine.admit(request(length), 0);
        assertThat(running.isLoading()).isEqualTo(between);
        assertThat(running.externalTokens()).isEqualTo(96);
        if (!between) {
            // A second one does not fit into the same step.
            Running second = engine.admit(request(length), 0);
            assertThat(second.isLoading()).isTrue();
            WorkerReport report = engine.step(new Share(running, running.remainingTokens()));
            assertThat(report.invalidBlocks()).isEmpty();
            assertThat(report.received()).doesNotContain(running.request().id());
            assertThat(engine.holds(running, 0, length)).isTrue();
            end(second);
            Running next = engine.admit(request(length), 0);
            assertThat(next.isLoading()).isFalse();
            engine.step(new Share(next, next.remainingTokens()));
            end(next);
        }
        end(running);
        assertThat(engine.scheduler().resetCache()).as("no values are pinned").isTrue();
        assertThat(matched(request(100))).isZero();
    }

    /** The memory takes no read although it has the values. */
    @Test
    void resultsFromBlocksThatFailedToLoadAreNotStored() {
        settings.put("sync_load_budget_bytes", 6 * LAYOUT.blockBytes());
        AtomicBoolean rejects = new AtomicBoolean();
        start(new StoreOpener() {
            @Override
            public ValueCache memory(StoreFormat format, HostMemorySettings memory, Ticker clock) {
                ValueCache real = stores.memory(format, memory, clock);
                return (ValueCache) Proxy.newProxyInstance(
                        ValueCache.class.getClassLoader(),
                        new Class<?>[] {ValueCache.class},
                        (_, method, arguments) ->
                                rejects.get() && method.getName().equals("get")
                                        ? StoreTask.rejected(((List<?>) arguments[0]).size(), (Deadline) arguments[2])
                                        : method.invoke(real, arguments));
            }
        });
        computed(request(6 * BLOCK));
        rejects.set(true);
        Running running = engine.admit(request(10 * BLOCK), 0);
        assertThat(running.isLoading()).isFalse();
        WorkerReport report = engine.step(new Share(running, running.remainingTokens()));
        assertThat(report.invalidBlocks()).hasSize(6);
        end(running);
        rejects.set(false);
        FakeKvRequest again = request(10 * BLOCK);
        engine.scheduler().onNewRequest(again);
        assertThat(engine.scheduler().match(again, 0)).isEqualTo(new KvMatch.Tokens(6 * BLOCK, false));
        engine.endWithoutBlocks(again, RequestEnd.ABORTED);
    }

    private void end(Running running) {
        while (running.isLoading()) {
            engine.idleStep();
        }
        engine.end(running, RequestEnd.LENGTH);
    }

    @Test
    void theConfigurationIsAMetric() {
        settings.put("cpu_bytes_to_use", 12 * LAYOUT.blockBytes());
        settings.put("secondary_tiers", List.of(Map.of("type", "fs", "root_dir", "unused")));
        settings.put("tier_poll_interval_s", 0.5);
        start();
        assertThat(engine.scheduler().takeMeasurements())
                .filteredOn(each -> each.name().equals("vllm:kv_offload_config_info"))
                .allMatch(each -> each.value() == 1)
                .extracting(Measurement::labels)
                .containsExactly(
                        Map.of(
                                "tier", "0:primary",
                                "cpu_num_chunks", "12",
                                "cpu_blocks_per_chunk", "1",
                                "cpu_kv_cache_size_bytes", String.valueOf(12 * LAYOUT.blockBytes()),
                                "cpu_kv_cache_size_tokens", "192"),
                        Map.of(
                                "tier", "1:map",
                                "cpu_num_chunks", "",
                                "cpu_blocks_per_chunk", "",
                                "cpu_kv_cache_size_bytes", "",
                                "cpu_kv_cache_size_tokens", ""));
    }

    @Test
    void aPromptThatAnotherInstanceComputesAtTheSameTimeIsAwaited() {
        settings.put("load_timeout_seconds", 1);
        start();
        String params =
                "{\"remote_prefiller\": {\"kv_request_id\": \"k\", \"remote_host\": \"h\", \"remote_port\": 7777}}";
        FakeKvRequest early = with(request(100), params);
        engine.scheduler().onNewRequest(early);
        assertThat(engine.scheduler().match(early, 0)).isEqualTo(new KvMatch.Pending());
        computed(request(100));
        ticker.advance(Duration.ofMillis(100));
        assertThat(engine.scheduler().match(early, 0)).isEqualTo(new KvMatch.Tokens(96, true));
        engine.endWithoutBlocks(early, RequestEnd.ABORTED);
        FakeKvRequest never = with(new FakeKvRequest("never", FakeKvRequest.counting(5000, 100), BLOCK), params);
        engine.scheduler().onNewRequest(never);
        assertThat(engine.scheduler().match(never, 0)).isEqualTo(new KvMatch.Pending());
        ticker.advance(Duration.ofMillis(990));
        assertThat(engine.scheduler().match(never, 0)).isEqualTo(new KvMatch.Pending());
        ticker.advance(Duration.ofMillis(10));
        assertThat(engine.scheduler().match(never, 0)).isEqualTo(new KvMatch.None());
        engine.endWithoutBlocks(never, RequestEnd.ABORTED);
    }

    @Test
    void resettingTheCacheEmptiesMemory() {
        start();
        computed(request(100));
        assertThat(engine.scheduler().resetCache()).isTrue();
        assertThat(matched(request(100))).isZero();
    }

    @Test
    void eventsHaveTheHashesOfStoredValues() {
        start();
        FakeKvRequest request = request(3 * BLOCK);
        computed(request);
        List<BlockHash> hashes = request.blockHashes();
        assertThat(engine.scheduler().takeEvents().stream()
                        .flatMap(event -> ((KvEvent.BlockStored) event).blockHashes().stream()))
                .containsExactlyElementsOf(hashes);
        assertThat(engine.scheduler().takeEvents()).isEmpty();
    }
}
