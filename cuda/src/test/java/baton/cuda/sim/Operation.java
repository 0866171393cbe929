package baton.cuda.sim;

/** The effect of an instruction in lanes of a warp. */
@FunctionalInterface
interface Operation {
    /** @param lanes a bit for each that executes it, at least one */
    void run(Warp warp, int lanes);
}
