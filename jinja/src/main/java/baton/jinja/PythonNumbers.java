package baton.jinja;

import java.math.BigInteger;
import java.util.Locale;
import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Numbers in texts, as Python's {@code int()} and {@code float()} read them. */
final class PythonNumbers {
    /** More digits are not read: no number may be that large. */
    private static final int MAX_LENGTH = 2000;

    private static final Pattern INTEGER = Pattern.compile("([+-]?)(0[xXoObB])?((?:_?[0-9a-zA-Z])++)");
    private static final Pattern REAL = Pattern.compile(
            "[+-]?(?:(?:\\d(?:_?\\d)*+\\.?(?:\\d(?:_?\\d)*+)?|\\.\\d(?:_?\\d)*+)(?:[eE][+-]?\\d(?:_?\\d)*+)?)");
    private static final Pattern SPECIAL = Pattern.compile("([+-]?)(?i:(inf|infinity)|nan)");

    private PythonNumbers() {}

    static Optional<BigInteger> integer(String text, int base) {
        String stripped = Strings.strip(text, Strings::isSpace, true, true);
        Matcher matcher = INTEGER.matcher(stripped);
        if (stripped.length() > MAX_LENGTH || !matcher.matches()) {
            return Optional.empty();
        }
        String prefix = Optional.ofNullable(matcher.group(2)).orElse("").toLowerCase(Locale.ROOT);
        String digits = matcher.group(3);
        int own = switch (prefix) {
            case "0x" -> 16;
            case "0o" -> 8;
            case "0b" -> 2;
            default -> 0;
        };
        if (own != 0 && own != base && base != 0) {
            // Letters of a larger base that look like a prefix.
            digits = prefix + digits;
        }
        int radix = base != 0 ? base : own != 0 ? own : 10;
        if (radix < 2 || radix > 36 || digits.startsWith("_") && own == 0) {
            return Optional.empty();
        }
        String plain = digits.replace("_", "");
        if (base == 0 && own == 0 && plain.startsWith("0") && !plain.chars().allMatch(c -> c == '0')) {
            return Optional.empty();
        }
        try {
            BigInteger number = new BigInteger(plain, radix);
            return Optional.of(matcher.group(1).equals("-") ? number.negate() : number);
        } catch (NumberFormatException e) {
            return Optional.empty();
        }
    }

    static Optional<Double> real(String text) {
        String stripped = Strings.strip(text, Strings::isSpace, true, true);
        if (stripped.length() > MAX_LENGTH) {
            return Optional.empty();
        }
        Matcher special = SPECIAL.matcher(stripped);
        if (special.matches()) {
            double value = special.group(2) == null ? Double.NaN : Double.POSITIVE_INFINITY;
            return Optional.of(special.group(1).equals("-") ? -value : value);
        }
        return REAL.matcher(stripped).matches()
                ? Optional.of(Double.parseDouble(stripped.replace("_", "")))
                : Optional.empty();
    }
}
