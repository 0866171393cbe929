package baton.connectors.nixl;

import baton.connectors.onesided.LoadRequest;
import baton.connectors.onesided.PromptProgress;
import baton.connectors.onesided.RemoteBlocks;
import baton.kv.connector.ConnectorMetadata;
import java.util.List;
import java.util.Set;

/**
 * The work of a step.
 *
 * @param opened blocks that another request writes from this step on
 * @param completed blocks that are complete when this step has been computed
 * @param loads to start
 * @param unused references that nothing will be loaded from; their owner gets a completion
 * @param cancelled requests that ended while they were loaded
 * @param heartbeats references to blocks still wanted; their owner gets a heartbeat
 * @param leases finished requests with blocks that peers will read
 * @param preempted requests that lost their blocks
 * @param abandoned requests for peers that ended before they had blocks, or with a lost answer
 * @param port of the side channel
 * @param progress of prompts with blocks that may be pushed: of those that have come since the last step, and of those that this step computes
 */
record NixlConnectorMetadata(
        List<Opened> opened,
        int[] completed,
        List<LoadRequest> loads,
        List<RemoteBlocks> unused,
        Set<String> cancelled,
        List<RemoteBlocks> heartbeats,
        List<Lease> leases,
        Set<String> preempted,
        Set<String> abandoned,
        int port,
        List<PromptProgress> progress)
        implements ConnectorMetadata {
    /** A block's new generation. */
    record Opened(int block, long generation) {}

    /**
     * A finished request with blocks that are kept for peers.
     *
     * @param nanos how long, unless a heartbeat extends it
     */
    record Lease(String requestId, long nanos) {}
}
