package baton.connectors.onesided;

import java.util.Optional;

/**
 * The tokens that one transfer moves, and the reader's blocks for them.
 *
 * @param firstToken a multiple of the reader's block size
 * @param tokens how many
 * @param blocks the reader's, one after the other from {@code firstToken} on
 * @param sources for each of {@code blocks} the index of the owner's block in its table, where the pools have several groups of
 *     layers and equal block sizes; the blocks then are those of one group after the other
 */
public record TransferPlan(int firstToken, int tokens, int[] blocks, Optional<int[]> sources) {
    /** Of a pool whose blocks have all layers. */
    public TransferPlan(int firstToken, int tokens, int[] blocks) {
        this(firstToken, tokens, blocks, Optional.empty());
    }

    int endToken() {
        return firstToken + tokens;
    }
}
