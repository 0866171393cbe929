package baton.grammar.schema;

import baton.grammar.rule.Expression.Repeat;
import baton.kv.ConfigException;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Set;

/**
 * Arrays.
 *
 * @param prefix conditions of the first items
 * @param rest condition of the other items
 * @param unique whether no two items are equal
 * @param contained conditions that some of the items meet
 */
record ArrayShape(
        List<Conjunction> prefix, Conjunction rest, int least, int most, boolean unique, Set<Contained> contained)
        implements Shape<ArrayShape> {
    /** A condition, and how many items meet it at least and at most. */
    record Contained(Conjunction condition, int least, int most) {
        /** No condition. */
        static final Contained NONE = new Contained(Conjunction.ANY, 0, Repeat.UNBOUNDED);
    }

    /** A condition on all items is one on each of so many items at most. */
    private static final int FEW = 16;

    static final ArrayShape ALL = new ArrayShape(List.of(), Conjunction.ANY, 0, Repeat.UNBOUNDED, false);

    ArrayShape(List<Conjunction> prefix, Conjunction rest, int least, int most, boolean unique) {
        this(prefix, rest, least, most, unique, Set.of());
    }

    static ArrayShape containing(Conjunction condition, int least, int most) {
        return condition.isAny()
                ? ALL.withLength(least, most)
                : new ArrayShape(
                        List.of(),
                        Conjunction.ANY,
                        least,
                        Repeat.UNBOUNDED,
                        false,
                        Set.of(new Contained(condition, least, most)));
    }

    ArrayShape {
        for (int i = 0; i < prefix.size(); i++) {
            if (prefix.get(i).isNever()) {
                most = Math.min(most, i);
            }
        }
        if (rest.isNever()) {
            most = Math.min(most, prefix.size());
        }
        prefix = List.copyOf(prefix.subList(0, Math.min(prefix.size(), most)));
    }

    ArrayShape withLength(int shortest, int longest) {
        return new ArrayShape(prefix, rest, Math.max(least, shortest), Math.min(most, longest), unique, contained);
    }

    Conjunction item(int position) {
        return position < prefix.size() ? prefix.get(position) : rest;
    }

    @Override
    public int steps(ArrayShape other) {
        return shortened(prefix.size() + other.prefix.size());
    }

    @Override
    public Optional<ArrayShape> and(ArrayShape other) {
        List<Conjunction> items = new ArrayList<>();
        for (int i = 0; i < Math.max(prefix.size(), other.prefix.size()); i++) {
            items.add(item(i).and(other.item(i)));
        }
        ArrayShape both = new ArrayShape(
                items,
                rest.and(other.rest),
                Math.max(least, other.least),
                Math.min(most, other.most),
                unique || other.unique,
                Shape.union(contained, other.contained));
        return both.least > both.most ? Optional.empty() : Optional.of(both);
    }

    @Override
    public List<ArrayShape> minus(ArrayShape other, String path) {
        if (and(other).isEmpty()) {
            return List.of(this);
        }
        List<ArrayShape> not = new ArrayList<>();
        if (other.least > 0) {
            not.add(ALL.withLength(0, other.least - 1));
        }
        if (other.most < Repeat.UNBOUNDED) {
            not.add(ALL.withLength(other.most + 1, Repeat.UNBOUNDED));
        }
        for (int i = 0; i < other.prefix.size(); i++) {
            addWithItem(not, i, other.prefix.get(i));
        }
        if (!other.rest.isAny()) {
            int longest = Math.min(most, other.most);
            if (longest > FEW) {
                throw new ConfigException(
                        path, "cannot be negated: some item of many would have to differ from 'items'");
            }
            for (int i = other.prefix.size(); i < longest; i++) {
                addWithItem(not, i, other.rest);
            }
        }
        for (Contained each : other.contained) {
            if (each.least > 0) {
                not.add(containing(each.condition, 0, each.least - 1));
            }
            if (each.most < Repeat.UNBOUNDED) {
                not.add(containing(each.condition, each.most + 1, Repeat.UNBOUNDED));
            }
        }
        if (other.unique && most > 1) {
            throw new ConfigException(path, "cannot be negated: two items would have to be equal");
        }
        return not.stream().flatMap(each -> and(each).stream()).toList();
    }

    /** Arrays with an item at a position that does not meet a condition. */
    private static void addWithItem(List<ArrayShape> arrays, int position, Conjunction condition) {
        for (Conjunction negation : condition.negations()) {
            List<Conjunction> items = new ArrayList<>();
            for (int i = 0; i < position; i++) {
                items.add(Conjunction.ANY);
            }
            items.add(negation);
            arrays.add(new ArrayShape(items, Conjunction.ANY, position + 1, Repeat.UNBOUNDED, false));
        }
    }
}
