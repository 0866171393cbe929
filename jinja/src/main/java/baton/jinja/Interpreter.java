package baton.jinja;

import baton.jinja.Value.Arguments;
import baton.jinja.Value.Dict;
import baton.jinja.Value.Function;
import baton.jinja.Value.Loop;
import baton.jinja.Value.LoopState;
import baton.jinja.Value.Namespace;
import baton.jinja.Value.Seq;
import baton.jinja.Value.Str;
import baton.jinja.Value.Undefined;
import java.time.Clock;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * Walks the tree. Scopes follow Jinja2: {@code for}, {@code with}, macros and block bodies open one, {@code if} does not; what
 * {@code set} assigns inside ends with its scope, and a loop's with each round.
 */
final class Interpreter {
    private static final int MAX_RANGE = 100_000;

    private enum Flow {
        NEXT,
        BREAK,
        CONTINUE
    }

    /** The variables of one scope. */
    private static final class Scope {
        final Map<String, Value> variables = new HashMap<>();
        final @Nullable Scope outer;

        Scope(@Nullable Scope outer) {
            this.outer = outer;
        }

        @Nullable
        Value find(String name) {
            for (Scope scope = this; scope != null; scope = scope.outer) {
                Value found = scope.variables.get(name);
                if (found != null) {
                    return found;
                }
            }
            return null;
        }
    }

    private final Budget budget;
    private final Python python;
    private final Methods methods;
    private final Filters filters;
    private final Clock clock;

    Interpreter(Budget budget, Clock clock) {
        this.budget = budget;
        this.clock = clock;
        this.python = new Python(budget);
        this.methods = new Methods(budget, python);
        this.filters = new Filters(budget, python, methods);
    }

    String render(List<Ast.Statement> template, Map<String, Value> variables) {
        Scope globals = new Scope(null);
        globals.variables.put("range", new Function("range", this::range));
        globals.variables.put("dict", new Function("dict", call -> new Dict(keyed(initial(call)))));
        globals.variables.put("namespace", new Function("namespace", call -> new Namespace(initial(call))));
        globals.variables.put("raise_exception", new Function("raise_exception", call -> {
            throw budget.error(python.string(call.bind("message").require("message")));
        }));
        globals.variables.put(
                "strftime_now",
                new Function(
                        "strftime_now",
                        call -> Value.of(Strftime.format(call.bind("format").text("format"), clock, budget))));
        Scope scope = new Scope(globals);
        scope.variables.putAll(variables);
        StringBuilder out = new StringBuilder();
        if (execute(template, scope, out) != Flow.NEXT) {
            throw budget.error("break or continue outside a loop");
        }
        return out.toString();
    }

    private Flow execute(List<Ast.Statement> statements, Scope scope, StringBuilder out) {
        budget.enter();
        for (Ast.Statement statement : statements) {
            budget.at(statement.line());
            budget.charge(1);
            Flow flow = execute(statement, scope, out);
            if (flow != Flow.NEXT) {
                budget.leave();
                return flow;
            }
        }
        budget.leave();
        return Flow.NEXT;
    }

    private Flow execute(Ast.Statement statement, Scope scope, StringBuilder out) {
        switch (statement) {
            case Ast.Text text -> write(text.text(), out);
            case Ast.Print print -> write(python.string(evaluate(print.value(), scope)), out);
            case Ast.If conditional -> {
                for (Ast.Branch branch : conditional.branches()) {
                    if (python.truth(evaluate(branch.test(), scope))) {
                        return execute(branch.body(), scope, out);
                    }
                }
                return execute(conditional.otherwise(), scope, out);
            }
            case Ast.For loop -> {
                return loop(loop, scope, out);
            }
            case Ast.Set set -> assign(set.target(), evaluate(set.value(), scope), scope);
            case Ast.SetBlock block -> assign(block.target(), filtered(block.filters(), block.body(), scope), scope);
            case Ast.Macro macro ->
                scope.variables.put(macro.name(), macro(macro.name(), macro.parameters(), macro.body(), scope));
            case Ast.CallBlock block -> {
                Value caller = macro("caller", block.parameters(), block.body(), scope);
                write(python.string(call(block.call(), scope, caller)), out);
            }
            case Ast.FilterBlock block -> write(python.string(filtered(block.filters(), block.body(), scope)), out);
            case Ast.With with -> {
                Scope inner = new Scope(scope);
                for (int i = 0; i < with.targets().size(); i++) {
                    assign(with.targets().get(i), evaluate(with.values().get(i), scope), inner);
                }
                return execute(with.body(), inner, out);
            }
            case Ast.Generation generation -> {
                return execute(generation.body(), new Scope(scope), out);
            }
            case Ast.Break _ -> {
                return Flow.BREAK;
            }
            case Ast.Continue _ -> {
                return Flow.CONTINUE;
            }
        }
        return Flow.NEXT;
    }

