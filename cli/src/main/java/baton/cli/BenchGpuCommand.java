package baton.cli;

import baton.bench.gpu.GpuCheck;
import baton.bench.gpu.GpuStep;
import baton.kv.ConfigException;
import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;
import tools.jackson.databind.node.ObjectNode;

/** {@code baton bench gpu}: everything that Baton runs on a GPU, in one report. */
@Command(
        name = "gpu",
        description =
                "Checks and measures a GPU: driver, kernels, recorded answers of tiny-ledger, hand-overs, a random 1B"
                        + " model. Each step has a process of its own, and a failed one does not hide the others.",
        mixinStandardHelpOptions = true,
        sortOptions = false)
final class BenchGpuCommand implements Callable<Integer> {
    @Option(
            names = "--step",
            split = ",",
            paramLabel = "NAME",
            description =
                    "device, tests, copies, ipc, products, golden, handovers, model_1b, nccl, torch (default: all).")
    private List<String> steps = List.of();

    @Option(
            names = "--tests",
            paramLabel = "DIR",
            description = "Directory with the jars of the tests; deploy/gpu/make puts it into its archive.")
    private @Nullable Path tests;

    @Option(
            names = "--simulated",
            description =
                    "The simulated device of the tests in the GPU's place, with the smallest sizes; needs --tests.")
    private boolean simulated;

    @Mixin
    private final BenchOutput output = new BenchOutput();

    @Override
    public Integer call() throws IOException, InterruptedException {
        if (simulated && tests == null) {
            throw new ConfigException("simulated", "needs --tests, the directory with the jars of the tests");
        }
        GpuCheck check = new GpuCheck(Models.embedded(), Optional.ofNullable(tests), simulated, output::progress);
        List<GpuStep> chosen = GpuCheck.parse(steps);
        ObjectNode report = output.measure(
                figures -> figures.toPrettyString() + "\n", figures -> check.run(chosen, figures, output::save));
        return report.valueStream().anyMatch(step -> step.has("error")) ? 1 : 0;
    }
}
