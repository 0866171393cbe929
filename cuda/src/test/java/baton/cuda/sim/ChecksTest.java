package baton.cuda.sim;

import static org.assertj.core.api.Assertions.assertThatThrownBy;

import baton.cuda.driver.CudaException;
import baton.cuda.driver.Driver.LaunchShape;
import baton.cuda.driver.Gpu;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Kernels that do what a device does not notice, and the findings about them. */
class ChecksTest {
    private static void find(String body, int threads, int blocks, String... parts) {
        Bench bench = new Bench();
        Gpu.Buffer written = bench.buffer(new int[64]);
        Gpu.Buffer fresh = bench.gpu.allocate(256);
        assertThatThrownBy(() -> bench.run(
                        Bench.kernel(body),
                        new LaunchShape(blocks, 1, 1, threads, 256),
                        written.address(),
                        fresh.address(),
                        0,
                        64))
                .isInstanceOf(CudaException.class)
                .hasMessageContainingAll(parts);
    }

    private static void findNothing(String body, int threads, int blocks) {
        try (Bench bench = new Bench()) {
            Gpu.Buffer written = bench.buffer(new int[64]);
            Gpu.Buffer fresh = bench.gpu.allocate(256);
            bench.run(
                    Bench.kernel(body),
                    new LaunchShape(blocks, 1, 1, threads, 256),
                    written.address(),
                    fresh.address(),
                    0,
                    64);
        }
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
    void access(String instruction, String one, String other) {
        find(instruction + ";", 32, 1, "kernel k, line 19", instruction, "block (0,0,0), thread ", one, other);
    }
}
