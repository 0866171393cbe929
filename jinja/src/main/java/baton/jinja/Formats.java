package baton.jinja;

import baton.jinja.Value.Bool;
import baton.jinja.Value.Dict;
import baton.jinja.Value.Int;
import baton.jinja.Value.Kind;
import baton.jinja.Value.Real;
import baton.jinja.Value.Seq;
import baton.jinja.Value.Str;
import baton.jinja.Value.Undefined;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.math.MathContext;
import java.math.RoundingMode;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/** Python's formatting: the operator {@code %} and format specifications, with numbers digit for digit as it writes them. */
record Formats(RenderBudget budget, Python python) {
    /** More decimal places than this are zeros in any float. */
    private static final int MAX_PLACES = 1100;

    /** {@code format % right}. */
    Value percent(Str format, Value right) {
        return new Percent(format, right).result();
    }

    /** One run of {@code %}. */
    private final class Percent {
        private final Str format;
        private final String text;
        private final Value right;
        private final List<Value> arguments;
        private final StringBuilder out = new StringBuilder();
        private int at;
        private int used;

        Percent(Str format, Value right) {
            this.format = format;
            this.text = format.text();
            this.right = right;
            this.arguments =
                    right instanceof Seq(List<Value> items, Kind kind) && kind.isTuple() ? items : List.of(right);
        }

        Value result() {
            while (at < text.length()) {
                int next = text.indexOf('%', at);
                if (next < 0) {
                    next = text.length();
                }
                out.append(text, at, next);
                at = next + 1;
                if (next < text.length()) {
                    conversion();
                    budget.limitText(out.length());
                }
            }
            boolean isMapping = right instanceof Dict
                    || right instanceof Undefined
                    || (right instanceof Seq(List<Value> _, Kind kind) && (kind == Kind.LIST || kind == Kind.RANGE));
            if (used < arguments.size() && !isMapping) {
                throw budget.error("not all arguments converted during string formatting");
            }
            return new Str(budget.text(out.toString()), format.markup());
        }

        private char peek() {
            if (at >= text.length()) {
                throw budget.error("incomplete format");
            }
            return text.charAt(at);
        }

        private void conversion() {
            Value named = null;
            if (peek() == '%') {
                out.append('%');
                at++;
                return;
            }
            if (peek() == '(') {
                int open = 1;
                int start = ++at;
                while (open > 0) {
                    open += peek() == '(' ? 1 : peek() == ')' ? -1 : 0;
                    at++;
                }
                if (!(right instanceof Dict(Map<Value, Value> entries))) {
                    throw budget.error(right, "format requires a mapping");
                }
                String key = text.substring(start, at - 1);
                named = entries.get(Value.of(key));
                if (named == null) {
                    throw budget.error("the mapping has no key '" + key + "'");
                }
            }
            String flags = "";
            while ("-+ #0".indexOf(peek()) >= 0) {
                flags = flags.indexOf(peek()) < 0 ? flags + peek() : flags;
                at++;
            }
            int width = number(true);
            if (width < 0) {
                flags += "-";
                width = width == Integer.MIN_VALUE ? 0 : -width;
            }
            int precision = -1;
            if (peek() == '.') {
                at++;
                precision = Math.max(0, number(false));
            }
            if ("hlL".indexOf(peek()) >= 0) {
                at++;
            }
            char kind = peek();
            at++;
            Value value = named != null ? named : next();
            boolean left = flags.indexOf('-') >= 0;
            boolean zero = flags.indexOf('0') >= 0 && !left;
            Spec spec = new Spec(
                    zero ? "0" : " ",
                    left ? '<' : zero ? '=' : '>',
                    flags.indexOf('+') >= 0 ? '+' : flags.indexOf(' ') >= 0 ? ' ' : '-',
                    flags.indexOf('#') >= 0,
                    width,
                    '\0',
                    precision,
                    kind);
            out.append(
                    switch (kind) {
                        case 's', 'r', 'a' -> {
                            String shown = kind == 's'
                                    ? python.string(value)
                                    : kind == 'r' ? python.represent(value) : ascii(python.represent(value));
                            if (format.markup()) {
                                shown = Strings.escape(
                                        value instanceof Str str && kind == 's' ? str : new Str(shown, false));
                            }
                            yield pad(cut(shown, precision), spec.filled(" ", left ? '<' : '>'));
                        }
                        case 'c' -> pad(character(value), spec.filled(" ", left ? '<' : '>'));
                        case 'd', 'i', 'u' ->
                            integer(
                                    value instanceof Real(double number) ? truncated(number) : whole(value, kind),
                                    spec);
                        case 'x', 'X', 'o' -> integer(whole(value, kind), spec);
                        case 'e', 'E', 'f', 'F', 'g', 'G' -> real(asReal(value, kind), spec.places(6));
                        default -> throw budget.error("unsupported format character '" + kind + "'");
                    });
        }

