package baton.jinja;

import baton.jinja.Value.Bool;
import baton.jinja.Value.Dict;
import baton.jinja.Value.Function;
import baton.jinja.Value.Generator;
import baton.jinja.Value.Int;
import baton.jinja.Value.Loop;
import baton.jinja.Value.Namespace;
import baton.jinja.Value.None;
import baton.jinja.Value.Real;
import baton.jinja.Value.Seq;
import baton.jinja.Value.Str;
import baton.jinja.Value.Undefined;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.math.RoundingMode;
import java.util.IllegalFormatException;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/** Values as text: Python's {@code str}, {@code repr} and {@code %} formatting. */
final class Representation {
    private final Budget budget;
    private final Numbers numbers;

    Representation(Budget budget, Numbers numbers) {
        this.budget = budget;
        this.numbers = numbers;
    }

    /** {@code str(value)}. */
    String string(Value value) {
        return switch (value) {
            case Str(String text) -> text;
            case Undefined _ -> "";
            default -> {
                StringBuilder out = new StringBuilder();
                represent(value, out);
                yield out.toString();
            }
        };
    }

    /** Appends {@code repr(value)}. */
    private void represent(Value value, StringBuilder out) {
        budget.enter();
        int before = out.length();
        switch (value) {
            case Undefined _ -> out.append("Undefined");
            case None _ -> out.append("None");
            case Bool(boolean truth) -> out.append(truth ? "True" : "False");
            case Int(BigInteger number) -> out.append(number);
            case Real(double number) -> out.append(floatText(number));
            case Str(String text) -> quote(text, out);
            case Seq(List<Value> items, boolean tuple) -> {
                out.append(tuple ? '(' : '[');
                for (int i = 0; i < items.size(); i++) {
                    out.append(i == 0 ? "" : ", ");
                    represent(items.get(i), out);
                }
                out.append(tuple && items.size() == 1 ? "," : "").append(tuple ? ')' : ']');
            }
            case Dict(Map<Value, Value> entries) -> {
                out.append('{');
                boolean first = true;
                for (Map.Entry<Value, Value> entry : entries.entrySet()) {
                    out.append(first ? "" : ", ");
                    first = false;
                    represent(entry.getKey(), out);
                    out.append(": ");
                    represent(entry.getValue(), out);
                }
                out.append('}');
            }
            case Namespace(Map<String, Value> variables) -> {
                out.append("<Namespace {");
                boolean first = true;
                for (Map.Entry<String, Value> entry : variables.entrySet()) {
                    out.append(first ? "" : ", ");
                    first = false;
                    quote(entry.getKey(), out);
                    out.append(": ");
                    represent(entry.getValue(), out);
                }
                out.append("}>");
            }
            case Loop(Value.LoopState state, int index) ->
                out.append("<LoopContext ")
                        .append(index + 1)
                        .append('/')
                        .append(state.items.size())
                        .append('>');
            case Generator _, Function _ ->
                throw budget.error("a " + Python.typeName(value) + " has no text; use |list or call it");
        }
        budget.leave();
        budget.chargeText(out.length() - before);
    }

    /** {@code repr} of a float. */
    static String floatText(double number) {
        if (Double.isNaN(number)) {
            return "nan";
        }
        if (Double.isInfinite(number)) {
            return number > 0 ? "inf" : "-inf";
        }
        if (number == 0) {
            return 1 / number < 0 ? "-0.0" : "0.0";
        }
        BigDecimal digits = new BigDecimal(Double.toString(number)).stripTrailingZeros();
        int exponent = digits.precision() - digits.scale() - 1;
        if (exponent < -4 || exponent >= 16) {
            String unscaled = digits.unscaledValue().abs().toString();
            return (number < 0 ? "-" : "") + unscaled.charAt(0)
                    + (unscaled.length() > 1 ? "." + unscaled.substring(1) : "") + "e" + (exponent < 0 ? "-" : "+")
                    + (Math.abs(exponent) < 10 ? "0" : "") + Math.abs(exponent);
        }
        return digits.scale() <= 0 ? digits.toBigInteger() + ".0" : digits.toPlainString();
    }

