package baton.jinja;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;

/**
 * The value of an expression: Python's types, as far as templates meet them. Only namespaces, loops, iterators, cyclers and joiners can
 * change.
 */
sealed interface Value {
    Value NONE = new None();
    Value TRUE = new Bool(true);
    Value FALSE = new Bool(false);

    /** @param reason why there is no value, for the error if it is used */
    record Undefined(String reason) implements Value {
        @Override
        public boolean equals(@Nullable Object other) {
            return other instanceof Undefined;
        }

        @Override
        public int hashCode() {
            return 0;
        }
    }

    record None() implements Value {}

    /** A number. As a dictionary's key it equals every other number of its value. */
    sealed interface Numeric extends Value {}

    record Bool(boolean value) implements Numeric {
        @Override
        public boolean equals(@Nullable Object other) {
            return Numbers.sameKey(this, other);
        }

        @Override
        public int hashCode() {
            return value ? 1 : 0;
        }
    }

    record Int(BigInteger value) implements Numeric, Comparable<Int> {
        @Override
        public boolean equals(@Nullable Object other) {
            return Numbers.sameKey(this, other);
        }

        @Override
        public int hashCode() {
            return value.hashCode();
        }

        @Override
        public int compareTo(Int other) {
            return value.compareTo(other.value);
        }
    }

    record Real(double value) implements Numeric, Comparable<Real> {
        @Override
        public boolean equals(@Nullable Object other) {
            return Numbers.sameKey(this, other);
        }

        @Override
        public int hashCode() {
            return Double.isFinite(value) && value == Math.rint(value)
                    ? new BigDecimal(value).toBigInteger().hashCode()
                    : Double.hashCode(value);
        }

        @Override
        public int compareTo(Real other) {
            return Double.compare(value, other.value);
        }
    }

    /** @param markup whether it is marked as safe in HTML: text added to it is escaped */
    record Str(String text, boolean markup) implements Value, Comparable<Str> {
        @Override
        public boolean equals(@Nullable Object other) {
            return other instanceof Str(String otherText, boolean _) && text.equals(otherText);
        }

        @Override
        public int hashCode() {
            return text.hashCode();
        }

        /** Keeps a dictionary's lookups fast where many keys have one hash. */
        @Override
        public int compareTo(Str other) {
            return text.compareTo(other.text);
        }
    }

    /** A sequence's type in Python. */
    enum Kind {
        LIST("list"),
        TUPLE("tuple"),
        /** A tuple of {@code groupby}, with names for its two items. */
        GROUP("tuple"),
        RANGE("range"),
        KEYS("dict_keys"),
        VALUES("dict_values"),
        ITEMS("dict_items");

        final String type;

        Kind(String type) {
            this.type = type;
        }

        boolean isTuple() {
            return this == TUPLE || this == GROUP;
        }

        /** Whether items are picked by their place. */
        boolean hasPlaces() {
            return this == LIST || this == RANGE || isTuple();
        }
    }

    /** Items in order; those of a {@link Kind#RANGE} are a {@link NumberRange}. */
    record Seq(List<Value> items, Kind kind) implements Value, Comparable<Seq> {
        @Override
        public boolean equals(@Nullable Object other) {
            return other instanceof Seq(List<Value> otherItems, Kind otherKind)
                    && kind.type.equals(otherKind.type)
                    && items.equals(otherItems);
        }

        @Override
        public int hashCode() {
            return items.hashCode();
        }

        /** An order of tuples that are keys, 0 where there is none. */
        @Override
        public int compareTo(Seq other) {
            for (int i = 0; i < Math.min(items.size(), other.items.size()); i++) {
                Value otherItem = other.items.get(i);
                int order = switch (items.get(i)) {
                    case Str text when otherItem instanceof Str otherText -> text.compareTo(otherText);
                    case Int number when otherItem instanceof Int otherNumber -> number.compareTo(otherNumber);
                    case Seq inner when otherItem instanceof Seq otherInner -> inner.compareTo(otherInner);
                    default -> 0;
                };
                if (order != 0) {
                    return order;
                }
            }
            return Integer.compare(items.size(), other.items.size());
        }
    }

    record Dict(Map<Value, Value> entries) implements Value {}

    /** A generator: true even if empty, without a length, read once. */
    record Generator(Iterator<Value> items) implements Value {}

