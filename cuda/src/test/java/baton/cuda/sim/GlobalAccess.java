package baton.cuda.sim;

/** An instruction's accesses to global memory, with the allocation that it accessed last. Several threads may execute it. */
final class GlobalAccess {
    private static final Allocation NONE = new Allocation(Long.MIN_VALUE, -1, new Allocation.Content(0));

    final Elements elements;
    private final Operands.Address address;
    private final int size;
    /** Whether the instruction says that the kernel does not write there. */
    private final boolean constant;

    private Allocation last = NONE;

    GlobalAccess(Operands.Address address, Elements elements, boolean constant) {
        this.constant = constant;
        this.address = address;
        this.elements = elements;
        this.size = elements.size();
    }

    private Allocation find(Warp warp, int lane, long at, int bytes) {
        if ((at & size - 1) != 0) {
            throw new KernelFinding(
                    KernelFinding.Kind.MISALIGNED_ADDRESS,
                    lane,
                    "global address 0x%x is no multiple of %d".formatted(at, size));
        }
        Allocation allocation = last;
        long first = at - allocation.base;
        KernelCode.Launch launch = warp.block.launch;
        if (first < 0
                || first > allocation.content.bytes.length - bytes
                || !allocation.live
                || allocation.device != launch.device()) {
            allocation = launch.memory().access(launch.device(), lane, at, bytes);
            last = allocation;
        }
        return allocation;
    }

    private void checkRead(Warp warp, int lane, Allocation.Content content, int first, int bytes) {
        if (!content.isWritten(first, bytes)) {
            throw KernelFinding.failed(
                    lane,
                    "reads %d bytes at global address 0x%x that nothing has written",
                    bytes,
                    address.of(warp, lane));
        }
        int[] writers = content.writers();
        int shift = warp.block.kernel.globalShift();
        int last = Math.min(first + bytes - 1 >> shift, writers.length - 1);
        for (int unit = first >> shift; unit <= last; unit++) {
            checkWriter(warp, lane, "reads", writers[unit]);
            if (constant && writers[unit] == warp.block.tag) {
                throw KernelFinding.failed(
                        lane,
                        "reads %d bytes at global address 0x%x by .nc, which the same launch wrote",
                        bytes,
                        address.of(warp, lane));
            }
        }
    }

    private void checkWriter(Warp warp, int lane, String does, int tag) {
        if (tag >= warp.block.launch.firstTag() && tag != warp.block.tag) {
            throw KernelFinding.failed(
                    lane,
                    "%s %d bytes at global address 0x%x, which block %d of the same launch wrote",
                    does,
                    size,
                    address.of(warp, lane),
                    tag - warp.block.launch.firstTag());
        }
    }

    void load(Warp warp, int lanes) {
        for (int left = lanes; left != 0; left &= left - 1) {
            int lane = Integer.numberOfTrailingZeros(left);
            long at = address.of(warp, lane);
            Allocation allocation = find(warp, lane, at, size);
            int first = (int) (at - allocation.base);
            checkRead(warp, lane, allocation.content, first, size);
            elements.load(warp, lane, allocation.content.bytes, first);
        }
    }

    long address(Warp warp, int lane) {
        return address.of(warp, lane);
    }

    /** Checks a read of the first of the bytes. */
    Allocation read(Warp warp, int lane, int bytes) {
        long at = address.of(warp, lane);
        Allocation allocation = find(warp, lane, at, bytes);
        int step = bytes == size ? bytes : 1;
        for (int i = 0; i < bytes; i += step) {
            checkRead(warp, lane, allocation.content, (int) (at - allocation.base) + i, step);
        }
        return allocation;
    }

    void store(Warp warp, int lanes) {
        int shift = warp.block.kernel.globalShift();
        int tag = warp.block.tag;
        for (int left = lanes; left != 0; left &= left - 1) {
            int lane = Integer.numberOfTrailingZeros(left);
            long at = address.of(warp, lane);
            Allocation allocation = find(warp, lane, at, size);
            Allocation.Content content = allocation.content;
            int first = (int) (at - allocation.base);
            int[] writers = content.writers(shift);
            for (int unit = first >> shift; unit <= first + size - 1 >> shift; unit++) {
                checkWriter(warp, lane, "writes", writers[unit]);
                writers[unit] = tag;
            }
            content.setWritten(first, size);
            elements.store(warp, lane, content.bytes, first);
        }
    }
}
