package baton.jinja;

import baton.jinja.Lexer.Kind;
import baton.jinja.Lexer.Token;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.function.Supplier;

/** Recursive descent over Jinja2's grammar: statements. */
final class Parser extends ExpressionParser {
    private static final Set<String> CONSTANTS = Set.of("true", "True", "false", "False", "none", "None");

    private int loops;

    private final Set<String> blocks = new HashSet<>();

    private Parser(List<Token> tokens) {
        super(tokens);
    }

    /** @throws JinjaException if the template is not well-formed or uses a statement that chat templates have no use for */
    static List<Ast.Statement> parse(String template) {
        return new Parser(Lexer.tokens(template)).statements(Set.of());
    }

    /** Statements up to a block with one of these names, which is consumed, or up to the template's end if there are none. */
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
                        leave();
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
            case "print" -> {
                List<Ast.Statement> shown = new ArrayList<>();
                while (peek().kind() != Kind.BLOCK_END) {
                    if (!shown.isEmpty()) {
                        expect(",");
                    }
                    shown.add(new Ast.Print(line, expression()));
                }
                endBlock();
                yield new Ast.If(line, List.of(), shown);
            }
            case "if" -> ifStatement(line);
            case "for" -> forStatement(line);
            case "set" -> setStatement(line);
            case "macro" -> {
                String macro = expect(Kind.NAME).text();
                yield new Ast.Macro(line, routine(line, macro, parameters(), () -> bodyEnding("endmacro")));
            }
            case "call" -> {
                List<Ast.Parameter> parameters = peek().is(Kind.OPERATOR, "(") ? parameters() : List.of();
                if (!(expression() instanceof Ast.Call call)) {
                    throw new JinjaException(line, "{% call %} needs a call");
                }
                yield new Ast.CallBlock(line, routine(line, "", parameters, () -> bodyEnding("endcall")), call);
            }
            case "block" -> block(line);
            case "autoescape" -> {
                Ast.Expression on = expression();
                yield new Ast.Autoescape(line, on, bodyEnding("endautoescape"));
            }
            case "extends", "include", "import", "from" -> {
                while (peek().kind() != Kind.BLOCK_END && peek().kind() != Kind.END) {
                    next();
                }
                endBlock();
                yield new Ast.Load(line, name.text());
            }
            case "filter" -> {
                List<Ast.Modifier> filters = new ArrayList<>();
                do {
                    filters.add(filter());
                } while (skip("|"));
                yield new Ast.FilterBlock(line, filters, bodyEnding("endfilter"));
            }
            case "with" -> {
                List<Ast.Target> targets = new ArrayList<>();
                List<Ast.Expression> values = new ArrayList<>();
                while (peek().kind() != Kind.BLOCK_END) {
                    if (!targets.isEmpty()) {
                        expect(",");
                    }
                    targets.add(target(false));
                    expect("=");
                    values.add(expression());
                }
                yield new Ast.With(line, targets, values, bodyEnding("endwith"));
            }
            case "generation" -> {
                int outside = loops;
                loops = 0;
                List<Ast.Statement> body = bodyEnding("endgeneration");
                loops = outside;
                yield new Ast.Generation(line, body);
            }
            case "break", "continue" -> {
                if (loops == 0) {
                    throw new JinjaException(line, "'" + name.text() + "' outside a loop");
                }
                endBlock();
                yield name.text().equals("break") ? new Ast.Break(line) : new Ast.Continue(line);
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
                otherwise = body(Set.of("endif"));
            } else {
                Ast.Expression test = tuple(false);
                branches.add(new Ast.Branch(test, body(Set.of("elif", "else", "endif"))));
            }
            word = next().text();
        }
        endBlock();
        return new Ast.If(line, branches, otherwise);
    }

    private Ast.Statement forStatement(int line) {
        Ast.Target target = target(false);
        if (declares(target, "loop")) {
            throw new JinjaException(line, "a for loop cannot assign 'loop'");
        }
        expectName("in");
        Ast.Expression items = tuple(false);
        Ast.Expression condition = skipName("if") ? expression() : null;
        boolean recursive = skipName("recursive");
        loops++;
        List<Ast.Statement> body = body(Set.of("else", "endfor"));
        loops--;
        List<Ast.Statement> otherwise = List.of();
        if (next().text().equals("else")) {
            otherwise = bodyEnding("endfor");
        } else {
            endBlock();
        }
        return new Ast.For(line, target, items, condition, recursive, body, otherwise);
    }

    private static boolean declares(Ast.Target target, String name) {
        return switch (target) {
            case Ast.Variable variable -> variable.name().equals(name);
            case Ast.Member _ -> false;
            case Ast.Unpack unpack -> unpack.targets().stream().anyMatch(inner -> declares(inner, name));
        };
    }

    private Ast.Statement block(int line) {
        String name = expect(Kind.NAME).text();
        if (!blocks.add(name)) {
            throw new JinjaException(line, "block '" + name + "' defined twice");
        }
        boolean scoped = skipName("scoped");
        boolean required = skipName("required");
        int outside = loops;
        loops = 0;
        List<Ast.Statement> body = body(Set.of("endblock"));
        loops = outside;
        next();
        skipName(name);
        endBlock();
        return new Ast.Block(line, name, scoped, required, body);
    }

    private Ast.Statement setStatement(int line) {
        Ast.Target target = target(true);
        if (loops > 0 && declares(target, "loop")) {
            throw new JinjaException(line, "a for loop cannot assign 'loop'");
        }
        if (skip("=")) {
            Ast.Expression value = tuple();
            endBlock();
            return new Ast.Set(line, target, value);
        }
        List<Ast.Modifier> filters = new ArrayList<>();
        while (skip("|")) {
            filters.add(filter());
        }
        return new Ast.SetBlock(line, target, filters, bodyEnding("endset"));
    }

    /** The statements after the present tag, up to the name of one that ends them. */
    private List<Ast.Statement> body(Set<String> ends) {
        skip(":");
        endBlock();
        return statements(ends);
    }

    /** Parses as {@link #body} does, with the whole tag that ends it. */
    private List<Ast.Statement> bodyEnding(String end) {
        List<Ast.Statement> body = body(Set.of(end));
        next();
        endBlock();
        return body;
    }

    private Ast.Routine routine(
            int line, String name, List<Ast.Parameter> parameters, Supplier<List<Ast.Statement>> body) {
        Set<String> names = new HashSet<>();
        for (Ast.Parameter parameter : parameters) {
            if (!names.add(parameter.name())) {
                throw new JinjaException(line, "two parameters are named '" + parameter.name() + "'");
            }
        }
        beginMacro();
        int outside = loops;
        loops = 0;
        List<Ast.Statement> statements = body.get();
        loops = outside;
        Set<String> special = endMacro();
        for (Ast.Parameter parameter : parameters) {
            if (parameter.name().equals("caller") && special.contains("caller") && parameter.otherwise() == null) {
                throw new JinjaException(line, "the parameter 'caller' must be left out or have a default");
            }
        }
        return new Ast.Routine(name, parameters, statements, List.copyOf(special));
    }

    private List<Ast.Parameter> parameters() {
        expect("(");
        List<Ast.Parameter> parameters = new ArrayList<>();
        while (!skip(")")) {
            if (!parameters.isEmpty()) {
                expect(",");
            }
            Token name = expect(Kind.NAME);
            Ast.Expression otherwise = skip("=") ? expression() : null;
            if (otherwise == null
                    && !parameters.isEmpty()
                    && parameters.getLast().otherwise() != null) {
                throw new JinjaException(
                        name.line(), "parameter '" + name.text() + "' without a default follows one with a default");
            }
            parameters.add(new Ast.Parameter(assignable(name), otherwise));
        }
        return parameters;
    }

    private Ast.Target target(boolean members) {
        List<Ast.Target> targets = new ArrayList<>();
        boolean tuple = false;
        do {
            tuple |= !targets.isEmpty();
            Token token = peek();
            if (!targets.isEmpty()
                    && (token.kind() == Kind.BLOCK_END
                            || token.is(Kind.NAME, "in")
                            || token.is(Kind.OPERATOR, "=")
                            || token.is(Kind.OPERATOR, ")"))) {
                break;
            }
            if (skip("(")) {
                enter();
                targets.add(target(members));
                leave();
                expect(")");
            } else {
                Token name = expect(Kind.NAME);
                targets.add(
                        members && skip(".")
                                ? new Ast.Member(name.text(), expect(Kind.NAME).text())
                                : new Ast.Variable(assignable(name)));
            }
        } while (skip(","));
        return tuple ? new Ast.Unpack(targets) : targets.getFirst();
    }

    private String assignable(Token name) {
        if (CONSTANTS.contains(name.text())) {
            throw new JinjaException(name.line(), "cannot assign to '" + name.text() + "'");
        }
        declare(name.text());
        return name.text();
    }
}
