package baton.jinja;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/**
 * Whether a template loops over the content of messages, which is how vLLM 0.32 finds out that a template reads contents in parts: a loop over
 * {@code message.content}, where {@code message} is an element of {@code messages}, over a macro's parameter that receives such a content, or
 * over a variable named {@code content}. Filters, tests and slices of these count as these. A loop over messages or contents that unpacks its
 * elements, and messages that are assigned to a member of a namespace, make the answer no.
 */
final class ContentLoops {
    private static final String CONTENT = "content";

    /** The assignments by the variable that is assigned. */
    private final Map<String, List<Ast.Target>> assignments = new HashMap<>();

    private final List<Ast.For> loops = new ArrayList<>();
    private final List<Ast.Macro> macros = new ArrayList<>();
    private final Map<String, List<Ast.Call>> calls = new HashMap<>();
    /** The macros that a loop is in, the innermost first. */
    private final IdentityHashMap<Ast.For, List<Ast.Macro>> around = new IdentityHashMap<>();

    private final Deque<Ast.Macro> open = new ArrayDeque<>();

    private ContentLoops() {}

    static boolean are(List<Ast.Statement> template) {
        ContentLoops found = new ContentLoops();
        found.statements(template);
        return found.any();
    }

    private boolean any() {
        Set<String> messages = messages();
        if (messages.isEmpty()) {
            return false;
        }
        Set<String> elements = new HashSet<>();
        for (Ast.For loop : loops) {
            if (bare(loop.items()) instanceof Ast.Name items && messages.contains(items.name())) {
                if (!(loop.target() instanceof Ast.Variable(String name))) {
                    return false;
                }
                elements.add(name);
            }
        }
        IdentityHashMap<Ast.Macro, Set<String>> received = new IdentityHashMap<>();
        macros.forEach(macro -> received.put(macro, received(macro, elements)));
        return loops.stream()
                .filter(loop -> isOverContent(loop, elements, received))
                .findFirst()
                .filter(loop -> loop.target() instanceof Ast.Variable)
                .isPresent();
    }

    /** {@code messages} and the variables assigned from it; nothing at all if it is assigned to anything but a variable. */
    private Set<String> messages() {
        Set<String> found = new HashSet<>(Set.of("messages"));
        Deque<String> next = new ArrayDeque<>(found);
        while (!next.isEmpty()) {
            for (Ast.Target target : assignments.getOrDefault(next.pop(), List.of())) {
                if (!(target instanceof Ast.Variable(String name))) {
                    return Set.of();
                }
                if (found.add(name)) {
                    next.push(name);
                }
            }
        }
        return found;
    }

    /** The parameters of a macro that receive a content in some call. */
    private Set<String> received(Ast.Macro macro, Set<String> elements) {
        List<String> names =
                macro.routine().parameters().stream().map(Ast.Parameter::name).toList();
        Set<String> received = new HashSet<>();
        for (Ast.Call call : calls.getOrDefault(macro.routine().name(), List.of())) {
            List<Ast.Expression> positional = call.arguments().positional();
            for (int i = 0; i < Math.min(names.size(), positional.size()); i++) {
                if (isContent(positional.get(i), elements)) {
                    received.add(names.get(i));
                }
            }
            for (Ast.Named named : call.arguments().named()) {
                if (names.contains(named.name()) && isContent(named.value(), elements)) {
                    received.add(named.name());
                }
            }
        }
        return received;
    }

    private boolean isOverContent(
            Ast.For loop, Set<String> elements, IdentityHashMap<Ast.Macro, Set<String>> received) {
        if (isContent(loop.items(), elements)) {
            return true;
        }
        if (!(loop.items() instanceof Ast.Name name)) {
            return false;
        }
        List<Ast.Macro> inside = around.getOrDefault(loop, List.of());
        return inside.isEmpty()
                ? name.name().equals(CONTENT)
                : inside.stream()
                        .map(received::get)
                        .filter(names -> !names.isEmpty())
                        .findFirst()
                        .filter(names -> names.contains(name.name()))
                        .isPresent();
    }

    private static boolean isContent(Ast.Expression expression, Set<String> elements) {
        return switch (bare(expression)) {
            case Ast.Attribute attribute ->
                attribute.name().equals(CONTENT)
                        && attribute.object() instanceof Ast.Name name
                        && elements.contains(name.name());
            case Ast.Subscript subscript ->
                subscript.index() instanceof Ast.Literal literal
                        && literal.value() instanceof Value.Str(String key, boolean _)
                        && key.equals(CONTENT)
                        && subscript.object() instanceof Ast.Name name
                        && elements.contains(name.name());
            default -> false;
        };
    }