        private int number(boolean signed) {
            if (peek() == '*') {
                at++;
                Value given = next();
                if (!(given instanceof Int || given instanceof Bool)) {
                    throw budget.error(given, "* wants int");
                }
                BigInteger number = python.toInteger(given);
                if (number.bitLength() > 31) {
                    throw budget.error("width or precision too big");
                }
                return !signed ? Math.max(0, number.intValue()) : number.intValue();
            }
            return digits();
        }

        private int digits() {
            long number = 0;
            while (at < text.length() && text.charAt(at) >= '0' && text.charAt(at) <= '9') {
                number = number * 10 + text.charAt(at++) - '0';
                if (number > Integer.MAX_VALUE) {
                    throw budget.error("width or precision too big");
                }
            }
            return (int) number;
        }

        private Value next() {
            if (used >= arguments.size()) {
                throw budget.error("not enough arguments for format string");
            }
            return arguments.get(used++);
        }

        private String character(Value value) {
            if (value instanceof Str(String one, boolean _) && Strings.length(one) == 1) {
                return one;
            }
            BigInteger point = value instanceof Int || value instanceof Bool ? python.toInteger(value) : null;
            if (point == null || point.bitLength() > 21 || !Character.isValidCodePoint(point.intValue())) {
                throw budget.error(value, "%c requires a character or its number");
            }
            return Character.toString(point.intValue());
        }

        private BigInteger whole(Value value, char kind) {
            if (value instanceof Int || value instanceof Bool) {
                return python.toInteger(value);
            }
            throw budget.error(value, "%" + kind + " format: an integer is required, not " + Python.typeName(value));
        }

        private double asReal(Value value, char kind) {
            if (value instanceof Value.Numeric) {
                return python.toDouble(value);
            }
            throw budget.error(value, "%" + kind + " format: a number is required, not " + Python.typeName(value));
        }
    }

    BigInteger truncated(double number) {
        if (Double.isNaN(number) || Double.isInfinite(number)) {
            throw budget.error("cannot convert float " + Representation.floatText(number) + " to integer");
        }
        return new BigDecimal(number).toBigInteger();
    }

    /**
     * A format specification.
     *
     * @param align one of {@code <>^=}
     * @param sign one of {@code +- }
     * @param grouping between groups of digits; 0 for none
     * @param precision negative if none is given
     * @param type 0 if none is given
     */
    private record Spec(
            String fill, char align, char sign, boolean alternate, int width, char grouping, int precision, char type) {
        Spec filled(String newFill, char newAlign) {
            return new Spec(newFill, newAlign, sign, alternate, width, grouping, precision, type);
        }

        Spec places(int otherwise) {
            return new Spec(fill, align, sign, alternate, width, grouping, precision < 0 ? otherwise : precision, type);
        }
    }

