package baton.connectors.mooncakestore;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.connectors.bykey.MapStores;
import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.KvMatch;
import baton.kv.connector.SchedulerConnector.RequestEnd;
import baton.store.mooncake.MooncakeNames;
import baton.testkit.FakeEngine;
import baton.testkit.FakeEngine.Running;
import baton.testkit.FakeEngine.Share;
import baton.testkit.FakeKvRequest;
import baton.testkit.VirtualTicker;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** The values stored and loaded by role and settings, and their division among objects. */
class MooncakeStoreConnectorTest {
    private static final int BLOCK = 16;
    private static final KvLayout LAYOUT = new KvLayout(3, 2, 8, BLOCK, DType.BF16);

    private final VirtualTicker ticker = new VirtualTicker();
    private final MapStores stores = new MapStores();
    private int requests;

    private FakeEngine engine(KvRole role, Map<String, Object> settings) {
        KvTransferConfig.Builder config = KvTransferConfig.builder("MooncakeStoreConnector", role)
                .extra("store_rest_url", "http://127.0.0.1:1")
                .extra("local_buffer_size", "1mb");
        settings.forEach(config::extra);
        return new FakeEngine(
                new MooncakeStoreConnector(stores, Map.of()),
                new ConnectorContext(config.build(), new ModelFingerprint("org/tiny", "feed"), LAYOUT, ticker),
                64);
    }

    private FakeKvRequest request(int length) {
        return new FakeKvRequest("r" + requests++, FakeKvRequest.counting(1, length), BLOCK);
    }

    private static void computed(FakeEngine engine, FakeKvRequest request) {
        Running running = engine.admit(request, 0);
        engine.step(new Share(running, running.remainingTokens()));
        engine.end(running, RequestEnd.LENGTH);
        while (engine.usedBlocks() > 0) {
            engine.idleStep();
        }
    }

    private int matched(FakeEngine engine) {
        FakeKvRequest request = request(100);
        engine.scheduler().onNewRequest(request);
        KvMatch match = engine.scheduler().match(request, 0);
        while (match instanceof KvMatch.Pending) {
            match = engine.scheduler().match(request, 0);
        }
        engine.endWithoutBlocks(request, RequestEnd.ABORTED);
        return match instanceof KvMatch.Tokens(int count, boolean async, boolean _) && async ? count : 0;
    }

    @ParameterizedTest
    @CsvSource({
        "PRODUCER, true, false, 6, 96",
        "PRODUCER, false, false, 6, 0",
        "BOTH, true, false, 6, 96",
        "CONSUMER, true, false, 0, 96",
        "CONSUMER, true, true, 6, 96",
        "CONSUMER, false, true, 6, 0"
    })
    void aRoleStoresAndLoadsAsVllmsDoes(KvRole role, boolean lookup, boolean saveDecode, int stored, int loaded) {
        try (FakeEngine engine = engine(role, Map.of("enable_lookup", lookup, "save_decode_cache", saveDecode))) {
            computed(engine, request(100));
            assertThat(stores.keys()).hasSize(stored);
            if (stored == 0) {
                try (FakeEngine producer = engine(KvRole.PRODUCER, Map.of())) {
                    computed(producer, request(100));
                }
            }
            assertThat(matched(engine)).isEqualTo(loaded);
        }
    }

    @Test
    void objectsAreDividedAsTheSettingsSay() {
        try (FakeEngine engine = engine(KvRole.BOTH, Map.of("store_tp_size", 2, "cache_prefix", "team"))) {
            computed(engine, request(20));
            assertThat(stores.opened)
                    .map(store -> ((StoreAccess.Shared) store).names())
                    .containsExactly(new MooncakeNames("team", "org/tiny", 2, 1));
        }
        assertThatThrownBy(() -> engine(KvRole.BOTH, Map.of("store_tp_size", 4)).close())
                .isInstanceOf(ConfigException.class)
                .hasMessage(
                        "kv_connector_extra_config.store_tp_size: is 4, must be a multiple of tensor_parallel_size=1"
                                + " and divide the model's 2 key/value heads");
    }
}
