package baton.cuda.sim;

import java.util.List;
import java.util.concurrent.ConcurrentLinkedQueue;

/**
 * A kernel, ready to be executed. Registers are rows of 32 lanes: of 32 bits and fewer, of 64 bits, and predicates, which are a bit for each lane.
 *
 * @param steps one for each statement
 * @param words rows of 32 bits
 * @param constants values of rows of 32 bits, after the registers
 * @param longs rows of 64 bits
 * @param wideConstants values of rows of 64 bits, after the registers
 * @param sharedShift a unit of shared memory is {@code 1 << sharedShift} bytes
 * @param globalShift the same for bytes in global memory that it writes
 * @param idle blocks that wait for a launch
 */
record KernelCode(
        KernelText text,
        Step[] steps,
        int words,
        List<Integer> constants,
        int longs,
        List<Long> wideConstants,
        int predicates,
        int sharedShift,
        int globalShift,
        ConcurrentLinkedQueue<Block> idle) {

    /**
     * An instruction.
     *
     * @param guard the predicate of the lanes that execute it
     * @param flip all ones if it is executed where the predicate does not hold
     */
    record Step(Statement statement, int guard, int flip, Operation operation) {}

    String name() {
        return text.name();
    }

    /** A launch of the kernel. */
    record Launch(
            KernelCode code,
            DeviceMemory memory,
            int device,
            int gridX,
            int gridY,
            int gridZ,
            int threads,
            int sharedBytes,
            long[] arguments,
            int firstTag) {}

    /** Executes a block. */
    long run(Launch launch, int block) {
        Block idleBlock = idle.poll();
        Block on = idleBlock != null ? idleBlock : new Block(this, launch);
        long steps = on.run(launch, block);
        idle.add(on);
        return steps;
    }
}
