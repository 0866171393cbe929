package baton.cuda.sim;

import baton.cuda.driver.CudaException;
import com.google.errorprone.annotations.FormatMethod;

/** A kernel broke a rule of the device. The interpreter adds the place. */
final class KernelFinding extends RuntimeException {
    private final Kind kind;
    private final int lane;

    enum Kind {
        ILLEGAL_ADDRESS(700),
        MISALIGNED_ADDRESS(716),
        LAUNCH_FAILED(719);

        private final int code;

        Kind(int code) {
            this.code = code;
        }
    }

    /** @param lane that did it, or -1 where no lane did it alone */
    KernelFinding(Kind kind, int lane, String reason) {
        super(reason, null, false, false);
        this.kind = kind;
        this.lane = lane;
    }

    @FormatMethod
    static KernelFinding failed(int lane, String reason, Object... values) {
        return new KernelFinding(Kind.LAUNCH_FAILED, lane, reason.formatted(values));
    }

    CudaException at(Warp warp, Statement statement) {
        String thread = lane < 0 ? "warp " + warp.index : "thread " + (warp.index * Warp.LANES + lane);
        return error("kernel %s, line %d `%s`, block %s, %s: %s"
                .formatted(
                        warp.block.kernel.name(),
                        statement.line(),
                        statement.text(),
                        warp.block.place(),
                        thread,
                        getMessage()));
    }

    CudaException at(Block block) {
        return error("kernel %s, block %s: %s".formatted(block.kernel.name(), block.place(), getMessage()));
    }

    private CudaException error(String detail) {
        return new CudaException("cuStreamSynchronize", kind.code, "CUDA_ERROR_" + kind, detail);
    }
}
