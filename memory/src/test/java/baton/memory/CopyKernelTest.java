package baton.memory;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.lang.foreign.AddressLayout;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.util.Collections;
import org.junit.jupiter.api.Test;

class CopyKernelTest {
    private static final AddressLayout ADDRESS = ValueLayout.ADDRESS;

    @Test
    void theKernelPassesItsSelfCheckWhereTheProcessorHasItsInstructions() {
        requireProcessor();
        assertThat(new CopyKernel(code(false, true), code(true, true), code(true, false)).selfCheck())
                .isEmpty();
        assertThat(CopyKernel.ofThisMachine("kernel")).isPresent();
    }

    @Test
    void theSelfCheckFindsACopyThatIsMissing() {
        assertThat(new CopyKernel(doesNothing(), doesNothing(), doesNothing()).selfCheck())
                .hasValueSatisfying(what -> assertThat(what).startsWith("a wrong byte at 0 of 128"));
    }

    @Test
    void theSelfCheckFindsWrongDigests() {
        requireProcessor();
        assertThat(new CopyKernel(code(false, true), code(false, true), code(true, false)).selfCheck())
                .hasValueSatisfying(what -> assertThat(what).startsWith("wrong digests of rows=1 runs=1 runBytes=64"));
        assertThat(new CopyKernel(code(false, true), code(true, true), code(false, false)).selfCheck())
                .isPresent();
    }

    @Test
    void aKernelThatFailsItsSelfCheckIsNotUsed() {
        assertThat(CopyKernel.load(() -> new CopyKernel(doesNothing(), doesNothing(), doesNothing())))
                .isEmpty();
    }

    @Test
    void aSystemWithoutExecutableMemoryHasNoKernel() {
        assertThat(CopyKernel.load(() -> {
                    throw new IllegalStateException("no executable memory");
                }))
                .isEmpty();
    }

    @Test
    void thePropertySwitchesTheKernelOff() {
        assertThat(CopyKernel.ofThisMachine("java")).isEmpty();
    }

    @Test
    void anotherValueOfThePropertyIsAnErrorThatNamesIt() {
        assertThatThrownBy(() -> CopyKernel.ofThisMachine("fast"))
                .isInstanceOf(IllegalArgumentException.class)
                .hasMessage("baton.copy=fast must be kernel or java");
    }

    private static void requireProcessor() {
        assumeTrue(
                Processor.current().has("sse4_2", "avx512f", "vpclmulqdq"),
                "no AVX-512 with VPCLMULQDQ here, which the copying kernel is for");
    }

    private static MethodHandle code(boolean digests, boolean pastCaches) {
        return MachineCode.function(
                CopyKernelCode.copy(digests, pastCaches),
                FunctionDescriptor.ofVoid(ADDRESS, ADDRESS, ADDRESS, ADDRESS, ADDRESS));
    }

    private static MethodHandle doesNothing() {
        return MethodHandles.empty(MethodType.methodType(void.class, Collections.nCopies(5, MemorySegment.class)));
    }
}
