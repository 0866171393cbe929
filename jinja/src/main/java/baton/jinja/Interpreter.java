package baton.jinja;

import baton.jinja.Value.Arguments;
import baton.jinja.Value.Dict;
import baton.jinja.Value.Function;
import baton.jinja.Value.Kind;
import baton.jinja.Value.Loop;
import baton.jinja.Value.Namespace;
import baton.jinja.Value.Seq;
import baton.jinja.Value.Undefined;
import java.time.Clock;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.jspecify.annotations.Nullable;

/**
 * Walks the tree. Scopes follow Jinja2: {@code for}, {@code with}, macros and block bodies open one, {@code if} does not; a variable that
 * {@code set} assigns inside ends with its scope, and a loop's with each round.
 */
final class Interpreter {
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

    private final RenderBudget budget;
    private final Python python;
    private final Methods methods;
    private final Tests tests;
    private final Filters filters;
    private final Clock clock;
    private Scope outermost = new Scope(null);

    Interpreter(RenderBudget budget, Clock clock) {
        this.budget = budget;
        this.clock = clock;
        this.python = new Python(budget);
        this.methods = new Methods(budget, python);
        this.tests = new Tests(budget, python);
        this.filters = new Filters(budget, python, methods, tests);
    }

    String render(List<Ast.Statement> template, Map<String, Value> variables) {
        Scope globals = new Scope(null);
        new Globals(budget, python, clock)
                .functions()
                .forEach((name, body) -> globals.variables.put(name, new Function(name, body)));
        Scope scope = new Scope(globals);
        scope.variables.putAll(variables);
        outermost = scope;
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
            case Ast.SetBlock(int _, Ast.Target target, List<Ast.Modifier> modifiers, List<Ast.Statement> body) -> {
                StringBuilder text = new StringBuilder();
                Flow flow = execute(body, new Scope(scope), text);
                if (flow != Flow.NEXT) {
                    return flow;
                }
                assign(target, filtered(modifiers, text, scope), scope);
            }
            case Ast.FilterBlock(int _, List<Ast.Modifier> modifiers, List<Ast.Statement> body) -> {
                StringBuilder text = new StringBuilder();
                Flow flow = execute(body, new Scope(scope), text);
                if (flow != Flow.NEXT) {
                    return flow;
                }
                write(python.string(filtered(modifiers, text, scope)), out);
            }
            case Ast.Macro(int _, Ast.Routine routine) ->
                scope.variables.put(routine.name(), new Macro(routine, scope).value());
            case Ast.CallBlock block -> {
                Value caller = new Macro(block.caller(), scope).value();
                write(python.string(call(block.call(), scope, caller)), out);
            }
            case Ast.Block block -> {
                if (block.required()) {
                    throw budget.error("Required block '" + block.name() + "' not found");
                }
                return execute(block.body(), new Scope(block.scoped() ? scope : outermost), out);
            }
            case Ast.Autoescape autoescape -> {
                if (python.truth(evaluate(autoescape.on(), scope))) {
                    throw budget.error("autoescape is not supported, prompts are no HTML");
                }
                return execute(autoescape.body(), new Scope(scope), out);
            }
            case Ast.Load load ->
                throw budget.error(
                        "{% " + load.statement() + " %} needs other templates, and a chat template has none");
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
        budget.charge(1 + text.length() / RenderBudget.CHARACTERS_PER_STEP);
        budget.limitText((long) out.length() + text.length());
        out.append(text);
    }

    private Flow loop(Ast.For loop, Scope scope, StringBuilder out) {
        Value items = evaluate(loop.items(), scope);
        if (loop.recursive()) {
            write(recursion(loop, scope, items, 0), out);
            return Flow.NEXT;
        }
        return rounds(loop, scope, items, 0, out);
    }

    /** The text of a recursive loop over these items. */
    private String recursion(Ast.For loop, Scope scope, Value items, int depth0) {
        StringBuilder text = new StringBuilder();
        budget.enter();
        rounds(loop, scope, items, depth0, text);
        budget.leave();
        return budget.text(text.toString());
    }

