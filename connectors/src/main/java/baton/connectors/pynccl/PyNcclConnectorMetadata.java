package baton.connectors.pynccl;

import baton.kv.connector.ConnectorMetadata;
import java.util.List;
import java.util.Set;

/**
 * The workers' tasks in a step.
 *
 * @param sends prompts that this step completes
 * @param loads prompts to receive
 * @param discards lookup keys of entries to take out and drop: their requests do not load
 * @param preempted requests with blocks that other requests may overwrite from this step on
 */
record PyNcclConnectorMetadata(List<Send> sends, List<Load> loads, List<int[]> discards, Set<String> preempted)
        implements ConnectorMetadata {
    /**
     * A prompt to send.
     *
     * @param key of the lookup, see {@link PromptKey}
     * @param blocks of the prompt
     */
    record Send(String requestId, int[] key, int[] blocks, int tokens) {}

    /**
     * A prompt to receive.
     *
     * @param tokens of the prompt
     * @param computed tokens at its beginning that are in the pool already, whole blocks
     */
    record Load(String requestId, int[] key, int[] blocks, int tokens, int computed) {}
}
