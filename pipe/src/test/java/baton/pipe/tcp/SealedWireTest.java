package baton.pipe.tcp;

import baton.kv.JsonFields;
import baton.kv.Ticker;
import baton.messages.PeerAccess;
import baton.pipe.WireContract;
import baton.pipe.WireId;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.io.TempDir;

/** Encrypted wires over TCP keep the contract. */
@Tag("thorough")
class SealedWireTest extends WireContract {
    SealedWireTest(@TempDir Path directory) throws IOException {
        super(new TcpTransport(
                WireId.Kind.TCP,
                PeerAccess.of(
                        JsonFields.parse(
                                "extra",
                                "{\"kv_encryption\": \"required\", \"kv_auth_secret_file\": \""
                                        + Files.writeString(directory.resolve("secret"), "0123456789abcdef") + "\"}"),
                        "kv_ip",
                        HOST,
                        List.of()),
                Ticker.system()));
    }
}
