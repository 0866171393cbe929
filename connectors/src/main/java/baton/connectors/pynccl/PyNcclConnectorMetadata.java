package baton.connectors.pynccl;

import baton.kv.connector.ConnectorMetadata;
import java.util.List;
import java.util.Set;

/**
 * What the workers are to do in a step.
 *
 * @param sends prompts whose last token this step computes
 * @param loads prompts to receive
 * @param discards lookup keys of prompts that the producer has for requests that take nothing
 * @param preempted requests whose blocks may be written to from here on
 */
record PyNcclConnectorMetadata(List<Send> sends, List<Load> loads, List<int[]> discards, Set<String> preempted)
        implements ConnectorMetadata {
    /**
     * A prompt to send.
     *
     * @param key what it is looked up by, see {@link PromptKey}
     * @param blocks those that hold it
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