    /** {@code format(value, spec)}. */
    String format(Value value, String spec) {
        if (spec.isEmpty()) {
            return python.string(value);
        }
        return switch (value) {
            case Str(String text, boolean _) -> {
                Spec parsed = parse(spec, '<');
                if ((parsed.type() != '\0' && parsed.type() != 's')
                        || parsed.align() == '='
                        || parsed.alternate()
                        || parsed.grouping() != '\0') {
                    throw invalid(spec, value);
                }
                yield pad(cut(text, parsed.precision()), parsed);
            }
            case Int _, Bool _ -> {
                Spec parsed = parse(spec, '>');
                yield switch (parsed.type()) {
                    case '\0', 'd', 'n', 'b', 'o', 'x', 'X', 'c' -> {
                        if (parsed.precision() >= 0) {
                            throw budget.error("Precision not allowed in integer format specifier");
                        }
                        if (parsed.grouping() == ',' && "boxXcn".indexOf(parsed.type()) >= 0
                                || parsed.grouping() == '_' && "cn".indexOf(parsed.type()) >= 0) {
                            throw invalid(spec, value);
                        }
                        BigInteger number = python.toInteger(value);
                        if (parsed.type() == 'c') {
                            if (parsed.sign() != '-'
                                    || parsed.alternate()
                                    || number.bitLength() > 21
                                    || !Character.isValidCodePoint(number.intValue())) {
                                throw invalid(spec, value);
                            }
                            yield pad(
                                    Character.toString(number.intValue()),
                                    parsed.filled(parsed.fill(), parsed.align() == '=' ? '>' : parsed.align()));
                        }
                        yield integer(number, parsed);
                    }
                    case 'e', 'E', 'f', 'F', 'g', 'G', '%' -> real(python.toDouble(value), parsed.places(6));
                    default -> throw invalid(spec, value);
                };
            }
            case Real(double number) -> {
                Spec parsed = parse(spec, '>');
                yield switch (parsed.type()) {
                    case '\0' -> real(number, parsed);
                    case 'e', 'E', 'f', 'F', 'g', 'G', '%' -> real(number, parsed.places(6));
                    case 'n' -> real(number, parsed.places(6));
                    default -> throw invalid(spec, value);
                };
            }
            default ->
                throw budget.error("unsupported format string passed to " + Python.typeName(value) + ".__format__");
        };
    }

    private JinjaException invalid(String spec, Value value) {
        return budget.error(
                "Invalid format specifier '" + spec + "' for object of type '" + Python.typeName(value) + "'");
    }

    private Spec parse(String spec, char usualAlign) {
        int[] points = spec.codePoints().toArray();
        int at = 0;
        String fill = " ";
        char align = '\0';
        if (points.length > 1 && "<>=^".indexOf(points[1]) >= 0) {
            fill = Character.toString(points[0]);
            align = (char) points[1];
            at = 2;
        } else if ("<>=^".indexOf(points[0]) >= 0) {
            align = (char) points[0];
            at = 1;
        }
        boolean filled = at == 2;
        char sign = '-';
        boolean signed = false;
        if (at < points.length && "+- ".indexOf(points[at]) >= 0) {
            sign = (char) points[at++];
            signed = true;
        }
        if (at < points.length && points[at] == 'z') {
            throw budget.error("the format option 'z' is not supported");
        }
        boolean alternate = at < points.length && points[at] == '#';
        at += alternate ? 1 : 0;
        if (!filled && at < points.length && points[at] == '0') {
            fill = "0";
            at++;
            align = align == '\0' && usualAlign == '>' ? '=' : align;
        }
        int[] end = {at};
        int width = Math.max(0, digits(points, end));
        at = end[0];
        char grouping = '\0';
        if (at < points.length && (points[at] == ',' || points[at] == '_')) {
            grouping = (char) points[at++];
        }
        int precision = -1;
        if (at < points.length && points[at] == '.') {
            end[0] = at + 1;
            precision = digits(points, end);
            at = end[0];
            if (precision < 0) {
                throw budget.error("Format specifier missing precision");
            }
        }
        if (at < points.length - 1) {
            throw budget.error("Invalid format specifier '" + spec + "'");
        }
        char type = at < points.length ? (char) points[at] : '\0';
        if (usualAlign == '<' && signed) {
            throw budget.error("Sign not allowed in string format specifier");
        }
        return new Spec(fill, align == '\0' ? usualAlign : align, sign, alternate, width, grouping, precision, type);
    }

