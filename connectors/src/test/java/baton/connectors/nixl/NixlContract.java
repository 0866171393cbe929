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
import java.util.function.Function;
import java.util.function.UnaryOperator;

/** The contract for NIXL's connectors, in memory and under a clock of the test's own. */
abstract class NixlContract extends ConnectorContract {
    private final String name;
    private final Function<ConnectorRuntime, KvConnector> connector;
    private final UnaryOperator<KvTransferConfig.Builder> prefill;
    private final UnaryOperator<KvTransferConfig.Builder> decode;

    NixlContract(String name, Function<ConnectorRuntime, KvConnector> connector) {
        this(name, connector, UnaryOperator.identity(), UnaryOperator.identity());
    }

    /**
     * @param prefill settings of the prefill instance
     * @param decode of the decode instance
     */
    NixlContract(
            String name,
            Function<ConnectorRuntime, KvConnector> connector,
            UnaryOperator<KvTransferConfig.Builder> prefill,
            UnaryOperator<KvTransferConfig.Builder> decode) {
        this.prefill = prefill;
        this.decode = decode;
        this.name = name;
        this.connector = connector;
    }

    KvLayout layout() {
        return new KvLayout(3, 2, 4, 4, DType.F32);
    }

    @Override
    protected Instances instances() {
        VirtualTicker ticker = new VirtualTicker();
        ticker.advance(Duration.ofSeconds(100));
        MemoryNet net = new MemoryNet(ticker);
        return new Instances() {
            @Override
            public FakeEngine startPrefill() {
                return engine("p", prefill);
            }

            @Override
            public FakeEngine startDecode() {
                return engine("d", decode);
            }

            private FakeEngine engine(String id, UnaryOperator<KvTransferConfig.Builder> settings) {
                KvTransferConfig config = settings.apply(KvTransferConfig.builder(name, KvRole.BOTH))
                        .engineId(id)
                        .extra("side_channel_port", 0)
                        .build();
                return new FakeEngine(
                        connector.apply(net.runtime()),
                        new ConnectorContext(config, new ModelFingerprint("fake", "00"), layout(), ticker),
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
