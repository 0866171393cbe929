package baton.grammar.regex;

import baton.grammar.rule.CharSet;
import baton.grammar.rule.CharSet.Range;
import baton.kv.ConfigException;
import java.util.ArrayList;
import java.util.List;

/** Reads bracketed classes and escapes, both of which are a set of characters. */
final class CharacterClasses {
    private static final CharSet DIGIT = CharSet.range('0', '9');

    private static final CharSet WORD =
            CharSet.union(List.of(new Range('0', '9'), new Range('A', 'Z'), new Range('_', '_'), new Range('a', 'z')));

    /** White space and line terminators of ECMA-262. */
    private static final CharSet SPACE = CharSet.union(List.of(
            new Range('\t', '\r'),
            new Range(' ', ' '),
            new Range(0xA0, 0xA0),
            new Range(0x1680, 0x1680),
            new Range(0x2000, 0x200A),
            new Range(0x2028, 0x2029),
            new Range(0x202F, 0x202F),
            new Range(0x205F, 0x205F),
            new Range(0x3000, 0x3000),
            new Range(0xFEFF, 0xFEFF)));

    /** Most ranges of all classes and escapes of a pattern. */
    private static final int MOST_RANGES = 300_000;

    private final RegexReader reader;
    private int ranges;

    CharacterClasses(RegexReader reader) {
        this.reader = reader;
    }

    /** A class, after its first bracket. */
    CharSet bracketed(boolean ignoresCase) {
        int start = reader.position();
        boolean isNegated = reader.take("^");
        List<Range> ranges = new ArrayList<>();
        while (!reader.take("]")) {
            if (reader.isAtEnd()) {
                throw RegexReader.error(start, "the class is not closed");
            }
            if (reader.take("[:")) {
                throw RegexReader.error(
                        reader.position() - 1, "a class by name '[:' is not supported; write \\p{...} or its ranges");
            }
            CharSet first = member();
            int dash = reader.position();
            if (!reader.take("-")) {
                ranges.addAll(first.ranges());
                continue;
            }
            if (reader.peek() == ']' || isSeveral(first)) {
                // The dash is a character of its own.
                reader.back(dash);
                ranges.addAll(first.ranges());
                continue;
            }
            CharSet last = member();
            if (isSeveral(last)) {
                ranges.addAll(first.ranges());
                ranges.add(new Range('-', '-'));
                ranges.addAll(last.ranges());
                continue;
            }
            if (!first.isEmpty() && !last.isEmpty()) {
                int from = first.ranges().getFirst().first();
                int to = last.ranges().getFirst().first();
                if (to < from) {
                    throw RegexReader.error(dash + 1, "the range is in the wrong order");
                }
                ranges.add(new Range(from, to));
            }
        }
        count(start, ranges.size());
        CharSet set = CharSet.union(ranges);
        set = ignoresCase ? ofAnyCase(set) : set;
        if (!isNegated && ranges.isEmpty() && reader.position() == start + 1) {
            throw RegexReader.error(start, "the class is empty; write \\] for the character within a class");
        }
        return isNegated ? set.complement() : set.intersection(CharSet.ALL);
    }

    private void count(int position, int more) {
        ranges += more;
        if (ranges > MOST_RANGES) {
            throw RegexReader.error(position, "the classes have more than " + MOST_RANGES + " ranges of characters");
        }
    }

    private CharSet member() {
        if (reader.take("\\b")) {
            return CharSet.of('\b');
        }
        return reader.take("\\") ? escape() : CharSet.of(reader.next());
    }

    private static boolean isSeveral(CharSet set) {
        return set.ranges().size() > 1
                || (!set.isEmpty()
                        && set.ranges().getFirst().first()
                                != set.ranges().getFirst().last());
    }

