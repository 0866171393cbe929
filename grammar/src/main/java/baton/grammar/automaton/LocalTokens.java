package baton.grammar.automaton;

/**
 * Tokens by the upper part of stacks only.
 *
 * @param within tokens of which some text of this part begins with all bytes, or has all of them
 * @param exits nodes of the vocabulary's tree, with nodes below them; a text of this part may be over at their end
 */
record LocalTokens(TokenSet within, int[] exits) {
    long bytes() {
        return 32 + within.bytes() + 4L * exits.length;
    }
}
