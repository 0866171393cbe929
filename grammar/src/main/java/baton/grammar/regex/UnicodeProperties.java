package baton.grammar.regex;

import baton.grammar.rule.CharSet;
import baton.grammar.rule.CharSet.Range;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.function.IntFunction;
import java.util.function.IntPredicate;

/** Sets of characters by a property of Unicode: general categories, scripts and a few properties that are true or false. */
final class UnicodeProperties {
    /** Made with the first one, as they take time. */
    private static final class Scripts {
        static final Map<Character.UnicodeScript, CharSet> ALL = grouped(Character.UnicodeScript::of);
    }

    /** The categories by short and long names, as in ECMA-262. */
    private static final Map<String, CharSet> CATEGORIES = categories();

    /** Made with the first one, as they take time. */
    private static final class Binary {
        static final Map<String, CharSet> ALL = Map.ofEntries(
                Map.entry("Any", CharSet.ALL),
                Map.entry("ASCII", CharSet.range(0, 0x7F)),
                Map.entry("ASCII_Hex_Digit", CharSet.of("0123456789ABCDEFabcdef")),
                Map.entry("Assigned", category("Cn").complement()),
                Map.entry("Alphabetic", where(Character::isAlphabetic)),
                Map.entry("Lowercase", where(Character::isLowerCase)),
                Map.entry("Uppercase", where(Character::isUpperCase)),
                Map.entry("Ideographic", where(Character::isIdeographic)),
                Map.entry(
                        "White_Space",
                        CharSet.of("\t\n\u000B\f\r\u0085\u2028\u2029").union(category("Zs"))),
                Map.entry("ID_Start", where(Character::isUnicodeIdentifierStart)),
                Map.entry(
                        "ID_Continue",
                        where(c -> Character.isUnicodeIdentifierPart(c) && !Character.isIdentifierIgnorable(c))),
                Map.entry("Emoji", where(Character::isEmoji)),
                Map.entry("Emoji_Presentation", where(Character::isEmojiPresentation)),
                Map.entry("Emoji_Modifier", where(Character::isEmojiModifier)),
                Map.entry("Extended_Pictographic", where(Character::isExtendedPictographic)));
    }

    /** Short names of {@link Binary}. */
    private static final Map<String, String> SHORT = Map.of(
            "AHex", "ASCII_Hex_Digit",
            "Alpha", "Alphabetic",
            "Lower", "Lowercase",
            "Upper", "Uppercase",
            "Ideo", "Ideographic",
            "space", "White_Space");

    private UnicodeProperties() {}

    /** The characters of {@code Name} or {@code Name=Value}. */
    static Optional<CharSet> named(String name) {
        int equals = name.indexOf('=');
        String value = name.substring(equals + 1);
        return switch (name.substring(0, Math.max(equals, 0))) {
            case "" ->
                Optional.ofNullable(CATEGORIES.get(value))
                        .or(() -> Optional.ofNullable(Binary.ALL.get(SHORT.getOrDefault(value, value))));
            case "General_Category", "gc" -> Optional.ofNullable(CATEGORIES.get(value));
            case "Script", "sc" -> script(value);
            default -> Optional.empty();
        };
    }

    private static Optional<CharSet> script(String name) {
        try {
            return Optional.ofNullable(Scripts.ALL.get(Character.UnicodeScript.forName(name.toUpperCase(Locale.ROOT))));
        } catch (IllegalArgumentException _) {
            return Optional.empty();
        }
    }

    private static CharSet category(String name) {
        return CATEGORIES.getOrDefault(name, CharSet.NONE);
    }

    private static Map<String, CharSet> categories() {
        // Names and types; a group has the types of its parts.
        String names = """
            Lu Uppercase_Letter 1; Ll Lowercase_Letter 2; Lt Titlecase_Letter 3; LC Cased_Letter 1 2 3;
            Lm Modifier_Letter 4; Lo Other_Letter 5; L Letter 1 2 3 4 5; Mn Nonspacing_Mark 6; Me Enclosing_Mark 7;
            Mc Spacing_Mark 8; M Mark 6 7 8; M Combining_Mark 6 7 8; Nd Decimal_Number 9; Nd digit 9;
            Nl Letter_Number 10; No Other_Number 11; N Number 9 10 11; Zs Space_Separator 12; Zl Line_Separator 13;
            Zp Paragraph_Separator 14; Z Separator 12 13 14; Cc Control 15; Cc cntrl 15; Cf Format 16;
            Co Private_Use 18; Cn Unassigned 0; C Other 0 15 16 18; Cs Surrogate 19; Pd Dash_Punctuation 20;
            Ps Open_Punctuation 21; Pe Close_Punctuation 22; Pc Connector_Punctuation 23; Po Other_Punctuation 24;
            Pi Initial_Punctuation 29; Pf Final_Punctuation 30; P Punctuation 20 21 22 23 24 29 30;
            P punct 20 21 22 23 24 29 30; Sm Math_Symbol 25; Sc Currency_Symbol 26; Sk Modifier_Symbol 27;
            So Other_Symbol 28; S Symbol 25 26 27 28""";
        Map<Integer, CharSet> types = grouped(Character::getType);
        Map<String, CharSet> categories = new HashMap<>();
        for (String each : names.split(";")) {
            List<String> words = List.of(each.strip().split(" "));
            CharSet all = CharSet.union(words.subList(2, words.size()).stream()
                    .flatMap(type -> types.getOrDefault(Integer.valueOf(type), CharSet.NONE).ranges().stream())
                    .toList());
            categories.put(words.get(0), all);
            categories.put(words.get(1), all);
        }
        return Map.copyOf(categories);
    }

    private static CharSet where(IntPredicate predicate) {
        return grouped(predicate::test).getOrDefault(true, CharSet.NONE);
    }

    /** The next character that may have another property: most planes are unassigned, or for private use. */
    static int after(int character) {
        return switch (character) {
            case 0x33FFF -> 0xE0000;
            case 0xE0FFF -> 0xF0000;
            case 0xF0000 -> 0xFFFFE;
            case 0xFFFFE -> 0x100000;
            case 0x100000 -> 0x10FFFE;
            default -> character + 1;
        };
    }

    /** The characters of each value. */
    private static <T> Map<T, CharSet> grouped(IntFunction<T> value) {
        Map<T, List<Range>> ranges = new HashMap<>();
        for (Range all : CharSet.ALL.ranges()) {
            int first = all.first();
            T current = value.apply(first);
            for (int c = after(first); c <= all.last(); c = after(c)) {
                T next = value.apply(c);
                if (!next.equals(current)) {
                    ranges.computeIfAbsent(current, _ -> new ArrayList<>()).add(new Range(first, c - 1));
                    first = c;
                    current = next;
                }
            }
            ranges.computeIfAbsent(current, _ -> new ArrayList<>()).add(new Range(first, all.last()));
        }
        Map<T, CharSet> sets = new HashMap<>();
        ranges.forEach((each, its) -> sets.put(each, CharSet.union(its)));
        return Map.copyOf(sets);
    }
}