    private static void quote(String text, StringBuilder out) {
        char quote = text.indexOf('\'') >= 0 && text.indexOf('"') < 0 ? '"' : '\'';
        out.append(quote);
        for (int i = 0; i < text.length(); i += Character.charCount(text.codePointAt(i))) {
            int point = text.codePointAt(i);
            switch (point) {
                case '\n' -> out.append("\\n");
                case '\r' -> out.append("\\r");
                case '\t' -> out.append("\\t");
                case '\\' -> out.append("\\\\");
                default -> {
                    if (point == quote) {
                        out.append('\\').append(quote);
                    } else if (isPrintable(point)) {
                        out.appendCodePoint(point);
                    } else {
                        out.append(
                                point < 0x100
                                        ? "\\x%02x".formatted(point)
                                        : point < 0x10000 ? "\\u%04x".formatted(point) : "\\U%08x".formatted(point));
                    }
                }
            }
        }
        out.append(quote);
    }

    private static boolean isPrintable(int point) {
        return switch (Character.getType(point)) {
            case Character.CONTROL,
                    Character.FORMAT,
                    Character.SURROGATE,
                    Character.PRIVATE_USE,
                    Character.UNASSIGNED,
                    Character.LINE_SEPARATOR,
                    Character.PARAGRAPH_SEPARATOR -> false;
            case Character.SPACE_SEPARATOR -> point == ' ';
            default -> true;
        };
    }

    /** Python's {@code %} formatting with {@code %s %r %d %i %f %x %%}, without mapping keys. */
    String format(String format, List<Value> arguments) {
        StringBuilder out = new StringBuilder();
        Iterator<Value> next = arguments.iterator();
        for (int i = 0; i < format.length(); i++) {
            char c = format.charAt(i);
            if (c != '%') {
                out.append(c);
                continue;
            }
            int start = ++i;
            while (i < format.length() && "-+ 0#123456789.".indexOf(format.charAt(i)) >= 0) {
                i++;
            }
            String flags = format.substring(start, i);
            if (i == format.length() || flags.length() > 6) {
                throw budget.error("incomplete format in '" + format + "'");
            }
            char kind = format.charAt(i);
            if (kind == '%') {
                out.append('%');
                continue;
            }
            if (!next.hasNext()) {
                throw budget.error("not enough arguments for format string '" + format + "'");
            }
            Value value = next.next();
            try {
                out.append(
                        switch (kind) {
                            case 's' -> budget.text(String.format(Locale.ROOT, "%" + flags + "s", string(value)));
                            case 'd', 'i' ->
                                budget.text(String.format(
                                        Locale.ROOT,
                                        "%" + flags + "d",
                                        value instanceof Real(double number)
                                                ? BigInteger.valueOf((long) number)
                                                : numbers.toInteger(value)));
                            case 'x' ->
                                budget.text(String.format(Locale.ROOT, "%" + flags + "x", numbers.toInteger(value)));
                            case 'f' -> {
                                int point = flags.indexOf('.');
                                int digits = point < 0 ? 6 : Integer.parseInt("0" + flags.substring(point + 1));
                                BigDecimal rounded = new BigDecimal(numbers.toDouble(value))
                                        .setScale(digits, RoundingMode.HALF_EVEN);
                                yield budget.text(String.format(Locale.ROOT, "%" + flags + "f", rounded));
                            }
                            case 'r' -> {
                                StringBuilder represented = new StringBuilder();
                                represent(value, represented);
                                yield represented.toString();
                            }
                            default -> throw budget.error("unsupported format character '" + kind + "'");
                        });
            } catch (IllegalFormatException | NumberFormatException e) {
                throw budget.error("unsupported format '%" + flags + kind + "'");
            }
        }
        if (next.hasNext()) {
            throw budget.error("not all arguments converted during string formatting");
        }
        return budget.text(out.toString());
    }
}