    /** The number at {@code at[0]}, which is moved behind it; negative if there is none. */
    private int digits(int[] points, int[] at) {
        long number = -1;
        while (at[0] < points.length && points[at[0]] >= '0' && points[at[0]] <= '9') {
            number = Math.max(0, number) * 10 + points[at[0]++] - '0';
            if (number > Integer.MAX_VALUE) {
                throw budget.error("Too many decimal digits in format string");
            }
        }
        return (int) number;
    }

    /** Other characters than ASCII escaped, of a text that {@code repr} made. */
    String ascii(String represented) {
        StringBuilder out = new StringBuilder();
        represented.codePoints().forEach(point -> {
            if (point < 0x80) {
                out.appendCodePoint(point);
            } else {
                out.append(Representation.escape(point));
            }
        });
        return budget.text(out.toString());
    }

    private static String cut(String text, int precision) {
        return precision < 0 || Strings.length(text) <= precision
                ? text
                : text.substring(0, text.offsetByCodePoints(0, precision));
    }

    private String pad(String text, Spec spec) {
        return number("", text, "", spec);
    }

    /** A sign or prefix, digits that may be grouped, and the rest, in a field. */
    private String number(String prefix, String digits, String rest, Spec spec) {
        int group = spec.grouping() == '\0' ? 0 : "boxX".indexOf(spec.type()) >= 0 ? 4 : 3;
        boolean grouped = group > 0 && digits.chars().allMatch(c -> Character.digit(c, 16) >= 0);
        int used = prefix.length() + Strings.length(rest);
        budget.chargeText((long) spec.width() * spec.fill().length() + 2L * digits.length() + used);
        if (spec.align() == '=' && spec.fill().equals("0") && grouped) {
            // Zeros are grouped as well, and none begins with a separator.
            int count = digits.length();
            while (count + (count - 1) / group + used < spec.width()) {
                count++;
            }
            return prefix + grouped("0".repeat(count - digits.length()) + digits, group, spec.grouping()) + rest;
        }
        String body = grouped ? grouped(digits, group, spec.grouping()) : digits;
        int missing = Math.max(0, spec.width() - used - Strings.length(body));
        return switch (spec.align()) {
            case '<' -> prefix + body + rest + spec.fill().repeat(missing);
            case '^' ->
                spec.fill().repeat(missing / 2)
                        + prefix
                        + body
                        + rest
                        + spec.fill().repeat(missing - missing / 2);
            case '=' -> prefix + spec.fill().repeat(missing) + body + rest;
            default -> spec.fill().repeat(missing) + prefix + body + rest;
        };
    }

    private static String grouped(String digits, int group, char separator) {
        StringBuilder out = new StringBuilder();
        for (int i = 0; i < digits.length(); i++) {
            if (i > 0 && (digits.length() - i) % group == 0) {
                out.append(separator);
            }
            out.append(digits.charAt(i));
        }
        return out.toString();
    }

    private static String sign(boolean negative, Spec spec) {
        return negative ? "-" : spec.sign() == '-' ? "" : String.valueOf(spec.sign());
    }

    private String integer(BigInteger number, Spec spec) {
        int radix = switch (spec.type()) {
            case 'x', 'X' -> 16;
            case 'o' -> 8;
            case 'b' -> 2;
            default -> 10;
        };
        String digits = number.abs().toString(radix);
        String base = spec.alternate() && radix != 10 ? "0" + spec.type() : "";
        if (spec.type() == 'X') {
            digits = digits.toUpperCase(Locale.ROOT);
        }
        budget.chargeText(Math.max(0, spec.precision()));
        digits = "0".repeat(Math.max(0, spec.precision() - digits.length())) + digits;
        return number(sign(number.signum() < 0, spec) + base, digits, "", spec);
    }

