package baton.cli;

import baton.bench.StoreBench;
import baton.bench.StoreReport;
import java.io.IOException;
import java.time.Duration;
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

    @Mixin
    private final BenchOutput output = new BenchOutput();

    @Override
    public Integer call() throws IOException {
        StoreReport report = new StoreBench(
                        store,
                        threads == null ? Math.min(4, Runtime.getRuntime().availableProcessors()) : threads,
                        tokens,
                        ranks,
                        Duration.ofNanos(Math.round(seconds * 1e9)),
                        output::progress)
                .run();
        report.print(output.out());
        output.write(report.toJson());
        return 0;
    }
}
