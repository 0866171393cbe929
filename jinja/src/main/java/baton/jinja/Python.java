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
import java.util.ArrayList;
import java.util.IllegalFormatException;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/** What Python's operators and built-in functions do with values. All work is charged to one rendering's budget. */
final class Python {
    private static final int MAX_BITS = 4096;

    private final Budget budget;

    Python(Budget budget) {
        this.budget = budget;
    }

    boolean truth(Value value) {
        return switch (value) {
            case Undefined _, None _ -> false;
            case Bool(boolean truth) -> truth;
            case Int(BigInteger number) -> number.signum() != 0;
            case Real(double number) -> number != 0;
            case Str(String text) -> !text.isEmpty();
            case Seq(List<Value> items, boolean _) -> !items.isEmpty();
            case Dict(Map<Value, Value> entries) -> !entries.isEmpty();
            case Generator _, Function _, Namespace _, Loop _ -> true;
        };
    }

    String typeName(Value value) {
        return switch (value) {
            case Undefined _ -> "Undefined";
            case None _ -> "NoneType";
            case Bool _ -> "bool";
            case Int _ -> "int";
            case Real _ -> "float";
            case Str _ -> "str";
            case Seq(List<Value> _, boolean tuple) -> tuple ? "tuple" : "list";
            case Dict _ -> "dict";
            case Generator _ -> "generator";
            case Function _ -> "function";
            case Namespace _ -> "Namespace";
            case Loop _ -> "LoopContext";
        };
    }

    /** The error of using a value that is not there, or else {@code problem}. */
    JinjaException error(Value culprit, String problem) {
        return budget.error(culprit instanceof Undefined(String reason) ? reason : problem);
    }

    // str() and repr()

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

