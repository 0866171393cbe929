package baton.engine.kernel;

import static org.assertj.core.api.Assertions.assertThat;

import baton.kv.DType;
import baton.memory.Assembler;
import baton.memory.Assembler.Width;
import baton.memory.Processor;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.Set;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** The self-check passes with the kernels of this processor and finds each one that computes nothing. */
class KernelCheckTest {
    /** Narrower vectors, which only shapes take that are no multiple of the widest, are not checked. */
    private static final Set<Kernel> BY_WIDTH = EnumSet.of(Kernel.NARROW, Kernel.NORM, Kernel.ROTATE);

    private static final Set<Kernel> OF_OTHER_SHAPES = EnumSet.of(Kernel.WIDEN, Kernel.KEY_PANELS, Kernel.VALUE_PANELS);

    @ParameterizedTest
    @CsvSource({"YMM, false", "ZMM, false", "ZMM, true"})
    void aKernelThatComputesNothingIsFound(Width width, boolean inPairs) {
        TestKernels.kernels(width, inPairs ? WeightType.BF16_PAIRS : WeightType.FP32);
        boolean bf16 = Processor.current().has("avx512_bf16");
        assertThat(KernelCheck.check(new Kernels(width, false, inPairs), bf16)).isEmpty();
        byte[] nothing = nothing();
        List<String> missed = new ArrayList<>();
        for (Kernel kernel : Kernel.values()) {
            List<Object> variants = new Kernels(width, false, inPairs).variants(kernel);
            for (Object variant : variants) {
                boolean checked =
                        BY_WIDTH.contains(kernel) ? variant.equals(width) : variant.equals(variants.getFirst());
                // In pairs, keys and values in bf16 become fp32 only for shapes that are not checked.
                boolean other = inPairs && variant == DType.BF16 && OF_OTHER_SHAPES.contains(kernel);
                if (!other && (checked || variant instanceof DType || variant instanceof WeightType)) {
                    Kernels broken = new Kernels(width, false, inPairs);
                    broken.make(kernel, variant, nothing);
                    if (KernelCheck.check(broken, bf16).isEmpty()) {
                        missed.add(kernel + " " + variant);
                    }
                }
            }
        }
        assertThat(missed).isEmpty();
    }

    private static byte[] nothing() {
        Assembler code = new Assembler(Width.YMM);
        code.returnFromVectors();
        return code.code();
    }
}
