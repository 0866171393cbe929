package baton.cuda.sim;

import static java.util.Objects.requireNonNull;
import static org.assertj.core.api.Assertions.fail;

import baton.cuda.Ptxas;
import baton.cuda.driver.Driver.LaunchShape;
import baton.cuda.driver.Gpu;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.TreeSet;
import org.junit.jupiter.api.Test;

/** Each instruction of {@link LaneInstruction} on random operands and edge values, beside {@link ReferenceArithmetic}. */
class LaneInstructionsTest {
    private static final int THREADS = 256;
    private static final int BLOCKS = 2;
    private static final int COUNT = THREADS * BLOCKS;
    private static final int OPERANDS = 3;
    private static final long[] EDGES = {
        0,
        1,
        2,
        3,
        7,
        8,
        15,
        16,
        31,
        32,
        33,
        63,
        64,
        65,
        0x7f,
        0x80,
        0xff,
        0x7fff,
        0x8000,
        0xffff,
        0x7fff_ffff,
        0x8000_0000L,
        0xffff_ffffL,
        Long.MAX_VALUE,
        Long.MIN_VALUE,
        -1,
        -2
    };
    private static final float[] FLOATS = {
        0,
        -0f,
        1,
        -1,
        0.5f,
        1.5f,
        2.5f,
        -2.5f,
        3,
        1e-40f,
        -Float.MIN_VALUE,
        Float.MIN_NORMAL,
        Float.MAX_VALUE,
        65504,
        65519.99f,
        65520,
        6e-8f,
        2.9e-8f,
        3.1e-8f,
        0x1.01p0f,
        0x1.03p0f,
        0x1.fffp127f,
        0x1p31f,
        0x1p32f,
        -0x1.000002p31f,
        1e20f,
        127,
        128,
        -126,
        -149,
        -150,
        100.25f,
        Float.POSITIVE_INFINITY,
        Float.NEGATIVE_INFINITY,
        Float.NaN
    };

    /** The registers of a type. */
    private static String register(String type, int number) {
        return switch (LaneInstruction.bits(type)) {
            case 16 -> "%h" + number;
            case 32 -> "%r" + number;
            default -> "%q" + number;
        };
    }

    private static String kernel(String name, String opcode, LaneInstruction instruction) {
        StringBuilder body = new StringBuilder("""
                .visible .entry %s(.param .u64 a, .param .u64 b)
                .maxntid %d, 1, 1
                {
                .reg .pred %%p0;
                .reg .b16 %%h<4>;
                .reg .b32 %%r<8>;
                .reg .b64 %%q<8>;
                ld.param.u64 %%q4, [a];
                ld.param.u64 %%q5, [b];
                mov.u32 %%r4, %%tid.x;
                mov.u32 %%r5, %%ctaid.x;
                mad.lo.u32 %%r4, %%r5, %d, %%r4;
                mad.wide.u32 %%q4, %%r4, 24, %%q4;
                mad.wide.u32 %%q5, %%r4, 8, %%q5;
                """.formatted(name, THREADS, THREADS));
        List<String> operands = new ArrayList<>();
        for (int i = 0; i < instruction.operands().size(); i++) {
            String type = instruction.operands().get(i);
            operands.add(register(type, i + 1));
            body.append("ld.global.b%d %s, [%%q4+%d];%n"
                    .formatted(LaneInstruction.bits(type), register(type, i + 1), i * Long.BYTES));
        }
        boolean test = instruction.result().equals(LaneInstruction.PREDICATE);
        String result = test ? "b32" : instruction.result();
        body.append("%s %s, %s;%n".formatted(opcode, test ? "%p0" : register(result, 0), String.join(", ", operands)));
        if (test) {
            body.append("selp.b32 %r0, 1, 0, %p0;\n");
        }
        return body.append("st.global.b%d [%%q5], %s;%nret;%n}%n"
                        .formatted(LaneInstruction.bits(result), register(result, 0)))
                .toString();
    }

    private static LaneInstruction instruction(String opcode) {
        return requireNonNull(LaneInstruction.ALL.get(opcode));
    }

    /** A module of one kernel for each opcode. */
    private static String module(List<String> opcodes) {
        StringBuilder text = new StringBuilder(".version 8.0\n.target sm_80\n.address_size 64\n");
        for (int i = 0; i < opcodes.size(); i++) {
            text.append(kernel("k" + i, opcodes.get(i), instruction(opcodes.get(i))));
        }
        return text.toString();
    }

    private static long operand(Random random, String type) {
        boolean edge = random.nextInt(3) > 0;
        return switch (type) {
            case "f32" ->
                Integer.toUnsignedLong(Float.floatToRawIntBits(
                        edge ? FLOATS[random.nextInt(FLOATS.length)] : Float.intBitsToFloat(random.nextInt())));
            default -> edge ? EDGES[random.nextInt(EDGES.length)] : random.nextLong();
        };
    }

    @Test
    void eachIsThatOfReferenceArithmetic() {
        List<String> opcodes = List.copyOf(new TreeSet<>(LaneInstruction.ALL.keySet()));
        Random random = new Random(7);
        try (Bench bench = new Bench();
                Gpu.Module module = bench.gpu.load(module(opcodes));
                Gpu.Buffer operands = bench.gpu.allocate(COUNT * OPERANDS * 8L);
                Gpu.Buffer results = bench.gpu.allocate(COUNT * 8L)) {
            for (int i = 0; i < opcodes.size(); i++) {
                String opcode = opcodes.get(i);
                LaneInstruction instruction = instruction(opcode);
                long[] values = new long[COUNT * OPERANDS];
                for (int at = 0; at < values.length; at++) {
                    int number = Math.min(at % OPERANDS, instruction.operands().size() - 1);
                    values[at] = operand(random, instruction.operands().get(number));
                }
                bench.write(operands, values);
                bench.stream.fill(results.address(), 0, results.bytes());
                bench.stream.launch(
                        module.function("k" + i),
                        new LaunchShape(BLOCKS, THREADS),
                        operands.address(),
                        results.address());
                bench.stream.synchronize();
                long[] got = bench.readLongs(results);
                for (int at = 0; at < COUNT; at++) {
                    long a = values[at * OPERANDS];
                    long b = values[at * OPERANDS + 1];
                    long c = values[at * OPERANDS + 2];
                    if (!ReferenceArithmetic.isResult(opcode, instruction, got[at], a, b, c)) {
                        fail("%s of %x, %x, %x is not %x".formatted(opcode, a, b, c, got[at]));
                    }
                }
            }
        }
    }

    /** NVIDIA's assembler takes the instructions. */
    @Test
    void theAssemblerTakesEach() {
        Ptxas.assumed().assemble(module(List.copyOf(new TreeSet<>(LaneInstruction.ALL.keySet()))));
    }
}
