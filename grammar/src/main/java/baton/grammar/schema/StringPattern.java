package baton.grammar.schema;

import baton.grammar.rule.Expression;

/**
 * Strings of an expression. Its name identifies it, since expressions are large.
 *
 * @param name unique among the patterns of a schema
 * @param expression of the characters of a whole string
 * @param steps how much work {@link #contains} is
 */
record StringPattern(String name, Expression expression, long steps) {
    StringPattern(String name, Expression expression) {
        this(name, expression, 8 + expression.size() / 4);
    }

    /** The strings that are not of it. */
    StringPattern negated() {
        return new StringPattern("not " + name, new Expression.Not(expression), steps);
    }

    boolean contains(String string) {
        return Matching.matches(expression, string);
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof StringPattern pattern && name.equals(pattern.name);
    }

    @Override
    public int hashCode() {
        return name.hashCode();
    }
}
