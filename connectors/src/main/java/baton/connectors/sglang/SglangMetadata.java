package baton.connectors.sglang;

import baton.kv.connector.ConnectorMetadata;
import baton.messages.PeerAddress;
import java.util.List;
import java.util.Set;

/**
 * The workers' tasks in a step.
 *
 * @param cancelled requests of which the loads are not wanted any more
 * @param ready finished prompts
 * @param abandoned rooms of prefill requests that ended without their blocks, or that no decode request will name
 */
record SglangMetadata(List<Wish> wishes, Set<String> cancelled, List<Ready> ready, Set<Long> abandoned)
        implements ConnectorMetadata {
    SglangMetadata {
        wishes = List.copyOf(wishes);
        cancelled = Set.copyOf(cancelled);
        ready = List.copyOf(ready);
        abandoned = Set.copyOf(abandoned);
    }

    /**
     * Where a prompt comes from.
     *
     * @param bootstrap the prefill instance's registry
     * @param room {@code bootstrap_room}, which both requests have
     */
    record Source(PeerAddress bootstrap, long room) {}

    /**
     * Has the last blocks of a prompt written.
     *
     * @param blocks may be none: then the prefill instance learns that the prompt is not needed
     * @param prefix tokens in front of them
     * @param prompt digest of the prompt
     */
    record Wish(String requestId, Source source, int[] blocks, int prefix, String prompt) {
        /** The prompt is not needed. */
        static Wish release(String requestId, Source source, int prefix) {
            return new Wish(requestId, source, new int[0], prefix, "");
        }
    }

    /**
     * A prompt that is computed, to be kept for the decode instance.
     *
     * @param blocks all blocks of the prompt
     * @param token the first of the output
     * @param cached tokens of the prompt that were not computed for this request
     * @param prompt digest of the prompt
     */
    record Ready(String requestId, long room, int[] blocks, int token, int cached, String prompt) {}
}
