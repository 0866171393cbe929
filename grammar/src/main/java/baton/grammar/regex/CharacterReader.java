package baton.grammar.regex;

import baton.kv.ConfigException;
import java.util.function.IntPredicate;

/** The characters of a text, one after the other. One thread at a time. */
public abstract class CharacterReader {
    private final int[] text;
    private int at;

    /** @param field named by the error if the text has more characters than {@code most} */
    protected CharacterReader(String field, String text, int most) {
        this.text = text.codePoints().toArray();
        if (this.text.length > most) {
            throw new ConfigException(field, "has " + this.text.length + " characters, must have at most " + most);
        }
    }

    /** The error where a character is wanted at the end. */
    protected abstract ConfigException endError();

    public final boolean isAtEnd() {
        return at == text.length;
    }

    public final int position() {
        return at;
    }

    /** Goes back to where {@link #position} was. */
    public final void back(int position) {
        at = position;
    }

    /** The character at a position. */
    protected final int character(int position) {
        return text[position];
    }

    /** The next character, or -1. */
    public final int peek() {
        return isAtEnd() ? -1 : text[at];
    }

    public final int next() {
        if (isAtEnd()) {
            throw endError();
        }
        return text[at++];
    }

    /** Takes the characters if they are next. */
    public final boolean take(String characters) {
        for (int i = 0; i < characters.length(); i++) {
            if (at + i >= text.length || text[at + i] != characters.charAt(i)) {
                return false;
            }
        }
        at += characters.length();
        return true;
    }

    /** Takes the characters that are next and fit. */
    public final String takeWhile(IntPredicate fits) {
        int start = at;
        while (!isAtEnd() && fits.test(text[at])) {
            at++;
        }
        return from(start);
    }

    public final String from(int start) {
        return new String(text, start, at - start);
    }
}