    /** Without filters, tests and slices. */
    private static Ast.Expression bare(Ast.Expression expression) {
        return switch (expression) {
            case Ast.Filter filter -> bare(filter.object());
            case Ast.Test test when !test.negated() -> bare(test.object());
            case Ast.Slice slice -> bare(slice.object());
            default -> expression;
        };
    }

    private void statements(List<Ast.Statement> statements) {
        statements.forEach(this::statement);
    }

    private void statement(Ast.Statement statement) {
        switch (statement) {
            case Ast.Text _, Ast.Break _, Ast.Continue _, Ast.Load _ -> {}
            case Ast.Print print -> expression(print.value());
            case Ast.If choice -> {
                choice.branches().forEach(branch -> {
                    expression(branch.test());
                    statements(branch.body());
                });
                statements(choice.otherwise());
            }
            case Ast.For loop -> {
                loops.add(loop);
                around.put(loop, List.copyOf(open));
                expression(loop.items());
                expression(loop.condition());
                statements(loop.body());
                statements(loop.otherwise());
            }
            case Ast.Set set -> {
                if (bare(set.value()) instanceof Ast.Name name) {
                    assignments
                            .computeIfAbsent(name.name(), _ -> new ArrayList<>())
                            .add(set.target());
                }
                expression(set.value());
            }
            case Ast.SetBlock block -> {
                block.filters().forEach(this::modifier);
                statements(block.body());
            }
            case Ast.Macro macro -> {
                macros.add(macro);
                parameters(macro.routine().parameters());
                open.push(macro);
                statements(macro.routine().body());
                open.pop();
            }
            case Ast.CallBlock block -> {
                parameters(block.caller().parameters());
                expression(block.call());
                statements(block.caller().body());
            }
            case Ast.FilterBlock block -> {
                block.filters().forEach(this::modifier);
                statements(block.body());
            }
            case Ast.With with -> {
                with.values().forEach(this::expression);
                statements(with.body());
            }
            case Ast.Generation generation -> statements(generation.body());
            case Ast.Block block -> statements(block.body());
            case Ast.Autoescape autoescape -> {
                expression(autoescape.on());
                statements(autoescape.body());
            }
        }
    }

    private void parameters(List<Ast.Parameter> parameters) {
        parameters.forEach(parameter -> expression(parameter.otherwise()));
    }

    private void modifier(Ast.Modifier modifier) {
        arguments(modifier.arguments());
    }

    private void arguments(Ast.Arguments arguments) {
        arguments.positional().forEach(this::expression);
        arguments.named().forEach(named -> expression(named.value()));
        expression(arguments.rest());
        expression(arguments.keywords());
    }

    private void expression(Ast.@Nullable Expression expression) {
        switch (expression) {
            case null -> {}
            case Ast.Literal _, Ast.Name _ -> {}
            case Ast.Sequence sequence -> sequence.items().forEach(this::expression);
            case Ast.Dictionary dictionary -> {
                dictionary.keys().forEach(this::expression);
                dictionary.values().forEach(this::expression);
            }
            case Ast.Attribute attribute -> expression(attribute.object());
            case Ast.Subscript subscript -> {
                expression(subscript.object());
                expression(subscript.index());
            }
            case Ast.Slice slice -> {
                expression(slice.object());
                expression(slice.start());
                expression(slice.stop());
                expression(slice.step());
            }
            case Ast.Call call -> {
                if (call.function() instanceof Ast.Name name) {
                    calls.computeIfAbsent(name.name(), _ -> new ArrayList<>()).add(call);
                }
                expression(call.function());
                arguments(call.arguments());
            }
            case Ast.Filter filter -> {
                expression(filter.object());
                modifier(filter.filter());
            }
            case Ast.Test test -> {
                expression(test.object());
                modifier(test.test());
            }
            case Ast.Unary unary -> expression(unary.operand());
            case Ast.Binary binary -> {
                expression(binary.left());
                expression(binary.right());
            }
            case Ast.Concat concat -> concat.parts().forEach(this::expression);
            case Ast.Compare compare -> {
                expression(compare.first());
                compare.others().forEach(other -> expression(other.value()));
            }
            case Ast.Conditional conditional -> {
                expression(conditional.test());
                expression(conditional.value());
                expression(conditional.otherwise());
            }
        }
    }
}
