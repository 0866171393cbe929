package baton.grammar.schema;

import java.util.List;
import java.util.Optional;

/** Values of one type of JSON that meet all of some constraints. Immutable. */
interface Shape<S extends Shape<S>> {
    /** The values of both, or empty if there are surely none. */
    Optional<S> and(S other);

    /**
     * The values that another shape does not have, as a union.
     *
     * @param path of the schema that is negated, for errors
     * @throws baton.kv.ConfigException if they are no union of shapes
     */
    List<S> minus(S other, String path);
}