    private Flow rounds(Ast.For loop, Scope scope, Value value, int depth0, StringBuilder out) {
        Iterator<Value> items = python.iterator(value);
        int length = value instanceof Value.Generator || value instanceof Undefined ? -1 : python.length(value);
        Ast.Expression condition = loop.condition();
        if (condition != null) {
            Iterator<Value> all = items;
            length = -1;
            items = new LazyItems(budget, () -> all, item -> {
                Scope round = new Scope(scope);
                assign(loop.target(), item, round);
                return python.truth(evaluate(condition, round)) ? Optional.of(item) : Optional.empty();
            });
        }
        LoopState state = new LoopState(
                items,
                length,
                depth0,
                loop.recursive()
                        ? Optional.of(inner -> Value.of(recursion(loop, scope, inner, depth0 + 1)))
                        : Optional.empty(),
                budget);
        Value shown = new Loop(state);
        // As Jinja has it, a round that break or continue ends does not count.
        boolean counted = false;
        while (state.hasNext()) {
            budget.charge(1);
            Scope round = new Scope(scope);
            assign(loop.target(), state.next(), round);
            round.variables.put("loop", shown);
            Flow flow = execute(loop.body(), round, out);
            counted |= flow == Flow.NEXT;
            if (flow == Flow.BREAK) {
                break;
            }
        }
        return counted ? Flow.NEXT : execute(loop.otherwise(), new Scope(scope), out);
    }

