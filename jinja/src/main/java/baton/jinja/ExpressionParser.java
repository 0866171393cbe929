package baton.jinja;

import baton.jinja.Lexer.Kind;
import baton.jinja.Lexer.Token;
import java.math.BigInteger;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/** Recursive descent over Jinja2's expressions, with their precedences: {@code ~} binds tighter than {@code +}, filters tightest. */
abstract sealed class ExpressionParser permits Parser {
    private static final int MAX_DEPTH = 200;
    private static final Set<String> AFTER_TEST = Set.of("else", "or", "and");
    private static final Set<String> SPECIAL = Set.of("caller", "kwargs", "varargs");

    private final List<Token> tokens;
    private int position;
    private int depth;

    /** The names of {@link #SPECIAL} that the body of each enclosing macro can use, and those that it uses. */
    private record Specials(Set<String> open, Set<String> named) {}

    private final Deque<Specials> specials = new ArrayDeque<>();

    ExpressionParser(List<Token> tokens) {
        this.tokens = tokens;
    }

    /** Begins the body of a macro or call block. */
    final void beginMacro() {
        specials.push(new Specials(new HashSet<>(SPECIAL), new HashSet<>()));
    }

    /** Ends it. Returns which of {@code caller}, {@code kwargs} and {@code varargs} it names without having assigned them. */
    final Set<String> endMacro() {
        return specials.pop().named();
    }

    final void declare(String name) {
        specials.forEach(macro -> macro.open().remove(name));
    }

    final void leave() {
        depth--;
    }

    /** One expression, or a tuple written without parentheses. */
    final Ast.Expression tuple() {
        return tuple(true);
    }

    /** Without {@code withCondition}, an {@code if} ends it: that of a for loop. */
    final Ast.Expression tuple(boolean withCondition) {
        int line = peek().line();
        List<Ast.Expression> items = new ArrayList<>();
        items.add(withCondition ? expression() : or());
        boolean tuple = false;
        while (skip(",")) {
            tuple = true;
            if (endsTuple(peek()) || (!withCondition && peek().is(Kind.NAME, "recursive"))) {
                break;
            }
            items.add(withCondition ? expression() : or());
        }
        return tuple ? new Ast.Sequence(line, items, true) : items.getFirst();
    }

    private static boolean endsTuple(Token token) {
        return token.kind() == Kind.BLOCK_END || token.kind() == Kind.PRINT_END || token.is(Kind.OPERATOR, ")");
    }

    final Ast.Expression expression() {
        enter();
        int line = peek().line();
        Ast.Expression value = or();
        while (skipName("if")) {
            Ast.Expression test = or();
            value = new Ast.Conditional(line, test, value, skipName("else") ? expression() : null);
        }
        leave();
        return value;
    }

    private Ast.Expression or() {
        int line = peek().line();
        Ast.Expression left = and();
        while (skipName("or")) {
            left = new Ast.Binary(line, Ast.BinaryOperator.OR, left, and());
        }
        return left;
    }

    private Ast.Expression and() {
        int line = peek().line();
        Ast.Expression left = not();
        while (skipName("and")) {
            left = new Ast.Binary(line, Ast.BinaryOperator.AND, left, not());
        }
        return left;
    }

    private Ast.Expression not() {
        int line = peek().line();
        if (skipName("not")) {
            enter();
            Ast.Expression negated = new Ast.Unary(line, Ast.UnaryOperator.NOT, not());
            leave();
            return negated;
        }
        return compare();
    }

    private Ast.Expression compare() {
        int line = peek().line();
        Ast.Expression first = sum();
        List<Ast.Operand> others = new ArrayList<>();
        for (Ast.Comparison comparison = comparison(); comparison != null; comparison = comparison()) {
            others.add(new Ast.Operand(comparison, sum()));
        }
        return others.isEmpty() ? first : new Ast.Compare(line, first, others);
    }

