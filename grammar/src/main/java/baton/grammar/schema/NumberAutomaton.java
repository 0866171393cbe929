package baton.grammar.schema;

import baton.grammar.rule.CharSet;
import baton.grammar.rule.Expression;
import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.jspecify.annotations.Nullable;

/**
 * The automaton of the texts of constrained numbers. It compares a number with bounds, and divides it, digit by digit. An
 * exponent follows only one digit that is not 0 before the point, and no number that is divided has one.
 */
final class NumberAutomaton {
    /** Digits before the point, unless a bound has more, so that integers fit 64 bits. */
    private static final int MOST_INTEGER_DIGITS = 18;

    /** Digits after the point, unless a bound has more. */
    private static final int MOST_FRACTION_DIGITS = 20;

    private static final int MOST_EXPONENT_DIGITS = 2;
    private static final int LARGEST_COMPARED_EXPONENT = 40;

    /** Beyond this divisor, digits are not counted. */
    private static final int LARGEST_COUNTED_DIVISOR = 16;

    /** Divisors beyond it have too many remainders. */
    static final int LARGEST_DIVISOR = 1_000;

    private static final int MOST_STATES = 10_000;

    /** So many positions with one comparison or remainder are a step of the translation. */
    private static final int POSITIONS_OF_STEP = 8;

    private enum Phase {
        START,
        MINUS,
        ZERO,
        INTEGER,
        POINT,
        FRACTION,
        E,
        EXPONENT_SIGN,
        EXPONENT
    }

    /**
     * After some characters of a number.
     *
     * @param isNormal whether the digit before the point is the only one and not 0
     * @param count digits of the part that the phase is in
     * @param exponent its size, up to one that is larger than those of all bounds
     * @param trackers states of comparisons, then remainders
     */
    private record Position(
            Phase phase,
            boolean isNegative,
            boolean isNormal,
            int count,
            int exponent,
            boolean isSmall,
            List<Integer> trackers) {
        Position next(Phase next, int digits, List<Integer> states) {
            return new Position(next, isNegative, isNormal, digits, exponent, isSmall, states);
        }
    }

    private final NumberShape shape;
    private final List<Comparison> comparisons = new ArrayList<>();
    private final List<Division> divisions = new ArrayList<>();
    private final boolean hasExponents;
    private final int largestExponent;
    private final int integerDigits;
    private final int fractionDigits;
    private final boolean isCounted;

    private final Map<Position, Integer> numbers = new HashMap<>();
    private final List<Position> positions = new ArrayList<>();

    NumberAutomaton(NumberShape shape) {
        this.shape = shape;
        shape.min().ifPresent(min -> comparisons.add(new Comparison(min.value())));
        shape.max().ifPresent(max -> comparisons.add(new Comparison(max.value())));
        shape.except().forEach(value -> comparisons.add(new Comparison(value)));
        shape.multiple().ifPresent(divisor -> divisions.add(new Division(divisor)));
        shape.notMultiples().forEach(divisor -> divisions.add(new Division(divisor)));
        int exponents = comparisons.stream()
                .mapToInt(comparison -> Math.abs(comparison.exponent))
                .max()
                .orElse(0);
        hasExponents = divisions.isEmpty() && exponents <= LARGEST_COMPARED_EXPONENT;
        largestExponent = exponents + 1;
        int integers = comparisons.stream()
                .mapToInt(comparison -> comparison.integer.length())
                .max()
                .orElse(0);
        int fractions = Math.max(
                comparisons.stream()
                        .mapToInt(comparison -> comparison.significant.length() + comparison.fraction.length())
                        .max()
                        .orElse(0),
                divisions.stream().mapToInt(Division::digits).max().orElse(0));
        isCounted = divisions.stream().allMatch(division -> division.divisor() <= LARGEST_COUNTED_DIVISOR);
        integerDigits = isCounted ? Math.max(MOST_INTEGER_DIGITS, integers + 1) : integers + 1;
        fractionDigits = isCounted ? Math.max(MOST_FRACTION_DIGITS, fractions + 1) : fractions + 1;
    }

    /** The automaton, or empty if it would be too large. */
    Optional<Expression> expression(Work work) {
        if (divisions.stream().anyMatch(division -> division.divisor() > LARGEST_DIVISOR)) {
            return Optional.empty();
        }
        Map<String, Expression> sets = new HashMap<>();
        List<Expression.State> states = new ArrayList<>();
        List<Integer> trackers = new ArrayList<>();
        comparisons.forEach(_ -> trackers.add(Comparison.EQUAL));
        divisions.forEach(_ -> trackers.add(0));
        number(new Position(Phase.START, false, false, 0, 0, false, trackers));
        for (int i = 0; i < positions.size(); i++) {
            if (positions.size() > MOST_STATES) {
                return Optional.empty();
            }
            if (i % POSITIONS_OF_STEP == 0) {
                work.spend(1 + trackers.size());
            }
            Map<Integer, String> characters = new LinkedHashMap<>();
            for (char character : "-+.eE0123456789".toCharArray()) {
                step(positions.get(i), character)
                        .ifPresent(to -> characters.merge(number(to), "" + character, String::concat));
            }
            List<Expression.Step> steps = new ArrayList<>();
            characters.forEach((next, each) -> steps.add(new Expression.Step(
                    sets.computeIfAbsent(each, some -> new Expression.Chars(CharSet.of(some))), next)));
            states.add(new Expression.State(ends(positions.get(i)), steps));
        }
        return Optional.of(new Expression.Automaton(states));
    }

