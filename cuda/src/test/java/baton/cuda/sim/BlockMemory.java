package baton.cuda.sim;

import java.util.Arrays;

/**
 * Shared memory of one block. For each unit of bytes it keeps the last writer and the readers since, and finds accesses that
 * nothing orders: by two warps without a barrier between, or by two lanes of a warp without a barrier of the warp between.
 *
 * <p>A stamp is the number of the last barrier of the block, the number of the last barrier of the warp, the warp and the lane. A
 * negative stamp is of bytes that {@code cp.async} has not brought yet.
 */
final class BlockMemory {
    private static final int WARP_SHIFT = 6;
    private static final int SYNC_SHIFT = 12;
    private static final int EPOCH_SHIFT = 34;
    private static final long LANES = (1 << WARP_SHIFT) - 1;
    private static final long WARPS = LANES << WARP_SHIFT;
    private static final int SEVERAL_LANES = 33;
    private static final long SYNCS = (1L << EPOCH_SHIFT - SYNC_SHIFT) - 1;

    /** The lane of an access that several lanes of a warp take part in. */
    static final int EACH_LANE = 32;

    byte[] bytes = {};
    private final int shift;
    private long[] writes = {};
    private long[] reads = {};
    private int limit;
    private long epoch;
    private long firstStamp;

    /** @param shift a unit is {@code 1 << shift} bytes, the least that an instruction of the kernel accesses */
    BlockMemory(int shift) {
        this.shift = shift;
    }

    /** Forgets all content. */
    void begin(int size) {
        limit = size;
        if (size > bytes.length) {
            bytes = new byte[size];
            writes = new long[size >> shift];
            reads = new long[size >> shift];
        }
        barrier();
        firstStamp = epoch << EPOCH_SHIFT;
    }

    void barrier() {
        epoch++;
    }

    /** Forgets the bytes that {@code cp.async} has not brought when the block ends. */
    void end(boolean pending) {
        if (pending) {
            Arrays.fill(writes, 0);
        }
    }

    private long stamp(Warp warp, int lane) {
        return epoch << EPOCH_SHIFT | (warp.barriers & SYNCS) << SYNC_SHIFT | (long) warp.index << WARP_SHIFT | lane;
    }

    /** Checks a read, of a size that is a power of two up to 16. */
    int read(Warp warp, int lane, long address, int size) {
        int first = place(lane, address, size);
        long now = stamp(warp, lane);
        for (int unit = first >> shift; unit <= first + size - 1 >> shift; unit++) {
            long written = writes[unit];
            if (written < firstStamp) {
                throw unwritten(lane, first, size, written);
            }
            if (isRace(written, now)) {
                throw race("reads", lane, first, size, "wrote", written);
            }
            long read = reads[unit];
            long other = read ^ now;
            if (other >>> WARP_SHIFT != 0) {
                reads[unit] = other >>> EPOCH_SHIFT != 0 || (other & WARPS) == 0 ? now : now | WARPS;
            } else if (other != 0) {
                reads[unit] = now & ~LANES | SEVERAL_LANES;
            }
        }
        return first;
    }

    /** Checks a write, of a size that is a power of two up to 16. */
    int write(Warp warp, int lane, long address, int size) {
        return write(warp, lane, address, size, 0);
    }

    private int write(Warp warp, int lane, long address, int size, long flag) {
        int first = place(lane, address, size);
        long now = stamp(warp, lane);
        for (int unit = first >> shift; unit <= first + size - 1 >> shift; unit++) {
            long written = writes[unit];
            if (written < 0) {
                throw unwritten(lane, first, size, written);
            }
            if (isRace(written, now)) {
                throw race("writes", lane, first, size, "wrote", written);
            }
            if (isRace(reads[unit], now)) {
                throw race("writes", lane, first, size, "read", reads[unit]);
            }
            writes[unit] = now | flag;
        }
        return first;
    }

    /** Checks a write that is not done before {@link #arrived}. */
    int willWrite(Warp warp, int lane, long address, int size) {
        return write(warp, lane, address, size, Long.MIN_VALUE);
    }

    void arrived(Warp warp, int lane, int first, int size) {
        long now = stamp(warp, lane);
        for (int unit = first >> shift; unit <= first + size - 1 >> shift; unit++) {
            writes[unit] = now;
        }
    }

    private int place(int lane, long address, int size) {
        if (address < 0 || address > limit - size) {
            throw new KernelFinding(
                    KernelFinding.Kind.ILLEGAL_ADDRESS,
                    lane,
                    "%d bytes at shared address 0x%x: the block has %d bytes of shared memory"
                            .formatted(size, address, limit));
        }
        if ((address & size - 1) != 0) {
            throw new KernelFinding(
                    KernelFinding.Kind.MISALIGNED_ADDRESS,
                    lane,
                    "shared address 0x%x is no multiple of %d".formatted(address, size));
        }
        return (int) address;
    }

    private static boolean isRace(long before, long now) {
        long other = before ^ now;
        return other >>> EPOCH_SHIFT == 0 && ((other & WARPS) != 0 || other >>> WARP_SHIFT == 0 && other != 0);
    }

    private static KernelFinding unwritten(int lane, int first, int size, long stamp) {
        String why =
                stamp < 0 ? "cp.async may write there until cp.async.wait_group" : "the block has not written there";
        return KernelFinding.failed(lane(lane), "%d bytes at shared address 0x%x: %s", size, first, why);
    }

    private static KernelFinding race(String does, int lane, int first, int size, String did, long stamp) {
        long warp = stamp >>> WARP_SHIFT & LANES;
        long other = stamp & LANES;
        String by = warp == LANES
                ? "several warps"
                : other < EACH_LANE ? "thread " + (warp * Warp.LANES + other) : "several lanes of warp " + warp;
        return KernelFinding.failed(
                lane(lane),
                "%s %d bytes at shared address 0x%x, which %s %s without a barrier between",
                does,
                size,
                first,
                by,
                did);
    }

    private static int lane(int lane) {
        return lane < EACH_LANE ? lane : -1;
    }
}
