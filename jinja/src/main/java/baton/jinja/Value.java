package baton.jinja;

import java.math.BigInteger;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/** What an expression can be: Python's types, as far as templates meet them. Only namespaces and iterators can change. */
sealed interface Value {
    Value NONE = new None();
    Value TRUE = new Bool(true);
    Value FALSE = new Bool(false);

    /** @param reason why there is no value, for the error if it is used */
    record Undefined(String reason) implements Value {}

    record None() implements Value {}

    record Bool(boolean value) implements Value {}

    record Int(BigInteger value) implements Value {}

    record Real(double value) implements Value {}

    record Str(String text) implements Value {}

    /** A list, or a tuple where it is printed as one. */
    record Seq(List<Value> items, boolean tuple) implements Value {}

    record Dict(Map<Value, Value> entries) implements Value {}

    /** A generator: true even if empty, without a length, read once. */
    record Generator(Iterator<Value> items) implements Value {}

    /** A function, bound method or macro. */
    record Function(String name, Body body) implements Value {}

    /** {@code namespace(...)}: variables that loops can change. */
    record Namespace(Map<String, Value> variables) implements Value {}

    /** The {@code loop} variable of one round. */
    record Loop(LoopState state, int index) implements Value {}

    /** What all rounds of a loop share. */
    final class LoopState {
        final List<Value> items;
        final int depth;

        @Nullable
        Value lastChanged;

        LoopState(List<Value> items, int depth) {
            this.items = items;
            this.depth = depth;
        }
    }

    /** What a function does. */
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
        return new Str(text);
    }

    static Value list(List<Value> items) {
        return new Seq(items, false);
    }

    static Value tuple(Value... items) {
        return new Seq(List.of(items), true);
    }

    static Value generator(List<Value> items) {
        return new Generator(items.iterator());
    }

    /** A call's arguments. */
    record Arguments(Budget budget, String function, List<Value> positional, Map<String, Value> named) {
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
    record Bound(Budget budget, String function, Map<String, Value> values) {
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

        int integer(String parameter, int otherwise) {
            return switch (get(parameter).orElse(of(otherwise))) {
                case Int(BigInteger value) when value.bitLength() < 32 -> value.intValue();
                case Bool(boolean value) -> value ? 1 : 0;
                default -> throw budget.error(function + "() wants a whole number for '" + parameter + "'");
            };
        }

        private String asText(String parameter, Value value) {
            if (value instanceof Str(String text)) {
                return text;
            }
            throw budget.error(function + "() wants a string for '" + parameter + "'");
        }
    }
}