    private void write(String text, StringBuilder out) {
        budget.charge(1 + text.length() / Budget.CHARACTERS_PER_STEP);
        budget.limitText((long) out.length() + text.length());
        out.append(text);
    }

    private Flow loop(Ast.For loop, Scope scope, StringBuilder out) {
        List<Value> items = python.iterate(evaluate(loop.items(), scope));
        if (loop.condition() != null) {
            List<Value> chosen = new ArrayList<>();
            for (Value item : items) {
                Scope round = new Scope(scope);
                assign(loop.target(), item, round);
                if (python.truth(evaluate(loop.condition(), round))) {
                    chosen.add(item);
                }
            }
            items = chosen;
        }
        if (items.isEmpty()) {
            return execute(loop.otherwise(), scope, out);
        }
        int depth = scope.find("loop") instanceof Loop(LoopState state, int _) ? state.depth + 1 : 1;
        LoopState state = new LoopState(items, depth);
        for (int i = 0; i < items.size(); i++) {
            Scope round = new Scope(scope);
            assign(loop.target(), items.get(i), round);
            round.variables.put("loop", new Loop(state, i));
            if (execute(loop.body(), round, out) == Flow.BREAK) {
                break;
            }
        }
        return Flow.NEXT;
    }

    private Value filtered(List<Ast.Modifier> modifiers, List<Ast.Statement> body, Scope scope) {
        StringBuilder text = new StringBuilder();
        execute(body, new Scope(scope), text);
        Value value = Value.of(budget.text(text.toString()));
        for (Ast.Modifier modifier : modifiers) {
            value = filters.filter(modifier.name(), value, arguments(modifier, scope));
        }
        return value;
    }

    private void assign(Ast.Target target, Value value, Scope scope) {
        switch (target) {
            case Ast.Variable(String name) -> scope.variables.put(name, value);
            case Ast.Member(String namespace, String name) -> {
                if (!(scope.find(namespace) instanceof Namespace(Map<String, Value> variables))) {
                    throw budget.error("cannot assign attribute on non-namespace object '" + namespace + "'");
                }
                variables.put(name, value);
            }
            case Ast.Unpack(List<Ast.Target> targets) -> {
                List<Value> items = python.iterate(value);
                if (items.size() != targets.size()) {
                    throw budget.error("cannot unpack " + items.size() + " values into " + targets.size());
                }
                for (int i = 0; i < targets.size(); i++) {
                    assign(targets.get(i), items.get(i), scope);
                }
            }
        }
    }

    private Function macro(String name, List<Ast.Parameter> parameters, List<Ast.Statement> body, Scope scope) {
        return new Function(name, call -> {
            Scope inner = new Scope(scope);
            Map<String, Value> named = new LinkedHashMap<>(call.named());
            Value caller = named.remove("caller");
            if (caller != null) {
                inner.variables.put("caller", caller);
            }
            for (int i = 0; i < parameters.size(); i++) {
                Ast.Parameter parameter = parameters.get(i);
                Value given = i < call.positional().size() ? call.positional().get(i) : named.remove(parameter.name());
                if (given == null) {
                    given = parameter.otherwise() == null
                            ? new Undefined("parameter '" + parameter.name() + "' was not provided")
                            : evaluate(parameter.otherwise(), inner);
                }
                inner.variables.put(parameter.name(), given);
            }
            if (!named.isEmpty()) {
                throw budget.error("macro '" + name + "' takes no keyword argument '"
                        + named.keySet().iterator().next() + "'");
            }
            if (call.positional().size() > parameters.size()) {
                throw budget.error("macro '" + name + "' takes not more than " + parameters.size() + " argument(s)");
            }
            StringBuilder out = new StringBuilder();
            execute(body, inner, out);
            return Value.of(budget.text(out.toString()));
        });
    }

