package baton.grammar.automaton;

/** A text whose automaton would take more work or memory than the bounds. Only this text is concerned. */
public final class MatchLimitException extends RuntimeException {
    MatchLimitException(String message) {
        super(message);
    }
}
