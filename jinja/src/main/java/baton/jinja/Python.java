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
import java.math.BigInteger;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.jspecify.annotations.Nullable;

/** What Python's operators and built-in functions do with values. All work is charged to one rendering's budget. */
final class Python {
    private final Budget budget;
    private final Numbers numbers;
    private final Representation representation;

    Python(Budget budget) {
        this.budget = budget;
        this.numbers = new Numbers(budget);
        this.representation = new Representation(budget, numbers);
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

    static String typeName(Value value) {
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
        return budget.error(culprit, problem);
    }

    /** {@code str(value)}. */
    String string(Value value) {
        return representation.string(value);
    }

    /** See {@link Representation#format}. */
    String format(String format, List<Value> arguments) {
        return representation.format(format, arguments);
    }

    /** See {@link Numbers#toDouble}. */
    double toDouble(Value number) {
        return numbers.toDouble(number);
    }

    /** See {@link Numbers#toInteger}. */
    BigInteger toInteger(Value number) {
        return numbers.toInteger(number);
    }

    Value minus(Value value) {
        return numbers.minus(value);
    }

    Value plus(Value value) {
        return numbers.plus(value);
    }

    /**
     * {@code json.dumps(value, ensure_ascii=False)}.
     *
     * @param indent one level's indent; null for one line
     */
    String json(Value value, @Nullable String indent, String itemSeparator, String keySeparator, boolean sortKeys) {
        StringBuilder out = new StringBuilder();
        Optional<Comparator<Value>> order = sortKeys ? Optional.of(this::compare) : Optional.empty();
        new JsonWriter(budget, indent, itemSeparator, keySeparator, order, out).write(value);
        return out.toString();
    }

    boolean equal(Value left, Value right) {
        budget.enter();
        try {
            if (Numbers.isNumber(left) && Numbers.isNumber(right)) {
                return numbers.compare(left, right) == 0;
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
            if (Numbers.isNumber(left) && Numbers.isNumber(right)) {
                return numbers.compare(left, right);
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

    Value binary(Ast.BinaryOperator operator, Value left, Value right) {
        if (Numbers.isNumber(left) && Numbers.isNumber(right)) {
            return numbers.binary(operator, left, right);
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
