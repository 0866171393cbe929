package baton.grammar.schema;

import baton.kv.ConfigException;

/** Counts the steps of a translation, so that every schema is translated or refused soon. */
final class Work {
    private static final int MOST = 30_000;

    /** Shapes of one type, of combined schemas. */
    private static final int MOST_SHAPES = 500;

    private int left = MOST;

    /** @throws ConfigException if a union has too many shapes */
    void requireShapes(int shapes) {
        if (shapes > MOST_SHAPES) {
            spend(MOST + 1);
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
