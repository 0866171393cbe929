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
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * Reads grammars in the common part of Lark, with llguidance's extensions that both of vLLM's backends have. There is no lexer: a text is in
 * the language if it can be divided into terminals in any way.
 */
final class LarkReader {
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

    private final GrammarScanner scanner;
    private final RuleCollector collector = new RuleCollector();
    private final Map<String, Expression> rules = new LinkedHashMap<>();
    private final Map<String, Integer> references = new LinkedHashMap<>();
    private final List<Expression> ignored = new ArrayList<>();
    private final boolean ignores;
    private boolean inTerminal;
    private int groups;

    LarkReader(String text) {
        scanner = new GrammarScanner(text);
        ignores = text.contains("%ignore");
    }

    GrammarSource read() {
        skipLines();
        while (!scanner.isAtEnd()) {
            if (scanner.take("%")) {
                directive();
            } else {
                definition();
            }
            skip();
            if (!scanner.isAtEnd() && scanner.peek() != '\n' && scanner.peek() != '\r') {
                throw scanner.unexpected("the end of the line");
            }
            skipLines();
        }
        references.forEach((name, position) -> {
            if (!rules.containsKey(name)) {
                throw scanner.error(position, "'" + name + "' is not defined; write " + name + ": ...");
            }
        });
        if (!rules.containsKey("start")) {
            throw scanner.error(0, "the rule 'start' is missing; write start: ...");
        }
        if (ignores) {
            rules.put(IGNORED, Expression.repeat(new Expression.Choice(ignored), 0, Expression.Repeat.UNBOUNDED));
        }
        rules.forEach(collector::add);
        return collector.source(new Expression.Rule("start"));
    }

