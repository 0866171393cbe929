package baton.connectors.sglang;

import baton.connectors.ConnectorRuntime;
import baton.connectors.onesided.Background;
import baton.connectors.onesided.TransferStats;
import baton.kv.KvCache;
import baton.kv.connector.ConnectorContext;
import baton.kv.connector.Rank;
import baton.messages.PeerAddress;
import baton.messages.sglang.SglangExchange;
import baton.transfer.TransferAgent;

/**
 * The state that all loads and writes of one rank share.
 *
 * @param address where messages reach the rank
 */
record SglangRank(
        ConnectorContext context,
        SglangSettings settings,
        ConnectorRuntime runtime,
        Rank rank,
        KvCache cache,
        TransferAgent agent,
        SglangExchange exchange,
        PeerAddress address,
        SglangPages pages,
        TransferStats stats) {

    Background background() {
        return new Background(runtime.background(), context.wake());
    }

    long now() {
        return context.ticker().nanos();
    }

    /** This rank's number among those of its instance, in status messages. */
    int number() {
        return rank.tensor() * context.pipelineParallelSize() + rank.pipeline();
    }
}
