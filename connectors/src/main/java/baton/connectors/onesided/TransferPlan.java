package baton.connectors.onesided;

import java.util.Arrays;
import java.util.Objects;

/**
 * The tokens that one transfer moves, and the reader's blocks for them.
 *
 * @param firstToken a multiple of the reader's block size
 * @param tokens how many
 * @param blocks the reader's, one after the other from {@code firstToken} on
 */
public record TransferPlan(int firstToken, int tokens, int[] blocks) {
    int endToken() {
        return firstToken + tokens;
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof TransferPlan(int first, int count, int[] ids)
                && first == firstToken
                && count == tokens
                && Arrays.equals(ids, blocks);
    }

    @Override
    public int hashCode() {
        return Objects.hash(firstToken, tokens, Arrays.hashCode(blocks));
    }
}
