package baton.connectors.sharedstorage;

import baton.kv.connector.ConnectorMetadata;
import baton.store.prompt.SharedStorage;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;

/** The work of a step: loads to start, and saves. */
record SharedStorageConnectorMetadata(List<Load> loads, List<Save> saves) implements ConnectorMetadata {
    SharedStorageConnectorMetadata {
        loads = List.copyOf(loads);
        saves = List.copyOf(saves);
    }

    /**
     * Loads the tokens of the entry from {@code firstToken} on, as many as {@code blocks} hold.
     *
     * @param firstToken a multiple of the block size
     * @param blocks the blocks to fill
     */
    record Load(String requestId, SharedStorage.Entry entry, int firstToken, int[] blocks) {
        Set<Integer> blockSet() {
            return Arrays.stream(blocks).boxed().collect(Collectors.toUnmodifiableSet());
        }
    }

    /**
     * Saves the KV of a whole aligned prompt, which is in place when this step's forward pass ends.
     *
     * @param blocks all blocks of the aligned prompt
     */
    record Save(String requestId, String name, int tokens, int[] blocks) {}
}
