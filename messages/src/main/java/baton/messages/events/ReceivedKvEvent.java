package baton.messages.events;

import java.util.OptionalLong;

/** An event of another process, with the fields that an index of its blocks needs. Arrays are not copied. */
public sealed interface ReceivedKvEvent {
    /**
     * Consecutive blocks of one sequence are stored.
     *
     * @param hashes one for each block; of hashes with more than 8 bytes the last 8
     * @param parent hash of the block before the first; empty at the sequence's beginning
     * @param tokens of all blocks, those of a block followed by its look-ahead; empty if the event has none
     * @param blockSize tokens in a block
     * @param lookahead tokens behind a block that its hash covers, too
     * @param extra {@link ExtraKeys} of each block; empty if no block has any
     * @param place medium, KV cache group and tier, in one text
     * @param kind vLLM's {@code kv_cache_spec_kind}; empty if the event has none
     * @param lora name of the LoRA adapter; empty for none
     */
    record Stored(
            long[] hashes,
            OptionalLong parent,
            int[] tokens,
            int blockSize,
            int lookahead,
            long[] extra,
            String place,
            String kind,
            String lora)
            implements ReceivedKvEvent {}

    /** Blocks are no longer stored in a place. */
    record Removed(long[] hashes, String place) implements ReceivedKvEvent {}

    /** Nothing is stored any more. */
    record Cleared() implements ReceivedKvEvent {}
}
