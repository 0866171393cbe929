package baton.cuda.sim;

import static org.assertj.core.api.Assertions.assertThat;

import baton.cuda.Ptxas;
import baton.cuda.driver.Driver.LaunchShape;
import baton.cuda.driver.Gpu;
import java.util.Random;
import java.util.function.IntUnaryOperator;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Control flow, memory and the instructions that lanes execute together. */
class WarpInstructionsTest {
    private static final int LANES = 32;

    /** Addresses of the thread's word in {@code a} and in {@code b}. */
    private static final String ADDRESSES = """
            mad.wide.u32 %q3, %r1, 4, %q0;
            mad.wide.u32 %q4, %r1, 4, %q1;
            """;

    private static int[] words(int count, IntUnaryOperator word) {
        return IntStream.range(0, count).map(word).toArray();
    }

    /** The words that the kernel stores to {@code b}, with {@code a} as its input; ptxas takes its text too. */
    private static int[] run(String body, int threads, int[] a, int results) {
        String text = Bench.kernel(ADDRESSES + body);
        try (Bench bench = new Bench();
                Gpu.Buffer from = bench.buffer(a);
                Gpu.Buffer to = bench.buffer(new int[results])) {
            bench.run(text, new LaunchShape(1, 1, 1, threads, 4096), from.address(), to.address(), 0, a.length);
            return bench.read(to);
        }
    }

    @Test
    void lanesThatDivergeConverge() {
        String collatz = """
                add.u32 %r2, %r1, 1;
                mov.u32 %r3, 0;
                AGAIN:
                setp.eq.u32 %p0, %r2, 1;
                @%p0 bra DONE;
                and.b32 %r4, %r2, 1;
                setp.eq.u32 %p1, %r4, 0;
                @%p1 bra EVEN;
                mad.lo.u32 %r2, %r2, 3, 1;
                bra NEXT;
                EVEN:
                shr.u32 %r2, %r2, 1;
                NEXT:
                add.u32 %r3, %r3, 1;
                bra AGAIN;
                DONE:
                shfl.sync.idx.b32 %r5, %r2, 31, 31, 0xffffffff;
                mad.lo.u32 %r3, %r5, 1000, %r3;
                st.global.u32 [%q4], %r3;
                """;
        assertThat(run(collatz, LANES, new int[1], LANES)).containsExactly(words(LANES, lane -> {
            int steps = 0;
            for (int n = lane + 1; n != 1; n = n % 2 == 0 ? n / 2 : 3 * n + 1) {
                steps++;
            }
            return 1000 + steps;
        }));
    }

    @Test
    void threadsThatEndEarlyLeaveTheOthers() {
        assertThat(run("setp.gt.u32 %p0, %r1, 40;\n@%p0 ret;\nst.global.u32 [%q4], %r1;", 50, new int[1], 50))
                .containsExactly(words(50, i -> i > 40 ? 0 : i));
    }

    @ParameterizedTest
    @CsvSource({
        "bfly, 1, 31",
        "bfly, 16, 31",
        "bfly, 5, 0x181f",
        "up, 1, 0",
        "up, 3, 0x1800",
        "idx, 7, 31",
        "idx, 3, 0x181f",
        "idx, 13, 0x101f"
    })
    void shuffles(String mode, int b, String bounds) {
        int c = Integer.decode(bounds);
        int[] results = run("""
                ld.global.u32 %%r2, [%%q3];
                shfl.sync.%s.b32 %%r3, %%r2, %d, %s, 0xffffffff;
                st.global.u32 [%%q4], %%r3;
                """.formatted(mode, b, bounds), LANES, words(LANES, i -> i), LANES);
        int segment = c >> 8 & 31;
        int clamp = c & 31;
        assertThat(results).containsExactly(words(LANES, lane -> {
            int first = lane & segment;
            int last = first | clamp & ~segment;
            int from = switch (mode) {
                case "up" -> lane - b;
                case "bfly" -> lane ^ b;
                default -> first | b & ~segment;
            };
            boolean in = mode.equals("up") ? from >= last : from <= last;
            return in ? from : lane;
        }));
    }

    @ParameterizedTest
    @ValueSource(strings = {"", ".trans"})
    void matricesFromSharedMemory(String transposed) {
        int[] results = run("""
                ld.global.v4.b32 {%%r2, %%r3, %%r4, %%r5}, [%%q5];
                mov.u32 %%r6, fixed;
                mad.lo.u32 %%r7, %%r1, 16, 512;
                st.shared.v4.b32 [%%r7], {%%r2, %%r3, %%r4, %%r5};
                bar.warp.sync 0xffffffff;
                ldmatrix.sync.aligned.m8n8.x4%s.shared.b16 {%%r2, %%r3, %%r4, %%r5}, [%%r7];
                mad.wide.u32 %%q6, %%r1, 16, %%q1;
                st.global.v4.b32 [%%q6], {%%r2, %%r3, %%r4, %%r5};
                """.formatted(transposed).replace("[%q5]", "[%q0]"), LANES, matrices(), 4 * LANES);
        short[][][] at = new short[4][8][8];
        for (int row = 0; row < LANES; row++) {
            for (int column = 0; column < 8; column++) {
                at[row / 8][row % 8][column] = (short) (matrices()[column / 2] >>> column % 2 * 16);
            }
        }
        for (int lane = 0; lane < LANES; lane++) {
            for (int matrix = 0; matrix < 4; matrix++) {
                int row = lane / 4;
                int column = lane % 4 * 2;
                short low = transposed.isEmpty() ? at[matrix][row][column] : at[matrix][column][row];
                short high = transposed.isEmpty() ? at[matrix][row][column + 1] : at[matrix][column + 1][row];
                assertThat(results[lane * 4 + matrix]).isEqualTo(low & 0xffff | high << 16);
            }
        }
    }

