package baton.connectors.nixl;

import baton.connectors.ConnectorRuntime;
import baton.kv.DType;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.KvConnector;
import baton.testkit.ConnectorContract;
import baton.testkit.FakeEngine;
import baton.testkit.VirtualTicker;
import java.time.Duration;
import java.util.Map;
import java.util.function.Function;

/** The contract for NIXL's connectors, in memory and under a clock of the test's own. */
abstract class NixlContract extends ConnectorContract {
    private final String name;
    private final Function<ConnectorRuntime, KvConnector> connector;
    private final Map<String, Object> prefillExtra;

    NixlContract(String name, Function<ConnectorRuntime, KvConnector> connector) {
        this(name, connector, Map.of());
    }

    /** @param prefillExtra settings of the prefill instance */
    NixlContract(String name, Function<ConnectorRuntime, KvConnector> connector, Map<String, Object> prefillExtra) {
        this.prefillExtra = prefillExtra;
        this.name = name;
        this.connector = connector;
    }

    @Override
    protected Instances instances() {
        VirtualTicker ticker = new VirtualTicker();
        ticker.advance(Duration.ofSeconds(100));
        MemoryNet net = new MemoryNet(ticker);
        return new Instances() {
            @Override
            public FakeEngine startPrefill() {
                return engine("p", prefillExtra);
            }

            @Override
            public FakeEngine startDecode() {
                return engine("d", Map.of());
            }

            private FakeEngine engine(String id, Map<String, Object> extra) {
                KvTransferConfig.Builder config =
                        KvTransferConfig.builder(name, KvRole.BOTH).engineId(id).extra("side_channel_port", 0);
                extra.forEach(config::extra);
                return new FakeEngine(
                        connector.apply(net.runtime()),
                        new ConnectorContext(
                                config.build(),
                                new ModelFingerprint("fake", "00"),
                                new KvLayout(3, 2, 4, 4, DType.F32),
                                ticker),
                        40,
                        pools);
            }

            @Override
            public int roundsWithoutReader() {
                return 10;
            }

            @Override
            public void pause() {
                ticker.advance(Duration.ofMillis(100));
            }
        };
    }
}