    private Ast.@Nullable Comparison comparison() {
        if (peek().is(Kind.NAME, "not") && tokens.get(position + 1).is(Kind.NAME, "in")) {
            position += 2;
            return Ast.Comparison.NOT_IN;
        }
        if (skipName("in")) {
            return Ast.Comparison.IN;
        }
        Ast.Comparison comparison = peek().kind() != Kind.OPERATOR
                ? null
                : switch (peek().text()) {
                    case "==" -> Ast.Comparison.EQUAL;
                    case "!=" -> Ast.Comparison.NOT_EQUAL;
                    case "<" -> Ast.Comparison.LESS;
                    case "<=" -> Ast.Comparison.LESS_OR_EQUAL;
                    case ">" -> Ast.Comparison.GREATER;
                    case ">=" -> Ast.Comparison.GREATER_OR_EQUAL;
                    default -> null;
                };
        if (comparison != null) {
            next();
        }
        return comparison;
    }

    private Ast.Expression sum() {
        Ast.Expression left = concat();
        while (true) {
            int line = peek().line();
            if (skip("+")) {
                left = new Ast.Binary(line, Ast.BinaryOperator.ADD, left, concat());
            } else if (skip("-")) {
                left = new Ast.Binary(line, Ast.BinaryOperator.SUBTRACT, left, concat());
            } else {
                return left;
            }
        }
    }

    private Ast.Expression concat() {
        int line = peek().line();
        List<Ast.Expression> parts = new ArrayList<>(List.of(product()));
        while (skip("~")) {
            parts.add(product());
        }
        return parts.size() == 1 ? parts.getFirst() : new Ast.Concat(line, parts);
    }

    private Ast.Expression product() {
        Ast.Expression left = power();
        while (true) {
            int line = peek().line();
            if (skip("*")) {
                left = new Ast.Binary(line, Ast.BinaryOperator.MULTIPLY, left, power());
            } else if (skip("/")) {
                left = new Ast.Binary(line, Ast.BinaryOperator.DIVIDE, left, power());
            } else if (skip("//")) {
                left = new Ast.Binary(line, Ast.BinaryOperator.FLOOR_DIVIDE, left, power());
            } else if (skip("%")) {
                left = new Ast.Binary(line, Ast.BinaryOperator.MODULO, left, power());
            } else {
                return left;
            }
        }
    }

    private Ast.Expression power() {
        Ast.Expression left = unary(true);
        while (peek().is(Kind.OPERATOR, "**")) {
            int line = next().line();
            left = new Ast.Binary(line, Ast.BinaryOperator.POWER, left, unary(true));
        }
        return left;
    }

    private Ast.Expression unary(boolean withFilters) {
        enter();
        int line = peek().line();
        Ast.Expression value;
        if (skip("-")) {
            value = new Ast.Unary(line, Ast.UnaryOperator.MINUS, unary(false));
        } else if (skip("+")) {
            value = new Ast.Unary(line, Ast.UnaryOperator.PLUS, unary(false));
        } else {
            value = primary();
        }
        value = postfix(value);
        if (withFilters) {
            value = filtersAndTests(value);
        }
        leave();
        return value;
    }

    private Ast.Expression primary() {
        Token token = next();
        int line = token.line();
        return switch (token.kind()) {
            case NAME ->
                switch (token.text()) {
                    case "true", "True" -> new Ast.Literal(line, Value.TRUE);
                    case "false", "False" -> new Ast.Literal(line, Value.FALSE);
                    case "none", "None" -> new Ast.Literal(line, Value.NONE);
                    default -> {
                        specials.stream()
                                .filter(macro -> macro.open().contains(token.text()))
                                .forEach(macro -> macro.named().add(token.text()));
                        yield new Ast.Name(line, token.text());
                    }
                };
            case STRING -> {
                StringBuilder text = new StringBuilder(token.text());
                while (peek().kind() == Kind.STRING) {
                    text.append(next().text());
                }
                yield new Ast.Literal(line, Value.of(text.toString()));
            }
            case INTEGER -> new Ast.Literal(line, integer(token));
            case FLOAT ->
                new Ast.Literal(
                        line, new Value.Real(Double.parseDouble(token.text().replace("_", ""))));
            case OPERATOR ->
                switch (token.text()) {
                    case "(" -> {
                        if (skip(")")) {
                            yield new Ast.Sequence(line, List.of(), true);
                        }
                        Ast.Expression inner = tuple();
                        expect(")");
                        yield inner;
                    }
                    case "[" -> new Ast.Sequence(line, listItems(), false);
                    case "{" -> dictionary(line);
                    default -> throw unexpected(token);
                };
            default -> throw unexpected(token);
        };
    }

