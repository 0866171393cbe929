package baton.grammar.schema;

import java.util.LinkedHashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;

/** Values of one type of JSON that meet all of some constraints. Immutable. */
interface Shape<S extends Shape<S>> {
    /** The values of both, or empty if there are surely none. */
    Optional<S> and(S other);

    /** How much work {@link #and} is, where most take 1. */
    default int steps(S other) {
        return 1;
    }

    /** A number of small steps, as steps. */
    default int shortened(long small) {
        return (int) Math.min(1 + small / 16, Integer.MAX_VALUE);
    }

    /**
     * The values that another shape does not have, as a union.
     *
     * @param path of the schema that is negated, for errors
     * @throws baton.kv.ConfigException if they are no union of shapes
     */
    List<S> minus(S other, String path);

    static <E> Set<E> union(Set<E> a, Set<E> b) {
        if (a.isEmpty() || b.isEmpty()) {
            return a.isEmpty() ? b : a;
        }
        Set<E> all = new LinkedHashSet<>(a);
        all.addAll(b);
        return all;
    }
}
