package baton.cuda.kernel;

import baton.cuda.driver.Gpu;
import baton.cuda.driver.Gpu.Stream;
import baton.cuda.ptx.PtxKernel;
import baton.kv.DType;
import java.util.List;

/** The largest logits of rows. Used by one stream at a time. */
public final class SamplingOps implements AutoCloseable {
    private final Functions functions;
    private final Scratch scratch;

    SamplingOps(Gpu gpu, Functions functions) {
        this.functions = functions;
        this.scratch = new Scratch(gpu);
    }

    static List<PtxKernel> kernels() {
        return List.of(new ArgmaxKernel(false).kernel(), new ArgmaxKernel(true).kernel());
    }

    /**
     * The index of each row's largest logit, the first if there are several; 0 if no logit is above negative infinity. NaN is never the largest.
     *
     * @param logits of fp32, up to 16 million columns
     * @param ids address of a u32 for each row
     * @param values address of an f32 for each row: the largest logit, which is not finite if the row cannot be used
     */
    public void argmax(Stream stream, DeviceRows logits, long ids, long values) {
        int rows = logits.rows();
        int chunks = Math.ceilDiv(logits.columns(), ArgmaxKernel.CHUNK);
        if (logits.type() != DType.F32 || chunks > ArgmaxKernel.CHUNK) {
            throw new IllegalArgumentException("logits=%s must be F32 of at most %d columns"
                    .formatted(logits, ArgmaxKernel.CHUNK * ArgmaxKernel.CHUNK));
        }
        long keys = scratch.address(Math.max(1L, rows) * chunks * Long.BYTES);
        functions.launch(
                stream,
                ArgmaxKernel.name(false),
                chunks,
                rows,
                1,
                0,
                logits.address(),
                logits.rowStride() * Float.BYTES,
                logits.columns(),
                keys,
                0);
        functions.launch(
                stream, ArgmaxKernel.name(true), 1, rows, 1, 0, keys, (long) chunks * Long.BYTES, chunks, ids, values);
    }

    @Override
    public void close() {
        scratch.close();
    }
}
