package baton.engine;

import baton.kv.ConfigException;
import baton.kv.Require;
import java.util.OptionalInt;

/**
 * The ranks that compute a model together, threads of this process: {@code pipelineParallelSize} stages that share the layers, in
 * each {@code tensorParallelSize} ranks that share the heads.
 */
public record ParallelConfig(int tensorParallelSize, int pipelineParallelSize, CpuBinding cpuBinding) {
    /** One rank, where the operating system puts it. */
    public static final ParallelConfig SINGLE = new ParallelConfig(1, 1, CpuBinding.NONE);

    private static final int MOST = 1024;

    public ParallelConfig {
        Require.between("tensor_parallel_size", tensorParallelSize, 1, MOST);
        Require.between("pipeline_parallel_size", pipelineParallelSize, 1, MOST);
        int bound = cpuBinding.coresByRank().size();
        if (bound != 0 && bound != tensorParallelSize * pipelineParallelSize) {
            throw new ConfigException(
                    "cpu_bind",
                    "has cores for %d ranks, but tensor_parallel_size=%d times pipeline_parallel_size=%d make %d"
                            .formatted(
                                    bound,
                                    tensorParallelSize,
                                    pipelineParallelSize,
                                    tensorParallelSize * pipelineParallelSize));
        }
    }

    public int ranks() {
        return tensorParallelSize * pipelineParallelSize;
    }

    /**
     * Threads that each rank computes with: its share of {@code total}, or else as many as it has cores.
     *
     * @param total threads of all ranks together, if that is prescribed
     */
    public int threadsPerRank(OptionalInt total) {
        if (total.isPresent() || cpuBinding.coresByRank().isEmpty()) {
            // More threads than cores would wait for each other spinning.
            return Math.max(1, total.orElse(Runtime.getRuntime().availableProcessors()) / ranks());
        }
        return cpuBinding.coresByRank().stream()
                .mapToInt(cores -> cores.size())
                .min()
                .orElse(1);
    }
}
