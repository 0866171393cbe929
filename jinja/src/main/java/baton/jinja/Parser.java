package baton.jinja;

import baton.jinja.Lexer.Kind;
import baton.jinja.Lexer.Token;
import java.math.BigInteger;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/** Recursive descent over Jinja2's grammar, with its precedences: {@code ~} binds tighter than {@code +}, filters tightest. */
final class Parser {
    private static final int MAX_DEPTH = 200;
    private static final Set<String> KEYWORDS = Set.of("else", "or", "and", "is", "if", "in", "not");

    private final List<Token> tokens;
    private int position;
    private int depth;

    private Parser(List<Token> tokens) {
        this.tokens = tokens;
    }

    /** @throws JinjaException if the template is not well-formed or uses a statement that chat templates have no use for */
    static List<Ast.Statement> parse(String template) {
        return new Parser(Lexer.tokens(template)).statements(Set.of());
    }

    /** Statements up to a block of one of these names, whose name is consumed, or up to the template's end if there are none. */
    private List<Ast.Statement> statements(Set<String> ends) {
        enter();
        int start = peek().line();
        List<Ast.Statement> body = new ArrayList<>();
        while (true) {
            Token token = next();
            switch (token.kind()) {
                case TEXT -> body.add(new Ast.Text(token.line(), token.text()));
                case PRINT_BEGIN -> {
                    body.add(new Ast.Print(token.line(), tuple()));
                    expect(Kind.PRINT_END);
                }
                case BLOCK_BEGIN -> {
                    Token name = peek();
                    if (name.kind() == Kind.NAME && ends.contains(name.text())) {
                        depth--;
                        return body;
                    }
                    body.add(statement());
                }
                default -> {
                    if (!ends.isEmpty()) {
                        throw new JinjaException(start, "block is not closed: no " + String.join(" or ", ends));
                    }
                    return body;
                }
            }
        }
    }

    private Ast.Statement statement() {
        Token name = expect(Kind.NAME);
        int line = name.line();
        return switch (name.text()) {
            case "if" -> ifStatement(line);
            case "for" -> forStatement(line);
            case "set" -> setStatement(line);
            case "macro" -> {
                String macro = expect(Kind.NAME).text();
                List<Ast.Parameter> parameters = parameters();
                endBlock();
                yield new Ast.Macro(line, macro, parameters, body("endmacro"));
            }
            case "call" -> {
                List<Ast.Parameter> parameters = peek().is(Kind.OPERATOR, "(") ? parameters() : List.of();
                if (!(unary(true) instanceof Ast.Call call)) {
                    throw new JinjaException(line, "{% call %} needs a call");
                }
                endBlock();
                yield new Ast.CallBlock(line, parameters, call, body("endcall"));
            }
            case "filter" -> {
                List<Ast.Modifier> filters = new ArrayList<>();
                do {
                    filters.add(filter());
                } while (skip("|"));
                endBlock();
                yield new Ast.FilterBlock(line, filters, body("endfilter"));
            }
            case "with" -> {
                List<Ast.Target> targets = new ArrayList<>();
                List<Ast.Expression> values = new ArrayList<>();
                while (peek().kind() != Kind.BLOCK_END) {
                    if (!targets.isEmpty()) {
                        expect(",");
                    }
                    targets.add(new Ast.Variable(expect(Kind.NAME).text()));
                    expect("=");
                    values.add(expression());
                }
                endBlock();
                yield new Ast.With(line, targets, values, body("endwith"));
            }
            case "generation" -> {
                endBlock();
                yield new Ast.Generation(line, body("endgeneration"));
            }
            case "break" -> {
                endBlock();
                yield new Ast.Break(line);
            }
            case "continue" -> {
                endBlock();
                yield new Ast.Continue(line);
            }
            default -> throw new JinjaException(line, "unknown or unsupported statement '" + name.text() + "'");
        };
    }

