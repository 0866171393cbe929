package baton.grammar.automaton;

/** The automaton of a text would take more work or memory than the bounds. Only this text is concerned. */
public final class MatchLimitException extends RuntimeException {
    MatchLimitException(String message) {
        super(message);
    }
}