    void represent(Value value, StringBuilder out) {
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
                throw budget.error("a " + typeName(value) + " has no text; use |list or call it");
        }
        budget.leave();
        budget.chargeText(out.length() - before);
    }

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

    // json.dumps(ensure_ascii=False)

    /** @param indent one level's indent; null for one line */
    String json(Value value, @Nullable String indent, String itemSeparator, String keySeparator, boolean sortKeys) {
        StringBuilder out = new StringBuilder();
        new Json(indent, itemSeparator, keySeparator, sortKeys, out).write(value, "\n");
        return out.toString();
    }

    private final class Json {
        private final @Nullable String indent;
        private final String itemSeparator;
        private final String keySeparator;
        private final boolean sortKeys;
        private final StringBuilder out;

        Json(@Nullable String indent, String itemSeparator, String keySeparator, boolean sortKeys, StringBuilder out) {
            this.indent = indent;
            this.itemSeparator = itemSeparator;
            this.keySeparator = keySeparator;
            this.sortKeys = sortKeys;
            this.out = out;
        }

        void write(Value value, String lineBreak) {
            budget.enter();
            int before = out.length();
            switch (value) {
                case None _ -> out.append("null");
                case Bool(boolean truth) -> out.append(truth);
                case Int(BigInteger number) -> out.append(number);
                case Real(double number) ->
                    out.append(
                            Double.isNaN(number)
                                    ? "NaN"
                                    : Double.isInfinite(number)
                                            ? (number > 0 ? "Infinity" : "-Infinity")
                                            : floatText(number));
                case Str(String text) -> string(text);
                case Seq(List<Value> items, boolean _) -> {
                    out.append('[');
                    for (int i = 0; i < items.size(); i++) {
                        separate(i == 0, lineBreak);
                        write(items.get(i), deeper(lineBreak));
                    }
                    close(items.isEmpty(), lineBreak, ']');
                }
                case Dict(Map<Value, Value> entries) -> {
                    out.append('{');
                    List<Value> keys = new ArrayList<>(entries.keySet());
                    if (sortKeys) {
                        keys.sort(Python.this::compare);
                    }
                    boolean first = true;
                    for (Value key : keys) {
                        separate(first, lineBreak);
                        first = false;
                        if (key instanceof Str(String text)) {
                            string(text);
                        } else {
                            out.append('"');
                            write(key, lineBreak);
                            out.append('"');
                        }
                        out.append(keySeparator);
                        Value entry = entries.get(key);
                        write(entry == null ? Value.NONE : entry, deeper(lineBreak));
                    }
                    close(entries.isEmpty(), lineBreak, '}');
                }
                case Undefined _, Generator _, Function _, Namespace _, Loop _ ->
                    throw budget.error("Object of type " + typeName(value) + " is not JSON serializable");
            }
            budget.leave();
            budget.chargeText(out.length() - before);
        }

        private String deeper(String lineBreak) {
            return indent == null ? lineBreak : lineBreak + indent;
        }

        private void separate(boolean first, String lineBreak) {
            if (!first) {
                out.append(itemSeparator);
            }
            if (indent != null) {
                out.append(lineBreak).append(indent);
            }
        }

        private void close(boolean empty, String lineBreak, char end) {
            if (!empty && indent != null) {
                out.append(lineBreak);
            }
            out.append(end);
        }

        private void string(String text) {
            out.append('"');
            for (int i = 0; i < text.length(); i++) {
                char c = text.charAt(i);
                switch (c) {
                    case '"' -> out.append("\\\"");
                    case '\\' -> out.append("\\\\");
                    case '\n' -> out.append("\\n");
                    case '\r' -> out.append("\\r");
                    case '\t' -> out.append("\\t");
                    case '\f' -> out.append("\\f");
                    case '\b' -> out.append("\\b");
                    default -> {
                        if (c < 0x20) {
                            out.append("\\u%04x".formatted((int) c));
                        } else {
                            out.append(c);
                        }
                    }
                }
            }
            out.append('"');
        }
    }

    // Comparison

    boolean equal(Value left, Value right) {
        budget.enter();
        try {
            if (isNumber(left) && isNumber(right)) {
                return compareNumbers(left, right) == 0;
            }
            return switch (left) {
                case Str(String text) -> {
                    budget.chargeText(text.length());
                    yield right instanceof Str(String other) && text.equals(other);
                }
                case Seq(List<Value> items, boolean tuple) ->
                    right instanceof Seq(List<Value> others, boolean otherTuple)
                            && tuple == otherTuple
                            && equalItems(items, others);
                case Dict(Map<Value, Value> entries) ->
                    right instanceof Dict(Map<Value, Value> others) && equalEntries(entries, others);
                case Undefined _ -> right instanceof Undefined;
                case None _ -> right instanceof None;
                case Bool _, Int _, Real _ -> false;
                case Generator _, Function _, Namespace _, Loop _ -> false;
            };
        } finally {
            budget.leave();
        }
    }

    private boolean equalItems(List<Value> items, List<Value> others) {
        if (items.size() != others.size()) {
            return false;
        }
        for (int i = 0; i < items.size(); i++) {
            if (!equal(items.get(i), others.get(i))) {
                return false;
            }
        }
        return true;
    }

    private boolean equalEntries(Map<Value, Value> entries, Map<Value, Value> others) {
        if (entries.size() != others.size()) {
            return false;
        }
        for (Map.Entry<Value, Value> entry : entries.entrySet()) {
            Value other = others.get(entry.getKey());
            if (other == null || !equal(entry.getValue(), other)) {
                return false;
            }
        }
        return true;
    }

    /** @throws JinjaException if Python knows no order between them */
    int compare(Value left, Value right) {
        budget.enter();
        try {
            if (isNumber(left) && isNumber(right)) {
                return compareNumbers(left, right);
            }
            if (left instanceof Str(String text) && right instanceof Str(String other)) {
                // Code points and UTF-16 units sort differently above the surrogates.
                for (int i = 0; i < Math.min(text.length(), other.length()); i++) {
                    if (text.charAt(i) != other.charAt(i)) {
                        return Integer.compare(text.codePointAt(i), other.codePointAt(i));
                    }
                }
                return Integer.compare(text.length(), other.length());
            }
            if (left instanceof Seq(List<Value> items, boolean tuple)
                    && right instanceof Seq(List<Value> others, boolean otherTuple)
                    && tuple == otherTuple) {
                for (int i = 0; i < Math.min(items.size(), others.size()); i++) {
                    if (!equal(items.get(i), others.get(i))) {
                        return compare(items.get(i), others.get(i));
                    }
                }
                return Integer.compare(items.size(), others.size());
            }
            throw error(
                    left instanceof Undefined ? left : right,
                    "'" + typeName(left) + "' and '" + typeName(right) + "' cannot be compared");
        } finally {
            budget.leave();
        }
    }

    private static boolean isNumber(Value value) {
        return value instanceof Int || value instanceof Real || value instanceof Bool;
    }

    private int compareNumbers(Value left, Value right) {
        if (left instanceof Real || right instanceof Real) {
            double first = toDouble(left);
            double second = toDouble(right);
            return first < second ? -1 : first == second ? 0 : 1;
        }
        return toInteger(left).compareTo(toInteger(right));
    }

    double toDouble(Value number) {
        return number instanceof Real(double value) ? value : toInteger(number).doubleValue();
    }

    /** @throws JinjaException if it is neither a whole number nor a truth value */
    BigInteger toInteger(Value number) {
        return switch (number) {
            case Int(BigInteger value) -> value;
            case Bool(boolean value) -> value ? BigInteger.ONE : BigInteger.ZERO;
            default -> throw error(number, "a whole number is needed, not " + typeName(number));
        };
    }

    boolean contains(Value container, Value item) {
        return switch (container) {
            case Str(String text) -> {
                budget.chargeText(text.length());
                if (item instanceof Str(String part)) {
                    yield text.contains(part);
                }
                throw error(item, "'in <string>' requires string as left operand, not " + typeName(item));
            }
            case Dict(Map<Value, Value> entries) -> entries.containsKey(key(item));
            default -> {
                for (Value candidate : iterate(container)) {
                    if (equal(candidate, item)) {
                        yield true;
                    }
                }
                yield false;
            }
        };
    }

    // Arithmetic

    Value binary(Ast.BinaryOperator operator, Value left, Value right) {
        if (isNumber(left) && isNumber(right)) {
            return left instanceof Real || right instanceof Real || operator == Ast.BinaryOperator.DIVIDE
                    ? floats(operator, toDouble(left), toDouble(right))
                    : integers(operator, toInteger(left), toInteger(right));
        }
        if (operator == Ast.BinaryOperator.ADD) {
            if (left instanceof Str(String text) && right instanceof Str(String other)) {
                budget.chargeText((long) text.length() + other.length());
                return Value.of(text + other);
            }
            if (left instanceof Seq(List<Value> items, boolean tuple)
                    && right instanceof Seq(List<Value> others, boolean otherTuple)
                    && tuple == otherTuple) {
                budget.charge((long) items.size() + others.size());
                List<Value> all = new ArrayList<>(items);
                all.addAll(others);
                return new Seq(all, tuple);
            }
        }
        if (operator == Ast.BinaryOperator.MULTIPLY) {
            if (left instanceof Str || left instanceof Seq) {
                return repeat(left, right);
            }
            if (right instanceof Str || right instanceof Seq) {
                return repeat(right, left);
            }
        }
        if (operator == Ast.BinaryOperator.MODULO && left instanceof Str(String format)) {
            return Value.of(format(
                    format, right instanceof Seq(List<Value> items, boolean tuple) && tuple ? items : List.of(right)));
        }
        throw error(
                left instanceof Undefined ? left : right,
                "unsupported operand types for " + operator + ": '" + typeName(left) + "' and '" + typeName(right)
                        + "'");
    }

    private Value repeat(Value value, Value count) {
        BigInteger wanted = toInteger(count).max(BigInteger.ZERO);
        int times = wanted.bitLength() > 31 ? Integer.MAX_VALUE : wanted.intValue();
        if (value instanceof Str(String text)) {
            budget.chargeText((long) text.length() * times);
            return Value.of(text.isEmpty() ? "" : text.repeat(times));
        }
        Seq seq = (Seq) value;
        budget.charge((long) seq.items().size() * times);
        List<Value> all = new ArrayList<>();
        for (int i = 0; i < times && !seq.items().isEmpty(); i++) {
            all.addAll(seq.items());
        }
        return new Seq(all, seq.tuple());
    }

    private Value floats(Ast.BinaryOperator operator, double left, double right) {
        return new Real(
                switch (operator) {
                    case ADD -> left + right;
                    case SUBTRACT -> left - right;
                    case MULTIPLY -> left * right;
                    case DIVIDE -> left / nonZero(right);
                    case FLOOR_DIVIDE -> Math.floor(left / nonZero(right));
                    case MODULO -> {
                        double rest = left % nonZero(right);
                        yield rest != 0 && (rest < 0) != (right < 0) ? rest + right : rest;
                    }
                    case POWER -> Math.pow(left, right);
                    case AND, OR -> throw new IllegalArgumentException("operator=" + operator);
                });
    }

    private double nonZero(double divisor) {
        if (divisor == 0) {
            throw budget.error("division by zero");
        }
        return divisor;
    }

    private Value integers(Ast.BinaryOperator operator, BigInteger left, BigInteger right) {
        if ((operator == Ast.BinaryOperator.FLOOR_DIVIDE || operator == Ast.BinaryOperator.MODULO)
                && right.signum() == 0) {
            throw budget.error("division by zero");
        }
        if (operator == Ast.BinaryOperator.POWER) {
            if (right.signum() < 0) {
                return floats(operator, left.doubleValue(), right.doubleValue());
            }
            if (right.bitLength() > 31 || (long) left.bitLength() * right.intValue() > MAX_BITS) {
                throw budget.error("number of more than " + MAX_BITS + " bits");
            }
        }
        BigInteger result = switch (operator) {
            case ADD -> left.add(right);
            case SUBTRACT -> left.subtract(right);
            case MULTIPLY -> left.multiply(right);
            case FLOOR_DIVIDE -> left.subtract(floorModulo(left, right)).divide(right);
            case MODULO -> floorModulo(left, right);
            case POWER -> left.pow(right.intValue());
            case DIVIDE, AND, OR -> throw new IllegalArgumentException("operator=" + operator);
        };
        if (result.bitLength() > MAX_BITS) {
            throw budget.error("number of more than " + MAX_BITS + " bits");
        }
        return new Int(result);
    }

    private static BigInteger floorModulo(BigInteger left, BigInteger right) {
        BigInteger rest = left.remainder(right);
        return rest.signum() != 0 && rest.signum() != right.signum() ? rest.add(right) : rest;
    }

    Value minus(Value value) {
        return value instanceof Real(double number)
                ? new Real(-number)
                : new Int(toInteger(value).negate());
    }

    Value plus(Value value) {
        return value instanceof Real ? value : new Int(toInteger(value));
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
                                                : toInteger(value)));
                            case 'x' -> budget.text(String.format(Locale.ROOT, "%" + flags + "x", toInteger(value)));
                            case 'f' -> {
                                int point = flags.indexOf('.');
                                int digits = point < 0 ? 6 : Integer.parseInt("0" + flags.substring(point + 1));
                                BigDecimal rounded =
                                        new BigDecimal(toDouble(value)).setScale(digits, RoundingMode.HALF_EVEN);
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

    // Containers

    /** The elements; a generator's are used up. */
    List<Value> iterate(Value value) {
        List<Value> items = switch (value) {
            case Seq(List<Value> own, boolean _) -> own;
            case Dict(Map<Value, Value> entries) -> List.copyOf(entries.keySet());
            case Str(String text) -> {
                budget.charge(text.length());
                yield Strings.characters(text).stream().map(Value::of).toList();
            }
            case Generator(Iterator<Value> own) -> {
                List<Value> rest = new ArrayList<>();
                own.forEachRemaining(rest::add);
                yield rest;
            }
            case Undefined _ -> List.of();
            case None _, Bool _, Int _, Real _, Function _, Namespace _, Loop _ ->
                throw budget.error("'" + typeName(value) + "' object is not iterable");
        };
        budget.charge(items.size());
        return items;
    }

    int length(Value value) {
        return switch (value) {
            case Seq(List<Value> items, boolean _) -> items.size();
            case Dict(Map<Value, Value> entries) -> entries.size();
            case Str(String text) -> {
                budget.chargeText(text.length());
                yield Strings.length(text);
            }
            case Undefined _ -> 0;
            case Loop(Value.LoopState state, int _) -> state.items.size();
            case None _, Bool _, Int _, Real _, Function _, Namespace _, Generator _ ->
                throw budget.error("object of type '" + typeName(value) + "' has no len()");
        };
    }

    /** A value usable as a dictionary's key. */
    Value key(Value value) {
        return switch (value) {
            case Str _, Int _, Bool _, Real _, None _ -> value;
            default -> throw error(value, "a dictionary's key cannot be a " + typeName(value));
        };
    }

    /** {@code value[index]}; Undefined if there is none. */
    Value item(Value value, Value index) {
        return switch (value) {
            case Dict(Map<Value, Value> entries) -> {
                Value found = entries.get(key(index));
                yield found != null ? found : missing(value, index);
            }
            case Seq(List<Value> items, boolean _)
            when index instanceof Int || index instanceof Bool -> {
                int place = place(index, items.size());
                yield place < 0 ? missing(value, index) : items.get(place);
            }
            case Str(String text)
            when index instanceof Int || index instanceof Bool -> {
                budget.chargeText(text.length());
                int place = place(index, Strings.length(text));
                if (place < 0) {
                    yield missing(value, index);
                }
                int at = text.offsetByCodePoints(0, place);
                yield Value.of(Character.toString(text.codePointAt(at)));
            }
            case Undefined(String reason) -> throw budget.error(reason);
            default -> missing(value, index);
        };
    }

    private int place(Value index, int size) {
        BigInteger place = toInteger(index);
        if (place.signum() < 0) {
            place = place.add(BigInteger.valueOf(size));
        }
        return place.signum() < 0 || place.compareTo(BigInteger.valueOf(size)) >= 0 ? -1 : place.intValue();
    }

    Undefined missing(Value value, Value index) {
        return new Undefined(
                index instanceof Str(String name)
                        ? "'" + typeName(value) + " object' has no attribute '" + name + "'"
                        : typeName(value) + " object has no element " + string(index));
    }

    /** {@code value[start:stop:step]}. */
    Value slice(Value value, Value start, Value stop, Value step) {
        int stride = step instanceof None ? 1 : bounded(step);
        if (stride == 0) {
            throw budget.error("slice step cannot be zero");
        }
        return switch (value) {
            case Seq(List<Value> items, boolean tuple) -> new Seq(slice(items, start, stop, stride), tuple);
            case Str(String text) -> {
                budget.charge(text.length());
                yield Value.of(String.join("", slice(Strings.characters(text), start, stop, stride)));
            }
            default -> throw error(value, "'" + typeName(value) + "' cannot be sliced");
        };
    }

    private <T> List<T> slice(List<T> items, Value start, Value stop, int step) {
        int size = items.size();
        int first = bound(start, size, step < 0, step < 0 ? size - 1 : 0);
        int end = bound(stop, size, step < 0, step < 0 ? -1 : size);
        List<T> taken = new ArrayList<>();
        for (long i = first; step > 0 ? i < end : i > end; i += step) {
            taken.add(items.get((int) i));
        }
        budget.charge(taken.size());
        return taken;
    }

    private int bound(Value given, int size, boolean backwards, int otherwise) {
        if (given instanceof None) {
            return otherwise;
        }
        long bound = bounded(given);
        if (bound < 0) {
            bound += size;
        }
        return Math.clamp(bound, backwards ? -1 : 0, backwards ? size - 1 : size);
    }

    private int bounded(Value number) {
        BigInteger value = toInteger(number);
        return value.bitLength() < 31 ? value.intValue() : value.signum() < 0 ? -(1 << 30) : 1 << 30;
    }
}
