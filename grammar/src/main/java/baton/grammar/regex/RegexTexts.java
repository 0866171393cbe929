package baton.grammar.regex;

import baton.grammar.rule.Expression;
import baton.kv.ConfigException;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Supplier;

/**
 * The texts of regular expressions with assertions. An anchor is true at one end of the whole text, so a part has texts of its own for each
 * place where it can stand: {@code begins} says that it starts with the whole text, {@code ends} that it ends with it. A part after which
 * something follows does not end with the text, unless all that follows is empty; so empty texts are treated apart.
 */
final class RegexTexts {
    /** Parts times places where they stand. */
    private static final int MOST_STEPS = 20_000;

    private int steps;

    /** The texts of parts that go on to the end of the whole text. */
    Expression through(List<RegexNode> parts, boolean begins) {
        step();
        if (parts.stream().noneMatch(RegexTexts::looks)) {
            return texts(RegexNode.sequence(parts), begins, true);
        }
        RegexNode first = parts.getFirst();
        List<RegexNode> rest = parts.subList(1, parts.size());
        return switch (first) {
            case RegexNode.Sequence(List<RegexNode> inner) -> through(concat(inner, rest), begins);
            case RegexNode.Anchor(boolean begin) when begin -> begins ? through(rest, true) : Expression.nothing();
            case RegexNode.Lookahead(RegexNode body, boolean negative, int _) -> {
                Expression seen = through(List.of(body, new RegexNode.Plain(Expression.any())), begins);
                Expression wanted = negative ? new Expression.Not(seen) : seen;
                yield new Expression.And(List.of(through(rest, begins), wanted));
            }
            case RegexNode.Choice(List<RegexNode> choices)
            when looks(first) -> {
                List<Expression> texts = new ArrayList<>();
                for (RegexNode choice : choices) {
                    texts.add(through(concat(List.of(choice), rest), begins));
                }
                yield Expressions.choice(texts);
            }
            case RegexNode.Repeat(RegexNode repeated, int least, int most)
            when looks(first) -> {
                if (most > 1) {
                    throw refused(repeated, "within a repetition");
                }
                Expression without = least == 0 ? through(rest, begins) : Expression.nothing();
                yield most == 0
                        ? without
                        : Expressions.choice(List.of(through(concat(List.of(repeated), rest), begins), without));
            }
            default -> {
                if (first.has(RegexNode.Anchor.END::equals)) {
                    throw refused(RegexNode.sequence(rest), "after $");
                }
                Expression after = through(rest, false);
                if (rest.stream().noneMatch(part -> part.has(RegexNode.Anchor.BEGIN::equals))) {
                    yield Expressions.sequence(List.of(texts(first, begins, false), after));
                }
                yield Expressions.choice(List.of(
                        Expressions.sequence(List.of(nonEmpty(first, begins, false), after)),
                        isEmpty(first, begins, false) ? through(rest, begins) : Expression.nothing()));
            }
        };
    }

    private static List<RegexNode> concat(List<RegexNode> first, List<RegexNode> rest) {
        List<RegexNode> all = new ArrayList<>(first);
        all.addAll(rest);
        return all;
    }

    private static boolean looks(RegexNode node) {
        return node.has(RegexNode.Lookahead.class::isInstance);
    }

    private static ConfigException refused(RegexNode node, String where) {
        int[] position = new int[1];
        boolean _ = node.has(part -> {
            if (part instanceof RegexNode.Lookahead(RegexNode _, boolean _, int at)) {
                position[0] = at;
            }
            return position[0] > 0;
        });
        return RegexReader.error(
                position[0], "a lookahead " + where + " is not supported; it may stand where nothing repeats it");
    }

    private Expression texts(RegexNode node, boolean begins, boolean ends) {
        step();
        return switch (node) {
            case RegexNode.Plain(Expression expression) -> expression;
            case RegexNode.Anchor(boolean begin) -> (begin ? begins : ends) ? Expression.empty() : Expression.nothing();
            case RegexNode.Choice(List<RegexNode> parts) ->
                Expressions.choice(
                        parts.stream().map(part -> texts(part, begins, ends)).toList());
            case RegexNode.Sequence(List<RegexNode> parts) -> {
                RegexNode first = parts.getFirst();
                RegexNode rest = RegexNode.sequence(parts.subList(1, parts.size()));
                if (first.equals(RegexNode.Anchor.BEGIN)) {
                    yield begins ? texts(rest, true, ends) : Expression.nothing();
                }
                if (parts.getLast().equals(RegexNode.Anchor.END)) {
                    yield ends
                            ? texts(RegexNode.sequence(parts.subList(0, parts.size() - 1)), begins, true)
                            : Expression.nothing();
                }
                yield areApart(first, rest)
                        ? Expressions.sequence(List.of(texts(first, begins, false), texts(rest, false, ends)))
                        : withEmpty(node, begins, ends);
            }
            case RegexNode.Repeat _ -> withEmpty(node, begins, ends);
            case RegexNode.Lookahead _ -> throw refused(node, "here");
        };
    }