    private int number(Position position) {
        Integer known = numbers.putIfAbsent(position, positions.size());
        if (known != null) {
            return known;
        }
        positions.add(position);
        return positions.size() - 1;
    }

    private Optional<Position> step(Position from, char character) {
        boolean isDigit = character >= '0' && character <= '9';
        int digit = character - '0';
        Position to = switch (from.phase) {
            case START, MINUS -> {
                if (isDigit) {
                    Position first = new Position(
                            digit == 0 ? Phase.ZERO : Phase.INTEGER,
                            from.isNegative,
                            digit > 0,
                            0,
                            0,
                            false,
                            from.trackers);
                    yield integerDigit(first, digit);
                }
                yield character == '-' && from.phase == Phase.START
                        ? new Position(Phase.MINUS, true, false, 0, 0, false, from.trackers)
                        : null;
            }
            case ZERO, INTEGER -> {
                if (isDigit) {
                    yield from.phase == Phase.INTEGER && hasRoom(from, integerDigits)
                            ? integerDigit(from, digit)
                            : null;
                }
                yield character == '.'
                        ? from.next(Phase.POINT, 0, endOfInteger(from))
                        : exponent(from.next(from.phase, 0, endOfInteger(from)), character);
            }
            case POINT, FRACTION -> {
                if (isDigit) {
                    yield hasRoom(from, fractionDigits) ? fractionDigit(from, digit) : null;
                }
                yield from.phase == Phase.FRACTION ? exponent(from, character) : null;
            }
            case E ->
                character == '+' || character == '-'
                        ? new Position(
                                Phase.EXPONENT_SIGN, from.isNegative, true, 0, 0, character == '-', from.trackers)
                        : isDigit ? exponentDigit(from, digit) : null;
            case EXPONENT_SIGN, EXPONENT ->
                isDigit && from.count < MOST_EXPONENT_DIGITS ? exponentDigit(from, digit) : null;
        };
        return Optional.ofNullable(to);
    }

    private boolean hasRoom(Position from, int digits) {
        return !isCounted || from.count < digits;
    }

    private Position integerDigit(Position from, int digit) {
        List<Integer> states = new ArrayList<>();
        for (int i = 0; i < from.trackers.size(); i++) {
            int state = from.trackers.get(i);
            states.add(
                    i < comparisons.size()
                            ? comparisons.get(i).integerDigit(state, from.count, digit)
                            : divisions.get(i - comparisons.size()).next(state, digit));
        }
        return new Position(
                from.phase,
                from.isNegative,
                from.isNormal && from.count == 0,
                Math.min(from.count + 1, integerDigits),
                0,
                false,
                states);
    }

    private List<Integer> endOfInteger(Position from) {
        List<Integer> states = new ArrayList<>(from.trackers);
        for (int i = 0; i < comparisons.size(); i++) {
            states.set(i, comparisons.get(i).endOfInteger(states.get(i), from.count, from.isNormal && hasExponents));
        }
        return states;
    }

    private Position fractionDigit(Position from, int digit) {
        List<Integer> states = new ArrayList<>();
        for (int i = 0; i < from.trackers.size(); i++) {
            int state = from.trackers.get(i);
            if (i < comparisons.size()) {
                states.add(comparisons.get(i).fractionDigit(state, from.count, digit, from.isNormal && hasExponents));
            } else {
                Division division = divisions.get(i - comparisons.size());
                states.add(
                        from.count < division.digits()
                                ? division.next(state, digit)
                                : digit == 0 ? state : Division.NO_MULTIPLE);
            }
        }
        return from.next(Phase.FRACTION, Math.min(from.count + 1, fractionDigits), states);
    }

    /** At the letter of an exponent, {@code count} is of the digits of the fraction. */
    private @Nullable Position exponent(Position from, char character) {
        if (character != 'e' && character != 'E' || !from.isNormal || !hasExponents) {
            return null;
        }
        List<Integer> states = new ArrayList<>();
        for (int i = 0; i < comparisons.size(); i++) {
            states.add(comparisons.get(i).endOfMantissa(from.trackers.get(i), from.count));
        }
        return new Position(Phase.E, from.isNegative, true, 0, 0, false, states);
    }

    private Position exponentDigit(Position from, int digit) {
        return new Position(
                Phase.EXPONENT,
                from.isNegative,
                true,
                from.count + 1,
                Math.min(from.exponent * 10 + digit, largestExponent),
                from.isSmall,
                from.trackers);
    }

