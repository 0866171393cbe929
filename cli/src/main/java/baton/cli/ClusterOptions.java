package baton.cli;

import baton.cluster.ClusterConnector;
import baton.cluster.LocalCluster;
import baton.kv.ConfigException;
import java.io.IOException;
import java.io.PrintWriter;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import picocli.CommandLine.Option;

/** Options of a cluster that a command starts for its user, and the messages about its start. */
final class ClusterOptions {
    @Option(
            names = "--connector",
            defaultValue = "SharedStorageConnector",
            description = "How the KV cache is handed over: ${COMPLETION-CANDIDATES} (default: ${DEFAULT-VALUE}).")
    private LocalCluster.Connector connector = LocalCluster.Connector.SharedStorageConnector;

    @Option(
            names = "--setting",
            paramLabel = "NAME=VALUE",
            description = "A setting of the connector on both instances, as in kv_connector_extra_config;"
                    + " may be repeated (default: those that one host needs).")
    private Map<String, String> settings = new LinkedHashMap<>();

    @Option(
            names = "--instance-option",
            paramLabel = "OPTION",
            description = "An option of serve on both instances, as in --instance-option=--tool-call-parser=hermes;"
                    + " may be repeated.")
    private List<String> instanceOptions = new ArrayList<>();

    /** @throws ConfigException if the connector needs a store that runs already, and none is named */
    private void requireStore(Map<String, String> environment) {
        if (connector == LocalCluster.Connector.MooncakeStoreConnector
                && !settings.containsKey("store_rest_url")
                && !settings.containsKey("mooncake_config_path")
                && !environment.containsKey("MOONCAKE_CONFIG_PATH")) {
            throw new ConfigException(
                    "connector",
                    "is " + connector + ", which needs a Mooncake store that runs already: name it by"
                            + " --setting store_rest_url=http://HOST:PORT, or by the variable MOONCAKE_CONFIG_PATH");
        }
    }

    /**
     * Starts the cluster; says when each part of it is ready.
     *
     * @param port of the router, 0 for any free one
     */
    LocalCluster start(Path model, int port, boolean warmUp, PrintWriter out) throws IOException, InterruptedException {
        requireStore(System.getenv());
        List<String> more = new ArrayList<>(instanceOptions);
        settings.forEach((name, value) -> more.addAll(List.of(ClusterConnector.SETTING + name, value)));
        long begun = System.nanoTime();
        out.printf("Starting a decode instance, a prefill instance and a router with %s ...%n", connector);
        out.flush();
        LocalCluster cluster = LocalCluster.start(
                LocalCluster.Layout.of(Baton.command()), model, connector.with(more), port, warmUp, done -> {
                    out.printf(Locale.ROOT, "%6.1f s: %s%n", (System.nanoTime() - begun) / 1e9, done);
                    out.flush();
                });
        out.println();
        return cluster;
    }
}
