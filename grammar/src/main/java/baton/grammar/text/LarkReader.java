package baton.grammar.text;

import baton.grammar.regex.Regexes;
import baton.grammar.rule.CharSet;
import baton.grammar.rule.Expression;
import baton.grammar.rule.GrammarSource;
import baton.grammar.rule.RuleCollector;
import baton.grammar.schema.JsonSchemas;
import baton.grammar.schema.SchemaOptions;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * Reads grammars in the common part of Lark, with llguidance's extensions that both of vLLM's backends have. There is no lexer: a text is in
 * the language if it can be divided into terminals in any way.
 */
final class LarkReader extends GrammarReader {
    /** The name of a rule that no grammar can have. */
    private static final String IGNORED = "ignored text";

    private static final Map<String, String> COMMON = new TreeMap<>(Map.ofEntries(
            Map.entry("DIGIT", "[0-9]"),
            Map.entry("HEXDIGIT", "[a-fA-F0-9]"),
            Map.entry("INT", "[0-9]+"),
            Map.entry("SIGNED_INT", "[+-]?[0-9]+"),
            Map.entry("DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"),
            Map.entry("_EXP", "[eE][+-]?[0-9]+"),
            Map.entry("FLOAT", "(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+"),
            Map.entry(
                    "SIGNED_FLOAT", "[+-]?(?:(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"),
            Map.entry("NUMBER", "(?:[0-9]+\\.?[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"),
            Map.entry("SIGNED_NUMBER", "[+-]?(?:[0-9]+\\.?[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"),
            Map.entry("ESCAPED_STRING", "\"(?:[^\"\\\\]|\\\\.)*\""),
            Map.entry("LCASE_LETTER", "[a-z]"),
            Map.entry("UCASE_LETTER", "[A-Z]"),
            Map.entry("LETTER", "[A-Za-z]"),
            Map.entry("WORD", "[A-Za-z]+"),
            Map.entry("CNAME", "[_A-Za-z][_A-Za-z0-9]*"),
            Map.entry("WS_INLINE", "[ \\t]+"),
            Map.entry("WS", "[ \\t\\f\\r\\n]+"),
            Map.entry("CR", "\\r"),
            Map.entry("LF", "\\n"),
            Map.entry("NEWLINE", "(?:\\r?\\n)+"),
            Map.entry("SH_COMMENT", "#[^\\n]*"),
            Map.entry("CPP_COMMENT", "//[^\\n]*"),
            Map.entry("C_COMMENT", "/\\*[^*]*\\*+(?:[^/*][^*]*\\*+)*/"),
            Map.entry("SQL_COMMENT", "--[^\\n]*")));

    private final RuleCollector collector = new RuleCollector();
    private final List<Expression> ignored = new ArrayList<>();
    private final boolean ignores;
    private boolean inTerminal;
    private int groups;

    LarkReader(String text) {
        super(text);
        ignores = text.contains("%ignore");
    }

    @Override
    GrammarSource read() {
        skipLines();
        while (!isAtEnd()) {
            if (take("%")) {
                directive();
            } else {
                definition();
            }
            skip();
            if (!isAtEnd() && peek() != '\n' && peek() != '\r') {
                throw unexpected("the end of the line");
            }
            skipLines();
        }
        Map<String, Expression> rules = rules("start", ":");
        if (ignores) {
            rules.put(IGNORED, Expression.repeat(new Expression.Choice(ignored), 0, Expression.Repeat.UNBOUNDED));
        }
        rules.forEach(collector::add);
        return collector.source(new Expression.Rule("start"));
    }

    private void directive() {
        int start = position() - 1;
        String name = takeWhile(LarkReader::isOfName);
        skip();
        switch (name) {
            case "import" -> imports();
            case "ignore" -> {
                inTerminal = true;
                ignored.add(choices());
                inTerminal = false;
            }
            case "llguidance", "grammar_options" -> {
                if (!object().isEmpty()) {
                    throw error(start, "options of '%" + name + "' are not supported");
                }
            }
            default -> throw error(start, "'%" + name + "' is not supported; write %import or %ignore");
        }
    }

    private void imports() {
        int start = position();
        if (!take("common")) {
            throw error("only 'common' can be imported; write %import common.NAME");
        }
        skip();
        if (take(".")) {
            String name = takeWhile(LarkReader::isOfName);
            skip();
            String as = name;
            if (take("->")) {
                skip();
                as = takeWhile(LarkReader::isOfName);
            }
            imported(start, name, as);
            return;
        }
        require("(");
        do {
            skip();
            String name = takeWhile(LarkReader::isOfName);
            imported(start, name, name);
            skip();
        } while (take(","));
        require(")");
    }

