package baton.cli;

import baton.bench.KvServerBench;
import baton.bench.OtherProgram;
import baton.bench.StoreBench;
import baton.kv.ConfigException;
import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;

/** {@code baton bench store}: block stores. */
@Command(
        name = "store",
        description = "Measures putting KV blocks into a store and getting them, against plain copies in the same run.",
        mixinStandardHelpOptions = true,
        sortOptions = false)
final class BenchStoreCommand implements Callable<Integer> {
    @Parameters(
            arity = "0..1",
            paramLabel = "STORE",
            defaultValue = "cpu",
            description =
                    "Host memory: cpu, cpu-unchecked without checksums, or cpu-shared by processes (default: ${DEFAULT-VALUE}).")
    private String store;

    @Option(names = "--threads", description = "Threads to copy with (default: all cores, at most 4).")
    private @Nullable Integer threads;

    @Option(
            names = "--tokens",
            split = ",",
            paramLabel = "N",
            description = "Tokens of an operation, of Llama-3.2-1B's shape (default: 128,512,2048,8192).")
    private List<Integer> tokens = StoreBench.TOKENS;

    @Option(
            names = "--ranks",
            split = ",",
            paramLabel = "N",
            description = "Tensor-parallel ranks that have the blocks (default: 1,2,8).")
    private List<Integer> ranks = StoreBench.RANKS;

    @Option(
            names = "--seconds",
            defaultValue = "1",
            description = "How long to measure each case of each size (default: ${DEFAULT-VALUE}).")
    private double seconds;

    @Option(
            names = "--server",
            paramLabel = "SERVER",
            description = "lm: measure kv-server beside redis-server on this host, instead of host memory.")
    private @Nullable String server;

    @Option(
            names = "--value-size",
            defaultValue = "1M",
            paramLabel = "SIZE",
            converter = HumanSize.AsInt.class,
            description = "With --server: bytes of a value, about (default: ${DEFAULT-VALUE}).")
    private int valueBytes;

    @Option(
            names = "--values",
            defaultValue = "128",
            paramLabel = "N",
            description = "With --server: values of a batch (default: ${DEFAULT-VALUE}).")
    private int values;

    @Option(
            names = "--lookups",
            defaultValue = "2000",
            paramLabel = "N",
            description = "With --server: keys of a look-up (default: ${DEFAULT-VALUE}).")
    private int lookups;

    @Option(
            names = "--connections",
            defaultValue = "2",
            paramLabel = "N",
            description = "With --server: connections of each client for values (default: ${DEFAULT-VALUE}).")
    private int connections;

    @Option(
            names = "--rounds",
            defaultValue = "15",
            paramLabel = "N",
            description = "With --server: rounds of all cases (default: ${DEFAULT-VALUE}).")
    private int rounds;

    @Mixin
    private final BenchOutput output = new BenchOutput();

    @Override
    public Integer call() throws IOException, InterruptedException {
        if (server != null) {
            if (!server.equals("lm")) {
                throw ConfigException.unsupported("server", server, "lm");
            }
            Path redis = OtherProgram.find("redis-server")
                    .orElseThrow(() -> new CommandFailedException("redis-server is not on the PATH"));
            KvServerBench bench = new KvServerBench(
                    redis,
                    Baton.command(),
                    new KvServerBench.Options(valueBytes, values, lookups, connections, rounds));
            output.measure(KvServerBench.FIGURES, bench::run);
            return 0;
        }
        StoreBench bench = new StoreBench(
                store, BenchValues.copying(threads), tokens, ranks, BenchValues.seconds(seconds), output::progress);
        output.measure(StoreBench.FIGURES, bench::run);
        return 0;
    }
}
