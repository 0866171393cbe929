package baton.transfer.embedded;

import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.kv.JsonFields;
import baton.messages.PeerAccess;
import baton.transfer.Region;
import baton.transfer.TransferAgent;
import baton.transfer.TransferAgentContract;
import baton.transfer.TransferException;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.foreign.Arena;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The embedded agent between hosts, encrypted. */
@Tag("thorough")
class SealedAgentTest extends TransferAgentContract {
    @TempDir
    private Path directory;

    @Override
    protected TransferAgent open(String prefix) throws TransferException {
        return EmbeddedAgent.open(
                prefix,
                EmbeddedAgent.Settings.at("127.0.0.1")
                        .withTransport(EmbeddedAgent.Transport.TCP)
                        .withAccess(Optional.of(access("required"))));
    }

    private PeerAccess access(String encryption) {
        try {
            Path file = Files.writeString(directory.resolve("secret"), "0123456789abcdef");
            return PeerAccess.of(
                    JsonFields.parse(
                            "extra",
                            "{\"kv_encryption\": \"" + encryption + "\", \"kv_auth_secret_file\": \"" + file + "\"}"),
                    "host",
                    "127.0.0.1",
                    List.of());
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    @Test
    void agentsThatDoNotAgreeOnEncryptionRefuseEachOther() throws TransferException {
        try (TransferAgent sealed = open("sealed");
                TransferAgent plain = EmbeddedAgent.open(
                        "plain", EmbeddedAgent.Settings.at("127.0.0.1").withAccess(Optional.of(access("off"))))) {
            assertThatThrownBy(() -> plain.connect(sealed.metadata(), Duration.ofSeconds(30)))
                    .isInstanceOf(TransferException.class)
                    .hasMessageContaining("kv_encryption");
            assertThatThrownBy(() -> sealed.connect(plain.metadata(), Duration.ofSeconds(30)))
                    .isInstanceOf(TransferException.class)
                    .hasMessageContaining("kv_encryption");
        }
    }

    @Override
    protected Region allocate(Arena arena, long bytes) {
        return new Region(arena.allocate(bytes, 64), Optional.empty());
    }
}
