package baton.grammar.text;

import baton.grammar.regex.Regexes;
import baton.grammar.rule.CharSet;
import baton.grammar.rule.Expression;
import baton.grammar.rule.GrammarSource;
import baton.kv.ConfigException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** Reads grammars in xgrammar's EBNF, of which llama.cpp's GBNF is a part. */
final class EbnfReader {
    private static final Set<String> MACROS_OF_TOKENS =
            Set.of("Token", "ExcludeToken", "TokenTagDispatch", "Substring");

    private final GrammarScanner scanner;
    private final Map<String, Expression> rules = new LinkedHashMap<>();

    /** Where each rule is first referred to. */
    private final Map<String, Integer> references = new LinkedHashMap<>();

    EbnfReader(String text) {
        scanner = new GrammarScanner(text);
    }

    GrammarSource read() {
        skip();
        while (!scanner.isAtEnd()) {
            rule();
        }
        references.forEach((name, position) -> {
            if (!rules.containsKey(name)) {
                throw scanner.error(position, "the rule '" + name + "' is not defined; write " + name + " ::= ...");
            }
        });
        if (!rules.containsKey("root")) {
            throw scanner.error(0, "the rule 'root' is missing; write root ::= ...");
        }
        return new GrammarSource(rules, new Expression.Rule("root"));
    }

    private void rule() {
        int start = scanner.position();
        String name = name();
        if (name.isEmpty()) {
            throw scanner.unexpected("the name of a rule");
        }
        skip();
        if (scanner.peek() == '[') {
            options();
            skip();
        }
        scanner.require("::=");
        skip();
        Expression rule = choices();
        if (scanner.take("(=")) {
            // A hint for xgrammar, which changes no text.
            scanner.enter();
            skip();
            choices();
            close();
            skip();
        }
        if (rule.size() > Regexes.MAX_SIZE) {
            throw scanner.error(
                    start,
                    "the rule has more than " + Regexes.MAX_SIZE + " characters and rules if repeats are written out");
        }
        if (rules.put(name, rule) != null) {
            throw scanner.error(start, "the rule '" + name + "' is defined twice");
        }
    }

    /** Options of a rule, of which those that only take notes are known. */
    private void options() {
        int start = scanner.position();
        scanner.next();
        do {
            skip();
            String option = name();
            if (!option.equals("capture")) {
                throw scanner.error(start, "the option '" + option + "' of rules is not supported");
            }
            skip();
            if (scanner.take("=")) {
                skip();
                string();
                skip();
            }
        } while (scanner.take(","));
        scanner.require("]");
    }

    private String name() {
        int first = scanner.peek();
        return first >= '0' && first <= '9' ? "" : scanner.takeWhile(EbnfReader::isOfName);
    }

    private static boolean isOfName(int c) {
        return (c < 0x80 && Character.isLetterOrDigit(c)) || c == '_' || c == '-' || c == '.';
    }

    private void skip() {
        while (true) {
            scanner.takeWhile(c -> c == ' ' || c == '\t' || c == '\n' || c == '\r');
            if (scanner.peek() != '#') {
                return;
            }
            scanner.takeWhile(c -> c != '\n');
        }
    }

    private Expression choices() {
        List<Expression> choices = new ArrayList<>();
        do {
            skip();
            choices.add(sequence());
        } while (scanner.take("|"));
        return Expression.choice(choices);
    }

    private Expression sequence() {
        List<Expression> parts = new ArrayList<>();
        while (!isAtEndOfSequence()) {
            parts.add(quantified());
        }
        if (parts.isEmpty()) {
            throw scanner.unexpected("a string, a class, a rule or a group (\"\" is the empty text)");
        }
        return Expression.sequence(parts);
    }

    private boolean isAtEndOfSequence() {
        int start = scanner.position();
        if (scanner.isAtEnd() || scanner.peek() == '|' || scanner.peek() == ')') {
            return true;
        }
        boolean ends = scanner.take("(=");
        if (!ends && !name().isEmpty()) {
            if (scanner.peek() == '[') {
                scanner.takeWhile(c -> c != ']' && c != '\n');
                scanner.take("]");
            }
            skip();
            ends = scanner.take("::=");
        }
        scanner.back(start);
        return ends;
    }

    private Expression quantified() {
        Expression element = element();
        skip();
        int position = scanner.position();
        Expression repeated = element;
        if (scanner.take("*")) {
            repeated = scanner.repeated(position, element, 0, Expression.Repeat.UNBOUNDED);
        } else if (scanner.take("+")) {
            repeated = scanner.repeated(position, element, 1, Expression.Repeat.UNBOUNDED);
        } else if (scanner.take("?")) {
            repeated = scanner.repeated(position, element, 0, 1);
        } else if (scanner.take("{")) {
            skip();
            int least = scanner.number();
            if (least < 0) {
                throw scanner.unexpected("the least count");
            }
            skip();
            int most = least;
            if (scanner.take(",")) {
                skip();
                most = scanner.number();
                most = most < 0 ? Expression.Repeat.UNBOUNDED : most;
                skip();
            }
            scanner.require("}");
            repeated = scanner.repeated(position, element, least, most);
        } else {
            return repeated;
        }
        skip();
        int next = scanner.peek();
        if (next == '*' || next == '+' || next == '?' || next == '{') {
            throw scanner.error("a repetition is repeated; write (...) around it");
        }
        return repeated;
    }