    private void imported(int position, String name, String as) {
        String pattern = COMMON.get(name);
        if (pattern == null) {
            throw error(position, "common." + name + " is not known; known are " + String.join(", ", COMMON.keySet()));
        }
        define(position, as, Regexes.terminal(pattern, ""));
    }

    private void definition() {
        int start = position();
        takeWhile(c -> c == '?' || c == '!');
        String name = takeWhile(LarkReader::isOfName);
        if (name.isEmpty() || (name.charAt(0) >= '0' && name.charAt(0) <= '9')) {
            throw unexpected("the name of a rule or of a terminal");
        }
        if (peek() == '{') {
            throw error("templates are not supported; write a rule for each use of '" + name + "'");
        }
        if (take(".")) {
            // A priority changes the tree, no text.
            takeWhile(c -> c == '-' || (c >= '0' && c <= '9'));
        }
        Map<String, Expression> options = take("[") ? options() : Map.of();
        skip();
        if (take("::")) {
            throw error(start, "parameters of rules are not supported");
        }
        require(":");
        boolean isLazy = !options.isEmpty();
        inTerminal = isLazy || isTerminal(name);
        Expression body = choices();
        inTerminal = false;
        if (isLazy) {
            Expression marker = options.getOrDefault("suffix", options.getOrDefault("stop", Expression.empty()));
            Expression marked = marker.equals(Expression.empty()) ? body : Expression.sequence(body, marker);
            // No text has a special token in it, so one ends the text before it.
            body = lexeme(hasSpecialToken(marked) ? marked : Dispatch.shortest(marked));
        }
        define(start, name, body);
    }

    /** The options that change texts, with the expression that ends them. */
    private Map<String, Expression> options() {
        Map<String, Expression> options = new HashMap<>();
        do {
            skip();
            int start = position();
            String name = takeWhile(LarkReader::isOfName);
            skip();
            boolean hasValue = take("=");
            skip();
            switch (name) {
                case "lazy" -> options.put(name, Expression.empty());
                case "suffix", "stop" -> {
                    if (!hasValue) {
                        throw unexpected("'='");
                    }
                    inTerminal = true;
                    options.put(name, atom());
                    inTerminal = false;
                }
                case "capture", "stop_capture" -> {
                    if (hasValue) {
                        require("\"");
                        string(false);
                    }
                }
                default -> throw error(start, "the option '" + name + "' of rules is not supported");
            }
            skip();
        } while (take(","));
        require("]");
        return options;
    }

    private static boolean hasSpecialToken(Expression expression) {
        return expression instanceof Expression.SpecialToken
                || expression.parts().stream().anyMatch(LarkReader::hasSpecialToken);
    }

    private static boolean isTerminal(String name) {
        int first = 0;
        while (first < name.length() - 1 && name.charAt(first) == '_') {
            first++;
        }
        return Character.isUpperCase(name.charAt(first));
    }

    private static boolean isOfName(int c) {
        return (c < 0x80 && Character.isLetterOrDigit(c)) || c == '_' || c == '-';
    }

    /** Within groups it skips also line ends. */
    @Override
    void skip() {
        while (true) {
            takeWhile(c -> c == ' ' || c == '\t' || (groups > 0 && (c == '\n' || c == '\r')));
            int start = position();
            if (!take("#") && !take("//")) {
                return;
            }
            back(start);
            takeWhile(c -> c != '\n');
        }
    }

    private void skipLines() {
        groups++;
        skip();
        groups--;
    }

    private Expression choices() {
        List<Expression> choices = new ArrayList<>();
        do {
            skip();
            choices.add(conjunction());
            if (take("->")) {
                skip();
                takeWhile(LarkReader::isOfName);
                skip();
            }
        } while (takeBar());
        return Expression.choice(choices);
    }

    /** A bar that stands on this line or begins one of the next. */
    private boolean takeBar() {
        int start = position();
        skipLines();
        if (take("|")) {
            return true;
        }
        back(start);
        return false;
    }

    private Expression conjunction() {
        List<Expression> parts = new ArrayList<>();
        do {
            skip();
            parts.add(sequence());
        } while (take("&"));
        return parts.size() == 1 ? parts.getFirst() : new Expression.And(parts);
    }

    private Expression sequence() {
        List<Expression> parts = new ArrayList<>();
        while (!isAtEnd() && "|)]&\r\n".indexOf(peek()) < 0 && !isArrow()) {
            parts.add(repeated());
            skip();
        }
        return Expression.sequence(parts);
    }

    private boolean isArrow() {
        int start = position();
        boolean isArrow = take("->");
        back(start);
        return isArrow;
    }

