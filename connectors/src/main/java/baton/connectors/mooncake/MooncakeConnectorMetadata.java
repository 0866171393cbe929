package baton.connectors.mooncake;

import baton.kv.connector.ConnectorMetadata;
import java.util.List;
import java.util.Set;

/**
 * The workers' tasks in a step.
 *
 * @param cancelled requests of which the loads are not wanted any more
 * @param ready finished prompts
 * @param abandoned transfers of prefill requests that ended without their blocks
 * @param unknown prefill requests whose answer was lost
 */
record MooncakeConnectorMetadata(
        List<Load> loads, Set<String> cancelled, List<Ready> ready, Set<String> abandoned, Set<String> unknown)
        implements ConnectorMetadata {
    MooncakeConnectorMetadata {
        loads = List.copyOf(loads);
        cancelled = Set.copyOf(cancelled);
        ready = List.copyOf(ready);
        abandoned = Set.copyOf(abandoned);
        unknown = Set.copyOf(unknown);
    }

    /**
     * Where a prompt's blocks come from.
     *
     * @param bootstrap the registry that has the prefill instance, {@code http://host:port}
     */
    record Source(String transferId, String engineId, String bootstrap) {
        /** Tells prefill instances apart. */
        String instance() {
            return engineId + "@" + bootstrap;
        }
    }

    /**
     * Has the last blocks of a prompt written.
     *
     * @param blocks if empty, the prefill instance is only notified that they are not needed
     * @param prompt digest of the prompt
     * @param waitsSince a registry that has failed to answer since then is not asked again for it
     */
    record Load(String requestId, Source source, int[] blocks, String prompt, long waitsSince) {
        boolean isRelease() {
            return blocks.length == 0;
        }
    }

    /**
     * A prompt that is computed, to be kept for decode instances.
     *
     * @param blocks all blocks of the prompt
     */
    record Ready(String requestId, String transferId, int[] blocks, String prompt) {}
}
