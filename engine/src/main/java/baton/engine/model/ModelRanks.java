package baton.engine.model;

import baton.kv.KvLayout;
import baton.kv.connector.Rank;
import java.util.List;

/**
 * A model in one process, whole or shared among ranks. Each step is a call of {@link ModelRunner#forward} with the same slices on
 * every rank, each on a thread of its own; the next step begins when all have returned. The first rank of the last stage returns
 * the logits, the other ranks none. A rank that fails makes the other ranks fail in the same step.
 *
 * @param runners one for each rank, stage after stage
 * @param tensorParallelSize ranks that share the heads
 * @param pipelineParallelSize stages that share the layers
 * @param layout of a pool that had all heads and the layers of all stages; of several groups those that a block has in each stage
 */
public record ModelRanks(List<ModelRunner> runners, int tensorParallelSize, int pipelineParallelSize, KvLayout layout)
        implements AutoCloseable {
    public ModelRanks {
        runners = List.copyOf(runners);
        if (runners.size() != tensorParallelSize * pipelineParallelSize) {
            throw new IllegalArgumentException("%d runners for tensorParallelSize=%d, pipelineParallelSize=%d"
                    .formatted(runners.size(), tensorParallelSize, pipelineParallelSize));
        }
    }

    /** A model in one rank. */
    public static ModelRanks of(ModelRunner runner) {
        return new ModelRanks(List.of(runner), 1, 1, runner.cache().layout());
    }

    public ModelRunner first() {
        return runners.getFirst();
    }

    public Rank rank(int index) {
        return new Rank(index / tensorParallelSize, index % tensorParallelSize);
    }

    /** The index of the rank that returns logits. */
    public int logitsRank() {
        return (pipelineParallelSize - 1) * tensorParallelSize;
    }

    /** Closes the runners, the first last: it may own memory that other runners use. */
    @Override
    public void close() {
        runners.reversed().forEach(ModelRunner::close);
    }
}