    private Expression repeated() {
        Expression element = take("~") ? new Expression.Not(atom()) : atom();
        skip();
        int position = position();
        if (take("~")) {
            skip();
            int least = number();
            if (least < 0) {
                // The sign negates the next element.
                back(position);
                return element;
            }
            skip();
            int most = take("..") ? number() : least;
            if (most < 0) {
                throw error(position, "the greatest count is missing; write ~2..4");
            }
            return repeated(position, element, least, most);
        }
        return repeated(element, "; templates are not supported");
    }

    private Expression atom() {
        int start = position();
        if (take("(")) {
            return group(")");
        }
        if (take("[")) {
            return Expression.optional(group("]"));
        }
        if (take("\"")) {
            return lexeme(string(start));
        }
        if (take("/")) {
            return lexeme(regex(start));
        }
        if (take("<")) {
            return specialToken(start);
        }
        if (take("%json")) {
            requireRule(start, "%json");
            return lexeme(schema(start));
        }
        for (String refused : List.of("%regex", "%lark", "@")) {
            if (take(refused)) {
                throw error(start, "'" + refused + "' is not supported");
            }
        }
        String name = takeWhile(LarkReader::isOfName);
        if (name.isEmpty()) {
            throw unexpected("a string, a regular expression, a name or a group");
        }
        Expression rule = reference(start, name);
        if (isTerminal(name)) {
            return lexeme(rule);
        }
        requireRule(start, "the rule '" + name + "'");
        return rule;
    }

    private void requireRule(int position, String name) {
        if (inTerminal) {
            throw error(position, name + " cannot be part of a terminal; give the terminal a name in lower case");
        }
    }

    private Expression group(String close) {
        enter();
        groups++;
        Expression group = choices();
        skip();
        groups--;
        require(close);
        leave();
        return group;
    }

    /** A terminal, after which there may be ignored text. */
    private Expression lexeme(Expression terminal) {
        return ignores && !inTerminal ? Expression.sequence(terminal, new Expression.Rule(IGNORED)) : terminal;
    }

    private Expression string(int start) {
        String text = string(false);
        if (take("i")) {
            List<Expression> characters = text.codePoints()
                    .<Expression>mapToObj(c -> new Expression.Chars(
                            c < 0x80 ? CharSet.of(Character.toLowerCase(c), Character.toUpperCase(c)) : CharSet.of(c)))
                    .toList();
            return new Expression.Sequence(characters);
        }
        int end = position();
        skip();
        if (!take("..")) {
            back(end);
            return Expression.text(text);
        }
        skip();
        require("\"");
        String last = string(false);
        if (text.codePointCount(0, text.length()) != 1
                || last.codePointCount(0, last.length()) != 1
                || text.codePointAt(0) > last.codePointAt(0)) {
            throw error(start, "a range is two characters in order; write \"a\"..\"z\"");
        }
        return new Expression.Chars(CharSet.range(text.codePointAt(0), last.codePointAt(0)));
    }

    private Expression regex(int start) {
        int from = position();
        while (peek() != '/') {
            if (isAtEnd() || peek() == '\n') {
                throw error(start, "the regular expression has no end on its line; write \\/ for a slash in it");
            }
            if (next() == '\\') {
                next();
            }
        }
        String pattern = from(from);
        next();
        String flags = takeWhile(c -> "imslux".indexOf(c) >= 0);
        return terminal(start, pattern, flags);
    }

    private Expression specialToken(int start) {
        requireRule(start, "a special token");
        if (peek() == '[') {
            throw error(start, "special tokens by number are not supported; write <|name|>");
        }
        takeWhile(c -> c != '<' && c != '>' && !Character.isWhitespace(c));
        require(">");
        return new Expression.SpecialToken(from(start));
    }

    private Expression schema(int start) {
        JsonFields schema = object();
        try {
            return collector.add(JsonSchemas.source(schema.toJson(), SchemaOptions.DEFAULT));
        } catch (ConfigException e) {
            throw error(start, String.valueOf(e.getMessage()));
        }
    }

    /** An object of JSON. */
    private JsonFields object() {
        skip();
        int start = position();
        if (peek() != '{') {
            throw unexpected("an object of JSON");
        }
        int depth = 0;
        do {
            int c = next();
            switch (c) {
                case '{' -> depth++;
                case '}' -> depth--;
                case '"' -> {
                    while (peek() != '"') {
                        if (next() == '\\') {
                            next();
                        }
                    }
                    next();
                }
                default -> {}
            }
        } while (depth > 0);
        try {
            return JsonFields.parse("json", from(start));
        } catch (ConfigException e) {
            throw error(start, String.valueOf(e.getMessage()));
        }
    }
}
