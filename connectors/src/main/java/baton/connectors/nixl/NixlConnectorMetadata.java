package baton.connectors.nixl;

import baton.kv.connector.ConnectorMetadata;
import java.util.List;
import java.util.Optional;
import java.util.Set;

/**
 * What the workers do in one step.
 *
 * @param opened blocks that others write to from this step on
 * @param sealed blocks that are complete when this step has been computed
 * @param loads to start
 * @param unused references that nothing will be loaded from; their owner is told
 * @param cancelled requests that ended while they were loaded
 * @param heartbeats references whose blocks are still wanted; their owner is told
 * @param leases finished requests whose blocks others will read
 * @param preempted requests that lost their blocks
 * @param abandoned requests that others were to read, which ended before there was anything to be read
 * @param port of the side channel
 * @param written what this step computes of requests whose blocks are pushed
 */
record NixlConnectorMetadata(
        List<Opened> opened,
        int[] sealed,
        List<Load> loads,
        List<RemoteBlocks> unused,
        Set<String> cancelled,
        List<RemoteBlocks> heartbeats,
        List<Lease> leases,
        Set<String> preempted,
        Set<String> abandoned,
        int port,
        List<Written> written)
        implements ConnectorMetadata {
    /** A block's new generation. */
    record Opened(int block, long generation) {}

    /**
     * Loads tokens from a peer's blocks.
     *
     * @param firstToken a multiple of the block size
     * @param tokens how many
     * @param blocks that have them here
     * @param prompt digest of the whole prompt, if the source does not say what it is of
     */
    record Load(
            String requestId, RemoteBlocks source, int firstToken, int tokens, int[] blocks, Optional<String> prompt) {
        /** The same from another source. */
        Load from(RemoteBlocks other) {
            return new Load(requestId, other, firstToken, tokens, blocks, prompt);
        }
    }

    /**
     * Blocks that are kept for others.
     *
     * @param nanos how long, unless its reader gives a sign of life
     */
    record Lease(String requestId, int[] blocks, long nanos) {}

    /**
     * The part of a prompt that is in place when this step has been computed.
     *
     * @param blocks all of the request's blocks that hold it
     * @param before tokens in place before the step
     * @param after tokens in place after it
     * @param promptLength of the request
     * @param prompt digest of the prompt
     */
    record Written(String requestId, int[] blocks, int before, int after, int promptLength, String prompt) {}
}