    private Expression element() {
        int start = scanner.position();
        if (scanner.take("(")) {
            scanner.enter();
            skip();
            Expression group = scanner.peek() == ')' ? Expression.empty() : choices();
            close();
            return group;
        }
        if (scanner.take("\"")) {
            return Expression.text(scanner.string(true));
        }
        if (scanner.take("[")) {
            return characters();
        }
        String name = name();
        if (name.isEmpty()) {
            throw scanner.unexpected("a string, a class, a rule or a group");
        }
        if (scanner.peek() == '(') {
            switch (name) {
                case "Regex" -> {
                    return regex(start);
                }
                case "TagDispatch" -> {
                    return tagDispatch(start);
                }
                default -> {
                    if (MACROS_OF_TOKENS.contains(name)) {
                        throw scanner.error(start, "the macro '" + name + "' is not supported");
                    }
                }
            }
        }
        references.putIfAbsent(name, start);
        return new Expression.Rule(name);
    }

    private void close() {
        skip();
        scanner.require(")");
        scanner.leave();
    }

    private Expression characters() {
        int start = scanner.position() - 1;
        boolean isNegated = scanner.take("^");
        List<CharSet.Range> ranges = new ArrayList<>();
        while (!scanner.take("]")) {
            int first = character(start);
            int dash = scanner.position();
            int last = first;
            if (scanner.take("-")) {
                if (scanner.peek() == ']') {
                    scanner.back(dash);
                } else {
                    last = character(start);
                }
            }
            if (last < first) {
                throw scanner.error(dash, "the range is in the wrong order");
            }
            ranges.add(new CharSet.Range(first, last));
        }
        if (ranges.isEmpty() && !isNegated) {
            throw scanner.error(start, "the class is empty; write \\] for the character within a class");
        }
        CharSet set = CharSet.union(ranges);
        return new Expression.Chars(isNegated ? set.complement() : set.intersection(CharSet.ALL));
    }

    private int character(int start) {
        if (scanner.isAtEnd() || scanner.peek() == '\n' || scanner.peek() == '\r') {
            throw scanner.error(start, "the class has no end on its line");
        }
        return scanner.take("\\") ? scanner.escape(true) : scanner.next();
    }

    private Expression regex(int start) {
        scanner.next();
        skip();
        String pattern = string();
        String flags = "s";
        skip();
        while (scanner.take(",")) {
            skip();
            String option = name();
            if (!option.equals("flags")) {
                throw scanner.error(start, "the argument '" + option + "' of Regex is not supported");
            }
            skip();
            scanner.require("=");
            skip();
            flags = string();
            skip();
        }
        scanner.require(")");
        return terminal(scanner, start, pattern, flags);
    }

    /** A regular expression within a grammar. */
    static Expression terminal(GrammarScanner scanner, int position, String pattern, String flags) {
        if (!flags.matches("[isu]*")) {
            throw scanner.error(position, "the flags '" + flags + "' are not supported; write i, s or u");
        }
        try {
            return Regexes.terminal(pattern, flags);
        } catch (ConfigException e) {
            throw scanner.error(position, String.valueOf(e.getMessage()));
        }
    }

    private Expression tagDispatch(int start) {
        scanner.next();
        List<Dispatch.Case> cases = new ArrayList<>();
        List<String> excluded = new ArrayList<>();
        boolean loops = true;
        skip();
        while (!scanner.take(")")) {
            if (scanner.take("(")) {
                skip();
                String trigger = string();
                skip();
                scanner.require(",");
                skip();
                int position = scanner.position();
                String rule = name();
                references.putIfAbsent(rule, position);
                skip();
                scanner.require(")");
                if (trigger.isEmpty()) {
                    throw scanner.error(start, "a trigger of TagDispatch is empty");
                }
                cases.add(new Dispatch.Case(trigger, new Expression.Rule(rule)));
            } else {
                String option = name();
                skip();
                scanner.require("=");
                skip();
                switch (option) {
                    case "loop_after_dispatch" -> {
                        loops = scanner.take("true");
                        if (!loops) {
                            scanner.require("false");
                        }
                    }
                    case "excludes" -> excluded.addAll(strings());
                    default ->
                        throw scanner.error(start, "the argument '" + option + "' of TagDispatch is not supported");
                }
            }
            skip();
            if (!scanner.take(",") && scanner.peek() != ')') {
                throw scanner.unexpected("',' or ')'");
            }
            skip();
        }
        return Dispatch.cases(cases, excluded, loops);
    }

    private String string() {
        scanner.require("\"");
        return scanner.string(true);
    }

    private List<String> strings() {
        List<String> strings = new ArrayList<>();
        scanner.require("(");
        skip();
        while (!scanner.take(")")) {
            strings.add(string());
            skip();
            if (!scanner.take(",") && scanner.peek() != ')') {
                throw scanner.unexpected("',' or ')'");
            }
            skip();
        }
        strings.removeIf(String::isEmpty);
        return strings;
    }
}
