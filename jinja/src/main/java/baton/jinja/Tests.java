package baton.jinja;

import baton.jinja.Value.Arguments;
import baton.jinja.Value.Bool;
import baton.jinja.Value.Dict;
import baton.jinja.Value.Function;
import baton.jinja.Value.Generator;
import baton.jinja.Value.Instance;
import baton.jinja.Value.Int;
import baton.jinja.Value.Loop;
import baton.jinja.Value.Namespace;
import baton.jinja.Value.None;
import baton.jinja.Value.Real;
import baton.jinja.Value.Seq;
import baton.jinja.Value.Str;
import baton.jinja.Value.Undefined;
import java.util.List;
import java.util.Set;

/** Jinja2's built-in tests. */
record Tests(RenderBudget budget, Python python) {
    private static final Set<String> NAMES = Set.of(
            "odd",
            "even",
            "divisibleby",
            "defined",
            "undefined",
            "filter",
            "test",
            "none",
            "boolean",
            "false",
            "true",
            "integer",
            "float",
            "lower",
            "upper",
            "string",
            "mapping",
            "number",
            "sequence",
            "iterable",
            "callable",
            "sameas",
            "escaped",
            "in",
            "==",
            "eq",
            "equalto",
            "!=",
            "ne",
            ">",
            "gt",
            "greaterthan",
            "ge",
            ">=",
            "<",
            "lt",
            "lessthan",
            "<=",
            "le");

    /** @throws JinjaException if there is no such test, or it does not fit the value */
    boolean test(String name, Value value, Arguments call) {
        return switch (name) {
            case "divisibleby" -> python.equal(modulo(value, argument(call, "num")), Value.of(0));
            case "sameas" -> isSame(value, argument(call, "other"));
            case "in" -> python.contains(argument(call, "seq"), value);
            case "eq", "equalto", "==" -> holds(Ast.Comparison.EQUAL, value, call);
            case "ne", "!=" -> holds(Ast.Comparison.NOT_EQUAL, value, call);
            case "lt", "lessthan", "<" -> holds(Ast.Comparison.LESS, value, call);
            case "le", "<=" -> holds(Ast.Comparison.LESS_OR_EQUAL, value, call);
            case "gt", "greaterthan", ">" -> holds(Ast.Comparison.GREATER, value, call);
            case "ge", ">=" -> holds(Ast.Comparison.GREATER_OR_EQUAL, value, call);
            default -> {
                call.bind();
                yield test(name, value);
            }
        };
    }

    private boolean test(String name, Value value) {
        return switch (name) {
            case "defined" -> !(value instanceof Undefined);
            case "undefined" -> value instanceof Undefined;
            case "none" -> value instanceof None;
            case "boolean" -> value instanceof Bool;
            case "true" -> value instanceof Bool(boolean truth) && truth;
            case "false" -> value instanceof Bool(boolean truth) && !truth;
            case "string" -> value instanceof Str;
            case "escaped" -> value instanceof Str(String _, boolean markup) && markup;
            case "mapping" -> value instanceof Dict;
            case "sequence" ->
                value instanceof Str
                        || (value instanceof Seq(List<Value> _, Value.Kind kind) && kind.hasPlaces())
                        || value instanceof Dict
                        || value instanceof Undefined;
            case "iterable" ->
                switch (value) {
                    case Str _, Seq _, Dict _, Undefined _, Generator _, Loop _ -> true;
                    case None _, Value.Numeric _, Function _, Instance _, Namespace _ -> false;
                };
            case "number" -> value instanceof Value.Numeric;
            case "integer" -> value instanceof Int;
            case "float" -> value instanceof Real;
            case "callable" ->
                value instanceof Function
                        || value instanceof Loop
                        || value instanceof Undefined
                        || (value instanceof Instance instance
                                && instance.body().isPresent());
            case "odd" -> python.equal(modulo(value, Value.of(2)), Value.of(1));
            case "even" -> python.equal(modulo(value, Value.of(2)), Value.of(0));
            case "lower" -> Methods.isCased(budget.text(python.string(value)), false);
            case "upper" -> Methods.isCased(budget.text(python.string(value)), true);
            case "filter" -> Filters.NAMES.contains(named(value));
            case "test" -> NAMES.contains(named(value));
            default -> throw budget.error("No test named '" + name + "'.");
        };
    }

    private String named(Value value) {
        return python.key(value) instanceof Str(String name, boolean _) ? name : "";
    }

    private Value modulo(Value value, Value divisor) {
        return python.binary(Ast.BinaryOperator.MODULO, value, divisor);
    }

    private boolean holds(Ast.Comparison comparison, Value value, Arguments call) {
        return python.holds(comparison, value, call.bindPlaces("value").require("value"));
    }

    private static Value argument(Arguments call, String parameter) {
        return call.bind(parameter).require(parameter);
    }

    /** Identity, of small values that Python has once. */
    @SuppressWarnings("ReferenceEquality") // an identity is asked for
    private static boolean isSame(Value value, Value other) {
        return switch (value) {
            case None _, Bool _, Int _, Str _ -> value.getClass() == other.getClass() && value.equals(other);
            default -> value == other;
        };
    }
}
