package baton.cli;

import baton.bench.TransferBench;
import java.io.IOException;
import java.util.List;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

/** {@code baton bench transfer}: transfer agents between two processes. */
@Command(
        name = "transfer",
        description = "Measures reading KV blocks of another process against copying and plain TCP, all in one run.",
        mixinStandardHelpOptions = true,
        sortOptions = false)
final class BenchTransferCommand implements Callable<Integer> {
    @Option(names = "--threads", description = "Threads to copy with (default: all cores, at most 4).")
    private @Nullable Integer threads;

    @Option(
            names = "--tokens",
            split = ",",
            paramLabel = "N",
            description = "Tokens of a transfer, of Llama-3.2-1B's shape (default: 128,512,2048,8192,32768).")
    private List<Integer> tokens = TransferBench.TOKENS;

    @Option(
            names = "--seconds",
            defaultValue = "1",
            description = "How long to measure each case of each size (default: ${DEFAULT-VALUE}).")
    private double seconds;

    @Mixin
    private final BenchOutput output = new BenchOutput();

    @Override
    public Integer call() throws IOException, InterruptedException {
        TransferBench bench =
                new TransferBench(BenchValues.copying(threads), tokens, BenchValues.seconds(seconds), output::progress);
        output.measure(TransferBench.FIGURES, bench::run);
        return 0;
    }
}