    private static Value integer(Token token) {
        String digits = token.text().replace("_", "");
        if (digits.length() > 1000) {
            throw new JinjaException(token.line(), "number of " + digits.length() + " digits");
        }
        int radix = digits.length() < 3
                ? 10
                : switch (digits.charAt(1)) {
                    case 'x', 'X' -> 16;
                    case 'o', 'O' -> 8;
                    case 'b', 'B' -> 2;
                    default -> 10;
                };
        return new Value.Int(new BigInteger(radix == 10 ? digits : digits.substring(2), radix));
    }

    private List<Ast.Expression> listItems() {
        List<Ast.Expression> items = new ArrayList<>();
        while (!skip("]")) {
            if (!items.isEmpty()) {
                expect(",");
                if (skip("]")) {
                    break;
                }
            }
            items.add(expression());
        }
        return items;
    }

    private Ast.Expression dictionary(int line) {
        List<Ast.Expression> keys = new ArrayList<>();
        List<Ast.Expression> values = new ArrayList<>();
        while (!skip("}")) {
            if (!keys.isEmpty()) {
                expect(",");
                if (skip("}")) {
                    break;
                }
            }
            keys.add(expression());
            expect(":");
            values.add(expression());
        }
        return new Ast.Dictionary(line, keys, values);
    }

    private Ast.Expression postfix(Ast.Expression start) {
        Ast.Expression value = start;
        while (true) {
            int line = peek().line();
            if (skip(".")) {
                Token name = next();
                value = switch (name.kind()) {
                    case NAME -> new Ast.Attribute(line, value, name.text());
                    case INTEGER -> new Ast.Subscript(line, value, new Ast.Literal(line, integer(name)));
                    default -> throw unexpected(name);
                };
            } else if (skip("[")) {
                value = subscript(line, value);
            } else if (peek().is(Kind.OPERATOR, "(")) {
                value = new Ast.Call(line, value, arguments());
            } else {
                return value;
            }
        }
    }

    private Ast.Expression subscript(int line, Ast.Expression object) {
        Ast.Expression start = peek().is(Kind.OPERATOR, ":") ? null : expression();
        if (start != null && peek().is(Kind.OPERATOR, ",")) {
            List<Ast.Expression> items = new ArrayList<>(List.of(start));
            while (!skip("]")) {
                expect(",");
                if (!peek().is(Kind.OPERATOR, "]")) {
                    items.add(expression());
                }
            }
            return new Ast.Subscript(line, object, items.size() == 1 ? start : new Ast.Sequence(line, items, true));
        }
        if (start != null && !peek().is(Kind.OPERATOR, ":")) {
            expect("]");
            return new Ast.Subscript(line, object, start);
        }
        expect(":");
        Ast.Expression stop = peek().is(Kind.OPERATOR, ":") || peek().is(Kind.OPERATOR, "]") ? null : expression();
        Ast.Expression step = skip(":") && !peek().is(Kind.OPERATOR, "]") ? expression() : null;
        expect("]");
        return new Ast.Slice(line, object, start, stop, step);
    }

    private Ast.Arguments arguments() {
        expect("(");
        List<Ast.Expression> positional = new ArrayList<>();
        List<Ast.Named> named = new ArrayList<>();
        Ast.Expression rest = null;
        Ast.Expression keywords = null;
        boolean first = true;
        while (!skip(")")) {
            if (!first) {
                expect(",");
                if (skip(")")) {
                    break;
                }
            }
            first = false;
            Token token = peek();
            boolean isNamed =
                    token.kind() == Kind.NAME && tokens.get(position + 1).is(Kind.OPERATOR, "=");
            boolean isKeywords = token.is(Kind.OPERATOR, "**");
            if (keywords != null
                    || (!isNamed
                            && !isKeywords
                            && (rest != null || !named.isEmpty() && !token.is(Kind.OPERATOR, "*")))) {
                throw new JinjaException(
                        token.line(), "arguments must come in the order: by place, by name or *list, **mapping");
            }
            if (isKeywords) {
                next();
                keywords = expression();
            } else if (skip("*")) {
                rest = expression();
            } else if (isNamed) {
                String name = next().text();
                next();
                if (named.stream().anyMatch(other -> other.name().equals(name))) {
                    throw new JinjaException(token.line(), "argument '" + name + "' is given twice");
                }
                named.add(new Ast.Named(name, expression()));
            } else {
                positional.add(expression());
            }
        }
        return new Ast.Arguments(positional, named, rest, keywords);
    }