    private String real(double number, Spec spec) {
        String prefix = sign(number < 0 || (number == 0 && 1 / number < 0), spec);
        boolean percent = spec.type() == '%';
        if (Double.isNaN(number) || Double.isInfinite(number)) {
            String word = Double.isNaN(number) ? "nan" : "inf";
            return number(
                    Double.isNaN(number) ? sign(false, spec) : prefix,
                    Character.isUpperCase(spec.type()) ? word.toUpperCase(Locale.ROOT) : word,
                    percent ? "%" : "",
                    spec);
        }
        budget.chargeText(Math.max(0, spec.precision()));
        double size = Math.abs(percent ? number * 100 : number);
        if (Double.isInfinite(size)) {
            return number(prefix, "inf", "%", spec);
        }
        String text = switch (spec.type()) {
            case 'f', 'F', '%' -> fixed(size, spec.precision(), spec.alternate());
            case 'e', 'E' -> exponential(rounded(size, spec.precision() + 1L), spec.precision(), spec.alternate());
            case 'g', 'G', 'n' -> general(size, spec.precision(), spec.alternate(), false);
            default ->
                spec.precision() < 0
                        ? Representation.floatText(size)
                        : general(size, spec.precision(), spec.alternate(), true);
        };
        if (spec.type() == 'E' || spec.type() == 'G') {
            text = text.toUpperCase(Locale.ROOT);
        }
        int end = 0;
        while (end < text.length() && Character.isDigit(text.charAt(end))) {
            end++;
        }
        return number(prefix, text.substring(0, end), text.substring(end) + (percent ? "%" : ""), spec);
    }

    private static String fixed(double size, int places, boolean alternate) {
        int shown = Math.min(places, MAX_PLACES);
        String text =
                new BigDecimal(size).setScale(shown, RoundingMode.HALF_EVEN).toPlainString();
        return text + "0".repeat(places - shown) + (places == 0 && alternate ? "." : "");
    }

    /** Rounded to so many significant digits; null for 0. */
    private static @Nullable BigDecimal rounded(double size, long digits) {
        return size == 0
                ? null
                : new BigDecimal(size)
                        .round(new MathContext((int) Math.min(digits, MAX_PLACES), RoundingMode.HALF_EVEN))
                        .stripTrailingZeros();
    }

    private static int exponent(@Nullable BigDecimal number) {
        return number == null ? 0 : number.precision() - number.scale() - 1;
    }

    private static String exponential(@Nullable BigDecimal number, int places, boolean alternate) {
        String digits = number == null ? "0" : number.unscaledValue().toString();
        int exponent = exponent(number);
        return digits.charAt(0)
                + (places > 0 || alternate ? "." : "")
                + digits.substring(1)
                + "0".repeat(Math.max(0, places - digits.length() + 1))
                + (exponent < 0 ? "e-" : "e+")
                + (Math.abs(exponent) < 10 ? "0" : "")
                + Math.abs(exponent);
    }

    /** @param untyped whether there is a digit after the point, as without a type */
    private static String general(double size, int precision, boolean alternate, boolean untyped) {
        int digits = Math.max(1, precision);
        BigDecimal number = rounded(size, digits);
        int exponent = exponent(number);
        if (exponent < -4 || exponent >= digits - (untyped ? 1 : 0)) {
            int places = alternate
                    ? digits - 1
                    : number == null ? 0 : number.unscaledValue().toString().length() - 1;
            return exponential(number, places, alternate);
        }
        String text = (number == null ? BigDecimal.ZERO : number).toPlainString();
        if (alternate) {
            int places = Math.max(0, digits - 1 - exponent);
            int point = text.indexOf('.');
            int have = point < 0 ? 0 : text.length() - point - 1;
            return text + (point < 0 ? "." : "") + "0".repeat(Math.max(0, places - have));
        }
        return untyped && text.indexOf('.') < 0 ? text + ".0" : text;
    }
}
