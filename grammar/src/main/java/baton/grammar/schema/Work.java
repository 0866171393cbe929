package baton.grammar.schema;

import baton.grammar.automaton.RegularProduct;
import baton.grammar.rule.Expression;
import baton.kv.ConfigException;

/** Counts the steps of a translation, so that every schema is translated or refused soon. */
final class Work {
    private static final int MOST = 20_000;

    /** Shapes of one type, of combined schemas. */
    private static final int MOST_SHAPES = 500;

    /** Steps of all intersections and complements of strings. */
    private static final long MOST_PRODUCTS = 90_000;

    private int left = MOST;
    private long leftOfProducts = MOST_PRODUCTS;

    /** @throws ConfigException if an expression of strings takes too many steps */
    Expression.Automaton automaton(Expression strings) {
        RegularProduct.Made made = RegularProduct.of(strings, leftOfProducts);
        leftOfProducts -= made.work();
        return made.automaton();
    }

    /** Enlarges what is left. */
    void allow(int steps) {
        left += steps;
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
