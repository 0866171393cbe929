package baton.grammar.schema;

import baton.grammar.rule.CharSet;
import baton.grammar.rule.Expression;
import baton.kv.GeneratedBuilder;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;

/**
 * Strings, as they are after escapes are decoded.
 *
 * @param only the only ones, if they are few; then nothing else is a constraint
 * @param except strings that are not among them
 * @param least Unicode characters at least
 * @param most Unicode characters at most
 * @param patterns expressions of whole strings
 */
@GeneratedBuilder
record StringShape(Optional<Set<String>> only, Set<String> except, int least, int most, Set<StringPattern> patterns)
        implements Shape<StringShape>, StringShapeBuilder.With {
    static final StringShape ALL =
            new StringShape(Optional.empty(), Set.of(), 0, Expression.Repeat.UNBOUNDED, Set.of());

    @Override
    public Optional<StringShape> and(StringShape other) {
        if (only.isPresent() || other.only.isPresent()) {
            StringShape few = only.isPresent() ? this : other;
            StringShape filter = only.isPresent() ? other : this;
            Set<String> both = new LinkedHashSet<>(few.only.orElseThrow());
            both.removeIf(string -> !filter.contains(string));
            return both.isEmpty() ? Optional.empty() : Optional.of(ALL.withOnly(Optional.of(both)));
        }
        int longest = Math.min(most, other.most);
        int shortest = Math.max(least, other.least);
        return shortest > longest
                ? Optional.empty()
                : Optional.of(new StringShape(
                        only,
                        Shape.union(except, other.except),
                        shortest,
                        longest,
                        Shape.union(patterns, other.patterns)));
    }

    @Override
    public List<StringShape> minus(StringShape other, String path) {
        List<StringShape> not = new ArrayList<>();
        if (only.isPresent()) {
            Set<String> rest = new LinkedHashSet<>(only.orElseThrow());
            rest.removeIf(other::contains);
            return rest.isEmpty() ? List.of() : List.of(ALL.withOnly(Optional.of(rest)));
        }
        if (other.only.isPresent()) {
            not.add(ALL.withExcept(other.only.orElseThrow()));
        } else {
            if (!other.except.isEmpty()) {
                not.add(ALL.withOnly(Optional.of(other.except)));
            }
            if (other.least > 0) {
                not.add(ALL.withMost(other.least - 1));
            }
            if (other.most < Expression.Repeat.UNBOUNDED) {
                not.add(ALL.withLeast(other.most + 1));
            }
            other.patterns.forEach(pattern -> not.add(ALL.withPatterns(Set.of(pattern.negated()))));
        }
        return not.stream().flatMap(each -> and(each).stream()).toList();
    }

    @Override
    public int steps(StringShape other) {
        long strings = only.or(() -> other.only).map(Set::size).orElse(0);
        return shortened(strings * (1 + stepsOfString() + other.stepsOfString()));
    }

    /** How much work {@link #contains} is. */
    long stepsOfString() {
        return patterns.stream().mapToLong(StringPattern::steps).sum();
    }

    boolean contains(String string) {
        int length = string.codePointCount(0, string.length());
        return only.map(strings -> strings.contains(string)).orElse(true)
                && !except.contains(string)
                && least <= length
                && length <= most
                && patterns.stream().allMatch(pattern -> pattern.contains(string));
    }

    /** The strings as an expression of their characters. */
    Expression expression(Work work) {
        if (only.isPresent()) {
            return Expression.oneOf(only.orElseThrow());
        }
        List<Expression> all = new ArrayList<>();
        patterns.forEach(pattern -> all.add(pattern.expression()));
        if (!except.isEmpty()) {
            all.add(new Expression.Not(Expression.oneOf(except)));
        }
        boolean isOfAnyLength = least == 0 && most == Expression.Repeat.UNBOUNDED;
        if (all.isEmpty()) {
            return Expression.repeat(new Expression.Chars(CharSet.ALL), least, most);
        }
        return isOfAnyLength && all.size() == 1
                ? all.getFirst()
                : new Expression.Automaton(
                        work.automaton(new Expression.And(all)).states(), least, most);
    }

    /** Whether they are all strings but some. */
    boolean isExcept() {
        return !except.isEmpty() && equals(ALL.withExcept(except));
    }
}
