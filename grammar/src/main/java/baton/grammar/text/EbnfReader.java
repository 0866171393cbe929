package baton.grammar.text;

import baton.grammar.rule.CharSet;
import baton.grammar.rule.Expression;
import baton.grammar.rule.GrammarSource;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;

/** Reads grammars in xgrammar's EBNF, of which llama.cpp's GBNF is a part. */
final class EbnfReader extends GrammarReader {
    private static final Set<String> MACROS_OF_TOKENS =
            Set.of("Token", "ExcludeToken", "TokenTagDispatch", "Substring");

    EbnfReader(String text) {
        super(text);
    }

    @Override
    GrammarSource read() {
        skip();
        while (!isAtEnd()) {
            rule();
        }
        return new GrammarSource(rules("root", " ::="), new Expression.Rule("root"));
    }

    private void rule() {
        int start = position();
        String name = name();
        if (name.isEmpty()) {
            throw unexpected("the name of a rule");
        }
        skip();
        if (peek() == '[') {
            options();
            skip();
        }
        require("::=");
        skip();
        Expression rule = choices();
        if (take("(=")) {
            // A hint for xgrammar, which changes no text.
            enter();
            skip();
            choices();
            close();
            skip();
        }
        define(start, name, rule);
    }

    /** Options of a rule, of which those that only take notes are known. */
    private void options() {
        int start = position();
        next();
        do {
            skip();
            String option = name();
            if (!option.equals("capture")) {
                throw error(start, "the option '" + option + "' of rules is not supported");
            }
            skip();
            if (take("=")) {
                skip();
                string();
                skip();
            }
        } while (take(","));
        require("]");
    }

    private String name() {
        int first = peek();
        return first >= '0' && first <= '9' ? "" : takeWhile(EbnfReader::isOfName);
    }

    private static boolean isOfName(int c) {
        return (c < 0x80 && Character.isLetterOrDigit(c)) || c == '_' || c == '-' || c == '.';
    }

    @Override
    void skip() {
        while (true) {
            takeWhile(c -> c == ' ' || c == '\t' || c == '\n' || c == '\r');
            if (peek() != '#') {
                return;
            }
            takeWhile(c -> c != '\n');
        }
    }

    private Expression choices() {
        List<Expression> choices = new ArrayList<>();
        do {
            skip();
            choices.add(sequence());
        } while (take("|"));
        return Expression.choice(choices);
    }

    private Expression sequence() {
        List<Expression> parts = new ArrayList<>();
        while (!isAtEndOfSequence()) {
            parts.add(quantified());
        }
        if (parts.isEmpty()) {
            throw unexpected("a string, a class, a rule or a group (\"\" is the empty text)");
        }
        return Expression.sequence(parts);
    }

    private boolean isAtEndOfSequence() {
        int start = position();
        if (isAtEnd() || peek() == '|' || peek() == ')') {
            return true;
        }
        boolean ends = take("(=");
        if (!ends && !name().isEmpty()) {
            if (peek() == '[') {
                takeWhile(c -> c != ']' && c != '\n');
                take("]");
            }
            skip();
            ends = take("::=");
        }
        back(start);
        return ends;
    }

    private Expression quantified() {
        Expression element = element();
        skip();
        int position = position();
        Expression repeated = repeated(element, "");
        boolean isRepeated = position() > position;
        skip();
        int next = peek();
        if (isRepeated && (next == '*' || next == '+' || next == '?' || next == '{')) {
            throw error("a repetition is repeated; write (...) around it");
        }
        return repeated;
    }

    private Expression element() {
        int start = position();
        if (take("(")) {
            enter();
            skip();
            Expression group = peek() == ')' ? Expression.empty() : choices();
            close();
            return group;
        }
        if (take("\"")) {
            return Expression.text(string(true));
        }
        if (take("[")) {
            return characters();
        }
        String name = name();
        if (name.isEmpty()) {
            throw unexpected("a string, a class, a rule or a group");
        }
        if (peek() == '(') {
            switch (name) {
                case "Regex" -> {
                    return regex(start);
                }
                case "TagDispatch" -> {
                    return tagDispatch(start);
                }
                default -> {
                    if (MACROS_OF_TOKENS.contains(name)) {
                        throw error(start, "the macro '" + name + "' is not supported");
                    }
                }
            }
        }
        return reference(start, name);
    }

    private void close() {
        skip();
        require(")");
        leave();
    }

    private Expression characters() {
        int start = position() - 1;
        boolean isNegated = take("^");
        List<CharSet.Range> ranges = new ArrayList<>();
        while (!take("]")) {
            int first = member(start);
            int dash = position();
            int last = first;
            if (take("-")) {
                if (peek() == ']') {
                    back(dash);
                } else {
                    last = member(start);
                }
            }
            if (last < first) {
                throw error(dash, "the range is in the wrong order");
            }
            ranges.add(new CharSet.Range(first, last));
        }
        if (ranges.isEmpty() && !isNegated) {
            throw error(start, "the class is empty; write \\] for the character within a class");
        }
        CharSet set = CharSet.union(ranges);
        return new Expression.Chars(isNegated ? set.complement() : set.intersection(CharSet.ALL));
    }

    private int member(int start) {
        if (isAtEnd() || peek() == '\n' || peek() == '\r') {
            throw error(start, "the class has no end on its line");
        }
        return take("\\") ? escape(true) : next();
    }

    private Expression regex(int start) {
        next();
        skip();
        String pattern = string();
        String flags = "s";
        skip();
        while (take(",")) {
            skip();
            String option = name();
            if (!option.equals("flags")) {
                throw error(start, "the argument '" + option + "' of Regex is not supported");
            }
            skip();
            require("=");
            skip();
            flags = string();
            skip();
        }
        require(")");
        return terminal(start, pattern, flags);
    }

    private Expression tagDispatch(int start) {
        next();
        List<Dispatch.Case> cases = new ArrayList<>();
        List<String> excluded = new ArrayList<>();
        boolean loops = true;
        skip();
        while (!take(")")) {
            if (take("(")) {
                skip();
                String trigger = string();
                skip();
                require(",");
                skip();
                int position = position();
                String rule = name();
                Expression rest = reference(position, rule);
                skip();
                require(")");
                if (trigger.isEmpty()) {
                    throw error(start, "a trigger of TagDispatch is empty");
                }
                cases.add(new Dispatch.Case(trigger, rest));
            } else {
                String option = name();
                skip();
                require("=");
                skip();
                switch (option) {
                    case "loop_after_dispatch" -> {
                        loops = take("true");
                        if (!loops) {
                            require("false");
                        }
                    }
                    case "excludes" -> excluded.addAll(strings());
                    default -> throw error(start, "the argument '" + option + "' of TagDispatch is not supported");
                }
            }
            skip();
            if (!take(",") && peek() != ')') {
                throw unexpected("',' or ')'");
            }
            skip();
        }
        return Dispatch.cases(cases, excluded, loops);
    }

    private String string() {
        require("\"");
        return string(true);
    }

    private List<String> strings() {
        List<String> strings = new ArrayList<>();
        require("(");
        skip();
        while (!take(")")) {
            strings.add(string());
            skip();
            if (!take(",") && peek() != ')') {
                throw unexpected("',' or ')'");
            }
            skip();
        }
        strings.removeIf(String::isEmpty);
        return strings;
    }
}
