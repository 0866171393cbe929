package baton.cuda.sim;

import baton.cuda.driver.CudaException;
import java.util.List;

/**
 * An instruction as the text of a kernel has it.
 *
 * @param line of the module's text, from 1
 * @param guard the predicate that the instruction is executed by, or empty
 * @param negated whether it is executed where the guard does not hold
 */
record Statement(int line, String text, String guard, boolean negated, String opcode, List<String> operands) {
    CudaException refused(String reason) {
        return refused(line, text, reason);
    }

    static CudaException refused(int line, String text, String reason) {
        return new CudaException(
                "cuModuleLoadDataEx", 218, "CUDA_ERROR_INVALID_PTX", "line %d: `%s`: %s".formatted(line, text, reason));
    }
}