    private Value evaluate(Ast.Expression expression, Scope scope) {
        budget.enter();
        budget.at(expression.line());
        Value value = switch (expression) {
            case Ast.Literal literal -> literal.value();
            case Ast.Name(int _, String name) -> {
                Value found = scope.find(name);
                yield found != null ? found : new Undefined("'" + name + "' is undefined");
            }
            case Ast.Sequence sequence -> new Seq(all(sequence.items(), scope), sequence.tuple());
            case Ast.Dictionary dictionary -> {
                Map<Value, Value> entries = new LinkedHashMap<>();
                for (int i = 0; i < dictionary.keys().size(); i++) {
                    entries.put(
                            python.key(evaluate(dictionary.keys().get(i), scope)),
                            evaluate(dictionary.values().get(i), scope));
                }
                yield new Dict(entries);
            }
            case Ast.Attribute attribute -> attribute(evaluate(attribute.object(), scope), attribute.name());
            case Ast.Subscript subscript ->
                subscript(evaluate(subscript.object(), scope), evaluate(subscript.index(), scope));
            case Ast.Slice slice ->
                python.slice(
                        evaluate(slice.object(), scope),
                        optional(slice.start(), scope),
                        optional(slice.stop(), scope),
                        optional(slice.step(), scope));
            case Ast.Call call -> call(call, scope, null);
            case Ast.Filter filter ->
                filters.filter(
                        filter.filter().name(), evaluate(filter.object(), scope), arguments(filter.filter(), scope));
            case Ast.Test test ->
                Value.of(filters.test(test.test().name(), evaluate(test.object(), scope), arguments(test.test(), scope))
                        != test.negated());
            case Ast.Unary unary -> {
                Value operand = evaluate(unary.operand(), scope);
                yield switch (unary.operator()) {
                    case NOT -> Value.of(!python.truth(operand));
                    case MINUS -> python.minus(operand);
                    case PLUS -> python.plus(operand);
                };
            }
            case Ast.Binary binary -> binary(binary, scope);
            case Ast.Concat concat -> {
                StringBuilder text = new StringBuilder();
                for (Ast.Expression part : concat.parts()) {
                    text.append(budget.text(python.string(evaluate(part, scope))));
                }
                yield Value.of(budget.text(text.toString()));
            }
            case Ast.Compare compare -> Value.of(compare(compare, scope));
            case Ast.Conditional conditional -> {
                if (python.truth(evaluate(conditional.test(), scope))) {
                    yield evaluate(conditional.value(), scope);
                }
                yield conditional.otherwise() == null
                        ? new Undefined("the inline if-expression on line " + conditional.line()
                                + " evaluated to false and no else section was defined")
                        : evaluate(conditional.otherwise(), scope);
            }
        };
        budget.leave();
        return value;
    }

    private Value optional(Ast.@Nullable Expression expression, Scope scope) {
        return expression == null ? Value.NONE : evaluate(expression, scope);
    }

    private List<Value> all(List<Ast.Expression> expressions, Scope scope) {
        List<Value> values = new ArrayList<>(expressions.size());
        for (Ast.Expression expression : expressions) {
            values.add(evaluate(expression, scope));
        }
        return values;
    }

    private Value binary(Ast.Binary binary, Scope scope) {
        Value left = evaluate(binary.left(), scope);
        return switch (binary.operator()) {
            case AND -> python.truth(left) ? evaluate(binary.right(), scope) : left;
            case OR -> python.truth(left) ? left : evaluate(binary.right(), scope);
            case ADD, SUBTRACT, MULTIPLY, DIVIDE, FLOOR_DIVIDE, MODULO, POWER ->
                python.binary(binary.operator(), left, evaluate(binary.right(), scope));
        };
    }

    private boolean compare(Ast.Compare compare, Scope scope) {
        Value left = evaluate(compare.first(), scope);
        for (Ast.Operand operand : compare.others()) {
            Value right = evaluate(operand.value(), scope);
            boolean holds = switch (operand.comparison()) {
                case EQUAL -> python.equal(left, right);
                case NOT_EQUAL -> !python.equal(left, right);
                case LESS -> python.compare(left, right) < 0;
                case LESS_OR_EQUAL -> python.compare(left, right) <= 0;
                case GREATER -> python.compare(left, right) > 0;
                case GREATER_OR_EQUAL -> python.compare(left, right) >= 0;
                case IN -> python.contains(right, left);
                case NOT_IN -> !python.contains(right, left);
            };
            if (!holds) {
                return false;
            }
            left = right;
        }
        return true;
    }

    /** {@code object.name}: a method before an entry. */
    private Value attribute(Value object, String name) {
        return switch (object) {
            case Undefined(String reason) -> throw budget.error(reason);
            case Namespace(Map<String, Value> variables) -> {
                Value found = variables.get(name);
                yield found != null ? found : python.missing(object, Value.of(name));
            }
            case Loop(LoopState state, int index) -> loopAttribute(object, state, index, name);
            default ->
                methods.find(object, name)
                        .orElseGet(() -> object instanceof Dict
                                ? python.item(object, Value.of(name))
                                : python.missing(object, Value.of(name)));
        };
    }

