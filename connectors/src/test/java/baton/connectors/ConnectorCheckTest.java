package baton.connectors;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatCode;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.ConfigException;
import baton.kv.DType;
import baton.kv.FreePorts;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.KvConnectors;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.function.Supplier;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Settings that connectors refuse before a model is loaded. */
class ConnectorCheckTest {
    @Test
    void portsThatAreTaken() throws IOException {
        int first = FreePorts.inARow(4);
        Supplier<KvTransferConfig.Builder> pynccl = () -> KvTransferConfig.builder("PyNcclConnector", KvRole.PRODUCER)
                .parallelSize(2)
                .port(first);
        Supplier<KvTransferConfig.Builder> p2p = () ->
                KvTransferConfig.builder("P2pNcclConnector", KvRole.PRODUCER).port(first);
        assertAccepted(pynccl.get(), 2);
        assertAccepted(p2p.get(), 4);
        assertAccepted(nixl("NixlConnector", first + 3), 1);

        try (ServerSocket _ = new ServerSocket(first + 3, 1, InetAddress.getLoopbackAddress())) {
            String inUse = "kv_port: cannot listen on 127.0.0.1:" + (first + 3) + ": Address already in use";
            assertRefused(pynccl.get(), 2, inUse);
            assertAccepted(pynccl.get(), 1);
            // The consumer only calls.
            assertAccepted(
                    KvTransferConfig.builder("PyNcclConnector", KvRole.CONSUMER)
                            .parallelSize(2)
                            .port(first),
                    2);
            assertRefused(p2p.get(), 4, inUse);
            assertAccepted(p2p.get(), 3);
            for (String name : new String[] {"NixlConnector", "NixlPushConnector"}) {
                assertRefused(
                        nixl(name, first + 3),
                        1,
                        "kv_connector_extra_config.side_channel_port: cannot listen on 127.0.0.1:" + (first + 3)
                                + ": Address already in use");
                assertAccepted(nixl(name, 0), 1);
            }
        }
    }

    @Test
    void latentsWhereAFormatHasKeysAndValues() {
        for (String name : List.of("PyNcclConnector", "P2pNcclConnector", "LMCacheConnectorV1")) {
            KvTransferConfig config = KvTransferConfig.builder(name, KvRole.PRODUCER)
                    .parallelSize(2)
                    .build();
            ConnectorContext context = new ConnectorContext(
                    config,
                    new ModelFingerprint("fake", "digest"),
                    new KvLayout(2, 1, 576, 16, DType.BF16, true),
                    Ticker.system());
            assertThatThrownBy(() -> KvConnectors.find(config).orElseThrow().scheduler(context))
                    .isInstanceOf(ConfigException.class)
                    .hasMessageStartingWith(
                            "kv_connector: is " + name
                                    + ", which transfers keys and values; this model caches latents. It must be one of NixlConnector,");
        }
    }

    @Test
    void addressesOfOtherMachines() {
        // Of the block for documentation, so no machine's.
        assertRefused(
                KvTransferConfig.builder("PyNcclConnector", KvRole.PRODUCER)
                        .parallelSize(2)
                        .ip("203.0.113.7")
                        .extra("kv_allow_unauthenticated", true),
                1,
                "kv_ip: is 203.0.113.7, which cannot be listened on");
        assertRefused(
                nixl("NixlConnector", 0)
                        .extra("side_channel_host", "203.0.113.7")
                        .extra("kv_allow_unauthenticated", true),
                1,
                "kv_connector_extra_config.side_channel_host: is 203.0.113.7, which cannot be listened on");
    }

    @Test
    void aDirectoryThatCannotBeWrittenTo(@TempDir Path root) throws IOException {
        Path file = Files.createFile(root.resolve("file"));
        assertRefused(
                shared(KvRole.PRODUCER, file.resolve("kv")),
                1,
                "kv_connector_extra_config.shared_storage_path: is " + file.resolve("kv")
                        + ", which cannot be written to");
        assertAccepted(shared(KvRole.CONSUMER, file.resolve("kv")), 1);

        Path directory = root.resolve("made").resolve("here");
        assertAccepted(shared(KvRole.PRODUCER, directory), 1);
        assertThat(directory).isEmptyDirectory();
    }

    private static KvTransferConfig.Builder shared(KvRole role, Path directory) {
        return KvTransferConfig.builder("SharedStorageConnector", role).extra("shared_storage_path", directory);
    }

    private static KvTransferConfig.Builder nixl(String name, int port) {
        return KvTransferConfig.builder(name, KvRole.BOTH)
                .extra("side_channel_host", "127.0.0.1")
                .extra("side_channel_port", port);
    }

    private static void assertAccepted(KvTransferConfig.Builder config, int ranks) {
        assertThatCode(() -> KvConnectors.check(config.build(), ranks)).doesNotThrowAnyException();
    }

    private static void assertRefused(KvTransferConfig.Builder config, int ranks, String message) {
        assertThatThrownBy(() -> KvConnectors.check(config.build(), ranks))
                .isInstanceOf(ConfigException.class)
                .hasMessageStartingWith(message);
    }
}