    private Ast.Statement ifStatement(int line) {
        List<Ast.Branch> branches = new ArrayList<>();
        List<Ast.Statement> otherwise = List.of();
        String word = "if";
        while (!word.equals("endif")) {
            if (word.equals("else")) {
                endBlock();
                otherwise = statements(Set.of("endif"));
            } else {
                Ast.Expression test = tuple(false);
                endBlock();
                branches.add(new Ast.Branch(test, statements(Set.of("elif", "else", "endif"))));
            }
            word = next().text();
        }
        endBlock();
        return new Ast.If(line, branches, otherwise);
    }

    private Ast.Statement forStatement(int line) {
        Ast.Target target = target(false);
        expectName("in");
        Ast.Expression items = tuple(false);
        Ast.Expression condition = skipName("if") ? expression() : null;
        if (skipName("recursive")) {
            throw new JinjaException(line, "recursive loops are not supported");
        }
        endBlock();
        List<Ast.Statement> body = statements(Set.of("else", "endfor"));
        List<Ast.Statement> otherwise = List.of();
        if (next().text().equals("else")) {
            endBlock();
            otherwise = statements(Set.of("endfor"));
            next();
        }
        endBlock();
        return new Ast.For(line, target, items, condition, body, otherwise);
    }

    private Ast.Statement setStatement(int line) {
        Ast.Target target = target(true);
        if (skip("=")) {
            Ast.Expression value = tuple();
            endBlock();
            return new Ast.Set(line, target, value);
        }
        List<Ast.Modifier> filters = new ArrayList<>();
        while (skip("|")) {
            filters.add(filter());
        }
        endBlock();
        return new Ast.SetBlock(line, target, filters, body("endset"));
    }

    private List<Ast.Statement> body(String end) {
        List<Ast.Statement> body = statements(Set.of(end));
        next();
        endBlock();
        return body;
    }

    private List<Ast.Parameter> parameters() {
        expect("(");
        List<Ast.Parameter> parameters = new ArrayList<>();
        while (!skip(")")) {
            if (!parameters.isEmpty()) {
                expect(",");
            }
            String name = expect(Kind.NAME).text();
            parameters.add(new Ast.Parameter(name, skip("=") ? expression() : null));
        }
        return parameters;
    }

    private Ast.Target target(boolean members) {
        List<Ast.Target> targets = new ArrayList<>();
        do {
            if (peek().is(Kind.NAME, "in") || peek().is(Kind.OPERATOR, "=") || peek().is(Kind.OPERATOR, ")")) {
                return new Ast.Unpack(targets);
            }
            if (skip("(")) {
                enter();
                targets.add(target(members));
                depth--;
                expect(")");
            } else {
                String name = expect(Kind.NAME).text();
                targets.add(
                        members && skip(".")
                                ? new Ast.Member(name, expect(Kind.NAME).text())
                                : new Ast.Variable(name));
            }
        } while (skip(","));
        return targets.size() == 1 ? targets.getFirst() : new Ast.Unpack(targets);
    }

    /** One expression, or a tuple written without parentheses. */
    private Ast.Expression tuple() {
        return tuple(true);
    }

    /** Without {@code withCondition}, an {@code if} ends it: that of a for loop. */
    private Ast.Expression tuple(boolean withCondition) {
        int line = peek().line();
        List<Ast.Expression> items = new ArrayList<>();
        items.add(withCondition ? expression() : or());
        boolean tuple = false;
        while (skip(",")) {
            tuple = true;
            if (endsTuple(peek())) {
                break;
            }
            items.add(withCondition ? expression() : or());
        }
        return tuple ? new Ast.Sequence(line, items, true) : items.getFirst();
    }

    private static boolean endsTuple(Token token) {
        return token.kind() == Kind.BLOCK_END || token.kind() == Kind.PRINT_END || token.is(Kind.OPERATOR, ")");
    }

