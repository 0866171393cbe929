package baton.connectors.multi;

import baton.connectors.nixl.MemoryNet;
import baton.connectors.nixl.NixlConnector;
import baton.connectors.sharedstorage.SharedStorageConnector;
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
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.junit.jupiter.api.Nested;
import org.junit.jupiter.api.io.TempDir;

/** Compositions keep the guarantees that engines need. */
class MultiContractTest {
    @Nested
    class NixlAheadOfStorage extends Composition {
        @Override
        List<Object> connectors() {
            return List.of(nixl(), storage());
        }
    }

    @Nested
    class StorageAheadOfNixl extends Composition {
        @Override
        List<Object> connectors() {
            return List.of(storage(), nixl());
        }
    }

    @Nested
    class ACompositionInAComposition extends Composition {
        @Override
        List<Object> connectors() {
            return List.of(
                    Map.of(
                            "kv_connector",
                            "MultiConnector",
                            "kv_connector_extra_config",
                            Map.of("connectors", List.of(storage()))),
                    Map.of(
                            "kv_connector",
                            "MultiConnector",
                            "kv_connector_extra_config",
                            Map.of("connectors", List.of(nixl()))));
        }
    }

    abstract static class Composition extends ConnectorContract {
        @TempDir
        Path root;

        abstract List<Object> connectors();

        Object nixl() {
            return Map.of("kv_connector", "NixlConnector", "kv_connector_extra_config", Map.of("side_channel_port", 0));
        }

        Object storage() {
            return Map.of(
                    "kv_connector",
                    "SharedStorageConnector",
                    "kv_connector_extra_config",
                    Map.of("shared_storage_path", root));
        }

        @Override
        protected Instances instances() {
            VirtualTicker ticker = new VirtualTicker();
            ticker.advance(Duration.ofSeconds(100));
            MemoryNet net = new MemoryNet(ticker);
            return new Instances() {
                @Override
                public FakeEngine startPrefill() {
                    return engine("p");
                }

                @Override
                public FakeEngine startDecode() {
                    return engine("d");
                }

                private FakeEngine engine(String id) {
                    KvTransferConfig config = KvTransferConfig.builder("MultiConnector", KvRole.BOTH)
                            .engineId(id)
                            .extra("connectors", connectors())
                            .build();
                    return new FakeEngine(
                            connector(net),
                            new ConnectorContext(
                                    config,
                                    new ModelFingerprint("fake", "00"),
                                    new KvLayout(3, 2, 4, 4, DType.F32),
                                    ticker),
                            40,
                            pools);
                }

                @Override
                public void pause() {
                    ticker.advance(Duration.ofMillis(100));
                }
            };
        }

        private static KvConnector connector(MemoryNet net) {
            return new MultiConnector(config -> Optional.of(
                    switch (config.connector().orElseThrow()) {
                        case "NixlConnector" -> new NixlConnector(net.runtime());
                        case "SharedStorageConnector" -> new SharedStorageConnector();
                        default -> connector(net);
                    }));
        }
    }
}