    /** {@code object[index]}: an entry before a method. */
    private Value subscript(Value object, Value index) {
        if (object instanceof Namespace || object instanceof Loop) {
            return attribute(object, python.string(index));
        }
        Value found = python.item(object, index);
        return found instanceof Undefined && index instanceof Str(String name)
                ? methods.find(object, name).orElse(found)
                : found;
    }

    private Value loopAttribute(Value loop, LoopState state, int index, String name) {
        int size = state.items.size();
        return switch (name) {
            case "index" -> Value.of(index + 1);
            case "index0" -> Value.of(index);
            case "revindex" -> Value.of(size - index);
            case "revindex0" -> Value.of(size - index - 1);
            case "first" -> Value.of(index == 0);
            case "last" -> Value.of(index == size - 1);
            case "length" -> Value.of(size);
            case "depth" -> Value.of(state.depth);
            case "depth0" -> Value.of(state.depth - 1);
            case "previtem" -> index > 0 ? state.items.get(index - 1) : new Undefined("there is no previous item");
            case "nextitem" -> index < size - 1 ? state.items.get(index + 1) : new Undefined("there is no next item");
            case "cycle" ->
                new Function("cycle", call -> {
                    if (call.positional().isEmpty()) {
                        throw budget.error("no items for cycling given");
                    }
                    return call.positional().get(index % call.positional().size());
                });
            case "changed" ->
                new Function("changed", call -> {
                    Value now = new Seq(call.positional(), true);
                    boolean changed = state.lastChanged == null || !python.equal(state.lastChanged, now);
                    state.lastChanged = now;
                    return Value.of(changed);
                });
            default -> python.missing(loop, Value.of(name));
        };
    }

    private Value call(Ast.Call call, Scope scope, @Nullable Value caller) {
        Value function = evaluate(call.function(), scope);
        List<Value> positional = all(call.positional(), scope);
        Map<String, Value> named = named(call.named(), scope);
        if (caller != null) {
            named.put("caller", caller);
        }
        budget.at(call.line());
        if (!(function instanceof Function(String name, Value.Body body))) {
            throw python.error(function, "'" + Python.typeName(function) + "' object is not callable");
        }
        return body.call(new Arguments(budget, name, positional, named));
    }

    private Arguments arguments(Ast.Modifier modifier, Scope scope) {
        return new Arguments(
                budget, modifier.name(), all(modifier.positional(), scope), named(modifier.named(), scope));
    }

    private Map<String, Value> named(List<Ast.Named> arguments, Scope scope) {
        Map<String, Value> named = new LinkedHashMap<>();
        for (Ast.Named argument : arguments) {
            named.put(argument.name(), evaluate(argument.value(), scope));
        }
        return named;
    }

    private Value range(Arguments call) {
        List<Value> given = call.positional();
        if (given.isEmpty() || given.size() > 3 || !call.named().isEmpty()) {
            throw budget.error("range() takes 1 to 3 arguments");
        }
        long start = given.size() == 1 ? 0 : bound(given.get(0));
        long stop = bound(given.get(given.size() == 1 ? 0 : 1));
        long step = given.size() == 3 ? bound(given.get(2)) : 1;
        if (step == 0) {
            throw budget.error("range() step must not be zero");
        }
        List<Value> numbers = new ArrayList<>();
        for (long i = start; step > 0 ? i < stop : i > stop; i += step) {
            budget.charge(1);
            numbers.add(Value.of(i));
            if (numbers.size() > MAX_RANGE) {
                throw budget.error("range too big: the limit is " + MAX_RANGE);
            }
        }
        return Value.list(numbers);
    }

    private long bound(Value value) {
        try {
            return Math.clamp(python.toInteger(value).longValueExact(), -(1L << 40), 1L << 40);
        } catch (ArithmeticException e) {
            throw budget.error("range() wants smaller numbers");
        }
    }

    private Map<String, Value> initial(Arguments call) {
        Map<String, Value> variables = new LinkedHashMap<>();
        if (!call.positional().isEmpty()) {
            if (call.positional().size() > 1
                    || !(call.positional().getFirst() instanceof Dict(Map<Value, Value> entries))) {
                throw budget.error(call.function() + "() takes one mapping and keyword arguments");
            }
            entries.forEach((key, value) -> variables.put(python.string(key), value));
        }
        variables.putAll(call.named());
        return variables;
    }

    private static Map<Value, Value> keyed(Map<String, Value> variables) {
        Map<Value, Value> entries = new LinkedHashMap<>();
        variables.forEach((name, value) -> entries.put(Value.of(name), value));
        return entries;
    }
}
