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

    /** Safe in HTML. */
    static String escape(Value.Str text) {
        return text.markup()
                ? text.text()
                : text.text()
                        .replace("&", "&amp;")
                        .replace("<", "&lt;")
                        .replace(">", "&gt;")
                        .replace("'", "&#39;")
                        .replace("\"", "&#34;");
    }

    /** Whether Python counts it to a word of {@code \w}. */
    static boolean isWord(int point) {
        return isAlphanumeric(point) || point == '_';
    }

    static boolean isAlphanumeric(int point) {
        return Character.isLetter(point) || isNumeric(point);
    }

    static boolean isNumeric(int point) {
        int type = Character.getType(point);
        return type == Character.DECIMAL_DIGIT_NUMBER
                || type == Character.LETTER_NUMBER
                || type == Character.OTHER_NUMBER;
    }

    /** Whether it is a digit, be it superscript or circled. */
    @SuppressWarnings("CharacterGetNumericValue") // only asked of numbers, which letters are not
    static boolean isDigit(int point) {
        int value = Character.getNumericValue(point);
        return Character.isDigit(point)
                || (Character.getType(point) == Character.OTHER_NUMBER && value >= 0 && value <= 9);
    }

    static boolean isCased(int point) {
        return Character.isUpperCase(point) || Character.isLowerCase(point) || Character.isTitleCase(point);
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
        int at = 0;
        while (true) {
            while (at < text.length() && isSpace(text.charAt(at))) {
                at++;
            }
            if (at == text.length()) {
                return words;
            }
            int end = at;
            if (limit >= 0 && words.size() == limit) {
                // Python keeps the white space at the end.
                end = text.length();
            }
            while (end < text.length() && !isSpace(text.charAt(end))) {
                end++;
            }
            words.add(text.substring(at, end));
            at = end;
        }
    }

    /** {@code rsplit(None, limit)}. */
    static List<String> wordsFromRight(String text, int limit) {
        List<String> words = new ArrayList<>();
        int end = text.length();
        while (true) {
            while (end > 0 && isSpace(text.charAt(end - 1))) {
                end--;
            }
            if (end == 0) {
                return words.reversed();
            }
            int at = limit >= 0 && words.size() == limit ? 0 : end;
            while (at > 0 && !isSpace(text.charAt(at - 1))) {
                at--;
            }
            words.add(text.substring(at, end));
            end = at;
        }
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
        return lines(text, false);
    }

    static List<String> lines(String text, boolean withEnds) {
        List<String> lines = new ArrayList<>();
        int from = 0;
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if ((c >= '\n' && c <= '\r') || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029) {
                int end = i;
                if (c == '\r' && i + 1 < text.length() && text.charAt(i + 1) == '\n') {
                    i++;
                }
                lines.add(text.substring(from, withEnds ? i + 1 : end));
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

    /** {@code str.title()}: a word is a run of letters with case. */
    static String title(String text) {
        StringBuilder titled = new StringBuilder(text.length());
        boolean within = false;
        for (int i = 0; i < text.length(); i += Character.charCount(text.codePointAt(i))) {
            int point = text.codePointAt(i);
            titled.appendCodePoint(within ? Character.toLowerCase(point) : Character.toTitleCase(point));
            within = isCased(point);
        }
        return titled.toString();
    }
}
