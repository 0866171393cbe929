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
        return List.of(
                new TopKernel(true, false).kernel(),
                new TopKernel(false, false).kernel(),
                new TopKernel(false, true).kernel());
    }

    /**
     * The index of each row's largest logit, the first if there are several; 0 if no logit is above negative infinity. NaN is never the largest.
     *
     * @param logits of fp32
     * @param ids address of a u32 for each row
     * @param values address of an f32 for each row: the largest logit, which is not finite if the row cannot be used
     */
    public void argmax(Stream stream, DeviceRows logits, long ids, long values) {
        top(stream, logits, 1, ids, values);
    }

    /**
     * The largest logits of each row, in descending order, of equal ones the first first. NaN counts as negative infinity.
     *
     * @param logits of fp32
     * @param count of logits, up to {@link TopKernel#MOST} and to the columns
     * @param ids address of as many u32 for each row
     * @param values address of as many f32 for each row
     */
    public void top(Stream stream, DeviceRows logits, int count, long ids, long values) {
        if (logits.type() != DType.F32 || count > Math.min(TopKernel.MOST, logits.columns())) {
            throw new IllegalArgumentException("logits=%s must be F32 of count=%d columns or more, count at most %d"
                    .formatted(logits, count, TopKernel.MOST));
        }
        int rows = logits.rows();
        int chunks = Math.ceilDiv(logits.columns(), TopKernel.CHUNK);
        long half = (long) rows * chunks * count * Long.BYTES;
        long from = scratch.address(2 * half);
        long to = from + half;
        functions.launch(
                stream,
                TopKernel.name(true, false),
                chunks,
                rows,
                1,
                0,
                logits.address(),
                logits.rowStride() * Float.BYTES,
                logits.columns(),
                count,
                from,
                0);
        int left = chunks * count;
        while (left > TopKernel.CHUNK) {
            chunks = Math.ceilDiv(left, TopKernel.CHUNK);
            functions.launch(
                    stream,
                    TopKernel.name(false, false),
                    chunks,
                    rows,
                    1,
                    0,
                    from,
                    (long) left * Long.BYTES,
                    left,
                    count,
                    to,
                    0);
            left = chunks * count;
            long read = from;
            from = to;
            to = read;
        }
        functions.launch(
                stream,
                TopKernel.name(false, true),
                1,
                rows,
                1,
                0,
                from,
                (long) left * Long.BYTES,
                left,
                count,
                ids,
                values);
    }

    @Override
    public void close() {
        scratch.close();
    }
}
