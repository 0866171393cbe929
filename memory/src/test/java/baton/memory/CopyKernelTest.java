package baton.memory;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.memory.Assembler.Width;
import baton.memory.CopyKernel.Vectors;
import java.lang.foreign.AddressLayout;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.util.Collections;
import java.util.Set;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

class CopyKernelTest {
    private static final AddressLayout ADDRESS = ValueLayout.ADDRESS;
    private static final Processor ANY = processor("avx2", "pclmulqdq", "sse4_2");

    @ParameterizedTest
    @EnumSource
    void theKernelPassesItsSelfCheckWhereTheProcessorHasItsInstructions(Vectors vectors) {
        CopiedBy.require(vectors);
        assertThat(new CopyKernel(vectors).selfCheck()).isEmpty();
        assertThat(CopyKernel.load(vectors, Processor.current(), CopyKernel::new))
                .hasValueSatisfying(kernel -> assertThat(kernel.vectorBits())
                        .isEqualTo(vectors.width().bytes() * Byte.SIZE));
    }

    @Test
    void theSelfCheckFindsACopyThatIsMissing() {
        assertThat(doingNothing(Vectors.OF_128_BITS).selfCheck())
                .hasValueSatisfying(what -> assertThat(what).startsWith("a wrong byte at 0 of 128"));
    }

    @ParameterizedTest
    @EnumSource
    void theSelfCheckFindsWrongDigests(Vectors vectors) {
        CopiedBy.require(vectors);
        Width width = vectors.width();
        assertThat(new CopyKernel(vectors, code(width, false, true), code(width, false, true), code(width, true, false))
                        .selfCheck())
                .hasValueSatisfying(what -> assertThat(what).startsWith("wrong digests of rows=1 runs=1 runBytes=64"));
        assertThat(new CopyKernel(vectors, code(width, false, true), code(width, true, true), code(width, false, false))
                        .selfCheck())
                .isPresent();
    }

    @Test
    void theWidestVectorsOfTheProcessorThatThePropertyAllowsAreTaken() {
        Processor iceLake = processor("avx512f", "avx2", "vpclmulqdq", "pclmulqdq", "sse4_2");
        Processor zen3 = processor("avx2", "vpclmulqdq", "pclmulqdq", "sse4_2");
        Processor cascadeLake = processor("avx512f", "avx2", "pclmulqdq", "sse4_2");
        Processor ivyBridge = processor("avx", "pclmulqdq", "sse4_2");
        assertThat(Vectors.OF_512_BITS.widest(iceLake)).contains(Vectors.OF_512_BITS);
        assertThat(Vectors.OF_256_BITS.widest(iceLake)).contains(Vectors.OF_256_BITS);
        assertThat(Vectors.OF_512_BITS.widest(zen3)).contains(Vectors.OF_256_BITS);
        assertThat(Vectors.OF_512_BITS.widest(cascadeLake)).contains(Vectors.OF_128_BITS);
        assertThat(Vectors.OF_512_BITS.widest(ivyBridge)).isEmpty();
        assertThat(CopyKernel.load(Vectors.OF_512_BITS, ivyBridge, CopyKernel::new))
                .isEmpty();
    }

    @Test
    void aKernelThatFailsItsSelfCheckIsNotUsed() {
        assertThat(CopyKernel.load(Vectors.OF_512_BITS, ANY, CopyKernelTest::doingNothing))
                .isEmpty();
    }

    @Test
    void aSystemWithoutExecutableMemoryHasNoKernel() {
        assertThat(CopyKernel.load(Vectors.OF_512_BITS, ANY, _ -> {
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
                .hasMessage("baton.copy=fast must be kernel, 512, 256, 128 or java");
    }

    private static Processor processor(String... flags) {
        return new Processor(Platform.parse("linux-x86_64"), "of a test", Set.of(flags));
    }

    private static MethodHandle code(Width width, boolean digests, boolean pastCaches) {
        return MachineCode.function(
                CopyKernelCode.copy(width, digests, pastCaches),
                FunctionDescriptor.ofVoid(ADDRESS, ADDRESS, ADDRESS, ADDRESS, ADDRESS));
    }

    private static CopyKernel doingNothing(Vectors vectors) {
        MethodHandle nothing =
                MethodHandles.empty(MethodType.methodType(void.class, Collections.nCopies(5, MemorySegment.class)));
        return new CopyKernel(vectors, nothing, nothing, nothing);
    }
}
