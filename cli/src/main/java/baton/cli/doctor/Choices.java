package baton.cli.doctor;

import baton.engine.model.DTypeChoice;
import baton.engine.model.KernelChoice;
import baton.engine.model.ModelConfig;
import baton.engine.model.Quantization;
import baton.kv.ConfigException;
import baton.kv.connector.KvConnectors;
import baton.memory.CopyKernel;
import baton.memory.MappableMemory;
import baton.pipe.select.WireTransports;
import baton.transfer.select.TransferAgents;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/**
 * The choices of an instance that would serve a model here, in the words of its log.
 *
 * @param loadsLibTorch whether that instance loads LibTorch
 */
record Choices(List<Finding> findings, boolean loadsLibTorch) {
    /** @param model empty: its shape is not known */
    static Choices of(Optional<ModelConfig> model, int processors) {
        List<Finding> all = new ArrayList<>();
        boolean loadsLibTorch = model.isPresent() && kernels(model.get(), all);
        all.add(Finding.ok(
                "threads", "%d; instances that share these cores share them out by --threads".formatted(processors)));
        all.add(Finding.ok(
                "copies",
                CopyKernel.ofThisMachine()
                        .map(kernel -> "machine code (vectors of %d bits)".formatted(kernel.vectorBits()))
                        .orElse("Java")));
        all.add(Finding.ok(
                "between processes of this host",
                MappableMemory.whyNone().map(why -> "TCP: " + why).orElse("shared memory")));
        all.add(Finding.ok("one-sided connectors", TransferAgents.automaticChoice()));
        all.add(Finding.ok("two-sided connectors", WireTransports.automaticChoice()));
        all.add(connectors());
        return new Choices(all, loadsLibTorch);
    }

    /** Adds findings about kernels. Returns whether LibTorch's operators compute. */
    private static boolean kernels(ModelConfig config, List<Finding> all) {
        try {
            DTypeChoice dtype = DTypeChoice.here(Optional.empty(), config, Quantization.NONE);
            KernelChoice choice = KernelChoice.here(config, dtype.dtype(), Quantization.NONE);
            String found = "%s; dtype %s".formatted(String.join("; ", choice.reasons()), dtype.describe());
            boolean byLibTorch = choice.kind() == KernelChoice.Kind.LIBTORCH;
            all.add(
                    byLibTorch
                            ? Finding.advice(
                                    "kernels",
                                    found,
                                    "export GOMP_SPINCOUNT=1000 where several instances share these cores")
                            : Finding.ok("kernels", found));
            return byLibTorch;
        } catch (ConfigException e) {
            all.add(Finding.broken(
                    "kernels", String.valueOf(e.getMessage()), "change the setting that this line names"));
            return false;
        }
    }

    private static Finding connectors() {
        try {
            return Finding.ok("connectors", String.join(", ", KvConnectors.names()));
        } catch (ConfigException e) {
            return Finding.broken("connectors", String.valueOf(e.getMessage()), "take that jar out of BATON_CLASSPATH");
        }
    }
}
