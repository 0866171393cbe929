package baton.kv;

import java.util.List;
import java.util.Optional;

/**
 * A change of the content of a cache of KV blocks, in vLLM's terms ({@code vllm.distributed.kv_events}). A router needs these events to
 * send requests to cached prefixes.
 */
public sealed interface KvEvent {
    /** {@link BlockStored#medium} of an accelerator's memory, of main memory and of files. */
    String MEDIUM_GPU = "GPU";

    String MEDIUM_CPU = "CPU";
    String MEDIUM_STORAGE = "STORAGE";

    /**
     * Consecutive blocks of one sequence are stored.
     *
     * @param blockHashes of the blocks, in the sequence's order
     * @param parent hash of the block before the first; empty at the sequence's beginning
     * @param tokenIds of all blocks, {@code blockHashes.size() * blockSize} of them unless the last block is partial
     * @param blockSize tokens in a block
     * @param lora the LoRA adapter that the tokens were computed with
     * @param medium where the blocks are; empty if the event does not say
     * @param details fields that vLLM leaves out of a message where they are not set
     */
    record BlockStored(
            List<BlockHash> blockHashes,
            Optional<BlockHash> parent,
            List<Integer> tokenIds,
            int blockSize,
            Optional<Lora> lora,
            Optional<String> medium,
            Details details)
            implements KvEvent {
        public BlockStored {
            blockHashes = List.copyOf(blockHashes);
            tokenIds = List.copyOf(tokenIds);
        }

        /** Without a LoRA adapter and details. */
        public BlockStored(
                List<BlockHash> blockHashes,
                Optional<BlockHash> parent,
                List<Integer> tokenIds,
                int blockSize,
                String medium) {
            this(blockHashes, parent, tokenIds, blockSize, Optional.empty(), Optional.of(medium), Details.NONE);
        }
    }

    /**
     * Blocks are no longer stored.
     *
     * @param medium where they were; empty if the event does not say
     * @param place fields that vLLM leaves out of a message where they are not set
     */
    record BlockRemoved(List<BlockHash> blockHashes, Optional<String> medium, Place place) implements KvEvent {
        public BlockRemoved {
            blockHashes = List.copyOf(blockHashes);
        }

        /** A removal from a place that the event does not name. */
        public BlockRemoved(List<BlockHash> blockHashes, String medium) {
            this(blockHashes, Optional.of(medium), Place.UNKNOWN);
        }
    }

    /** Nothing is stored any more. */
    record AllBlocksCleared() implements KvEvent {}

    /**
     * A LoRA adapter: vLLM's {@code lora_id} and {@code lora_name}.
     *
     * @param id vLLM's number of the adapter, from 1
     */
    record Lora(int id, String name) {}

    /**
     * Which of a cache's blocks are meant, beyond the medium.
     *
     * @param group index of the KV cache group: vLLM's {@code group_idx}
     * @param locality {@code LOCAL} or {@code REMOTE}
     * @param ownership id of the secondary tier that holds the blocks
     */
    record Place(Optional<Integer> group, Optional<String> locality, Optional<String> ownership) {
        public static final Place UNKNOWN = new Place(Optional.empty(), Optional.empty(), Optional.empty());

        /** The only KV cache group. */
        public static final Place ONLY_GROUP = of(0);

        /** A KV cache group. */
        public static Place of(int group) {
            return new Place(Optional.of(group), Optional.empty(), Optional.empty());
        }
    }

    /**
     * Details of stored blocks that few senders give.
     *
     * @param extraKeys for each block the inputs of its hash beside the tokens, e.g. a cache salt: vLLM's {@code extra_keys}; a block
     *     without any has an empty list
     * @param specKind vLLM's {@code kv_cache_spec_kind}, e.g. {@code full_attention}
     * @param slidingWindow tokens of the window: {@code kv_cache_spec_sliding_window}
     * @param sessionId of the request that stored them
     */
    record Details(
            Optional<List<List<String>>> extraKeys,
            Place place,
            Optional<String> specKind,
            Optional<Integer> slidingWindow,
            Optional<String> sessionId) {
        public static final Details NONE =
                new Details(Optional.empty(), Place.UNKNOWN, Optional.empty(), Optional.empty(), Optional.empty());

        /** The details of blocks in the only KV cache group. */
        public static final Details OF_ONLY_GROUP =
                new Details(Optional.empty(), Place.ONLY_GROUP, Optional.empty(), Optional.empty(), Optional.empty());

        public Details {
            extraKeys = extraKeys.map(keys -> keys.stream().map(List::copyOf).toList());
        }
    }
}