    private static int[] matrices() {
        return words(4, i -> (2 * i + 1) * 0x10001 + 0x10000);
    }

    @ParameterizedTest
    @ValueSource(strings = {"bf16", "f16"})
    void tensorProducts(String type) {
        int inner = 16;
        Random random = new Random(3);
        float[] a = numbers(random, 16 * inner, type);
        float[] b = numbers(random, inner * 8, type);
        float[] c = numbers(random, 16 * 8, "f32");
        int[] words = new int[LANES * 12];
        for (int lane = 0; lane < LANES; lane++) {
            int group = lane / 4;
            int within = lane % 4;
            for (int i = 0; i < 4; i++) {
                int at = (group + i % 2 * 8) * inner + i / 2 * 8 + within * 2;
                words[lane * 12 + i] = word(type, a[at], a[at + 1]);
            }
            for (int i = 0; i < 2; i++) {
                int row = i * 8 + within * 2;
                words[lane * 12 + 4 + i] = word(type, b[row * 8 + group], b[(row + 1) * 8 + group]);
            }
            for (int i = 0; i < 4; i++) {
                words[lane * 12 + 8 + i] = Float.floatToRawIntBits(c[(group + i / 2 * 8) * 8 + within * 2 + i % 2]);
            }
        }
        int[] results = run("""
                mad.wide.u32 %%q5, %%r1, 48, %%q0;
                ld.global.v4.b32 {%%r2, %%r3, %%r4, %%r5}, [%%q5];
                ld.global.v2.b32 {%%r6, %%r7}, [%%q5+16];
                ld.global.v4.f32 {%%f0, %%f1, %%f2, %%f3}, [%%q5+32];
                mma.sync.aligned.m16n8k16.row.col.f32.%s.%s.f32 {%%f0, %%f1, %%f2, %%f3}, {%%r2, %%r3, %%r4, %%r5}, {%%r6, %%r7}, {%%f0, %%f1, %%f2, %%f3};
                mad.wide.u32 %%q6, %%r1, 16, %%q1;
                st.global.v4.f32 [%%q6], {%%f0, %%f1, %%f2, %%f3};
                """.formatted(type, type), LANES, words, 4 * LANES);
        for (int row = 0; row < 16; row++) {
            for (int column = 0; column < 8; column++) {
                float expected = c[row * 8 + column];
                for (int k = 0; k < inner; k++) {
                    expected = Math.fma(a[row * inner + k], b[k * 8 + column], expected);
                }
                int lane = row % 8 * 4 + column / 2;
                assertThat(Float.intBitsToFloat(results[lane * 4 + row / 8 * 2 + column % 2]))
                        .as("row %d, column %d", row, column)
                        .isEqualTo(expected);
            }
        }
    }

    private static float[] numbers(Random random, int count, String type) {
        float[] numbers = new float[count];
        for (int i = 0; i < count; i++) {
            float number = (float) random.nextGaussian();
            numbers[i] = switch (type) {
                case "f16" -> Float.float16ToFloat(Float.floatToFloat16(number));
                case "bf16" -> Float.intBitsToFloat(Float.floatToRawIntBits(number) & 0xffff_0000);
                default -> number;
            };
        }
        return numbers;
    }

    private static int word(String type, float low, float high) {
        return switch (type) {
            case "f16" -> Float.floatToFloat16(low) & 0xffff | Float.floatToFloat16(high) << 16;
            default -> Float.floatToRawIntBits(low) >>> 16 | Float.floatToRawIntBits(high) & 0xffff_0000;
        };
    }

    @Test
    void asynchronousCopies() {
        String body = """
                mad.wide.u32 %q5, %r1, 16, %q0;
                mad.lo.u32 %r2, %r1, 16, 256;
                mov.u32 %r3, 16;
                cp.async.cg.shared.global [%r2], [%q5], 16, %r3;
                cp.async.commit_group;
                mov.u32 %r3, 8;
                cp.async.cg.shared.global [%r2+512], [%q5], 16, %r3;
                cp.async.commit_group;
                cp.async.wait_group 1;
                ld.shared.v4.b32 {%r4, %r5, %r6, %r7}, [%r2];
                cp.async.wait_group 0;
                bar.sync 0;
                xor.b32 %r8, %r2, 16;
                ld.shared.v4.b32 {%r9, %r10, %r11, %r12}, [%r8+512];
                mad.wide.u32 %q6, %r1, 32, %q1;
                st.global.v4.b32 [%q6], {%r4, %r5, %r6, %r7};
                st.global.v4.b32 [%q6+16], {%r9, %r10, %r11, %r12};
                """;
        int[] results = run(body, LANES, words(4 * LANES, i -> i + 1), 8 * LANES);
        assertThat(results).containsExactly(words(8 * LANES, i -> {
            int lane = i / 8;
            return i % 8 < 4 ? lane * 4 + i % 8 + 1 : i % 4 < 2 ? (lane ^ 1) * 4 + i % 4 + 1 : 0;
        }));
    }