    private void directive() {
        int start = scanner.position() - 1;
        String name = scanner.takeWhile(LarkReader::isOfName);
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
                    throw scanner.error(start, "options of '%" + name + "' are not supported");
                }
            }
            default -> throw scanner.error(start, "'%" + name + "' is not supported; write %import or %ignore");
        }
    }

    private void imports() {
        int start = scanner.position();
        if (!scanner.take("common")) {
            throw scanner.error("only 'common' can be imported; write %import common.NAME");
        }
        skip();
        if (scanner.take(".")) {
            String name = scanner.takeWhile(LarkReader::isOfName);
            skip();
            String as = name;
            if (scanner.take("->")) {
                skip();
                as = scanner.takeWhile(LarkReader::isOfName);
            }
            imported(start, name, as);
            return;
        }
        scanner.require("(");
        do {
            skip();
            String name = scanner.takeWhile(LarkReader::isOfName);
            imported(start, name, name);
            skip();
        } while (scanner.take(","));
        scanner.require(")");
    }

    private void imported(int position, String name, String as) {
        String pattern = COMMON.get(name);
        if (pattern == null) {
            throw scanner.error(
                    position, "common." + name + " is not known; known are " + String.join(", ", COMMON.keySet()));
        }
        define(position, as, Regexes.terminal(pattern, ""));
    }

    private void define(int position, String name, Expression expression) {
        if (expression.size() > Regexes.MAX_SIZE) {
            throw scanner.error(
                    position,
                    "'" + name + "' has more than " + Regexes.MAX_SIZE
                            + " characters and rules if repeats are written out");
        }
        if (rules.put(name, expression) != null) {
            throw scanner.error(position, "'" + name + "' is defined twice");
        }
    }

    private void definition() {
        int start = scanner.position();
        scanner.takeWhile(c -> c == '?' || c == '!');
        String name = scanner.takeWhile(LarkReader::isOfName);
        if (name.isEmpty() || (name.charAt(0) >= '0' && name.charAt(0) <= '9')) {
            throw scanner.unexpected("the name of a rule or of a terminal");
        }
        if (scanner.peek() == '{') {
            throw scanner.error("templates are not supported; write a rule for each use of '" + name + "'");
        }
        if (scanner.take(".")) {
            // A priority changes the tree, no text.
            scanner.takeWhile(c -> c == '-' || (c >= '0' && c <= '9'));
        }
        Map<String, Expression> options = scanner.take("[") ? options() : Map.of();
        skip();
        if (scanner.take("::")) {
            throw scanner.error(start, "parameters of rules are not supported");
        }
        scanner.require(":");
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
            int start = scanner.position();
            String name = scanner.takeWhile(LarkReader::isOfName);
            skip();
            boolean hasValue = scanner.take("=");
            skip();
            switch (name) {
                case "lazy" -> options.put(name, Expression.empty());
                case "suffix", "stop" -> {
                    if (!hasValue) {
                        throw scanner.unexpected("'='");
                    }
                    inTerminal = true;
                    options.put(name, atom());
                    inTerminal = false;
                }
                case "capture", "stop_capture" -> {
                    if (hasValue) {
                        scanner.require("\"");
                        scanner.string(false);
                    }
                }
                default -> throw scanner.error(start, "the option '" + name + "' of rules is not supported");
            }
            skip();
        } while (scanner.take(","));
        scanner.require("]");
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

    /** Skips blanks and comments of a line, and within groups also line ends. */
    private void skip() {
        while (true) {
            scanner.takeWhile(c -> c == ' ' || c == '\t' || (groups > 0 && (c == '\n' || c == '\r')));
            int start = scanner.position();
            if (!scanner.take("#") && !scanner.take("//")) {
                return;
            }
            scanner.back(start);
            scanner.takeWhile(c -> c != '\n');
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
            if (scanner.take("->")) {
                skip();
                scanner.takeWhile(LarkReader::isOfName);
                skip();
            }
        } while (takeBar());
        return Expression.choice(choices);
    }

    /** A bar that stands on this line or begins one of the next. */
    private boolean takeBar() {
        int start = scanner.position();
        skipLines();
        if (scanner.take("|")) {
            return true;
        }
        scanner.back(start);
        return false;
    }

    private Expression conjunction() {
        List<Expression> parts = new ArrayList<>();
        do {
            skip();
            parts.add(sequence());
        } while (scanner.take("&"));
        return parts.size() == 1 ? parts.getFirst() : new Expression.And(parts);
    }

    private Expression sequence() {
        List<Expression> parts = new ArrayList<>();
        while (!scanner.isAtEnd() && "|)]&\r\n".indexOf(scanner.peek()) < 0 && !isArrow()) {
            parts.add(repeated());
            skip();
        }
        return Expression.sequence(parts);
    }

    private boolean isArrow() {
        int start = scanner.position();
        boolean isArrow = scanner.take("->");
        scanner.back(start);
        return isArrow;
    }

    private Expression repeated() {
        Expression element = scanner.take("~") ? new Expression.Not(atom()) : atom();
        int position = scanner.position();
        if (scanner.take("?")) {
            return scanner.repeated(position, element, 0, 1);
        }
        if (scanner.take("*")) {
            return scanner.repeated(position, element, 0, Expression.Repeat.UNBOUNDED);
        }
        if (scanner.take("+")) {
            return scanner.repeated(position, element, 1, Expression.Repeat.UNBOUNDED);
        }
        skip();
        position = scanner.position();
        if (scanner.take("~")) {
            skip();
            int least = scanner.number();
            if (least < 0) {
                // The sign negates the next element.
                scanner.back(position);
                return element;
            }
            skip();
            int most = scanner.take("..") ? scanner.number() : least;
            if (most < 0) {
                throw scanner.error(position, "the greatest count is missing; write ~2..4");
            }
            return scanner.repeated(position, element, least, most);
        }
        if (scanner.take("{")) {
            skip();
            int least = scanner.number();
            skip();
            int most = least;
            if (scanner.take(",")) {
                skip();
                most = scanner.number();
                most = most < 0 ? Expression.Repeat.UNBOUNDED : most;
                least = Math.max(least, 0);
                skip();
            }
            if (least < 0 || !scanner.take("}")) {
                throw scanner.error(
                        position, "the counts are missing; write {2} or {2,4}; templates are not supported");
            }
            return scanner.repeated(position, element, least, most);
        }
        return element;
    }

    private Expression atom() {
        int start = scanner.position();
        if (scanner.take("(")) {
            return group(")");
        }
        if (scanner.take("[")) {
            return Expression.optional(group("]"));
        }
        if (scanner.take("\"")) {
            return lexeme(string(start));
        }
        if (scanner.take("/")) {
            return lexeme(regex(start));
        }
        if (scanner.take("<")) {
            return specialToken(start);
        }
        if (scanner.take("%json")) {
            requireRule(start, "%json");
            return lexeme(schema(start));
        }
        for (String refused : List.of("%regex", "%lark", "@")) {
            if (scanner.take(refused)) {
                throw scanner.error(start, "'" + refused + "' is not supported");
            }
        }
        String name = scanner.takeWhile(LarkReader::isOfName);
        if (name.isEmpty()) {
            throw scanner.unexpected("a string, a regular expression, a name or a group");
        }
        references.putIfAbsent(name, start);
        if (isTerminal(name)) {
            return lexeme(new Expression.Rule(name));
        }
        requireRule(start, "the rule '" + name + "'");
        return new Expression.Rule(name);
    }

    private void requireRule(int position, String name) {
        if (inTerminal) {
            throw scanner.error(
                    position, name + " cannot be part of a terminal; give the terminal a name in lower case");
        }
    }

    private Expression group(String close) {
        scanner.enter();
        groups++;
        Expression group = choices();
        skip();
        groups--;
        scanner.require(close);
        scanner.leave();
        return group;
    }

    /** A terminal, after which there may be ignored text. */
    private Expression lexeme(Expression terminal) {
        return ignores && !inTerminal ? Expression.sequence(terminal, new Expression.Rule(IGNORED)) : terminal;
    }

    private Expression string(int start) {
        String text = scanner.string(false);
        if (scanner.take("i")) {
            List<Expression> characters = text.codePoints()
                    .<Expression>mapToObj(c -> new Expression.Chars(
                            c < 0x80 ? CharSet.of(Character.toLowerCase(c), Character.toUpperCase(c)) : CharSet.of(c)))
                    .toList();
            return new Expression.Sequence(characters);
        }
        int end = scanner.position();
        skip();
        if (!scanner.take("..")) {
            scanner.back(end);
            return Expression.text(text);
        }
        skip();
        scanner.require("\"");
        String last = scanner.string(false);
        if (text.codePointCount(0, text.length()) != 1
                || last.codePointCount(0, last.length()) != 1
                || text.codePointAt(0) > last.codePointAt(0)) {
            throw scanner.error(start, "a range is two characters in order; write \"a\"..\"z\"");
        }
        return new Expression.Chars(CharSet.range(text.codePointAt(0), last.codePointAt(0)));
    }

    private Expression regex(int start) {
        int from = scanner.position();
        while (scanner.peek() != '/') {
            if (scanner.isAtEnd() || scanner.peek() == '\n') {
                throw scanner.error(
                        start, "the regular expression has no end on its line; write \\/ for a slash in it");
            }
            if (scanner.next() == '\\') {
                scanner.next();
            }
        }
        String pattern = scanner.from(from);
        scanner.next();
        String flags = scanner.takeWhile(c -> "imslux".indexOf(c) >= 0);
        return EbnfReader.terminal(scanner, start, pattern, flags);
    }

    private Expression specialToken(int start) {
        requireRule(start, "a special token");
        if (scanner.peek() == '[') {
            throw scanner.error(start, "special tokens by number are not supported; write <|name|>");
        }
        scanner.takeWhile(c -> c != '<' && c != '>' && !Character.isWhitespace(c));
        scanner.require(">");
        return new Expression.SpecialToken(scanner.from(start));
    }

    private Expression schema(int start) {
        JsonFields schema = object();
        try {
            return collector.add(JsonSchemas.source(schema.toJson(), SchemaOptions.DEFAULT));
        } catch (ConfigException e) {
            throw scanner.error(start, String.valueOf(e.getMessage()));
        }
    }

    /** An object of JSON. */
    private JsonFields object() {
        skip();
        int start = scanner.position();
        if (scanner.peek() != '{') {
            throw scanner.unexpected("an object of JSON");
        }
        int depth = 0;
        do {
            int c = scanner.next();
            switch (c) {
                case '{' -> depth++;
                case '}' -> depth--;
                case '"' -> {
                    while (scanner.peek() != '"') {
                        if (scanner.next() == '\\') {
                            scanner.next();
                        }
                    }
                    scanner.next();
                }
                default -> {}
            }
        } while (depth > 0);
        try {
            return JsonFields.parse("json", scanner.from(start));
        } catch (ConfigException e) {
            throw scanner.error(start, String.valueOf(e.getMessage()));
        }
    }
}
