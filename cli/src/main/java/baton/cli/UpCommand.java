package baton.cli;

import baton.cluster.LocalCluster;
import baton.kv.ListenAddress;
import java.io.IOException;
import java.io.PrintWriter;
import java.nio.file.Path;
import java.util.Optional;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;
import picocli.CommandLine.Spec;

/** {@code baton up}: the demo's cluster, kept running. */
@Command(
        name = "up",
        description = "Runs a prefill instance, a decode instance and a router until interrupted.",
        mixinStandardHelpOptions = true)
final class UpCommand implements Callable<Integer> {
    private static final String EXAMPLE =
            "The age of Nora is 87.\\nTomas lives in Harrow.\\n\\nIn which town does Tomas live?";

    @Spec
    private CommandSpec spec;

    @Parameters(
            index = "0",
            arity = "0..1",
            paramLabel = "MODEL_DIR",
            description = "Checkpoint directory (default: the embedded tiny-ledger).")
    private @Nullable Path model;

    @Option(
            names = "--port",
            defaultValue = "8000",
            description = "Port of the OpenAI endpoint, 0 for any free one (default: ${DEFAULT-VALUE}).")
    private int port;

    @Mixin
    private final ClusterOptions options = new ClusterOptions();

    @Option(
            names = "--warmup",
            negatable = true,
            defaultValue = "true",
            fallbackValue = "true",
            description = "Have all three warm up before they are ready (default: on).")
    private boolean warmUp;

    @Override
    public Integer call() throws IOException, InterruptedException {
        // The router, which listens there, is the last to start.
        ListenAddress.require("host", LocalCluster.HOST, "port", port);
        PrintWriter out = spec.commandLine().getOut();
        Path directory = Models.orEmbedded(Optional.ofNullable(model));
        try (LocalCluster cluster = options.start(directory, port, warmUp, out)) {
            out.printf(
                    """
                    prefill          %s
                    decode           %s
                    OpenAI endpoint  %s/v1
                    logs             %s

                    Try:
                      curl -s %s/v1/chat/completions -H 'Content-Type: application/json' -d '{
                        "messages": [{"role": "user", "content": "%s"}]}'

                    Ctrl-C stops all three.
                    """,
                    cluster.prefill(),
                    cluster.decode(),
                    cluster.router(),
                    cluster.directory(),
                    cluster.router(),
                    EXAMPLE);
            out.flush();
            String exit = cluster.anyExit().join();
            if (cluster.isStopping()) {
                return 0;
            }
            throw new CommandFailedException(exit);
        }
    }
}