    @Test
    void movesAndSelections() {
        int[] results = run("""
                ld.global.b32 %r2, [%q3];
                mov.b32 {%h0, %h1}, %r2;
                mov.b32 %r3, {%h1, %h0};
                mov.b64 %q5, {%r3, %r2};
                mov.b64 {%r4, %r5}, %q5;
                xor.b32 %r7, %r4, %r5;
                setp.ge.u32 %p0, %r2, 0x80000000;
                not.pred %p1, %p0;
                and.pred %p2, %p1, %p0;
                or.pred %p3, %p2, %p0;
                selp.b32 %r7, 7, %r7, %p2;
                @!%p3 add.u32 %r7, %r7, 1;
                st.global.b32 [%q4], %r7;
                """, LANES, words(LANES, i -> i * 0x9e3779b9), LANES);
        assertThat(results).containsExactly(words(LANES, lane -> {
            int word = lane * 0x9e3779b9;
            return (Integer.rotateLeft(word, 16) ^ word) + (word < 0 ? 0 : 1);
        }));
    }

    @Test
    void narrowElements() {
        int[] results = run("""
                cvt.u64.u32 %q5, %r1;
                add.u64 %q6, %q0, %q5;
                ld.global.u8 %r3, [%q6];
                add.u64 %q6, %q6, %q5;
                ld.global.b16 %h0, [%q6];
                cvt.u32.u16 %r5, %h0;
                add.u32 %r2, %r5, %r3;
                mov.u32 %r6, dynamic;
                add.u32 %r6, %r6, %r1;
                st.shared.u8 [%r6], %r2;
                bar.sync 0;
                ld.shared.u8 %r7, [%r6];
                mad.lo.u32 %r7, %r5, 256, %r7;
                st.global.u32 [%q4], %r7;
                """, LANES, words(16, i -> i * 0x9e3779b9), LANES);
        byte[] bytes = new byte[64];
        for (int i = 0; i < 64; i++) {
            bytes[i] = (byte) (i / 4 * 0x9e3779b9 >>> i % 4 * 8);
        }
        assertThat(results).containsExactly(words(LANES, lane -> {
            short half = (short) (bytes[2 * lane] & 0xff | bytes[2 * lane + 1] << 8);
            return (half & 0xffff) << 8 | half + bytes[lane] & 0xff;
        }));
    }

    @Test
    void blocksKnowTheirPlace() {
        String text = Bench.kernel("""
                mov.u32 %r2, %ctaid.x;
                mov.u32 %r3, %ctaid.y;
                mov.u32 %r4, %ctaid.z;
                mov.u32 %r5, %nctaid.x;
                mov.u32 %r6, %nctaid.y;
                mad.lo.u32 %r7, %r4, %r6, %r3;
                mad.lo.u32 %r7, %r7, %r5, %r2;
                mad.lo.u32 %r9, %r7, 40, %r1;
                mad.wide.u32 %q3, %r9, 4, %q0;
                mad.lo.u32 %r10, %r7, 100, %r1;
                st.global.u32 [%q3], %r10;
                """);
        try (Bench bench = new Bench();
                Gpu.Buffer places = bench.buffer(new int[2 * 3 * 4 * 40])) {
            bench.run(text, new LaunchShape(2, 3, 4, 40, 0), places.address());
            assertThat(bench.read(places)).containsExactly(words(2 * 3 * 4 * 40, i -> i / 40 * 100 + i % 40));
        }
    }

    @Test
    void theAssemblerTakesAll() {
        Ptxas assembler = Ptxas.assumed();
        String all = Bench.kernel("""
                shfl.sync.up.b32 %r3, %r2, 1, 0, 0xffffffff;
                shfl.sync.idx.b32 %r3, %r2, %r1, 31, 0xffffffff;
                ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r2, %r3, %r4, %r5}, [%r7+16];
                mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3}, {%r2, %r3, %r4, %r5}, {%r6, %r7}, {%f0, %f1, %f2, %f3};
                cp.async.cg.shared.global [%r2+16], [%q0], 16, %r3;
                cp.async.wait_group 0;
                mov.b64 {%r4, %r5}, %q5;
                ld.global.nc.v4.f32 {%f0, %f1, %f2, %f3}, [%q0];
                """);
        assertThat(assembler.assemble(all))
                .hasSize(3)
                .allSatisfy(report -> assertThat(report.spilled()).isZero());
    }
}