    /** An escape, after its backslash. */
    CharSet escape() {
        int start = reader.position();
        int c = reader.next();
        return switch (c) {
            case 'd' -> DIGIT;
            case 'D' -> DIGIT.complement();
            case 'w' -> WORD;
            case 'W' -> WORD.complement();
            case 's' -> SPACE;
            case 'S' -> SPACE.complement();
            case 'p' -> property();
            case 'P' -> property().complement();
            case 't' -> CharSet.of('\t');
            case 'n' -> CharSet.of('\n');
            case 'v' -> CharSet.of('\u000B');
            case 'f' -> CharSet.of('\f');
            case 'r' -> CharSet.of('\r');
            case 'c' -> control(start);
            case 'x' -> CharSet.of(reader.take("{") ? braced(start) : hex(start, 2));
            case 'u' -> unicode(start);
            case 'b', 'B' -> throw refused(start, c, "a word boundary");
            case 'k' -> throw refused(start, c, "a backreference");
            case 'A', 'z', 'Z' -> throw refused(start, c, "an anchor of other dialects; write ^ or $: it");
            case 'G', 'K', 'X', 'R', 'N', 'h', 'H', 'V', 'Q', 'E' ->
                throw refused(start, c, "an escape of other dialects");
            case '0' -> {
                if (reader.peek() >= '0' && reader.peek() <= '9') {
                    throw refused(start, c, "an octal escape");
                }
                yield CharSet.of(0);
            }
            case '1', '2', '3', '4', '5', '6', '7', '8', '9' -> throw refused(start, c, "a backreference");
            default -> {
                if (c < 0x80 && Character.isLetter(c)) {
                    throw refused(start, c, "an unknown escape");
                }
                yield CharSet.of(c);
            }
        };
    }

    private static ConfigException refused(int start, int c, String kind) {
        return RegexReader.error(start, kind + " '\\" + (char) c + "' is not supported");
    }

    private CharSet control(int start) {
        int letter = reader.next();
        if (letter >= 0x80 || !Character.isLetter(letter)) {
            throw RegexReader.error(start, "a control character is written \\cA to \\cZ");
        }
        return CharSet.of(letter % 32);
    }

    private CharSet unicode(int start) {
        if (reader.take("{")) {
            return CharSet.of(braced(start));
        }
        int unit = hex(start, 4);
        int after = reader.position();
        if (Character.isSurrogate((char) unit) && reader.take("\\u")) {
            if (reader.peek() != '{') {
                int second = hex(start, 4);
                if (Character.isSurrogatePair((char) unit, (char) second)) {
                    return CharSet.of(Character.toCodePoint((char) unit, (char) second));
                }
            }
            reader.back(after);
        }
        // Half of a pair is in no text.
        return CharSet.of(unit);
    }

    private int hex(int start, int digits) {
        int value = 0;
        for (int i = 0; i < digits; i++) {
            int digit = Character.digit(reader.peek(), 16);
            if (digit < 0) {
                throw RegexReader.error(start, "the escape must have " + digits + " hexadecimal digits");
            }
            reader.next();
            value = value * 16 + digit;
        }
        return value;
    }

    private int braced(int start) {
        int value = 0;
        int from = reader.position();
        while (Character.digit(reader.peek(), 16) >= 0 && value <= Character.MAX_CODE_POINT) {
            value = value * 16 + Character.digit(reader.next(), 16);
        }
        if (reader.position() == from || value > Character.MAX_CODE_POINT || !reader.take("}")) {
            throw RegexReader.error(start, "the escape must have hexadecimal digits of at most 10FFFF in braces");
        }
        return value;
    }

    private CharSet property() {
        int start = reader.position();
        if (!reader.take("{")) {
            throw RegexReader.error(start, "a property is written \\p{Name} or \\p{Script=Name}");
        }
        int from = reader.position();
        while (reader.peek() != '}') {
            reader.next();
        }
        String name = reader.from(from);
        reader.next();
        CharSet set = UnicodeProperties.named(name)
                .orElseThrow(() -> RegexReader.error(
                        start,
                        "'" + (name.length() > 40 ? name.substring(0, 40) : name)
                                + "' is no property of characters that is supported; write a general category, such as"
                                + " L or Lowercase_Letter, Script=Name, or Alphabetic"));
        count(start, set.ranges().size());
        return set;
    }

    /** The set with both cases of its ASCII letters. */
    static CharSet ofAnyCase(CharSet set) {
        List<Range> ranges = new ArrayList<>(set.ranges());
        for (int lower = 'a'; lower <= 'z'; lower++) {
            int upper = lower - 'a' + 'A';
            if (set.contains(lower) || set.contains(upper)) {
                ranges.add(new Range(lower, lower));
                ranges.add(new Range(upper, upper));
            }
        }
        return CharSet.union(ranges);
    }
}
