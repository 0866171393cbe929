package baton.engine.text;

/**
 * Turns one sequence's generated tokens into text as they come. The pieces returned, put together, are the text that
 * {@link Tokenizer#decode} gives for all tokens at once; none ends within a character. For one thread.
 */
public sealed interface Detokenizer permits TableDetokenizer, WindowDetokenizer {
    /** Adds a token and returns the text that can no longer change; empty while a character is incomplete. */
    String append(int id);

    /** The rest, with U+FFFD for a character that stayed incomplete. Nothing may be appended afterwards. */
    String finish();
}
