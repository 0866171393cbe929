package baton.connectors.mooncake;

import baton.kv.KvRole;
import baton.kv.KvTransferConfig;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.io.TempDir;

/** The contract with a secret: sealed messages and registry, and blocks by the embedded agent over TCP. */
@Tag("thorough")
class MooncakeSealedContractTest extends MooncakeContractTest {
    @TempDir
    private Path directory;

    @Override
    KvTransferConfig.Builder config(KvRole role) {
        try {
            return super.config(role)
                    .extra("transport", "tcp")
                    .extra("kv_auth_secret_file", Files.writeString(directory.resolve("secret"), "0123456789abcdef"));
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}
