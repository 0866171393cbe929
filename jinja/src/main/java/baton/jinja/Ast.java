package baton.jinja;

import java.util.List;
import org.jspecify.annotations.Nullable;

/** A template's syntax tree. */
final class Ast {
    private Ast() {}

    sealed interface Statement {
        int line();
    }

    record Text(int line, String text) implements Statement {}

    record Print(int line, Expression value) implements Statement {}

    record If(int line, List<Branch> branches, List<Statement> otherwise) implements Statement {}

    record Branch(Expression test, List<Statement> body) {}

    record For(
            int line,
            Target target,
            Expression items,
            @Nullable Expression condition,
            boolean recursive,
            List<Statement> body,
            List<Statement> otherwise)
            implements Statement {}

    record Set(int line, Target target, Expression value) implements Statement {}

    /** {@code {% set x %}...{% endset %}}. */
    record SetBlock(int line, Target target, List<Modifier> filters, List<Statement> body) implements Statement {}

    record Macro(int line, Routine routine) implements Statement {}

    record CallBlock(int line, Routine caller, Call call) implements Statement {}

    /**
     * The callable part of a macro or a call block. Of {@code caller}, {@code kwargs} and {@code varargs} it takes those that its body
     * names.
     */
    record Routine(String name, List<Parameter> parameters, List<Statement> body, List<String> special) {
        boolean takes(String name) {
            return special.contains(name);
        }
    }

    /** {@code {% block %}}: without inheritance, its body in a scope of its own. */
    record Block(int line, String name, boolean scoped, boolean required, List<Statement> body) implements Statement {}

    record Autoescape(int line, Expression on, List<Statement> body) implements Statement {}

    /** A statement that needs other templates, of which there are none. */
    record Load(int line, String statement) implements Statement {}

    record FilterBlock(int line, List<Modifier> filters, List<Statement> body) implements Statement {}

    record With(int line, List<Target> targets, List<Expression> values, List<Statement> body) implements Statement {}

    /** {@code {% generation %}}: marks the assistant's text for training, and only opens a scope here. */
    record Generation(int line, List<Statement> body) implements Statement {}

    record Break(int line) implements Statement {}

    record Continue(int line) implements Statement {}

    record Parameter(String name, @Nullable Expression otherwise) {}

    sealed interface Target {}

    record Variable(String name) implements Target {}

    record Member(String namespace, String name) implements Target {}

    record Unpack(List<Target> targets) implements Target {}

    sealed interface Expression {
        int line();
    }

    record Literal(int line, Value value) implements Expression {}

    record Name(int line, String name) implements Expression {}

    record Sequence(int line, List<Expression> items, boolean tuple) implements Expression {}

    record Dictionary(int line, List<Expression> keys, List<Expression> values) implements Expression {}

    record Attribute(int line, Expression object, String name) implements Expression {}

    record Subscript(int line, Expression object, Expression index) implements Expression {}

    record Slice(
            int line,
            Expression object,
            @Nullable Expression start,
            @Nullable Expression stop,
            @Nullable Expression step)
            implements Expression {}

    record Call(int line, Expression function, Arguments arguments) implements Expression {}

    /**
     * A call's arguments.
     *
     * @param rest a list of more arguments, written with a star
     * @param keywords a mapping of more named arguments, written with two stars
     */
    record Arguments(
            List<Expression> positional,
            List<Named> named,
            @Nullable Expression rest,
            @Nullable Expression keywords) {
        static final Arguments NONE = of(List.of());

        static Arguments of(List<Expression> positional) {
            return new Arguments(positional, List.of(), null, null);
        }
    }

    record Named(String name, Expression value) {}

    /** A filter or a test, with its arguments. */
    record Modifier(String name, Arguments arguments) {}

    record Filter(int line, Expression object, Modifier filter) implements Expression {}

    record Test(int line, Expression object, Modifier test, boolean negated) implements Expression {}

    enum UnaryOperator {
        NOT,
        MINUS,
        PLUS
    }

    record Unary(int line, UnaryOperator operator, Expression operand) implements Expression {}

    enum BinaryOperator {
        ADD,
        SUBTRACT,
        MULTIPLY,
        DIVIDE,
        FLOOR_DIVIDE,
        MODULO,
        POWER,
        AND,
        OR
    }

    record Binary(int line, BinaryOperator operator, Expression left, Expression right) implements Expression {}

    record Concat(int line, List<Expression> parts) implements Expression {}

    enum Comparison {
        EQUAL,
        NOT_EQUAL,
        LESS,
        LESS_OR_EQUAL,
        GREATER,
        GREATER_OR_EQUAL,
        IN,
        NOT_IN
    }

    record Compare(int line, Expression first, List<Operand> others) implements Expression {}

    record Operand(Comparison comparison, Expression value) {}

    record Conditional(
            int line,
            Expression test,
            Expression value,
            @Nullable Expression otherwise) implements Expression {}
}
