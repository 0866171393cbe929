package baton.jinja;

import java.time.Clock;
import java.time.ZonedDateTime;
import java.time.format.DateTimeFormatter;
import java.util.Locale;

/** C's {@code strftime} in the C locale, for the conversions that prompts use. */
final class Strftime {
    private Strftime() {}

    static String format(String format, Clock clock, RenderBudget budget) {
        ZonedDateTime now = ZonedDateTime.now(clock);
        StringBuilder out = new StringBuilder();
        for (int i = 0; i < format.length(); i++) {
            char c = format.charAt(i);
            if (c != '%') {
                out.append(c);
                continue;
            }
            boolean unpadded = i + 1 < format.length() && format.charAt(i + 1) == '-';
            i += unpadded ? 2 : 1;
            char kind = i < format.length() ? format.charAt(i) : ' ';
            String pattern = switch (kind) {
                case 'd' -> "dd";
                case 'm' -> "MM";
                case 'y' -> "yy";
                case 'Y' -> "yyyy";
                case 'b', 'h' -> "MMM";
                case 'B' -> "MMMM";
                case 'a' -> "EEE";
                case 'A' -> "EEEE";
                case 'H' -> "HH";
                case 'I' -> "hh";
                case 'M' -> "mm";
                case 'S' -> "ss";
                case 'p' -> "a";
                case 'j' -> "DDD";
                case 'e' -> "ppd";
                case 'F' -> "yyyy-MM-dd";
                case 'T' -> "HH:mm:ss";
                case 'R' -> "HH:mm";
                case 'D' -> "MM/dd/yy";
                case 'z' -> "xx";
                case 'Z' -> "zzz";
                case '%' -> "'%'";
                default -> throw budget.error("strftime_now does not know '%" + kind + "'");
            };
            String text = now.format(DateTimeFormatter.ofPattern(pattern, Locale.US));
            out.append(unpadded ? text.replaceFirst("^[0 ]+(?=.)", "") : text);
        }
        return out.toString();
    }
}
