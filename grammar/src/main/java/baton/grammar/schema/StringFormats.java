package baton.grammar.schema;

import baton.grammar.regex.Regexes;
import baton.grammar.rule.Expression;
import baton.kv.ConfigException;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/** The formats of strings that draft 2020-12 defines, as regular expressions. */
final class StringFormats {
    private static final Set<String> UNDECIDED = Set.of("idn-email", "idn-hostname", "iri", "iri-reference", "regex");

    private static final String LEAP_YEAR =
            "(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)";
    private static final String DATE = "(?:\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])"
            + "|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8]))|"
            + LEAP_YEAR + "-02-29)";
    private static final String SECOND_FRACTION = "(?:\\.\\d{1,30})?";

    /** Shorter, as an automaton has it once for each offset. */
    private static final String LEAP_FRACTION = "(?:\\.\\d{1,6})?";

    private static final String CLOCK =
            "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d" + SECOND_FRACTION + "(?:[Zz]|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)";
    private static final String TIME = "(?:" + CLOCK + "|" + leapSeconds(24 * 60) + ")";

    /** The days in UTC that had a leap second. */
    private static final String LEAP_DAY = "(?:(?:197[2-9]|1987|1989|1990|1995|1998|2005|2008|2016)-12-31"
            + "|(?:1972|198[1235]|199[2347]|2012|2015)-06-30)";

    private static final String DATE_TIME =
            "(?:" + DATE + "[Tt]" + CLOCK + "|" + LEAP_DAY + "[Tt]" + leapSeconds(15) + ")";

    private static final String TIME_OF_DURATION =
            "T(?:\\d{1,99}H(?:\\d{1,99}M(?:\\d{1,99}S)?)?|\\d{1,99}M(?:\\d{1,99}S)?|\\d{1,99}S)";
    private static final String DURATION =
            "P(?:\\d{1,99}W|(?:\\d{1,99}Y(?:\\d{1,99}M(?:\\d{1,99}D)?)?|\\d{1,99}M(?:\\d{1,99}D)?|\\d{1,99}D)(?:"
                    + TIME_OF_DURATION + ")?|" + TIME_OF_DURATION + ")";

    private static final String BYTE = "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
    private static final String IPV4 = "(?:" + BYTE + "\\.){3}" + BYTE;
    private static final String IPV6 = ipv6();

    /** Labels like {@code xn--a} are refused, since not all of them stand for a name. */
    private static final String HOSTNAME = "(?:" + labels(61, 3) + "|" + labels(22, 10) + ")";