    private Ast.Expression expression() {
        enter();
        int line = peek().line();
        Ast.Expression value = or();
        while (skipName("if")) {
            Ast.Expression test = or();
            value = new Ast.Conditional(line, test, value, skipName("else") ? expression() : null);
        }
        depth--;
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
            depth--;
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
        depth--;
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
                    default -> new Ast.Name(line, token.text());
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
                value = call(line, value);
            } else {
                return value;
            }
        }
    }

    private Ast.Expression subscript(int line, Ast.Expression object) {
        Ast.Expression start = peek().is(Kind.OPERATOR, ":") ? null : expression();
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

    private Ast.Call call(int line, Ast.Expression function) {
        List<Ast.Expression> positional = new ArrayList<>();
        List<Ast.Named> named = new ArrayList<>();
        arguments(positional, named);
        return new Ast.Call(line, function, positional, named);
    }

    private void arguments(List<Ast.Expression> positional, List<Ast.Named> named) {
        expect("(");
        while (!skip(")")) {
            if (!positional.isEmpty() || !named.isEmpty()) {
                expect(",");
                if (skip(")")) {
                    break;
                }
            }
            if (peek().kind() == Kind.NAME && tokens.get(position + 1).is(Kind.OPERATOR, "=")) {
                String name = next().text();
                next();
                named.add(new Ast.Named(name, expression()));
            } else if (named.isEmpty()) {
                positional.add(expression());
            } else {
                throw new JinjaException(peek().line(), "an argument without a name follows one with a name");
            }
        }
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
                value = call(line, value);
            } else {
                return value;
            }
        }
    }

    private Ast.Modifier filter() {
        String name = expect(Kind.NAME).text();
        List<Ast.Expression> positional = new ArrayList<>();
        List<Ast.Named> named = new ArrayList<>();
        if (peek().is(Kind.OPERATOR, "(")) {
            arguments(positional, named);
        }
        return new Ast.Modifier(name, positional, named);
    }

    private Ast.Expression test(int line, Ast.Expression object) {
        boolean negated = skipName("not");
        String name = expect(Kind.NAME).text();
        List<Ast.Expression> positional = new ArrayList<>();
        List<Ast.Named> named = new ArrayList<>();
        Token token = peek();
        if (token.is(Kind.OPERATOR, "(")) {
            arguments(positional, named);
        } else if (beginsTestArgument(token)) {
            positional.add(postfix(primary()));
        }
        return new Ast.Test(line, object, new Ast.Modifier(name, positional, named), negated);
    }

    private static boolean beginsTestArgument(Token token) {
        return switch (token.kind()) {
            case STRING, INTEGER, FLOAT -> true;
            case NAME -> !KEYWORDS.contains(token.text());
            case OPERATOR -> token.text().equals("[") || token.text().equals("{");
            default -> false;
        };
    }

    private void enter() {
        if (++depth > MAX_DEPTH) {
            throw new JinjaException(peek().line(), "nested deeper than " + MAX_DEPTH + " levels");
        }
    }

    private Token peek() {
        return tokens.get(position);
    }

    private Token next() {
        Token token = tokens.get(position);
        if (token.kind() != Kind.END) {
            position++;
        }
        return token;
    }

    private boolean skip(String operator) {
        if (peek().is(Kind.OPERATOR, operator)) {
            position++;
            return true;
        }
        return false;
    }

    private boolean skipName(String name) {
        if (peek().is(Kind.NAME, name)) {
            position++;
            return true;
        }
        return false;
    }

    private Token expect(Kind kind) {
        Token token = next();
        if (token.kind() != kind) {
            throw unexpected(token);
        }
        return token;
    }

    private void expect(String operator) {
        Token token = next();
        if (!token.is(Kind.OPERATOR, operator)) {
            throw new JinjaException(token.line(), "expected '" + operator + "', found " + describe(token));
        }
    }

    private void expectName(String name) {
        Token token = next();
        if (!token.is(Kind.NAME, name)) {
            throw new JinjaException(token.line(), "expected '" + name + "', found " + describe(token));
        }
    }

    private void endBlock() {
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
