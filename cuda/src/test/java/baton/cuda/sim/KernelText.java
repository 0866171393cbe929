package baton.cuda.sim;

import java.util.List;
import java.util.Map;

/**
 * A kernel, parsed.
 *
 * @param parameters types such as {@code u64} by name, in order
 * @param maxThreads of a block
 * @param shared offsets of variables in shared memory
 * @param sharedBytes of the variables; dynamic shared memory begins there
 * @param registers types such as {@code b32} by name
 * @param labels the index of the statement that comes after each
 */
record KernelText(
        String name,
        Map<String, String> parameters,
        int maxThreads,
        Map<String, Integer> shared,
        int sharedBytes,
        Map<String, String> registers,
        List<Statement> statements,
        Map<String, Integer> labels) {}