    private Expression withEmpty(RegexNode node, boolean begins, boolean ends) {
        return Expressions.choice(List.of(
                isEmpty(node, begins, ends) ? Expression.empty() : Expression.nothing(), nonEmpty(node, begins, ends)));
    }

    /** Whether neither asks if the other is empty. */
    private static boolean areApart(RegexNode first, RegexNode rest) {
        return !first.has(RegexNode.Anchor.END::equals) && !rest.has(RegexNode.Anchor.BEGIN::equals);
    }

    /** Whether the empty text is among the texts. */
    private boolean isEmpty(RegexNode node, boolean begins, boolean ends) {
        return switch (node) {
            case RegexNode.Plain(Expression expression) -> Expressions.hasEmpty(expression);
            case RegexNode.Anchor(boolean begin) -> begin ? begins : ends;
            case RegexNode.Choice(List<RegexNode> parts) ->
                parts.stream().anyMatch(part -> isEmpty(part, begins, ends));
            case RegexNode.Sequence(List<RegexNode> parts) ->
                parts.stream().allMatch(part -> isEmpty(part, begins, ends));
            case RegexNode.Repeat(RegexNode repeated, int least, int _) ->
                least == 0 || isEmpty(repeated, begins, ends);
            case RegexNode.Lookahead _ -> throw refused(node, "here");
        };
    }

    /** The texts without the empty one. */
    private Expression nonEmpty(RegexNode node, boolean begins, boolean ends) {
        step();
        return switch (node) {
            case RegexNode.Plain(Expression expression) -> Expressions.nonEmpty(expression);
            case RegexNode.Anchor _ -> Expression.nothing();
            case RegexNode.Choice(List<RegexNode> parts) ->
                Expressions.choice(
                        parts.stream().map(part -> nonEmpty(part, begins, ends)).toList());
            case RegexNode.Sequence(List<RegexNode> parts) -> {
                RegexNode first = parts.getFirst();
                RegexNode rest = RegexNode.sequence(parts.subList(1, parts.size()));
                boolean apart = areApart(first, rest);
                yield Expressions.choice(List.of(
                        then(
                                nonEmpty(first, begins, false),
                                () -> apart ? texts(rest, false, ends) : nonEmpty(rest, false, ends)),
                        isEmpty(first, begins, false) ? nonEmpty(rest, begins, ends) : Expression.nothing(),
                        !apart && isEmpty(rest, false, ends) ? nonEmpty(first, begins, ends) : Expression.nothing()));
            }
            case RegexNode.Repeat(RegexNode repeated, int least, int most) ->
                repeats(repeated, least, most, begins, ends);
            case RegexNode.Lookahead _ -> throw refused(node, "here");
        };
    }

    /** One text that is not empty, or several, of which only the first begins and only the last ends; others are empty. */
    private Expression repeats(RegexNode repeated, int least, int most, boolean begins, boolean ends) {
        if (most == 0) {
            return Expression.nothing();
        }
        boolean outside = isEmpty(repeated, begins, false) || isEmpty(repeated, false, ends);
        Expression one = least <= 1 || outside ? nonEmpty(repeated, begins, ends) : Expression.nothing();
        if (most == 1) {
            return one;
        }
        int others = outside || isEmpty(repeated, false, false) ? 0 : Math.max(least - 2, 0);
        Expression several = then(
                nonEmpty(repeated, begins, false),
                () -> Expressions.sequence(List.of(
                        Expressions.repeat(
                                nonEmpty(repeated, false, false),
                                others,
                                most == Expression.Repeat.UNBOUNDED ? most : most - 2),
                        nonEmpty(repeated, false, ends))));
        return Expressions.choice(List.of(one, several));
    }

    private static Expression then(Expression first, Supplier<Expression> rest) {
        return first.equals(Expression.nothing())
                ? Expression.nothing()
                : Expressions.sequence(List.of(first, rest.get()));
    }

    private void step() {
        if (++steps > MOST_STEPS) {
            throw new ConfigException("regex", "has too many anchors and lookaheads within each other");
        }
    }
}
