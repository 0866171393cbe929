package baton.grammar.schema;

import java.util.Collections;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import tools.jackson.databind.JsonNode;

/** Conditions that a value meets at once. They are evaluated when they are needed, since schemas are recursive. */
record Conjunction(Set<Term> terms) {
    static final Conjunction ANY = new Conjunction(Set.of());
    static final Conjunction NEVER = new Conjunction(Set.of(new Term.Never()));

    /** A condition. */
    sealed interface Term {
        /** The schema is met, or is not met where it is negated. */
        record Of(SchemaNode schema, boolean negated) implements Term {}

        /** The value is equal, or not where it is negated. */
        record Equal(JsonNode value, boolean negated) implements Term {}

        record Never() implements Term {}
    }

    static Conjunction of(SchemaNode schema) {
        JsonNode json = schema.json();
        if (json.isBoolean()) {
            return json.asBoolean() ? ANY : NEVER;
        }
        return json.isObject() && json.isEmpty() ? ANY : new Conjunction(Set.of(new Term.Of(schema, false)));
    }

    static Conjunction equal(JsonNode value) {
        return new Conjunction(Set.of(new Term.Equal(value, false)));
    }

    Conjunction and(Conjunction other) {
        if (other.terms.isEmpty() || equals(other) || isNever()) {
            return this;
        }
        if (terms.isEmpty() || other.isNever()) {
            return other;
        }
        Set<Term> all = new LinkedHashSet<>(terms);
        all.addAll(other.terms);
        return new Conjunction(Collections.unmodifiableSet(all));
    }

    /** Conditions of which a value meets one exactly if it does not meet this one. */
    List<Conjunction> negations() {
        return terms.stream()
                .map(term -> switch (term) {
                    case Term.Of(SchemaNode schema, boolean negated) ->
                        new Conjunction(Set.of(new Term.Of(schema, !negated)));
                    case Term.Equal(JsonNode value, boolean negated) ->
                        new Conjunction(Set.of(new Term.Equal(value, !negated)));
                    case Term.Never _ -> ANY;
                })
                .toList();
    }

    boolean isAny() {
        return terms.isEmpty();
    }

    boolean isNever() {
        return this.equals(NEVER);
    }
}
