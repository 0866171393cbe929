package baton.grammar.rule;

import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** Whether a grammar has a text, by its definition: slow, for tests. A special token is its name between two halves of surrogate pairs. */
public final class Texts {
    private record Call(Expression expression, int start) {}

    private final Map<String, Expression> rules;
    private final int[] text;
    private final Map<Call, Set<Integer>> ends = new HashMap<>();
    private final Set<Call> visited = new HashSet<>();
    private boolean changed;

    private Texts(Map<String, Expression> rules, String text) {
        this.rules = rules;
        this.text = text.codePoints().toArray();
    }

    public static boolean has(Expression expression, String text) {
        return has(GrammarSource.of(expression), text);
    }

    public static boolean has(GrammarSource source, String text) {
        Texts texts = new Texts(source.rules(), text);
        boolean has;
        do {
            texts.changed = false;
            texts.visited.clear();
            has = texts.ends(source.start(), 0).contains(texts.text.length);
        } while (texts.changed);
        return has;
    }

    /** Where texts of an expression end that begin at {@code start}. Rules have those of the round before. */
    private Set<Integer> ends(Expression expression, int start) {
        Set<Integer> found = new HashSet<>();
        switch (expression) {
            case Expression.Text(String characters) -> add(found, start, characters);
            case Expression.SpecialToken(String content) -> add(found, start, "\uD800" + content + "\uD800");
            case Expression.Chars(CharSet set) -> {
                if (start < text.length && set.contains(text[start])) {
                    found.add(start + 1);
                }
            }
            case Expression.Sequence(List<Expression> parts) -> {
                Set<Integer> starts = Set.of(start);
                for (Expression part : parts) {
                    Set<Integer> next = new HashSet<>();
                    starts.forEach(each -> next.addAll(ends(part, each)));
                    starts = next;
                }
                found.addAll(starts);
            }
            case Expression.Choice(List<Expression> parts) -> parts.forEach(part -> found.addAll(ends(part, start)));
            case Expression.And(List<Expression> parts) -> {
                found.addAll(ends(parts.getFirst(), start));
                parts.forEach(part -> found.retainAll(ends(part, start)));
            }
            case Expression.Not(Expression excluded) -> {
                for (int end = start; end <= text.length; end++) {
                    found.add(end);
                    if (end < text.length && !CharSet.ALL.contains(text[end])) {
                        break;
                    }
                }
                found.removeAll(ends(excluded, start));
            }
            case Expression.Repeat(Expression repeated, int least, int most) -> {
                Set<Integer> starts = Set.of(start);
                Set<Set<Integer>> seen = new HashSet<>();
                for (int i = 0; ; i++) {
                    if (i >= least) {
                        found.addAll(starts);
                    }
                    if (i == most || starts.isEmpty() || (i >= least && !seen.add(starts))) {
                        break;
                    }
                    Set<Integer> next = new HashSet<>();
                    starts.forEach(each -> next.addAll(ends(repeated, each)));
                    starts = next;
                }
            }
            case Expression.Rule(String name) -> {
                Call call = new Call(expression, start);
                Set<Integer> known = ends.computeIfAbsent(call, _ -> new HashSet<>());
                if (visited.add(call) && known.addAll(ends(rules.getOrDefault(name, Expression.nothing()), start))) {
                    changed = true;
                }
                return Set.copyOf(known);
            }
            case Expression.Members _, Expression.Automaton _ ->
                throw new UnsupportedOperationException("Grammar.accepts knows it");
        }
        return found;
    }

    private void add(Set<Integer> found, int start, String characters) {
        int[] wanted = characters.codePoints().toArray();
        if (start + wanted.length <= text.length
                && Arrays.equals(text, start, start + wanted.length, wanted, 0, wanted.length)) {
            found.add(start + wanted.length);
        }
    }
}