    private Ast.Expression filtersAndTests(Ast.Expression start) {
        Ast.Expression value = start;
        while (true) {
            int line = peek().line();
            if (skip("|")) {
                value = new Ast.Filter(line, value, filter());
            } else if (skipName("is")) {
                value = test(line, value);
            } else if (peek().is(Kind.OPERATOR, "(")) {
                value = new Ast.Call(line, value, arguments());
            } else {
                return value;
            }
        }
    }

    final Ast.Modifier filter() {
        String name = dottedName();
        return new Ast.Modifier(name, peek().is(Kind.OPERATOR, "(") ? arguments() : Ast.Arguments.NONE);
    }

    private String dottedName() {
        StringBuilder name = new StringBuilder(expect(Kind.NAME).text());
        while (skip(".")) {
            name.append('.').append(expect(Kind.NAME).text());
        }
        return name.toString();
    }

    private Ast.Expression test(int line, Ast.Expression object) {
        boolean negated = skipName("not");
        String name = dottedName();
        Ast.Arguments arguments = Ast.Arguments.NONE;
        Token token = peek();
        if (token.is(Kind.OPERATOR, "(")) {
            arguments = arguments();
        } else if (token.is(Kind.NAME, "is")) {
            throw new JinjaException(token.line(), "tests cannot be chained with 'is'");
        } else if (beginsTestArgument(token)) {
            arguments = Ast.Arguments.of(List.of(postfix(primary())));
        }
        return new Ast.Test(line, object, new Ast.Modifier(name, arguments), negated);
    }

    private static boolean beginsTestArgument(Token token) {
        return switch (token.kind()) {
            case STRING, INTEGER, FLOAT -> true;
            case NAME -> !AFTER_TEST.contains(token.text());
            case OPERATOR -> token.text().equals("[") || token.text().equals("{");
            default -> false;
        };
    }

    final void enter() {
        if (++depth > MAX_DEPTH) {
            throw new JinjaException(peek().line(), "nested deeper than " + MAX_DEPTH + " levels");
        }
    }

    final Token peek() {
        return tokens.get(position);
    }

    final Token next() {
        Token token = tokens.get(position);
        if (token.kind() != Kind.END) {
            position++;
        }
        return token;
    }

    final boolean skip(String operator) {
        if (peek().is(Kind.OPERATOR, operator)) {
            position++;
            return true;
        }
        return false;
    }

    final boolean skipName(String name) {
        if (peek().is(Kind.NAME, name)) {
            position++;
            return true;
        }
        return false;
    }

    final Token expect(Kind kind) {
        Token token = next();
        if (token.kind() != kind) {
            throw unexpected(token);
        }
        return token;
    }

    final void expect(String operator) {
        Token token = next();
        if (!token.is(Kind.OPERATOR, operator)) {
            throw new JinjaException(token.line(), "expected '" + operator + "', found " + describe(token));
        }
    }

    final void expectName(String name) {
        Token token = next();
        if (!token.is(Kind.NAME, name)) {
            throw new JinjaException(token.line(), "expected '" + name + "', found " + describe(token));
        }
    }

    final void endBlock() {
        expect(Kind.BLOCK_END);
    }

    private static JinjaException unexpected(Token token) {
        return new JinjaException(token.line(), "unexpected " + describe(token));
    }

    private static String describe(Token token) {
        return switch (token.kind()) {
            case TEXT -> "text";
            case PRINT_BEGIN -> "'{{'";
            case PRINT_END -> "'}}'";
            case BLOCK_BEGIN -> "'{%'";
            case BLOCK_END -> "'%}'";
            case END -> "end of template";
            case NAME, STRING, INTEGER, FLOAT, OPERATOR -> "'" + token.text() + "'";
        };
    }
}
