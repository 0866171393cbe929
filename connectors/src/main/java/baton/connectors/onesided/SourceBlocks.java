package baton.connectors.onesided;

import baton.connectors.onesided.PeerEngine.RemoteRank;
import baton.kv.KvDigest;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;

/**
 * The owner's side of a load.
 *
 * @param blocks the owner's block table
 * @param generations of {@code blocks}, to be checked with the blocks' checksums; empty if the owner has none
 * @param ranks that have the heads
 */
record SourceBlocks(int[] blocks, Optional<long[]> generations, List<RemoteRank> ranks) {
    static SourceBlocks of(RemoteBlocks reference, PeerEngine owner) {
        int pages = owner.ranks().getFirst().info().pagesPerBlock();
        int[] blocks = pages == 1
                ? reference.blocks()
                : Arrays.stream(reference.blocks())
                        .flatMap(block -> IntStream.range(0, pages)
                                // Beyond all blocks, where an id of the reference is.
                                .map(page -> (int) Math.min((long) block * pages + page, Integer.MAX_VALUE)))
                        .toArray();
        return new SourceBlocks(blocks, reference.proof().map(SignedProof::generations), owner.ranks());
    }

    /** The kind of the owner's checksums. */
    KvDigest digest() {
        return ranks.getFirst().info().digest();
    }

    /** Whether the owner has a table with the generations of the blocks, and their checksums if it makes any. */
    boolean isChecked() {
        return generations.isPresent();
    }
}