    /** A function or bound method. */
    record Function(String name, Body body) implements Value {}

    /**
     * An object with attributes: a macro, a cycler or a joiner.
     *
     * @param body runs on a call; empty if it cannot be called
     * @param text printed for it; empty if Python prints an address
     */
    record Instance(String type, Optional<Body> body, Map<String, Supplier<Value>> attributes, Optional<String> text)
            implements Value {}

    /** {@code namespace(...)}: variables that loops can change. */
    record Namespace(Map<String, Value> variables) implements Value {}

    /** The {@code loop} variable. */
    record Loop(LoopState state) implements Value {}

    /** The body of a function. */
    @FunctionalInterface
    interface Body {
        Value call(Arguments arguments);
    }

    static Value of(boolean value) {
        return value ? TRUE : FALSE;
    }

    static Value of(long value) {
        return new Int(BigInteger.valueOf(value));
    }

    static Value of(String text) {
        return new Str(text, false);
    }

    static Value list(List<Value> items) {
        return new Seq(items, Kind.LIST);
    }

    static Value tuple(Value... items) {
        return new Seq(List.of(items), Kind.TUPLE);
    }

    /** A call's arguments. */
    record Arguments(RenderBudget budget, String function, List<Value> positional, Map<String, Value> named) {
        /** Gives each parameter its argument. @throws JinjaException if there are more arguments, or of other names */
        Bound bind(String... parameters) {
            if (positional.size() > parameters.length) {
                throw budget.error(function + "() takes at most " + parameters.length + " arguments, has "
                        + (positional.size() + named.size()));
            }
            Map<String, Value> values = new HashMap<>(named);
            if (!Set.of(parameters).containsAll(named.keySet())) {
                values.keySet().removeAll(Set.of(parameters));
                throw budget.error(function + "() has no argument '"
                        + values.keySet().iterator().next() + "'");
            }
            for (int i = 0; i < positional.size(); i++) {
                if (values.put(parameters[i], positional.get(i)) != null) {
                    throw budget.error(function + "() has two values for argument '" + parameters[i] + "'");
                }
            }
            return new Bound(budget, function, values);
        }

        /** As {@link #bind}, of a function with unnamed parameters. */
        Bound bindPlaces(String... parameters) {
            if (!named.isEmpty()) {
                throw budget.error(function + "() takes no keyword arguments");
            }
            return bind(parameters);
        }

        /** The arguments of a call of this function. */
        Arguments of(String called) {
            return new Arguments(budget, called, positional, named);
        }

        /** The arguments after the first {@code count}. */
        Arguments from(int count) {
            return new Arguments(
                    budget,
                    function,
                    positional.subList(Math.min(count, positional.size()), positional.size()),
                    new LinkedHashMap<>(named));
        }
    }

    /** Arguments by parameter. */
    record Bound(RenderBudget budget, String function, Map<String, Value> values) {
        Optional<Value> get(String parameter) {
            return Optional.ofNullable(values.get(parameter));
        }

        Value require(String parameter) {
            return get(parameter)
                    .orElseThrow(() -> budget.error(function + "() needs the argument '" + parameter + "'"));
        }

        String text(String parameter) {
            return asText(parameter, require(parameter));
        }

        /** Empty for an argument that is missing or None. */
        Optional<String> optionalText(String parameter) {
            return get(parameter).filter(value -> !(value instanceof None)).map(value -> asText(parameter, value));
        }

        /** The argument's truth; false if it is missing. */
        boolean flag(String parameter, Python python) {
            return get(parameter).filter(python::truth).isPresent();
        }

        int integer(String parameter, int otherwise) {
            return switch (get(parameter).orElse(of(otherwise))) {
                case Int(BigInteger value) when value.bitLength() < 32 -> value.intValue();
                case Bool(boolean value) -> value ? 1 : 0;
                case Int(BigInteger value) -> value.signum() < 0 ? Integer.MIN_VALUE : Integer.MAX_VALUE;
                case Value value ->
                    throw budget.error(value, function + "() wants a whole number for '" + parameter + "'");
            };
        }

        private String asText(String parameter, Value value) {
            if (value instanceof Str(String text, boolean _)) {
                return text;
            }
            throw budget.error(value, function + "() wants a string for '" + parameter + "'");
        }
    }
}
