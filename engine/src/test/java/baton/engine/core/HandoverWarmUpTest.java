package baton.engine.core;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.DType;
import baton.kv.KvLayout;
import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import baton.kv.ModelFingerprint;
import baton.kv.Ticker;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.api.parallel.Isolated;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Every connector hands over between stand-ins, and nothing of that is left. */
@Isolated("Other tests make directories where it looks for some.")
class HandoverWarmUpTest {
    private static final KvLayout LAYOUT = new KvLayout(3, 2, 16, 16, DType.BF16);
    private static final ModelFingerprint MODEL = new ModelFingerprint("model", "00ff".repeat(16));
    private static final Path MEMORY = Path.of("/dev/shm");

    @TempDir
    private Path shared;

    @ParameterizedTest
    @ValueSource(
            strings = {
                "SharedStorageConnector",
                "NixlConnector",
                "NixlPushConnector",
                "PyNcclConnector",
                "P2pNcclConnector",
                "MooncakeConnector"
            })
    void handsOverAndLeavesNothing(String connector) throws Exception {
        KvTransferConfig config = KvTransferConfig.builder(connector, KvRole.PRODUCER)
                .extra("shared_storage_path", shared)
                .build();
        Set<Path> before = directories();
        assertThat(HandoverWarmUp.run(config, MODEL, LAYOUT, Duration.ofSeconds(30), Ticker.system()))
                .isPositive();
        assertThat(shared).isEmptyDirectory();
        assertThat(directories()).isSubsetOf(before);
    }

    @ParameterizedTest
    @ValueSource(
            strings = {"NixlConnector", "NixlPushConnector", "PyNcclConnector", "P2pNcclConnector", "MooncakeConnector"
            })
    void standInsAuthenticateEachOtherWithTheInstancesSecret(String connector) throws Exception {
        Path secret = Files.writeString(shared.resolve("secret"), "0123456789abcdef0123456789abcdef");
        KvTransferConfig config = KvTransferConfig.builder(connector, KvRole.PRODUCER)
                .extra(KvTransferConfig.AUTH_SECRET_FILE, secret)
                .build();
        assertThat(HandoverWarmUp.run(config, MODEL, LAYOUT, Duration.ofSeconds(30), Ticker.system()))
                .isPositive();
        // So it was used.
        Files.writeString(secret, "short");
        assertThat(HandoverWarmUp.run(config, MODEL, LAYOUT, Duration.ofSeconds(30), Ticker.system()))
                .isZero();
    }

    /** On a busy machine the first hand-over takes longer than there is time for. */
    @ParameterizedTest
    @ValueSource(
            strings = {
                "SharedStorageConnector",
                "NixlConnector",
                "NixlPushConnector",
                "PyNcclConnector",
                "P2pNcclConnector",
                "MooncakeConnector"
            })
    void aHandOverThatHasBegunIsNotCutOff(String connector) {
        KvTransferConfig config = KvTransferConfig.builder(connector, KvRole.PRODUCER)
                .extra("shared_storage_path", shared)
                .build();
        assertThat(HandoverWarmUp.run(config, MODEL, LAYOUT, Duration.ofNanos(1), Ticker.system()))
                .isEqualTo(1);
    }

    @Test
    void withoutAConnectorThereIsNothingToWarmUp() {
        assertThat(HandoverWarmUp.run(KvTransferConfig.none(), MODEL, LAYOUT, Duration.ofSeconds(30), Ticker.system()))
                .isZero();
    }

    @Test
    void whenThereIsNoTimeItEndsAtOnce() {
        KvTransferConfig config =
                KvTransferConfig.builder("NixlConnector", KvRole.CONSUMER).build();
        assertThat(HandoverWarmUp.run(config, MODEL, LAYOUT, Duration.ZERO, Ticker.system()))
                .isZero();
    }

    private static Set<Path> directories() throws Exception {
        if (!Files.isDirectory(MEMORY)) {
            return Set.of();
        }
        try (Stream<Path> files = Files.list(MEMORY)) {
            return files.filter(file -> file.getFileName().toString().startsWith("baton-"))
                    .collect(Collectors.toSet());
        }
    }
}
