package baton.transfer.embedded;

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
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.Tag;
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
                        .withAccess(Optional.of(encrypting())));
    }

    private PeerAccess encrypting() {
        try {
            Path file = Files.writeString(directory.resolve("secret"), "0123456789abcdef");
            return PeerAccess.of(
                    JsonFields.parse(
                            "extra", "{\"kv_encryption\": \"required\", \"kv_auth_secret_file\": \"" + file + "\"}"),
                    "host",
                    "127.0.0.1",
                    List.of());
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    @Override
    protected Region allocate(Arena arena, long bytes) {
        return new Region(arena.allocate(bytes, 64), Optional.empty());
    }
}
