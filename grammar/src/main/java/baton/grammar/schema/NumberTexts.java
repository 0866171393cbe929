package baton.grammar.schema;

import baton.grammar.rule.CharSet;
import baton.grammar.rule.Expression;
import java.math.BigDecimal;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/**
 * The texts of numbers. Digits and exponents are bounded, so that a text ends and its number is neither infinite nor rounded to 0.
 */
final class NumberTexts {
    private static final int MOST_DIGITS = 64;

    /** Zeros at the end of a fraction. */
    private static final int MOST_ZEROS = 20;

    /** The first exponent with which one of a few numbers may be written. */
    private static final int FIRST_EXPONENT = 3;

    private static final Expression DIGIT = new Expression.Chars(CharSet.range('0', '9'));
    private static final Expression NATURAL = Expression.choice(
            Expression.text("0"),
            Expression.sequence(
                    new Expression.Chars(CharSet.range('1', '9')), Expression.repeat(DIGIT, 0, MOST_DIGITS - 1)));
    private static final Expression SIGN = Expression.optional(Expression.text("-"));
    private static final Expression E = new Expression.Chars(CharSet.of("eE"));
    private static final Expression ZEROS = Expression.optional(
            Expression.sequence(Expression.text("."), Expression.repeat(Expression.text("0"), 1, MOST_ZEROS)));

    private static final Expression FRACTION =
            Expression.optional(Expression.sequence(Expression.text("."), Expression.repeat(DIGIT, 1, MOST_DIGITS)));
    private static final Expression ANY_SIGN = Expression.optional(new Expression.Chars(CharSet.of("+-")));
    private static final Expression PLUS = Expression.optional(Expression.text("+"));

    /** Any number that a double has. */
    static final Expression NUMBER = Expression.sequence(
            SIGN,
            Expression.choice(
                    Expression.sequence(NATURAL, FRACTION, exponent(ANY_SIGN)),
                    Expression.sequence(DIGIT, FRACTION, largeExponent(ANY_SIGN))));

    /** Any integer that a double has. */
    static final Expression INTEGER = Expression.sequence(
            SIGN,
            Expression.choice(
                    Expression.sequence(NATURAL, ZEROS, exponent(PLUS)),
                    Expression.sequence(DIGIT, ZEROS, largeExponent(PLUS)),
                    Expression.sequence(Expression.text("1"), ZEROS, E, PLUS, Expression.text("308"))));

    private NumberTexts() {}

    private static Expression exponent(Expression sign) {
        return Expression.optional(Expression.sequence(E, sign, Expression.repeat(DIGIT, 1, 2)));
    }

    /** An exponent from 100 to 307. */
    private static Expression largeExponent(Expression sign) {
        return Expression.sequence(
                E,
                sign,
                Expression.choice(
                        Expression.sequence(new Expression.Chars(CharSet.of("12")), DIGIT, DIGIT),
                        Expression.sequence(Expression.text("30"), new Expression.Chars(CharSet.range('0', '7')))));
    }

    /** The texts of the numbers of a shape, or empty if its automaton would be too large. */
    static Optional<Expression> of(NumberShape shape, Work work) {
        if (shape.equals(NumberShape.ALL)) {
            return Optional.of(NUMBER);
        }
        if (shape.equals(NumberShape.INTEGERS)) {
            return Optional.of(INTEGER);
        }
        if (shape.only().isPresent()) {
            Map<Expression, Set<String>> byEnd = new LinkedHashMap<>();
            shape.only().get().forEach(value -> addTexts(value, byEnd));
            return Optional.of(new Expression.Choice(byEnd.entrySet().stream()
                    .map(entry -> Expression.sequence(Expression.oneOf(entry.getValue()), entry.getKey()))
                    .toList()));
        }
        return new NumberAutomaton(shape).expression(work);
    }

    /** Adds the beginnings of a number's texts, by the expression that may follow. */
    private static void addTexts(BigDecimal value, Map<Expression, Set<String>> byEnd) {
        String sign = value.signum() < 0 ? "-" : "";
        BigDecimal size = value.abs();
        int exponent = size.precision() - size.scale() - 1;
        if (Math.abs(exponent) <= MOST_DIGITS) {
            Expression end = size.scale() > 0 ? Expression.repeat(Expression.text("0"), 0, MOST_ZEROS) : ZEROS;
            Set<String> texts = byEnd.computeIfAbsent(end, _ -> new LinkedHashSet<>());
            texts.add(sign + size.toPlainString());
            if (value.signum() == 0) {
                texts.add("-0");
            }
        }
        if (value.signum() != 0 && Math.abs(exponent) >= FIRST_EXPONENT) {
            String digits = size.unscaledValue().toString();
            String fraction = digits.substring(1);
            Expression end = Expression.sequence(
                    fraction.isEmpty() ? ZEROS : Expression.empty(),
                    E,
                    exponent < 0 ? Expression.text("-") : PLUS,
                    Expression.repeat(Expression.text("0"), 0, 1),
                    Expression.text(Integer.toString(Math.abs(exponent))));
            byEnd.computeIfAbsent(end, _ -> new LinkedHashSet<>())
                    .add(sign + digits.charAt(0) + (fraction.isEmpty() ? "" : "." + fraction));
        }
    }
}
