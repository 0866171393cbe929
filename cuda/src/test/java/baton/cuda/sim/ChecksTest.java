package baton.cuda.sim;

import static org.assertj.core.api.Assertions.assertThatCode;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.cuda.driver.CudaException;
import baton.cuda.driver.Driver.LaunchShape;
import baton.cuda.driver.Gpu;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Kernels with errors that a device does not report, and the findings about them. */
class ChecksTest {
    /** Runs a kernel with 256 bytes of written memory as {@code a} and 256 bytes of new memory as {@code b}. */
    private static void run(String body, int threads, int blocks) {
        Bench bench = new Bench();
        Gpu.Buffer written = bench.buffer(new int[64]);
        Gpu.Buffer fresh = bench.gpu.allocate(256);
        LaunchShape shape = new LaunchShape(blocks, 1, 1, threads, 256);
        bench.run(Bench.kernel(body), shape, written.address(), fresh.address(), 0, 64);
    }

    @ParameterizedTest
    @CsvSource(delimiter = '|', textBlock = """
            ld.global.u32 %r2, [%q0+256]   | 4 bytes at global address 0x | is outside of allocations, 256 bytes behind the begin of one of 256 bytes
            ld.global.u32 %r2, [%q0-4]     | ILLEGAL_ADDRESS | is below all allocations
            ld.global.u32 %r2, [%q0+2]     | MISALIGNED_ADDRESS | is no multiple of 4
            ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%q0+8] | MISALIGNED_ADDRESS | is no multiple of 16
            ld.global.u32 %r2, [%q1]       | reads 4 bytes | that nothing has written
            ld.shared.u32 %r2, [fixed]     | 4 bytes at shared address 0x0 | the block has not written there
            st.shared.u32 [fixed+512], %r1 | 4 bytes at shared address 0x200 | the block has 512 bytes of shared memory
            st.shared.u32 [fixed+2], %r1   | MISALIGNED_ADDRESS | shared address 0x2 is no multiple of 4
            st.shared.u32 [fixed], %r1     | writes 4 bytes at shared address 0x0 | without a barrier between
            """)
    void accesses(String instruction, String one, String other) {
        assertThatThrownBy(() -> run(instruction + ";", 32, 1))
                .isInstanceOf(CudaException.class)
                .hasMessageContainingAll("kernel k, line 18", instruction, "block (0,0,0), ", one, other);
    }

    /** Each thread writes its word. Those of the last of two warps, or all of one, read that of a neighbour. */
    private static String neighbour(String between, int distance) {
        return """
                mad.lo.u32 %%r2, %%r1, 4, 256;
                st.shared.u32 [%%r2], %%r1;
                %s
                xor.b32 %%r3, %%r1, %d;
                mad.lo.u32 %%r3, %%r3, 4, 256;
                setp.ge.u32 %%p0, %%r1, %d;
                @%%p0 ld.shared.u32 %%r4, [%%r3];
                """.formatted(between, distance, distance & 32);
    }

    @Test
    void readsOfAnotherWarpWithoutABarrier() {
        assertThatThrownBy(() -> run(neighbour("bar.warp.sync 0xffffffff;", 32), 64, 1))
                .hasMessageContaining("reads 4 bytes at shared address")
                .hasMessageContaining("which thread 0 wrote without a barrier between");
        assertThatCode(() -> run(neighbour("bar.sync 0;", 32), 64, 1)).doesNotThrowAnyException();
    }

    @Test
    void readsOfAnotherLaneWithoutABarrierOfTheWarp() {
        assertThatThrownBy(() -> run(neighbour("", 1), 32, 1))
                .hasMessageContaining("thread 0: reads 4 bytes")
                .hasMessageContaining("which thread 1 wrote without a barrier between");
        assertThatCode(() -> run(neighbour("bar.warp.sync 0xffffffff;", 1), 32, 1))
                .doesNotThrowAnyException();
    }

    @Test
    void writesAfterReadsWithoutABarrier() {
        String read = """
                mov.u32 %r2, 256;
                setp.lt.u32 %p0, %r1, 32;
                setp.eq.u32 %p1, %r1, 63;
                @%p1 st.shared.u32 [%r2], %r1;
                bar.sync 0;
                @%p0 ld.shared.u32 %r4, [%r2];
                """;
        String write = "\n@%p1 st.shared.u32 [%r2], %r1;";
        assertThatThrownBy(() -> run(read + write, 64, 1))
                .hasMessageContaining(
                        "thread 63: writes 4 bytes at shared address 0x100, which several lanes of warp 0 read");
        assertThatCode(() -> run(read + "\nbar.sync 0;" + write, 64, 1)).doesNotThrowAnyException();
    }

