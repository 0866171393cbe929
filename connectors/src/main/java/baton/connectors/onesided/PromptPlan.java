package baton.connectors.onesided;

import baton.kv.connector.ConnectorMetadata;
import baton.messages.PeerAddress;
import java.util.List;
import java.util.Set;

/**
 * The workers' tasks in a step, by a {@link PromptScheduler}.
 *
 * @param cancelled requests with cancelled loads
 * @param ready finished prompts
 * @param abandoned keys of prefill requests that ended without their blocks
 * @param unknown prefill requests with a lost answer
 */
public record PromptPlan(
        List<Wish> wishes, Set<String> cancelled, List<Ready> ready, Set<String> abandoned, Set<String> unknown)
        implements ConnectorMetadata {
    public PromptPlan {
        wishes = List.copyOf(wishes);
        cancelled = Set.copyOf(cancelled);
        ready = List.copyOf(ready);
        abandoned = Set.copyOf(abandoned);
        unknown = Set.copyOf(unknown);
    }

    /**
     * Where a prompt comes from.
     *
     * @param key that both of its requests have
     * @param engineId of the prefill instance; empty if the registry is of one instance
     * @param registry that has the prefill instance's ranks
     */
    public record Source(String key, String engineId, PeerAddress registry) {
        /** Tells prefill instances apart. */
        public String instance() {
            return engineId.isEmpty() ? registry.toString() : engineId + "@" + registry;
        }
    }

    /**
     * Has the last blocks of a prompt written.
     *
     * @param blocks may be none: then the prefill instance is notified that the prompt is not needed
     * @param prefix tokens in front of them
     * @param prompt digest of the prompt
     * @param waitsSince a registry that has failed to answer since then is not asked again for it
     */
    public record Wish(String requestId, Source source, int[] blocks, int prefix, String prompt, long waitsSince) {
        /** The prompt is not needed. */
        public static Wish release(String requestId, Source source, int prefix, long now) {
            return new Wish(requestId, source, new int[0], prefix, "", now);
        }

        public boolean isRelease() {
            return blocks.length == 0;
        }
    }

    /**
     * A prompt that is computed, to be kept for decode instances.
     *
     * @param blocks all blocks of the prompt
     * @param token the first of the output
     * @param cached tokens of the prompt that were not computed for this request
     * @param prompt digest of the prompt
     */
    public record Ready(String requestId, String key, int[] blocks, int token, int cached, String prompt) {}
}
