package baton.router;

import baton.kv.ConfigException;
import baton.kv.ServerTls;
import baton.kv.Ticker;
import baton.router.access.TlsFiles;
import baton.router.metrics.RouterMetrics;
import io.vertx.core.Future;
import io.vertx.core.Vertx;
import io.vertx.core.net.ClientSSLOptions;
import io.vertx.core.net.ServerSSLOptions;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.function.Function;

/**
 * The router's certificates as they were read at its start.
 *
 * @param server of its port; empty for plain HTTP
 * @param client towards instances at {@code https://}
 */
record RouterTls(Optional<ServerSSLOptions> server, ClientSSLOptions client, List<Loaded> loaded) {
    /** Files, their contents, and the application of other contents. */
    record Loaded(TlsFiles files, List<byte[]> contents, Application application) {}

    /** Puts contents to use, where the verticles are. */
    interface Application {
        Future<?> apply(List<byte[]> contents, Users users);
    }

    /** Takes certificates that have changed. */
    record Users(Function<ServerSSLOptions, Future<?>> server, Function<ClientSSLOptions, Future<?>> client) {}

    /** Plain HTTP on both sides. */
    static RouterTls none(Vertx vertx) {
        return new RouterTls(Optional.empty(), Security.NO_INSTANCE_FILES.forClient(vertx, List.of()), List.of());
    }

    /** @throws ConfigException if files cannot be read or used */
    static RouterTls read(Vertx vertx, Security security) {
        List<Loaded> loaded = new ArrayList<>();
        Optional<ServerSSLOptions> server = security.tls().map(tls -> {
            TlsFiles files = TlsFiles.of(tls);
            List<byte[]> contents = contents(files);
            loaded.add(new Loaded(
                    files, contents, (changed, users) -> users.server.apply(forServer(vertx, files, tls, changed))));
            return forServer(vertx, files, tls, contents);
        });
        TlsFiles files = security.instances();
        List<byte[]> contents = contents(files);
        if (!contents.isEmpty()) {
            loaded.add(new Loaded(
                    files, contents, (changed, users) -> users.client.apply(files.forClient(vertx, changed))));
        }
        return new RouterTls(server, files.forClient(vertx, contents), List.copyOf(loaded));
    }

    private static ServerSSLOptions forServer(Vertx vertx, TlsFiles files, ServerTls tls, List<byte[]> contents) {
        return files.forServer(vertx, contents, tls.clients());
    }

    private static List<byte[]> contents(TlsFiles files) {
        try {
            return FollowedFiles.read(files.paths());
        } catch (IOException e) {
            throw new ConfigException(files.prefix() + "files", "cannot be read: " + e, e);
        }
    }

    /** Hands contents that change to their users. */
    List<FollowedFiles> follow(Vertx vertx, Users users, RouterMetrics metrics, Ticker ticker) {
        return loaded.stream()
                .map(each -> new FollowedFiles(
                        vertx,
                        each.files.prefix() + "certificates",
                        each.files.paths(),
                        each.contents,
                        changed -> each.application.apply(changed, users),
                        metrics,
                        ticker))
                .toList();
    }
}