    @Test
    void barriersThatNotAllThreadsReach() {
        assertThatThrownBy(() -> run("setp.lt.u32 %p0, %r1, 3;\n@%p0 bar.sync 0;", 32, 1))
                .hasMessageContaining("the barrier is divergent: lanes 00000007 are at it, fffffff8 are elsewhere");
        assertThatThrownBy(() -> run("setp.lt.u32 %p0, %r1, 3;\n@%p0 ret;\nbar.sync 0;", 32, 1))
                .hasMessageContaining("lanes fffffff8 are at it, 00000000 are elsewhere, 00000007 have ended");
        assertThatThrownBy(() -> run("setp.lt.u32 %p0, %r1, 32;\n@%p0 bra OVER;\nbar.sync 0;\nOVER:", 64, 1))
                .hasMessageContaining("1 of 2 warps wait at a barrier, the others have ended");
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "shfl.sync.bfly.b32 %r2, %r1, 1, 31, 0xffffffff",
                "bar.warp.sync 0xffffffff",
                "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r2, %r3, %r4, %r5}, [fixed]",
                "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f0, %f1, %f2, %f3}, {%r2, %r3, %r4, %r5}, {%r6, %r7}, {%f0, %f1, %f2, %f3}"
            })
    void lanesThatAreMissing(String instruction) {
        assertThatThrownBy(() -> run("setp.lt.u32 %p0, %r1, 16;\n@%p0 " + instruction + ";", 32, 1))
                .hasMessageContaining("lanes ffff0000 of the mask are not at the instruction");
    }

    @Test
    void shufflesOfLanesOutsideOfTheMask() {
        assertThatThrownBy(() ->
                        run("setp.lt.u32 %p0, %r1, 16;\n@%p0 shfl.sync.bfly.b32 %r2, %r1, 16, 31, 0xffff;", 32, 1))
                .hasMessageContaining("takes the value of lane 16, which is not at the instruction");
    }

    @Test
    void asynchronousCopiesThatHaveNotArrived() {
        String copy = """
                shl.b32 %r2, %r1, 4;
                mov.u32 %r4, 16;
                cp.async.cg.shared.global [%r2], [%q0], 16, %r4;
                cp.async.commit_group;
                """;
        String read = "\nld.shared.u32 %r3, [%r2];";
        assertThatThrownBy(() -> run(copy + "cp.async.wait_group 1;" + read, 32, 1))
                .hasMessageContaining("cp.async may write there until cp.async.wait_group");
        assertThatCode(() -> run(copy + "cp.async.wait_group 0;" + read, 32, 1)).doesNotThrowAnyException();
        String neighbour = "\nxor.b32 %r2, %r2, 16;" + read;
        assertThatThrownBy(() -> run(copy + "cp.async.wait_group 0;" + neighbour, 32, 1))
                .hasMessageContaining("without a barrier between");
    }

    @Test
    void blocksThatWriteTheSame() {
        String body = """
                mad.wide.u32 %q3, %r1, 4, %q0;
                st.global.u32 [%q3], %r1;
                """;
        assertThatCode(() -> run(body, 32, 1)).doesNotThrowAnyException();
        assertThatThrownBy(() -> run(body, 32, 2))
                .hasMessageContaining("writes 4 bytes at global address")
                .hasMessageContaining("of the same launch wrote");
    }

    @ParameterizedTest
    @CsvSource({"0", "2"})
    void blocksThatReadAnotherBlocksWrites(int neighbour) {
        String text = Bench.kernel("""
                mov.u32 %%r2, %%ctaid.x;
                add.u32 %%r2, %%r2, 1;
                mad.wide.u32 %%q3, %%r2, 4, %%q0;
                st.global.u32 [%%q3], %%r1;
                add.u32 %%r3, %%r2, %d;
                sub.u32 %%r3, %%r3, 1;
                mad.wide.u32 %%q4, %%r3, 4, %%q0;
                ld.global.u32 %%r4, [%%q4];
                """.formatted(neighbour));
        Bench bench = new Bench();
        Gpu.Buffer words = bench.buffer(new int[64]);
        assertThatThrownBy(() -> {
                    bench.run(text, new LaunchShape(32, 1), words.address());
                    bench.run(text, new LaunchShape(32, 1), words.address());
                })
                .hasMessageContaining("reads 4 bytes at global address")
                .hasMessageContaining("of the same launch wrote");
    }

    @Test
    void constantMemoryThatTheKernelWrites() {
        String body = """
                mad.wide.u32 %q3, %r1, 4, %q0;
                ld.global.nc.u32 %r2, [%q3];
                st.global.u32 [%q3], %r1;
                """;
        assertThatCode(() -> run(body, 32, 1)).doesNotThrowAnyException();
        assertThatThrownBy(() -> run(body + "ld.global.nc.u32 %r2, [%q3];", 32, 1))
                .hasMessageContaining("by .nc, which the same launch wrote");
    }

    @Test
    void memoryThatIsFreed() {
        Bench bench = new Bench();
        Gpu.Buffer buffer = bench.buffer(1, 2, 3);
        buffer.close();
        assertThatThrownBy(() -> bench.run(
                        Bench.kernel("ld.global.u32 %r2, [%q0+8];"), new LaunchShape(1, 32), buffer.address()))
                .hasMessageContaining("is freed, 8 bytes behind the begin of 12 bytes");
    }

    @Test
    void aFindingEndsTheWorkOfTheDevice() {
        Bench bench = new Bench();
        String text = Bench.kernel("ld.global.u32 %r2, [%q0];");
        assertThatThrownBy(() -> bench.run(text, new LaunchShape(1, 32), 64))
                .hasMessageContaining("is below all allocations");
        assertThatThrownBy(bench.stream::synchronize).hasMessageContaining("is below all allocations");
        assertThatThrownBy(() -> bench.buffer(1)).hasMessageContaining("is below all allocations");
    }
}
