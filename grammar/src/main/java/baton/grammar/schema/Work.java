package baton.grammar.schema;

import baton.grammar.automaton.RegularProduct;
import baton.grammar.rule.Expression;
import baton.kv.ConfigException;
import java.util.HashMap;
import java.util.Map;

/** Counts the steps of a translation, so that every schema is translated or refused soon. */
final class Work {
    private static final int MOST = 24_000;

    /** Shapes of one type, of combined schemas. */
    private static final int MOST_SHAPES = 500;

    /** Steps of all intersections and complements of strings. */
    private static final long MOST_PRODUCTS = 300_000;

    /** Steps by which each schema enlarges the limit of all. */
    private static final int STEPS_OF_SCHEMA = 300;

    private static final int PRODUCTS_OF_SCHEMA = 1_000;

    private final Map<Expression, Expression.Automaton> automata = new HashMap<>();
    private int left = MOST;
    private long leftOfProducts = MOST_PRODUCTS;

    /**
     * The automaton of an expression of strings. Equal expressions are made into one.
     *
     * @throws ConfigException if it takes too many steps; then none are left
     */
    Expression.Automaton automaton(Expression strings) {
        Expression.Automaton known = automata.get(strings);
        if (known == null) {
            long most = leftOfProducts;
            leftOfProducts = 0;
            RegularProduct.Made made = RegularProduct.of(strings, most);
            leftOfProducts = most - made.work();
            known = made.automaton();
            automata.put(strings, known);
        }
        return known;
    }

    /** Enlarges the remaining steps by those of one more schema. */
    void allowSchema() {
        left += STEPS_OF_SCHEMA;
        leftOfProducts += PRODUCTS_OF_SCHEMA;
    }

    /** @throws ConfigException if a union has too many shapes */
    void requireShapes(int shapes) {
        if (shapes > MOST_SHAPES) {
            spend(Integer.MAX_VALUE);
        }
    }

    /** @throws ConfigException if too many steps are needed */
    void spend(int steps) {
        boolean suffices = steps <= left;
        left = suffices ? left - steps : 0;
        if (!suffices) {
            throw new ConfigException(
                    "schema",
                    "takes too many steps to translate; write fewer of anyOf, oneOf and allOf, and fewer constraints");
        }
    }
}
