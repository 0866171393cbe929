package baton.router;

import baton.kv.ConfigException;
import baton.kv.Ticker;
import baton.router.access.ClientGate;
import baton.router.access.ClientKeys;
import baton.router.metrics.RouterMetrics;
import io.vertx.core.Future;
import io.vertx.core.Vertx;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.List;

/**
 * The file with the keys of clients.
 *
 * @param contents as it was read
 */
record KeysFile(Path path, List<byte[]> contents, ClientGate gate) {
    private static final String FIELD = "client keys file";

    /** @throws ConfigException if the file cannot be read or used */
    static KeysFile read(Path path, Ticker ticker) {
        try {
            List<byte[]> contents = FollowedFiles.read(List.of(path));
            return new KeysFile(path, contents, new ClientGate(keys(contents), ticker));
        } catch (IOException e) {
            throw new ConfigException(FIELD, "cannot be read: " + e, e);
        } catch (ConfigException e) {
            throw new ConfigException(FIELD, path + ": " + e.getMessage(), e);
        }
    }

    private static ClientKeys keys(List<byte[]> contents) {
        return ClientKeys.parse(new String(contents.getFirst(), StandardCharsets.UTF_8));
    }

    /** Follows the file's changes from now on. */
    FollowedFiles follow(Vertx vertx, RouterMetrics metrics, Ticker ticker) {
        return new FollowedFiles(
                vertx,
                FIELD,
                List.of(path),
                contents,
                changed -> {
                    gate.replace(keys(changed));
                    return Future.succeededFuture();
                },
                metrics,
                ticker);
    }
}
