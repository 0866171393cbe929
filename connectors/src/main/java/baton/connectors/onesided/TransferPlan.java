package baton.connectors.onesided;

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
}