    private static final String WORD = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~\\-]";
    /** The part before the sign has at most 64 characters, and an address at most 254. A domain ends with letters. */
    private static final String EMAIL = "(?:" + WORD + "{1,64}|" + WORD + "{1,20}(?:\\." + WORD
            + "{1,20}){1,2}|\"(?:[ !#-\\[\\]-~]|\\\\[ -~]){0,31}\")@(?:" + label(61) + "|(?:" + label(22)
            + "\\.){1,6}[A-Za-z]{2,24}|\\[(?:" + IPV4 + "|IPv6:" + IPV6 + ")\\])";

    private static final String PERCENT = "%[0-9A-Fa-f]{2}";
    private static final String CHARACTER = "(?:[A-Za-z0-9._~!$&'()*+,;=:@\\-]|" + PERCENT + ")";
    private static final String SEGMENTS = "(?:/" + CHARACTER + "*)*";
    private static final String ROOTED = "/(?:" + CHARACTER + "+" + SEGMENTS + ")?";
    private static final String AUTHORITY = "//(?:(?:[A-Za-z0-9._~!$&'()*+,;=:\\-]|" + PERCENT + ")*@)?(?:\\[(?:" + IPV6
            + "|[vV][0-9A-Fa-f]+\\.[A-Za-z0-9._~!$&'()*+,;=:\\-]+)\\]|(?:[A-Za-z0-9._~!$&'()*+,;=\\-]|" + PERCENT
            + ")*)(?::\\d{0,5})?" + SEGMENTS;
    private static final String QUERY_FRAGMENT = "(?:\\?(?:" + CHARACTER + "|[/?])*)?(?:#(?:" + CHARACTER + "|[/?])*)?";
    private static final String URI = "[A-Za-z][A-Za-z0-9+.\\-]*:(?:" + AUTHORITY + "|" + ROOTED + "|" + CHARACTER + "+"
            + SEGMENTS + ")?" + QUERY_FRAGMENT;
    private static final String RELATIVE = "(?:" + AUTHORITY + "|" + ROOTED + "|(?:[A-Za-z0-9._~!$&'()*+,;=@\\-]|"
            + PERCENT + ")+" + SEGMENTS + ")?" + QUERY_FRAGMENT;

    private static final String NAME =
            "(?:[A-Za-z0-9_]|" + PERCENT + ")(?:\\.?(?:[A-Za-z0-9_]|" + PERCENT + "))*(?::[1-9]\\d{0,3}|\\*)?";
    private static final String URI_TEMPLATE = "(?:[^\\x00-\\x20\"%<>\\\\^`{|}\\x7F-\\x9F]|" + PERCENT
            + "|\\{[+#./;?&=,!@|]?" + NAME + "(?:," + NAME + ")*\\})*";

    private static final String POINTER = "(?:/(?:[^~/]|~[01])*)*";

    private static final Map<String, String> PATTERNS = Map.ofEntries(
            Map.entry("date", DATE),
            Map.entry("time", TIME),
            Map.entry("date-time", DATE_TIME),
            Map.entry("duration", DURATION),
            Map.entry("email", EMAIL),
            Map.entry("hostname", HOSTNAME),
            Map.entry("ipv4", IPV4),
            Map.entry("ipv6", IPV6),
            Map.entry("uuid", "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"),
            Map.entry("uri", URI),
            Map.entry("uri-reference", "(?:" + URI + "|" + RELATIVE + ")"),
            Map.entry("uri-template", URI_TEMPLATE),
            Map.entry("json-pointer", POINTER),
            Map.entry("relative-json-pointer", "(?:0|[1-9]\\d{0,8})(?:#|" + POINTER + ")"));

    private StringFormats() {}

    /**
     * The strings of a format, or empty if no draft defines it: then it is an annotation.
     *
     * @throws ConfigException if it is defined, but not decided
     */
    static Optional<Expression> expression(String path, String name) {
        if (UNDECIDED.contains(name)) {
            throw ConfigException.unsupported(
                    path,
                    name,
                    String.join(", ", PATTERNS.keySet().stream().sorted().toList()));
        }
        return Optional.ofNullable(PATTERNS.get(name)).map(Regexes::expression);
    }

    /** The last second of a day in UTC that has one more, at offsets of whole quarters of an hour before some offset. */
    private static String leapSeconds(int end) {
        List<String> hours = new ArrayList<>();
        for (int hour = 0; hour < 24; hour++) {
            List<String> minutes = new ArrayList<>();
            for (int minute = 14; minute < 60; minute += 15) {
                int east = 60 * hour + minute + 1;
                String offsets = offset(east - 24 * 60) + (east < end ? "|" + offset(east) : "");
                minutes.add(minute + ":60" + LEAP_FRACTION + "(?:" + offsets + ")");
            }
            hours.add(String.format(Locale.ROOT, "%02d:(?:%s)", hour, String.join("|", minutes)));
        }
        return "(?:" + String.join("|", hours) + ")";
    }

    private static String offset(int minutes) {
        return minutes == 0
                ? "[Zz]|[+-]00:00"
                : String.format(
                        Locale.ROOT,
                        "%s%02d:%02d",
                        minutes < 0 ? "-" : "\\+",
                        Math.abs(minutes) / 60,
                        Math.abs(minutes) % 60);
    }

    /** Names of labels that have at most so many characters between the first and the last one. */
    private static String labels(int inner, int most) {
        String label = label(inner);
        return label + "(?:\\." + label + "){0," + (most - 1) + "}";
    }

    private static String label(int inner) {
        String first = "[A-Za-z0-9]";
        String any = "[A-Za-z0-9\\-]";
        return first + "(?:" + any + "{0,2}" + first + "|" + any + "(?:" + first + any + "|-" + first + ")" + any
                + "{0," + (inner - 3) + "}" + first + ")?";
    }

    private static String ipv6() {
        String group = "[0-9A-Fa-f]{1,4}";
        String last = "(?:" + group + ":" + group + "|" + IPV4 + ")";
        List<String> forms = new ArrayList<>();
        forms.add("(?:" + group + ":){6}" + last);
        for (int after = 5; after >= 0; after--) {
            String before = after == 5 ? "" : "(?:(?:" + group + ":){0," + (4 - after) + "}" + group + ")?";
            forms.add(before + "::(?:" + group + ":){" + after + "}" + last);
        }
        forms.add("(?:(?:" + group + ":){0,5}" + group + ")?::" + group);
        forms.add("(?:(?:" + group + ":){0,6}" + group + ")?::");
        return "(?:" + String.join("|", forms) + ")";
    }
}
