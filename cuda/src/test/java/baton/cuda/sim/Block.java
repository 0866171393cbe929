package baton.cuda.sim;

import java.util.ArrayList;
import java.util.List;

/** A block of threads. Each of its warps runs until a barrier, then the next one. */
final class Block {
    final KernelCode kernel;
    final BlockMemory shared;
    KernelCode.Launch launch;
    int x;
    int y;
    int z;
    /** The number that the block's writes to global memory are marked by. */
    int tag;

    private final List<Warp> warps = new ArrayList<>();

    Block(KernelCode kernel, KernelCode.Launch launch) {
        this.kernel = kernel;
        this.launch = launch;
        this.shared = new BlockMemory(kernel.sharedShift());
    }

    String place() {
        return "(%d,%d,%d)".formatted(x, y, z);
    }

    /** @return how many instructions of warps it was */
    long run(KernelCode.Launch of, int number) {
        launch = of;
        x = number % of.gridX();
        y = number / of.gridX() % of.gridY();
        z = number / of.gridX() / of.gridY();
        tag = of.firstTag() + number;
        shared.begin(kernel.text().sharedBytes() + of.sharedBytes());
        int count = (of.threads() + Warp.LANES - 1) / Warp.LANES;
        while (warps.size() < count) {
            warps.add(new Warp(this, warps.size()));
        }
        List<Warp> running = warps.subList(0, count);
        running.forEach(Warp::begin);
        while (true) {
            int waiting = 0;
            for (Warp warp : running) {
                warp.run();
                waiting += warp.isAtBarrier() ? 1 : 0;
            }
            if (waiting == 0) {
                break;
            }
            if (waiting < count) {
                throw KernelFinding.failed(
                                -1, "%d of %d warps wait at a barrier, the others have ended", waiting, count)
                        .at(this);
            }
            shared.barrier();
            running.forEach(Warp::passBarrier);
        }
        long steps = 0;
        boolean pending = false;
        for (Warp warp : running) {
            steps += warp.steps();
            pending |= !warp.copies.isEmpty();
        }
        shared.end(pending);
        return steps;
    }
}
