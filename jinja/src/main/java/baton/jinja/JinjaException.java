package baton.jinja;

/** A template cannot be compiled, or its rendering failed, gave up ({@code raise_exception}) or ran past a limit. */
public final class JinjaException extends RuntimeException {
    private final int line;

    JinjaException(int line, String problem) {
        super("line " + line + ": " + problem);
        this.line = line;
    }

    /** The template's line, counted from 1. */
    public int line() {
        return line;
    }
}
