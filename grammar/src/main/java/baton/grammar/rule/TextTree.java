package baton.grammar.rule;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.TreeSet;

/** Writes texts as a tree of their beginnings. */
final class TextTree {
    /** Below it texts are written one by one. */
    private static final int MOST_DEPTH = 50;

    private TextTree() {}

    static Expression of(Collection<String> texts) {
        return tree(List.copyOf(new TreeSet<>(texts)), 0, 0);
    }

    /** The rests of sorted texts behind a beginning that all have. */
    private static Expression tree(List<String> texts, int from, int depth) {
        List<Expression> choices = new ArrayList<>();
        for (int i = 0; i < texts.size(); ) {
            String first = texts.get(i);
            int end = i + 1;
            while (end < texts.size() && depth < MOST_DEPTH && common(first, texts.get(end), from) > from) {
                end++;
            }
            if (end == i + 1) {
                choices.add(Expression.text(first.substring(from)));
            } else {
                int shared = common(first, texts.get(end - 1), from);
                choices.add(Expression.sequence(
                        Expression.text(first.substring(from, shared)),
                        tree(texts.subList(i, end), shared, depth + 1)));
            }
            i = end;
        }
        return Expression.choice(choices);
    }

    /** How many characters two texts with a common beginning have in common, without the half of a surrogate pair. */
    private static int common(String one, String other, int beginning) {
        int length = beginning;
        while (length < one.length() && length < other.length() && one.charAt(length) == other.charAt(length)) {
            length++;
        }
        return length > 0 && Character.isHighSurrogate(one.charAt(length - 1)) ? length - 1 : length;
    }
}
