package baton.jinja;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * Splits a template into text and tags with Jinja2's whitespace rules under {@code trim_blocks=True} and
 * {@code lstrip_blocks=True}: a block tag or comment takes the line break after it and, if it is first in its line, the
 * indent before it; {@code -} takes all white space on its side, {@code +} none. One line break at the template's end is dropped.
 */
final class Lexer {
    enum Kind {
        TEXT,
        PRINT_BEGIN,
        PRINT_END,
        BLOCK_BEGIN,
        BLOCK_END,
        NAME,
        STRING,
        INTEGER,
        FLOAT,
        OPERATOR,
        END
    }

    record Token(Kind kind, String text, int line) {
        boolean is(Kind wanted, String wantedText) {
            return kind == wanted && text.equals(wantedText);
        }
    }

    private static final Pattern RAW_BEGIN = Pattern.compile("\\{%([-+]?)\\s*raw\\s*(-%\\}\\s*|%\\})");
    private static final Pattern RAW_END = Pattern.compile("\\{%([-+]?)\\s*endraw\\s*(\\+%\\}|-%\\}\\s*|%\\}\\n?)");
    private static final Pattern COMMENT_END = Pattern.compile("\\+#\\}|-#\\}\\s*|#\\}\\n?");
    private static final Pattern PRINT_END = Pattern.compile("-\\}\\}\\s*|\\}\\}");
    private static final Pattern BLOCK_END = Pattern.compile("\\+%\\}|-%\\}\\s*|%\\}\\n?");
    private static final Pattern SPACE = Pattern.compile("\\s+");
    private static final Pattern NAME = Pattern.compile("[\\p{L}\\p{Nl}_][\\p{L}\\p{Nl}\\p{Mn}\\p{Mc}\\p{Nd}\\p{Pc}]*");
    private static final Pattern FLOAT = Pattern.compile(
            "(?<!\\.)\\d++(?:_\\d++)*+(?:(?:\\.\\d++(?:_\\d++)*+)?[eE][+-]?\\d++(?:_\\d++)*+|\\.\\d++(?:_\\d++)*+)");
    private static final Pattern INTEGER = Pattern.compile(
            "0[bB](?:_?[01])++|0[oO](?:_?[0-7])++|0[xX](?:_?[0-9a-fA-F])++|[1-9](?:_?\\d)*+|0(?:_?0)*+");
    private static final Pattern STRING =
            Pattern.compile("'[^'\\\\]*+(?:\\\\.[^'\\\\]*+)*+'|\"[^\"\\\\]*+(?:\\\\.[^\"\\\\]*+)*+\"", Pattern.DOTALL);
    private static final Pattern OPERATOR = Pattern.compile("//|\\*\\*|==|!=|>=|<=|[-+/*%~\\[\\](){}><=.:|,;]");

    private final String source;
    private final List<Token> tokens = new ArrayList<>();
    private int position;
    private int line = 1;
    private boolean atLineStart = true;

    private Lexer(String source) {
        this.source = source;
    }

    static List<Token> tokens(String template) {
        String source = template.replace("\r\n", "\n").replace('\r', '\n');
        if (source.endsWith("\n")) {
            source = source.substring(0, source.length() - 1);
        }
        Lexer lexer = new Lexer(source);
        lexer.run();
        return lexer.tokens;
    }

    private void run() {
        while (position < source.length()) {
            int tag = nextTag();
            if (tag < 0) {
                add(Kind.TEXT, source.substring(position));
                position = source.length();
            } else {
                tag(tag);
            }
        }
        add(Kind.END, "");
    }

    private int nextTag() {
        for (int at = source.indexOf('{', position); at >= 0; at = source.indexOf('{', at + 1)) {
            if (at + 1 < source.length() && "{%#".indexOf(source.charAt(at + 1)) >= 0) {
                return at;
            }
        }
        return -1;
    }

    private void tag(int at) {
        char type = source.charAt(at + 1);
        char sign = at + 2 < source.length() ? source.charAt(at + 2) : ' ';
        boolean signed = sign == '-' || sign == '+';
        text(at, sign, type != '{');
        Optional<Matcher> raw = type == '%' ? match(RAW_BEGIN) : Optional.empty();
        if (raw.isPresent()) {
            advance(raw.get().end());
            Matcher end = RAW_END.matcher(source);
            if (!end.find(position)) {
                throw new JinjaException(line, "{% raw %} without {% endraw %}");
            }
            String endSign = end.group(1);
            text(end.start(), endSign.isEmpty() ? ' ' : endSign.charAt(0), true);
            advance(end.end());
        } else if (type == '#') {
            Matcher end = COMMENT_END.matcher(source);
            if (!end.find(Math.min(position + (signed ? 3 : 2), source.length()))) {
                throw new JinjaException(line, "{# without #}");
            }
            advance(end.end());
        } else {
            add(type == '{' ? Kind.PRINT_BEGIN : Kind.BLOCK_BEGIN, "");
            advance(position + (signed ? 3 : 2));
            expression(type == '{');
        }
    }

    /** Emits the text up to a tag, without the blanks that the tag strips. */
    private void text(int end, char sign, boolean takesIndent) {
        String text = source.substring(position, end);
        String kept = text;
        if (sign == '-') {
            kept = Strings.stripRight(text);
        } else if (sign != '+' && takesIndent) {
            int lineStart = text.lastIndexOf('\n') + 1;
            if ((lineStart > 0 || atLineStart)
                    && text.substring(lineStart).codePoints().allMatch(Strings::isSpace)) {
                kept = text.substring(0, lineStart);
            }
        }
        if (!kept.isEmpty()) {
            add(Kind.TEXT, kept);
        }
        advance(end);
    }

