package baton.jinja;

import baton.jinja.Value.Bool;
import baton.jinja.Value.Dict;
import baton.jinja.Value.Function;
import baton.jinja.Value.Generator;
import baton.jinja.Value.Instance;
import baton.jinja.Value.Int;
import baton.jinja.Value.Kind;
import baton.jinja.Value.Loop;
import baton.jinja.Value.Namespace;
import baton.jinja.Value.None;
import baton.jinja.Value.Real;
import baton.jinja.Value.Seq;
import baton.jinja.Value.Str;
import baton.jinja.Value.Undefined;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.util.List;
import java.util.Map;

/** Values as text: Python's {@code str} and {@code repr}. */
record Representation(RenderBudget budget) {
    /** {@code str(value)}. */
    String string(Value value) {
        return switch (value) {
            case Str(String text, boolean _) -> text;
            case Undefined _ -> "";
            default -> represent(value);
        };
    }

    /** {@code repr(value)}. */
    String represent(Value value) {
        StringBuilder out = new StringBuilder();
        represent(value, out);
        return out.toString();
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
            case Str(String text, boolean markup) -> {
                out.append(markup ? "Markup(" : "");
                quote(text, out);
                out.append(markup ? ")" : "");
            }
            case Seq(NumberRange range, Kind kind) when kind == Kind.RANGE -> out.append(range);
            case Seq(List<Value> items, Kind kind) -> {
                boolean tuple = kind.isTuple();
                boolean view = !tuple && kind != Kind.LIST;
                out.append(view ? kind.type + "(" : "").append(tuple ? '(' : '[');
                for (int i = 0; i < items.size(); i++) {
                    out.append(i == 0 ? "" : ", ");
                    represent(items.get(i), out);
                }
                out.append(tuple && items.size() == 1 ? "," : "")
                        .append(tuple ? ')' : ']')
                        .append(view ? ")" : "");
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
            case Loop(LoopState state) -> out.append(state);
            case Instance instance ->
                out.append(instance.text().orElseThrow(() -> budget.error("a " + instance.type() + " has no text")));
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
                        out.append(escape(point));
                    }
                }
            }
        }
        out.append(quote);
    }

    /** A character as Python's {@code \x}, {@code \U} or one between. */
    static String escape(int point) {
        return point < 0x100
                ? "\\x%02x".formatted(point)
                : point < 0x10000 ? "\\u%04x".formatted(point) : "\\U%08x".formatted(point);
    }

    static boolean isPrintable(int point) {
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
}
