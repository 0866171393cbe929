package baton.engine.model;

import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.engine.model.KernelChoice.Kind;
import baton.kv.DType;
import baton.memory.Processor;
import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import java.util.OptionalInt;

/** Kernels that a test needs. */
final class ModelKernelsOf {
    private ModelKernelsOf() {}

    /** Tiny-ledger with these kernels and two threads; skips the test where the processor cannot run them. */
    static ModelRanks tinyLedger(Kind kind, DType dtype, Quantization quantization) throws IOException {
        return load(Golden.TINY_LEDGER, kind, dtype, quantization);
    }

    /** The same of any checkpoint. */
    static ModelRanks load(Path directory, Kind kind, DType dtype, Quantization quantization) throws IOException {
        requireProcessor(kind);
        try (Checkpoint checkpoint = Checkpoint.open(directory)) {
            int positions = checkpoint.config().maxPositions();
            ModelOptions options = new ModelOptions(
                    dtype, quantization, dtype, 16, 500, OptionalInt.of(2), positions, 1, 1, false, false);
            return CpuModels.load(checkpoint, new KernelChoice(kind, List.of()), options);
        }
    }

    /** Skips the test, with a message that names the missing instruction sets, if the processor cannot run these kernels. */
    static void requireProcessor(Kind kind) {
        String[] needed = switch (kind) {
            case AMX -> new String[] {"amx_tile", "amx_bf16", "avx512_bf16", "avx512bw"};
            case AVX512_BF16 -> new String[] {"avx512_bf16", "avx512f", "avx512dq", "avx2", "fma"};
            case AVX512 -> new String[] {"avx512f", "avx512dq", "avx2", "fma"};
            case AVX2 -> new String[] {"avx2", "fma"};
            case LIBTORCH -> new String[0];
        };
        assumeTrue(
                needed.length == 0 || Processor.current().has(needed),
                () -> "the processor lacks one of " + String.join(", ", needed));
    }
}
