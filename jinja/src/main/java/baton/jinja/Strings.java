package baton.jinja;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.function.IntPredicate;

/** Python's {@code str}, where it differs from {@link String}: code points, white space, case. */
final class Strings {
    private Strings() {}

    static boolean isSpace(int point) {
        return Character.isWhitespace(point) || Character.isSpaceChar(point) || point == 0x85;
    }

    static String stripRight(String text) {
        return strip(text, Strings::isSpace, false, true);
    }

    static String strip(String text, IntPredicate stripped, boolean left, boolean right) {
        int from = 0;
        int to = text.length();
        while (left && from < to && stripped.test(text.codePointAt(from))) {
            from += Character.charCount(text.codePointAt(from));
        }
        while (right && to > from && stripped.test(text.codePointBefore(to))) {
            to -= Character.charCount(text.codePointBefore(to));
        }
        return text.substring(from, to);
    }

    static int length(String text) {
        return text.codePointCount(0, text.length());
    }

    static List<String> characters(String text) {
        List<String> characters = new ArrayList<>(text.length());
        for (int i = 0; i < text.length(); i += Character.charCount(text.codePointAt(i))) {
            characters.add(Character.toString(text.codePointAt(i)));
        }
        return characters;
    }

    /** {@code split()}: at runs of white space. */
    static List<String> words(String text, int limit) {
        List<String> words = new ArrayList<>();
        String rest = strip(text, Strings::isSpace, true, false);
        while (!rest.isEmpty()) {
            if (limit >= 0 && words.size() == limit) {
                words.add(stripRight(rest));
                break;
            }
            int end = 0;
            while (end < rest.length() && !isSpace(rest.charAt(end))) {
                end++;
            }
            words.add(rest.substring(0, end));
            rest = strip(rest.substring(end), Strings::isSpace, true, false);
        }
        return words;
    }

    static List<String> split(String text, String separator, int limit) {
        List<String> parts = new ArrayList<>();
        int from = 0;
        for (int at = text.indexOf(separator);
                at >= 0 && (limit < 0 || parts.size() < limit);
                at = text.indexOf(separator, from)) {
            parts.add(text.substring(from, at));
            from = at + separator.length();
        }
        parts.add(text.substring(from));
        return parts;
    }

    static List<String> splitFromRight(String text, String separator, int limit) {
        List<String> parts = new ArrayList<>();
        int to = text.length();
        for (int at = text.lastIndexOf(separator);
                at >= 0 && (limit < 0 || parts.size() < limit);
                at = to < separator.length() ? -1 : text.lastIndexOf(separator, to - separator.length())) {
            parts.addFirst(text.substring(at + separator.length(), to));
            to = at;
        }
        parts.addFirst(text.substring(0, to));
        return parts;
    }

    static List<String> lines(String text) {
        List<String> lines = new ArrayList<>();
        int from = 0;
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if ((c >= '\n' && c <= '\r') || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029) {
                lines.add(text.substring(from, i));
                if (c == '\r' && i + 1 < text.length() && text.charAt(i + 1) == '\n') {
                    i++;
                }
                from = i + 1;
            }
        }
        if (from < text.length()) {
            lines.add(text.substring(from));
        }
        return lines;
    }

    static String capitalize(String text) {
        if (text.isEmpty()) {
            return text;
        }
        int first = Character.charCount(text.codePointAt(0));
        return Character.toString(Character.toTitleCase(text.codePointAt(0)))
                + text.substring(first).toLowerCase(Locale.ROOT);
    }

    /** {@code str.title()}: a word is a run of letters. */
    static String title(String text) {
        return title(text, Character::isLetter);
    }

    /** Upper case after a character that is not {@code inWord}, lower case otherwise. */
    static String title(String text, IntPredicate inWord) {
        StringBuilder titled = new StringBuilder(text.length());
        boolean within = false;
        for (int i = 0; i < text.length(); i += Character.charCount(text.codePointAt(i))) {
            int point = text.codePointAt(i);
            titled.appendCodePoint(within ? Character.toLowerCase(point) : Character.toTitleCase(point));
            within = inWord.test(point);
        }
        return titled.toString();
    }
}