    private Value filtered(List<Ast.Modifier> modifiers, StringBuilder text, Scope scope) {
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

    /** A macro, or the body of a call block, in the scope that it was written in. */
    private final class Macro {
        private final Ast.Routine routine;
        private final Scope scope;

        Macro(Ast.Routine routine, Scope scope) {
            this.routine = routine;
            this.scope = scope;
        }

        Value value() {
            List<Value> names = routine.parameters().stream()
                    .map(parameter -> Value.of(parameter.name()))
                    .toList();
            boolean anonymous = routine.name().isEmpty();
            return new Value.Instance(
                    "Macro",
                    Optional.of(this::call),
                    Map.of(
                            "name", () -> anonymous ? Value.NONE : Value.of(routine.name()),
                            "arguments", () -> new Seq(names, Kind.TUPLE),
                            "catch_kwargs", () -> Value.of(takes("kwargs")),
                            "catch_varargs", () -> Value.of(takes("varargs")),
                            "caller", () -> Value.of(routine.takes("caller"))),
                    Optional.of(anonymous ? "<Macro anonymous>" : "<Macro '" + routine.name() + "'>"));
        }

        /** Whether the routine takes arguments without a parameter; a parameter of that name is an ordinary one. */
        private boolean takes(String special) {
            return routine.takes(special)
                    && routine.parameters().stream()
                            .noneMatch(parameter -> parameter.name().equals(special));
        }

        private Value call(Arguments call) {
            int line = budget.line();
            Scope inner = new Scope(scope);
            Map<String, Value> named = new LinkedHashMap<>(call.named());
            List<Ast.Parameter> parameters = routine.parameters();
            Map<String, Value> given = new HashMap<>();
            for (int i = 0; i < parameters.size(); i++) {
                String name = parameters.get(i).name();
                Value value = i < call.positional().size() ? call.positional().get(i) : named.remove(name);
                if (value != null) {
                    given.put(name, value);
                }
            }
            if (takes("caller")) {
                Value caller = named.remove("caller");
                inner.variables.put("caller", caller != null ? caller : new Undefined("No caller defined"));
            }
            if (takes("kwargs")) {
                Map<Value, Value> entries = new LinkedHashMap<>();
                named.forEach((name, value) -> entries.put(Value.of(name), value));
                inner.variables.put("kwargs", new Dict(entries));
            } else if (!named.isEmpty()) {
                throw budget.error("macro '" + routine.name() + "' takes no keyword argument '"
                        + named.keySet().iterator().next() + "'");
            }
            if (takes("varargs")) {
                inner.variables.put(
                        "varargs", new Seq(call.from(parameters.size()).positional(), Kind.TUPLE));
            } else if (call.positional().size() > parameters.size()) {
                throw budget.error(
                        "macro '" + routine.name() + "' takes not more than " + parameters.size() + " argument(s)");
            }
            for (Ast.Parameter parameter : parameters) {
                Value value = given.get(parameter.name());
                if (value == null) {
                    value = parameter.otherwise() == null
                            ? new Undefined("parameter '" + parameter.name() + "' was not provided")
                            : evaluate(parameter.otherwise(), inner);
                }
                inner.variables.put(parameter.name(), value);
            }
            StringBuilder out = new StringBuilder();
            execute(routine.body(), inner, out);
            budget.at(line);
            return Value.of(budget.text(out.toString()));
        }
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
            case Ast.Sequence sequence ->
                new Seq(all(sequence.items(), scope), sequence.tuple() ? Kind.TUPLE : Kind.LIST);
            case Ast.Dictionary dictionary -> {
                Map<Value, Value> entries = new LinkedHashMap<>();
                for (int i = 0; i < dictionary.keys().size(); i++) {
                    entries.put(
                            python.key(evaluate(dictionary.keys().get(i), scope)),
                            evaluate(dictionary.values().get(i), scope));
                }
                yield new Dict(entries);
            }
            case Ast.Attribute attribute -> methods.attribute(evaluate(attribute.object(), scope), attribute.name());
            case Ast.Subscript subscript ->
                methods.subscript(evaluate(subscript.object(), scope), evaluate(subscript.index(), scope));
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
                Value.of(tests.test(test.test().name(), evaluate(test.object(), scope), arguments(test.test(), scope))
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
            if (!python.holds(operand.comparison(), left, right)) {
                return false;
            }
            left = right;
        }
        return true;
    }

    private Value call(Ast.Call call, Scope scope, @Nullable Value caller) {
        Value function = evaluate(call.function(), scope);
        Arguments arguments = arguments("", call.arguments(), scope);
        if (caller != null && arguments.named().put("caller", caller) != null) {
            throw budget.error("a call block's call has no argument 'caller'");
        }
        budget.at(call.line());
        return switch (function) {
            case Function(String name, Value.Body body) -> body.call(arguments.of(name));
            case Value.Instance instance
            when instance.body().isPresent() -> instance.body().get().call(arguments.of(instance.type()));
            case Loop(LoopState state) -> state.call(arguments.of("loop"));
            default -> throw python.error(function, "'" + Python.typeName(function) + "' object is not callable");
        };
    }

    private Arguments arguments(Ast.Modifier modifier, Scope scope) {
        return arguments(modifier.name(), modifier.arguments(), scope);
    }

    private Arguments arguments(String function, Ast.Arguments arguments, Scope scope) {
        List<Value> positional = all(arguments.positional(), scope);
        Map<String, Value> named = new LinkedHashMap<>();
        for (Ast.Named argument : arguments.named()) {
            named.put(argument.name(), evaluate(argument.value(), scope));
        }
        if (arguments.rest() != null) {
            positional.addAll(python.iterate(evaluate(arguments.rest(), scope)));
        }
        if (arguments.keywords() != null) {
            if (!(evaluate(arguments.keywords(), scope) instanceof Dict(Map<Value, Value> entries))) {
                throw budget.error("the argument after ** must be a mapping");
            }
            budget.charge(entries.size());
            entries.forEach((key, value) -> {
                if (!(key instanceof Value.Str(String name, boolean _))) {
                    throw budget.error("keywords must be strings");
                }
                if (named.put(name, value) != null) {
                    throw budget.error("got multiple values for keyword argument '" + name + "'");
                }
            });
        }
        return new Arguments(budget, function, positional, named);
    }
}
