package baton.engine.model;

import static org.junit.jupiter.api.Assumptions.assumeTrue;

import baton.engine.model.KernelChoice.Kind;
import baton.memory.Processor;

/** Kernels that a test needs. */
final class ModelKernelsOf {
    private ModelKernelsOf() {}

    /** Skips the test, with a line that says what is missing, if the processor cannot run these kernels. */
    static void requireProcessor(Kind kind) {
        String[] needed = switch (kind) {
            case AMX -> new String[] {"amx_tile", "amx_bf16", "amx_int8"};
            case AVX512_BF16 -> new String[] {"avx512_bf16", "avx512f", "avx2", "fma"};
            case AVX512 -> new String[] {"avx512f", "avx2", "fma"};
            case AVX2 -> new String[] {"avx2", "fma"};
            case LIBTORCH -> new String[0];
        };
        boolean has = needed.length == 0 || Processor.current().has(needed);
        if (!has) {
            System.out.println("skipped: the processor lacks one of " + String.join(", ", needed));
        }
        assumeTrue(has);
    }
}
