package baton.grammar.automaton;

/** How far a sequence of tokens has come within a grammar. One thread at a time. */
public final class TokenMatcher {
    private final TokenGrammar grammar;

    /** Both are the grammar's to write. */
    States states;

    State state;

    TokenMatcher(TokenGrammar grammar, States states, State state) {
        this.grammar = grammar;
        this.states = states;
        this.state = state;
    }

    /**
     * Writes one bit for each token id: whether some text of the grammar begins with the tokens so far and this one. The end tokens are
     * among them exactly if the text may end here, or the grammar has one of them here as a special token.
     *
     * @param mask at least as many bits as the vocabulary has tokens
     * @throws MatchLimitException if the sequence needs more work than the bound
     */
    public void allow(long[] mask) {
        grammar.allow(this, mask);
    }

    /**
     * Moves on by a token. An end token changes nothing where the text may end.
     *
     * @return whether the token was allowed; otherwise nothing changes
     * @throws MatchLimitException if the sequence needs more work than the bound
     */
    public boolean accept(int token) {
        return grammar.accept(this, token);
    }

    /** Whether the tokens so far are a text of the grammar. */
    public boolean mayEnd() {
        return state.complete;
    }

    /** Whether no token but an end may come. */
    public boolean mustEnd() {
        return state.places.length == 0;
    }

    /** Another matcher that has come as far. */
    public TokenMatcher copy() {
        return new TokenMatcher(grammar, states, state);
    }
}