    private boolean ends(Position at) {
        List<Integer> orders = new ArrayList<>();
        List<Integer> states = at.phase == Phase.FRACTION ? at.trackers : endOfInteger(at);
        switch (at.phase) {
            case START, MINUS, POINT, E, EXPONENT_SIGN -> {
                return false;
            }
            case ZERO, INTEGER, FRACTION -> {
                int fraction = at.phase == Phase.FRACTION ? at.count : 0;
                for (int i = 0; i < comparisons.size(); i++) {
                    orders.add(comparisons.get(i).order(states.get(i), fraction, at.isNegative));
                }
                for (int i = 0; i < divisions.size(); i++) {
                    boolean isWanted = i == 0 && shape.multiple().isPresent();
                    if (divisions.get(i).divides(states.get(comparisons.size() + i), fraction) != isWanted) {
                        return false;
                    }
                }
            }
            case EXPONENT -> {
                int exponent = at.isSmall ? -at.exponent : at.exponent;
                for (int i = 0; i < comparisons.size(); i++) {
                    orders.add(comparisons.get(i).orderOfExponent(at.trackers.get(i), exponent, at.isNegative));
                }
            }
        }
        int next = 0;
        if (shape.min().isPresent() && !isMet(orders.get(next++), shape.min().get())) {
            return false;
        }
        if (shape.max().isPresent() && !isMet(-orders.get(next++), shape.max().get())) {
            return false;
        }
        return !orders.subList(next, orders.size()).contains(0);
    }

    private static boolean isMet(int order, NumberShape.Bound bound) {
        return order > 0 || order == 0 && bound.inclusive();
    }

    /**
     * The order of a number and a bound, by their digits without sign: of all digits in their places, and of the digits from
     * the first one on, for numbers with exponents. The state is three times the first order plus the second one.
     */
    private static final class Comparison {
        static final int EQUAL = 4;

        private final int sign;
        private final String integer;
        private final String fraction;
        private final String significant;
        private final int exponent;

        Comparison(BigDecimal bound) {
            sign = bound.signum();
            BigDecimal size = bound.abs().stripTrailingZeros();
            String plain = size.toPlainString();
            int point = plain.indexOf('.');
            integer = point < 0 ? plain : plain.substring(0, point);
            fraction = point < 0 ? "" : plain.substring(point + 1);
            significant = size.unscaledValue().toString();
            exponent = sign == 0 ? 0 : size.precision() - size.scale() - 1;
        }

        private static int state(int plain, int normal) {
            return (plain + 1) * 3 + normal + 1;
        }

        private static int plain(int state) {
            return state / 3 - 1;
        }

        private static int normal(int state) {
            return state % 3 - 1;
        }

        private static int compared(int order, int digit, String digits, int at) {
            return order != 0 ? order : Integer.signum(digit - (at < digits.length() ? digits.charAt(at) - '0' : 0));
        }

        int integerDigit(int state, int count, int digit) {
            int plain = count >= integer.length() ? 1 : compared(plain(state), digit, integer, count);
            return state(plain, count == 0 ? compared(0, digit, significant, 0) : 0);
        }

        int endOfInteger(int state, int count, boolean isNormal) {
            return state(count < integer.length() ? -1 : plain(state), isNormal ? normal(state) : 0);
        }

        int fractionDigit(int state, int count, int digit, boolean isNormal) {
            return state(
                    compared(plain(state), digit, fraction, count),
                    isNormal ? compared(normal(state), digit, significant, count + 1) : 0);
        }

        int endOfMantissa(int state, int fractionDigits) {
            int order = normal(state);
            return state(0, order == 0 && fractionDigits + 1 < significant.length() ? -1 : order);
        }

        int order(int state, int fractionDigits, boolean isNegative) {
            int order = plain(state);
            return signed(order == 0 && fractionDigits < fraction.length() ? -1 : order, isNegative);
        }

        int orderOfExponent(int state, int numberExponent, boolean isNegative) {
            int order = sign == 0 ? 1 : Integer.compare(numberExponent, exponent);
            return signed(order == 0 ? normal(state) : order, isNegative);
        }

        private int signed(int order, boolean isNegative) {
            if (isNegative) {
                return sign > 0 ? -1 : -order;
            }
            return sign < 0 ? 1 : order;
        }
    }

    /** Division of a decimal with {@code digits} after the point by {@code divisor} of the last one. */
    private record Division(long divisor, int digits) {
        static final int NO_MULTIPLE = -1;

        Division(BigDecimal divisor) {
            this(
                    divisor.precision() - Math.min(0, divisor.scale()) > 9
                            ? Long.MAX_VALUE
                            : divisor.setScale(Math.max(0, divisor.scale()))
                                    .unscaledValue()
                                    .longValueExact(),
                    Math.max(0, divisor.scale()));
        }

        int next(int remainder, int digit) {
            return remainder == NO_MULTIPLE ? remainder : (int) ((remainder * 10L + digit) % divisor);
        }

        boolean divides(int remainder, int fractionDigits) {
            long rest = remainder;
            for (int i = fractionDigits; i < digits && rest > 0; i++) {
                rest = rest * 10 % divisor;
            }
            return rest == 0;
        }
    }
}
