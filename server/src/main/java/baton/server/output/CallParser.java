package baton.server.output;

import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.Supplier;

/**
 * Content until a call begins, and after it. Text that begins like a call and is not a call is content. A call is reported when its name
 * and the beginning of its arguments are there. If it breaks after that, it ends there, and the rest is content.
 */
abstract class CallParser implements OutputParser {
    private final Supplier<String> ids;
    private final StringBuilder rest = new StringBuilder();
    private final StringBuilder taken = new StringBuilder();
    private final StringBuilder space = new StringBuilder();
    private List<Piece> pieces = new ArrayList<>();
    private boolean inSection;
    private boolean ended;
    private int calls;

    /** @param ids makes an id for each call */
    CallParser(Supplier<String> ids) {
        this.ids = ids;
    }

    /** An id as vLLM makes them. */
    static String randomId() {
        return "chatcmpl-tool-"
                + HexFormat.of().toHexDigits(ThreadLocalRandom.current().nextLong());
    }

    /** Whether a text is there, or is not, or may be when more has come. */
    enum Match {
        YES,
        NO,
        MAYBE
    }

    /** Takes something from the text that is left; false if more text is needed first. */
    abstract boolean step();

    /** The text has ended. The text taken, or the text that is left, is no whole call. At least one character is to be given. */
    abstract void cutOff();

    @Override
    public final List<Piece> add(String text) {
        rest.append(text);
        while (!rest.isEmpty() && step()) {}
        return given();
    }

    @Override
    public final List<Piece> end() {
        ended = true;
        while (!rest.isEmpty() || !taken.isEmpty()) {
            boolean goesOn = !rest.isEmpty() && step();
            if (!goesOn && !(rest.isEmpty() && taken.isEmpty())) {
                cutOff();
            }
        }
        if (calls == 0 && !space.isEmpty()) {
            pieces.add(new Piece.Content(space.toString()));
        }
        return given();
    }

    private List<Piece> given() {
        List<Piece> given = pieces;
        pieces = new ArrayList<>();
        return given;
    }

    /** The text that is not taken. */
    final StringBuilder rest() {
        return rest;
    }

    /** Whether nothing but white space was in the text before. */
    final boolean atStart() {
        return calls == 0 && !inSection;
    }

    /** Takes so many characters, which are content again if no call comes of them. */
    final void take(int characters) {
        taken.append(rest, 0, characters);
        rest.delete(0, characters);
    }

    /** Takes white space; false if nothing is left then. */
    final boolean takeSpace() {
        int end = 0;
        while (end < rest.length() && Character.isWhitespace(rest.charAt(end))) {
            end++;
        }
        take(end);
        return !rest.isEmpty();
    }

    /** Whether the text goes on with {@code mark}. */
    final Match next(String mark) {
        int length = Math.min(mark.length(), rest.length());
        if (!mark.startsWith(rest.substring(0, length))) {
            return Match.NO;
        }
        return length == mark.length() ? Match.YES : ended ? Match.NO : Match.MAYBE;
    }

    /** Gives content up to the first of the marks. Empty without a mark; then all is given but the possible beginning of one. */
    final Optional<String> contentUntil(List<String> marks) {
        Marks.Found found = first(marks);
        contentAhead(found.at());
        return found.mark();
    }

    /** The first of the marks in the text that is not taken. */
    final Marks.Found first(List<String> marks) {
        return Marks.first(rest, marks, ended);
    }

    /** Gives so many characters as content. */
    final void contentAhead(int characters) {
        content(rest.substring(0, characters));
        rest.delete(0, characters);
    }

    /** White space counts only if something follows or is before it, as that around calls is no content. */
    private void content(String text) {
        space.append(text);
        if (text.isEmpty() || (!inSection && text.isBlank())) {
            return;
        }
        inSection = true;
        pieces.add(new Piece.Content(space.toString()));
        space.setLength(0);
    }

    /** The first character of the text taken is content. The others are looked through again. */
    final void firstIsContent() {
        putBack();
        contentAhead(1);
    }

    /** The text taken is to be looked through again. */
    final void putBack() {
        rest.insert(0, taken);
        taken.setLength(0);
    }

    /** The text taken is the marks of a call. The call begins. */
    final void begin(String name) {
        pieces.add(new Piece.CallBegin(calls++, ids.get(), name));
        forget();
        space.setLength(0);
        inSection = false;
    }

    /** The text taken is no content. */
    final void forget() {
        taken.setLength(0);
    }

    /** More of the arguments of the last call. */
    final void arguments(String json) {
        if (!json.isEmpty()) {
            pieces.add(new Piece.CallArguments(calls - 1, json));
        }
    }
}
