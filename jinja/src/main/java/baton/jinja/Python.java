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
import java.math.BigInteger;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.jspecify.annotations.Nullable;

/** Python's operators and built-in functions. All work is charged to one rendering's budget. */
final class Python {
    private final RenderBudget budget;
    private final Numbers numbers;
    private final Representation representation;

    Python(RenderBudget budget) {
        this.budget = budget;
        this.numbers = new Numbers(budget);
        this.representation = new Representation(budget);
    }

    boolean truth(Value value) {
        return switch (value) {
            case Undefined _, None _ -> false;
            case Bool(boolean truth) -> truth;
            case Int(BigInteger number) -> number.signum() != 0;
            case Real(double number) -> number != 0;
            case Str(String text, boolean _) -> !text.isEmpty();
            case Seq(List<Value> items, Kind _) -> !items.isEmpty();
            case Dict(Map<Value, Value> entries) -> !entries.isEmpty();
            case Generator _, Function _, Instance _, Namespace _, Loop _ -> true;
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
            case Seq(List<Value> _, Kind kind) -> kind.type;
            case Dict _ -> "dict";
            case Generator _ -> "generator";
            case Function _ -> "function";
            case Instance instance -> instance.type();
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

    /** {@code repr(value)}. */
    String represent(Value value) {
        return representation.represent(value);
    }

    /** See {@link Numbers#toDouble}. */
    double toDouble(Value number) {
        return numbers.toDouble(number);
    }

    /** See {@link Numbers#toInteger}. */
    BigInteger toInteger(Value number) {
        return numbers.toInteger(number);
    }

    /** See {@link Numbers#limited}. */
    BigInteger limited(BigInteger number) {
        return numbers.limited(number);
    }

    Value minus(Value value) {
        return numbers.minus(value);
    }

    Value plus(Value value) {
        return numbers.plus(value);
    }

    /**
     * {@code json.dumps(value)}.
     *
     * @param indent one level's indent; null for one line
     */
    String json(
            Value value,
            boolean ascii,
            @Nullable String indent,
            String itemSeparator,
            String keySeparator,
            boolean sortKeys) {
        StringBuilder out = new StringBuilder();
        Optional<Comparator<Value>> order = sortKeys ? Optional.of(this::compare) : Optional.empty();
        new JsonWriter(budget, ascii, indent, itemSeparator, keySeparator, order, out).write(value);
        return out.toString();
    }

    /** Whether both are one object, as Python's {@code is} compares. */
    @SuppressWarnings("ReferenceEquality") // an identity is asked for
    private static boolean isSame(Value left, Value right) {
        return left == right;
    }

    boolean equal(Value left, Value right) {
        budget.enter();
        try {
            return switch (left) {
                case Str(String text, boolean _) -> {
                    budget.chargeText(text.length());
                    yield right instanceof Str(String other, boolean _) && text.equals(other);
                }
                case Seq(List<Value> items, Kind kind) ->
                    isSame(left, right)
                            || (right instanceof Seq(List<Value> others, Kind otherKind)
                                    && kind.type.equals(otherKind.type)
                                    && kind != Kind.VALUES
                                    && (kind == Kind.KEYS || kind == Kind.ITEMS
                                            ? sameItems(items, others)
                                            : equalItems(items, others)));
                case Dict(Map<Value, Value> entries) ->
                    right instanceof Dict(Map<Value, Value> others) && equalEntries(entries, others);
                case Undefined _ -> right instanceof Undefined;
                case None _ -> right instanceof None;
                case Value.Numeric number ->
                    right instanceof Value.Numeric other
                            && !Numbers.isNan(left)
                            && !Numbers.isNan(right)
                            && Numbers.compare(number, other) == 0;
                case Generator _, Function _, Instance _, Namespace _, Loop _ -> isSame(left, right);
            };
        } finally {
            budget.leave();
        }
    }

    /** Equality of sets. */
    private boolean sameItems(List<Value> items, List<Value> others) {
        budget.charge((long) items.size() + others.size());
        items.forEach(this::key);
        others.forEach(this::key);
        return items.size() == others.size() && new HashSet<>(items).containsAll(others);
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

    boolean holds(Ast.Comparison comparison, Value left, Value right) {
        return switch (comparison) {
            case EQUAL -> equal(left, right);
            case NOT_EQUAL -> !equal(left, right);
            case LESS -> ordered(left, right) && compare(left, right) < 0;
            case LESS_OR_EQUAL -> ordered(left, right) && compare(left, right) <= 0;
            case GREATER -> ordered(left, right) && compare(left, right) > 0;
            case GREATER_OR_EQUAL -> ordered(left, right) && compare(left, right) >= 0;
            case IN -> contains(right, left);
            case NOT_IN -> !contains(right, left);
        };
    }

    private static boolean ordered(Value left, Value right) {
        return !(Numbers.isNumber(left) && Numbers.isNumber(right) && (Numbers.isNan(left) || Numbers.isNan(right)));
    }

    /** @throws JinjaException if Python knows no order between them */
    int compare(Value left, Value right) {
        budget.enter();
        try {
            if (left instanceof Value.Numeric number && right instanceof Value.Numeric other) {
                return Numbers.compare(number, other);
            }
            if (left instanceof Str(String text, boolean _) && right instanceof Str(String other, boolean _)) {
                budget.chargeText(Math.min(text.length(), other.length()));
                // Code points and UTF-16 units sort differently above the surrogates.
                for (int i = 0; i < Math.min(text.length(), other.length()); i++) {
                    if (text.charAt(i) != other.charAt(i)) {
                        return Integer.compare(text.codePointAt(i), other.codePointAt(i));
                    }
                }
                return Integer.compare(text.length(), other.length());
            }
            if (left instanceof Seq(List<Value> items, Kind kind)
                    && right instanceof Seq(List<Value> others, Kind otherKind)
                    && (kind.isTuple() || kind == Kind.LIST)
                    && kind.isTuple() == otherKind.isTuple()
                    && (otherKind.isTuple() || otherKind == Kind.LIST)) {
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
            case Str(String text, boolean _) -> {
                budget.chargeText(text.length());
                if (item instanceof Str(String part, boolean _)) {
                    yield text.contains(part);
                }
                throw error(item, "'in <string>' requires string as left operand, not " + typeName(item));
            }
            case Dict(Map<Value, Value> entries) -> entries.containsKey(key(item));
            default -> {
                Iterator<Value> candidates = iterator(container);
                while (candidates.hasNext()) {
                    budget.charge(1);
                    if (equal(candidates.next(), item)) {
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
            if (left instanceof Str text && right instanceof Str other) {
                boolean markup = text.markup() || other.markup();
                String first = markup ? Strings.escape(text) : text.text();
                String second = markup ? Strings.escape(other) : other.text();
                budget.chargeText((long) first.length() + second.length());
                return new Str(first + second, markup);
            }
            if (left instanceof Seq(List<Value> items, Kind kind)
                    && right instanceof Seq(List<Value> others, Kind otherKind)
                    && kind.type.equals(otherKind.type)
                    && (kind == Kind.LIST || kind.isTuple())) {
                budget.charge((long) items.size() + others.size());
                List<Value> all = new ArrayList<>(items);
                all.addAll(others);
                return new Seq(all, kind == Kind.LIST ? kind : Kind.TUPLE);
            }
        }
        if (operator == Ast.BinaryOperator.MULTIPLY) {
            if (isRepeatable(left)) {
                return repeat(left, right);
            }
            if (isRepeatable(right)) {
                return repeat(right, left);
            }
        }
        if (operator == Ast.BinaryOperator.MODULO && left instanceof Str format) {
            return new Formats(budget, this).percent(format, right);
        }
        throw error(
                left instanceof Undefined ? left : right,
                "unsupported operand types for " + operator + ": '" + typeName(left) + "' and '" + typeName(right)
                        + "'");
    }

    private static boolean isRepeatable(Value value) {
        return value instanceof Str
                || (value instanceof Seq(List<Value> _, Kind kind) && (kind == Kind.LIST || kind.isTuple()));
    }

    private Value repeat(Value value, Value count) {
        BigInteger wanted = toInteger(count).max(BigInteger.ZERO);
        int times = wanted.bitLength() > 31 ? Integer.MAX_VALUE : wanted.intValue();
        if (value instanceof Str(String text, boolean markup)) {
            budget.chargeText((long) text.length() * times);
            return new Str(text.isEmpty() ? "" : text.repeat(times), markup);
        }
        Seq seq = (Seq) value;
        budget.charge((long) seq.items().size() * times);
        List<Value> all = new ArrayList<>();
        for (int i = 0; i < times && !seq.items().isEmpty(); i++) {
            all.addAll(seq.items());
        }
        return new Seq(all, seq.kind() == Kind.LIST ? Kind.LIST : Kind.TUPLE);
    }

    /** The elements; a generator's are used up. */
    List<Value> iterate(Value value) {
        List<Value> items = switch (value) {
            case Seq(List<Value> own, Kind _) -> own;
            case Dict(Map<Value, Value> entries) -> List.copyOf(entries.keySet());
            case Str(String text, boolean _) -> {
                budget.charge(text.length());
                yield Strings.characters(text).stream().map(Value::of).toList();
            }
            case Generator(Iterator<Value> own) -> {
                List<Value> rest = new ArrayList<>();
                while (own.hasNext()) {
                    budget.charge(1);
                    rest.add(own.next());
                }
                yield rest;
            }
            case Undefined _ -> List.of();
            case None _, Value.Numeric _, Function _, Instance _, Namespace _, Loop _ ->
                throw budget.error("'" + typeName(value) + "' object is not iterable");
        };
        budget.charge(items.size());
        return items;
    }

    /** The elements in order; a generator computes each when it is asked for. */
    Iterator<Value> iterator(Value value) {
        return value instanceof Generator(Iterator<Value> own)
                ? own
                : iterate(value).iterator();
    }

    /** A generator over the results of {@code step} for the elements of {@code value}; over nothing where that is false, as in Jinja. */
    Value generate(Value value, java.util.function.Function<Value, Optional<Value>> step) {
        return new Generator(
                new LazyItems(budget, () -> truth(value) ? iterator(value) : Collections.emptyIterator(), step));
    }

    /** The elements from the last to the first. @throws JinjaException if Python cannot reverse it */
    List<Value> reversed(Value value) {
        if (value instanceof Generator) {
            throw budget.error("'generator' object is not reversible");
        }
        return iterate(value).reversed();
    }

    int length(Value value) {
        return switch (value) {
            case Seq(List<Value> items, Kind _) -> items.size();
            case Dict(Map<Value, Value> entries) -> entries.size();
            case Str(String text, boolean _) -> {
                budget.chargeText(text.length());
                yield Strings.length(text);
            }
            case Undefined _ -> 0;
            case Loop(LoopState state) -> state.length();
            case None _, Value.Numeric _, Function _, Instance _, Namespace _, Generator _ ->
                throw budget.error("object of type '" + typeName(value) + "' has no len()");
        };
    }

    /** A value usable as a dictionary's key. */
    Value key(Value value) {
        if (isKey(value)) {
            return value;
        }
        throw budget.error("unhashable type: '" + typeName(value) + "'");
    }

    /** Whether a dictionary can have this key. */
    boolean isKey(Value value) {
        budget.enter();
        try {
            return switch (value) {
                case Str(String text, boolean _) -> {
                    budget.charge(text.length() / RenderBudget.CHARACTERS_PER_STEP);
                    yield true;
                }
                case Value.Numeric _, None _, Undefined _ -> true;
                case Seq(List<Value> items, Kind kind) ->
                    (kind.isTuple() || kind == Kind.RANGE) && items.stream().allMatch(this::isKey);
                case Dict _, Generator _, Function _, Instance _, Namespace _, Loop _ -> false;
            };
        } finally {
            budget.leave();
        }
    }

    /** {@code value[index]}; Undefined if there is none. */
    Value item(Value value, Value index) {
        return switch (value) {
            case Dict(Map<Value, Value> entries) -> {
                Value found = isKey(index) ? entries.get(index) : null;
                yield found != null ? found : missing(value, index);
            }
            case Seq(List<Value> items, Kind kind)
            when kind.hasPlaces() && (index instanceof Int || index instanceof Bool) -> {
                int place = place(index, items.size());
                yield place < 0 ? missing(value, index) : items.get(place);
            }
            case Str(String text, boolean markup)
            when index instanceof Int || index instanceof Bool -> {
                budget.chargeText(text.length());
                int place = place(index, Strings.length(text));
                if (place < 0) {
                    yield missing(value, index);
                }
                int at = text.offsetByCodePoints(0, place);
                yield new Str(Character.toString(text.codePointAt(at)), markup);
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
                index instanceof Str(String name, boolean _)
                        ? "'" + typeName(value) + " object' has no attribute '" + name + "'"
                        : typeName(value) + " object has no element " + typeName(index)
                                + (index instanceof Int(BigInteger number) ? " " + number : ""));
    }

    /** {@code value[start:stop:step]}. */
    Value slice(Value value, Value start, Value stop, Value step) {
        int stride = step instanceof None ? 1 : bounded(step);
        if (stride == 0) {
            throw budget.error("slice step cannot be zero");
        }
        return switch (value) {
            case Seq(NumberRange range, Kind kind)
            when kind == Kind.RANGE -> {
                int size = range.size();
                long first = range.start + bound(start, size, stride < 0, stride < 0 ? size - 1 : 0) * range.step;
                long end = range.start + bound(stop, size, stride < 0, stride < 0 ? -1 : size) * range.step;
                long pace = range.step * stride;
                yield new Seq(new NumberRange(first, end, pace, (int) NumberRange.size(first, end, pace)), Kind.RANGE);
            }
            case Seq(List<Value> items, Kind kind)
            when kind.hasPlaces() ->
                new Seq(slice(items, start, stop, stride), kind == Kind.LIST ? Kind.LIST : Kind.TUPLE);
            case Str(String text, boolean markup) -> {
                budget.charge(text.length());
                yield new Str(String.join("", slice(Strings.characters(text), start, stop, stride)), markup);
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
