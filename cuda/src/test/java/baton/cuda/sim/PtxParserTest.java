package baton.cuda.sim;

import static java.util.Objects.requireNonNull;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.cuda.driver.CudaException;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Texts that are no PTX, or not of the subset, are refused with their line and the reason. */
class PtxParserTest {
    private static void decode(String text) {
        PtxParser.parse(text).values().forEach(Decoder::decode);
    }

    @ParameterizedTest
    @CsvSource(delimiter = '|', textBlock = """
            add.u33 %r2, %r1, 1;                  | the instruction is not of the subset
            add.f32 %f2, %f1, %f0;                | the instruction is not of the subset
            mul.rn.f64 %q2, %q1, %q0;             | the instruction is not of the subset
            add.u32 %r2, %r1;                     | 2 operands, not 3
            add.u32 %f2, %r1, 1;                  | %f2 is .f32, for the instruction's type .u32
            add.rn.f32 %f2, %f1, 1;               | 1 is no register, variable or constant of type .f32
            add.u32 %r2, %q1, 1;                  | %q1 is .b64, for the instruction's type .u32
            add.u32 %r99, %r1, 1;                 | %r99 is no register that is declared
            add.u32 %tid.x, %r1, 1;               | %tid.x is no register that is declared
            mov.u64 %q3, %tid.x;                  | %tid.x has 32 bits
            mov.u32 %r2, %clock;                  | %clock is no register, variable or constant
            ld.u32 %r2, [%q0];                    | the instruction is not of the subset
            ld.local.u32 %r2, [%q0];              | the instruction is not of the subset
            ld.global.u32 %r2, [%r1];             | %r1 is .b32, for the instruction's type .u64
            ld.global.v4.u64 {%q1, %q2, %q3, %q4}, [%q0]; | 4 registers of 8 bytes
            ld.global.v2.u32 %r2, [%q0];          | 1 registers of 4 bytes
            ld.param.u32 %r2, [a];                | the parameter is .u64, the instruction's type .u32
            ld.param.u32 %r2, [z];                | [z] is none of the parameters [a, b, c, n]
            st.global.u32 %r2, [%q0];             | is not [REGISTER]
            bra NOWHERE;                          | NOWHERE is no label of the kernel
            @%r1 bra NOWHERE;                     | %r1 is no register of type .pred
            bar.sync 1;                           | the only barrier is 0
            bar.sync 0, 32;                       | 2 operands, not 1
            cp.async.cg.shared.global [%r2], [%q0], 8, %r3; | 8 bytes: .cg copies 16
            mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f0, %f1, %f2, %f3}, {%r2, %r3}, {%r4, %r5}, {%f0, %f1, %f2, %f3}; | {%r2, %r3} has 2 registers, not 4
            mma.sync.aligned.m16n8k16.row.col.f32.tf32.tf32.f32 {%f0}, {%r2}, {%r4}, {%f0}; | the instruction is not of the subset
            setp.lt.b32 %p0, %r1, 1;              | the instruction is not of the subset
            .local .b32 x;                        | expected an instruction, a label, .reg, .shared
            {                                     | expected an instruction, a label, .reg, .shared
            .reg .b128 %x;                        | registers of .b128
            """)
    void refused(String line, String reason) {
        assertThatThrownBy(() -> decode(Bench.kernel(line)))
                .isInstanceOf(CudaException.class)
                .hasMessageContainingAll("CUDA_ERROR_INVALID_PTX", "line ", reason);
    }

    @Test
    void saysTheLine() {
        assertThatThrownBy(() -> decode(Bench.kernel("// one\n/* two\nthree */ add.u33\n%r2, 5;")))
                .hasMessageContaining("line 20: `add.u33 %r2, 5;`");
    }

    @Test
    void refusesModulesWithoutTheirHead() {
        assertThatThrownBy(() -> decode(".target sm_80\n")).hasMessageContaining("expected .version MAJOR.MINOR");
        assertThatThrownBy(() -> decode(".version 8.0\n.target sm_80\n.address_size 32\n"))
                .hasMessageContaining("line 3: `.address_size 32`: expected .address_size 64");
        String head = ".version 8.0\n.target sm_80\n.address_size 64\n";
        assertThatThrownBy(() -> decode(head + ".global .b32 x;")).hasMessageContaining("expected .visible .entry");
        assertThatThrownBy(() -> decode(head + ".visible .entry k(.param .b8 x) {}"))
                .hasMessageContaining("`.param .b8 x`");
        assertThatThrownBy(() -> decode(head + ".visible .entry k() .cluster 2 {}"))
                .hasMessageContaining("`.cluster 2 `");
        assertThatThrownBy(() -> decode(head + ".visible .entry k() { ret;"))
                .hasMessageContaining("expected an instruction");
    }

    @Test
    void takesLimitsSharedMemoryAndRegisters() {
        Map<String, KernelText> kernels = PtxParser.parse("""
                .version 8.0
                .target sm_80
                .address_size 64
                .extern .shared .align 16 .b8 dynamic[];
                .visible .entry one(.param .u64 p, .param .f32 x)
                .maxntid 64, 2, 1
                {
                .reg .b32 %r<2>, %other;
                .shared .align 4 .b8 first[5];
                .shared .align 8 .b8 second[4];
                L0: ret;
                }
                .entry two() { ret; }
                """);
        KernelText one = requireNonNull(kernels.get("one"));
        assertThat(one.maxThreads()).isEqualTo(128);
        assertThat(one.shared()).isEqualTo(Map.of("first", 0, "second", 8, "dynamic", 16));
        assertThat(one.parameters()).containsExactly(Map.entry("p", "u64"), Map.entry("x", "f32"));
        assertThat(one.registers()).containsOnlyKeys("%r0", "%r1", "%other");
        assertThat(one.labels()).containsEntry("L0", 0);
        assertThat(kernels).containsOnlyKeys("one", "two");
    }
}
