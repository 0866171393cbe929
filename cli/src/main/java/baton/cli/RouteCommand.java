package baton.cli;

import baton.router.Router;
import baton.router.RouterConfig;
import java.net.URI;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Option;

/** {@code baton route}: the router in front of prefill and decode instances. */
@Command(
        name = "route",
        description = "Routes requests to prefill instances and on to decode instances.",
        mixinStandardHelpOptions = true,
        sortOptions = false)
final class RouteCommand implements Callable<Integer> {
    @Option(
            names = "--host",
            defaultValue = "127.0.0.1",
            description = "Address to listen on (default: ${DEFAULT-VALUE}).")
    private String host;

    @Option(
            names = "--port",
            defaultValue = "8000",
            description = "Port to listen on, 0 for any free one (default: ${DEFAULT-VALUE}).")
    private int port;

    @Option(names = "--prefill", required = true, paramLabel = "URL", description = "A prefill instance; repeatable.")
    private List<URI> prefill;

    @Option(names = "--decode", required = true, paramLabel = "URL", description = "A decode instance; repeatable.")
    private List<URI> decode;

    @Option(
            names = "--flow",
            defaultValue = RouterConfig.DEFAULT_FLOW,
            description = "How a KV cache is handed over (default: ${DEFAULT-VALUE}).")
    private String flow;

    @Option(names = "--api-key", description = "Key for the instances, for clients that send none.")
    private @Nullable String apiKey;

    @Option(names = "--exit-with-parent", hidden = true, description = "Stop when standard input ends.")
    private boolean exitWithParent;

    @Override
    public Integer call() throws InterruptedException {
        Router router = Router.start(new RouterConfig(
                host, port, prefill, decode, flow, Optional.ofNullable(apiKey), RouterConfig.Limits.DEFAULT));
        return Service.run("baton route", host, router.port(), exitWithParent, () -> {}, router::close);
    }
}
