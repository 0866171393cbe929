package baton.grammar.schema;

import baton.grammar.rule.Expression;
import java.util.Arrays;
import java.util.BitSet;

/** Whether a short text is one of a regular expression without rules and automata. */
record Matching(int[] text) {
    static boolean matches(Expression expression, String text) {
        int[] points = text.codePoints().toArray();
        BitSet start = new BitSet();
        start.set(0);
        return new Matching(points).after(expression, start).get(points.length);
    }

    /** The positions behind texts of an expression that begin at one of some positions. */
    private BitSet after(Expression expression, BitSet from) {
        BitSet ends = new BitSet();
        switch (expression) {
            case Expression.Text(String literal) -> {
                int[] points = literal.codePoints().toArray();
                from.stream()
                        .filter(at -> Arrays.equals(
                                points, 0, points.length, text, at, Math.min(at + points.length, text.length)))
                        .forEach(at -> ends.set(at + points.length));
            }
            case Expression.Chars(var set) ->
                from.stream()
                        .filter(at -> at < text.length && set.contains(text[at]))
                        .forEach(at -> ends.set(at + 1));
            case Expression.Sequence(var parts) -> {
                ends.or(from);
                for (Expression part : parts) {
                    BitSet next = after(part, ends);
                    ends.clear();
                    ends.or(next);
                }
            }
            case Expression.Choice(var parts) -> parts.forEach(part -> ends.or(after(part, from)));
            case Expression.Repeat(Expression repeated, int least, int most) -> {
                BitSet reached = from;
                for (int count = 0; !reached.isEmpty(); count++) {
                    if (count >= least) {
                        BitSet known = (BitSet) ends.clone();
                        ends.or(reached);
                        if (count == most || ends.equals(known)) {
                            break;
                        }
                    } else if (count > text.length) {
                        // Only empty texts are left, which may be repeated at will.
                        count = least - 1;
                    }
                    reached = after(repeated, reached);
                }
            }
            case Expression.And(var parts) ->
                from.stream().forEach(at -> {
                    BitSet all = new BitSet();
                    all.set(at, text.length + 1);
                    parts.forEach(part -> all.and(after(part, single(at))));
                    ends.or(all);
                });
            case Expression.Not(Expression excluded) ->
                from.stream().forEach(at -> {
                    BitSet others = new BitSet();
                    others.set(at, text.length + 1);
                    others.andNot(after(excluded, single(at)));
                    ends.or(others);
                });
            case Expression.Automaton _, Expression.Rule _, Expression.Members _, Expression.SpecialToken _ ->
                throw new IllegalArgumentException("no expression of a pattern: " + expression);
        }
        return ends;
    }

    private static BitSet single(int position) {
        BitSet set = new BitSet();
        set.set(position);
        return set;
    }
}
