package baton.connectors.mooncake;

import baton.connectors.ConnectorRuntime;
import baton.connectors.onesided.Background;
import baton.connectors.onesided.TransferStats;
import baton.kv.KvCache;
import baton.kv.KvLayout;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.Rank;
import baton.transfer.TransferAgent;

/** The state that all loads and writes of one rank share. */
record LocalRank(
        ConnectorContext context,
        MooncakeSettings settings,
        ConnectorRuntime runtime,
        Rank rank,
        KvCache cache,
        TransferAgent agent,
        TransferStats stats) {

    /** A description of the blocks; equal for instances that can exchange them, and readable in errors. */
    String compatibility() {
        KvLayout layout = cache.layout();
        return "version=1 model=%s dtype=%s head_dim=%d block_size=%d layout=%s"
                .formatted(
                        context.model().digest(),
                        layout.dtype().torchName(),
                        layout.headDim(),
                        layout.blockSize(),
                        layout.kind());
    }

    Background background() {
        return new Background(runtime.background(), context.wake());
    }

    WritePlan.Ranks ranks() {
        return new WritePlan.Ranks(context.tensorParallelSize(), rank.tensor(), context.pipelineParallelSize());
    }

    long now() {
        return context.ticker().nanos();
    }
}