    private void expression(boolean print) {
        Deque<Character> open = new ArrayDeque<>();
        while (true) {
            match(SPACE).ifPresent(space -> advance(space.end()));
            if (position >= source.length()) {
                throw new JinjaException(line, (print ? "{{" : "{%") + " is not closed");
            }
            if (open.isEmpty()) {
                Optional<Matcher> end = match(print ? PRINT_END : BLOCK_END);
                if (end.isPresent()) {
                    add(print ? Kind.PRINT_END : Kind.BLOCK_END, "");
                    advance(end.get().end());
                    return;
                }
            }
            if (take(Kind.FLOAT, FLOAT) || take(Kind.INTEGER, INTEGER) || take(Kind.NAME, NAME)) {
                continue;
            }
            Optional<Matcher> string = match(STRING);
            if (string.isPresent()) {
                String quoted = string.get().group();
                add(Kind.STRING, unescape(quoted.substring(1, quoted.length() - 1)));
                advance(string.get().end());
                continue;
            }
            char next = source.charAt(position);
            if (!take(Kind.OPERATOR, OPERATOR)) {
                throw new JinjaException(line, "unexpected character '" + next + "'");
            }
            switch (next) {
                case '(' -> open.push(')');
                case '[' -> open.push(']');
                case '{' -> open.push('}');
                case ')', ']', '}' -> {
                    if (open.isEmpty() || open.pop() != next) {
                        throw new JinjaException(line, "unexpected '" + next + "'");
                    }
                }
                default -> {}
            }
        }
    }

    private boolean take(Kind kind, Pattern pattern) {
        Optional<Matcher> found = match(pattern);
        found.ifPresent(matcher -> {
            add(kind, matcher.group());
            advance(matcher.end());
        });
        return found.isPresent();
    }

    static boolean isName(String text) {
        return NAME.matcher(text).matches();
    }

    private Optional<Matcher> match(Pattern pattern) {
        Matcher matcher =
                pattern.matcher(source).region(position, source.length()).useTransparentBounds(true);
        return matcher.lookingAt() ? Optional.of(matcher) : Optional.empty();
    }

    private void add(Kind kind, String text) {
        tokens.add(new Token(kind, text, line));
    }

    private void advance(int to) {
        for (int i = position; i < to; i++) {
            if (source.charAt(i) == '\n') {
                line++;
            }
        }
        if (to > position) {
            atLineStart = source.charAt(to - 1) == '\n';
        }
        position = to;
    }

    /** Python's escapes; one that is none stays as written. */
    private String unescape(String quoted) {
        if (quoted.indexOf('\\') < 0) {
            return quoted;
        }
        StringBuilder text = new StringBuilder(quoted.length());
        for (int i = 0; i < quoted.length(); i++) {
            char c = quoted.charAt(i);
            if (c != '\\') {
                text.append(c);
                continue;
            }
            char kind = quoted.charAt(++i);
            switch (kind) {
                case '\n' -> {}
                case '\\', '\'', '"' -> text.append(kind);
                case 'n' -> text.append('\n');
                case 't' -> text.append('\t');
                case 'r' -> text.append('\r');
                case 'b' -> text.append('\b');
                case 'f' -> text.append('\f');
                case 'a' -> text.append('\u0007');
                case 'v' -> text.append('\u000B');
                case 'x' -> i += codePoint(quoted, i + 1, 2, text);
                case 'u' -> i += codePoint(quoted, i + 1, 4, text);
                case 'U' -> i += codePoint(quoted, i + 1, 8, text);
                case 'N' -> i = named(quoted, i + 1, text);
                case '0', '1', '2', '3', '4', '5', '6', '7' -> {
                    int end = i;
                    while (end < quoted.length()
                            && end < i + 3
                            && quoted.charAt(end) >= '0'
                            && quoted.charAt(end) <= '7') {
                        end++;
                    }
                    text.append((char) Integer.parseInt(quoted, i, end, 8));
                    i = end - 1;
                }
                default -> {
                    // Python's escape of a character beyond ASCII is read here as if its backslash were escaped.
                    int point = quoted.codePointAt(i);
                    i += Character.charCount(point) - 1;
                    text.append('\\');
                    text.append(
                            point < 0x80
                                    ? Character.toString(kind)
                                    : Representation.escape(point).substring(1));
                }
            }
        }
        return text.toString();
    }

    /** A character by its name in Unicode. */
    private int named(String quoted, int from, StringBuilder text) {
        int end = quoted.indexOf('}', from);
        try {
            text.appendCodePoint(Character.codePointOf(quoted.substring(from + 1, Math.max(from + 1, end))));
            return end;
        } catch (IllegalArgumentException | IndexOutOfBoundsException e) {
            throw new JinjaException(line, "unknown Unicode character name");
        }
    }

    private int codePoint(String quoted, int from, int digits, StringBuilder text) {
        try {
            text.appendCodePoint(Integer.parseInt(quoted, from, from + digits, 16));
            return digits;
        } catch (IndexOutOfBoundsException | IllegalArgumentException e) {
            throw new JinjaException(line, "a string's escape needs " + digits + " hexadecimal digits");
        }
    }
}
