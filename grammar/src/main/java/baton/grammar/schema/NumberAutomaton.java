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
import java.util.OptionalInt;
import java.util.Set;
import java.util.function.BiPredicate;
import java.util.function.ToIntBiFunction;
import java.util.stream.IntStream;
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

    /** The number of characters, at positions with one comparison or remainder, that count as one step of the translation. */
    private static final int CHARACTERS_OF_STEP = 12;

    /** The state of a comparison that holds whatever comes. No state of a division is equal to it. */
    private static final int MET = -2;

    private static final CharSet DIGITS = CharSet.range('0', '9');

    /** The characters of numbers. Each digit is at its place. */
    private static final String CHARACTERS = "0123456789-+.eE";

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
    private final boolean isOfIntegers;

    private final Map<Position, Integer> numbers = new HashMap<>();
    private final List<Position> positions = new ArrayList<>();

    NumberAutomaton(NumberShape shape) {
        this.shape = shape;
        shape.min().ifPresent(min -> comparisons.add(new Comparison(min.value(), Set.of(1), min.inclusive())));
        shape.max().ifPresent(max -> comparisons.add(new Comparison(max.value(), Set.of(-1), max.inclusive())));
        shape.except().forEach(value -> comparisons.add(new Comparison(value, Set.of(-1, 1), false)));
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
        isOfIntegers = divisions.stream().allMatch(Division::isOfIntegers);
        integerDigits = isCounted ? Math.max(MOST_INTEGER_DIGITS, integers + 1) : integers + 1;
        fractionDigits = isCounted ? Math.max(MOST_FRACTION_DIGITS, fractions + 1) : fractions + 1;
    }

    /** The automaton, or empty if it would be too large. */
    Optional<Expression> expression(Work work) {
        if (divisions.stream().anyMatch(division -> division.divisor() > LARGEST_DIVISOR)) {
            return Optional.empty();
        }
        Map<Integer, Expression> sets = new HashMap<>();
        List<Expression.State> states = new ArrayList<>();
        List<Integer> trackers = new ArrayList<>();
        comparisons.forEach(_ -> trackers.add(Comparison.EQUAL));
        divisions.forEach(_ -> trackers.add(0));
        number(new Position(Phase.START, false, false, 0, 0, false, trackers));
        for (int i = 0; i < positions.size(); i++) {
            if (positions.size() > MOST_STATES) {
                return Optional.empty();
            }
            Position from = positions.get(i);
            // Sets of characters by the next position, with a bit for each.
            Map<Integer, Integer> characters = new LinkedHashMap<>();
            Map<Integer, Expression> more = new HashMap<>();
            int groups = 0;
            for (int first = 0, end; first < CHARACTERS.length(); first = end) {
                end = endOfEqual(from, first);
                groups++;
                Optional<Position> reached = step(from, CHARACTERS.charAt(first));
                if (reached.isPresent()) {
                    Position to = reached.get();
                    Optional<CharSet> equal = equalDigits(to);
                    int next = number(equal.isEmpty() ? to : to.next(to.phase, digits(to), to.trackers));
                    characters.merge(next, (1 << end) - (1 << first), Integer::sum);
                    equal.ifPresent(set -> more.computeIfAbsent(
                            next, _ -> Expression.repeat(new Expression.Chars(set), 0, digits(to) - to.count)));
                }
            }
            work.spend((1 + trackers.size()) * groups / CHARACTERS_OF_STEP);
            List<Expression.Step> steps = new ArrayList<>();
            characters.forEach((next, bits) -> {
                Expression one = sets.computeIfAbsent(bits, NumberAutomaton::characters);
                steps.add(new Expression.Step(
                        more.containsKey(next) ? Expression.sequence(one, more.get(next)) : one, next));
            });
            states.add(new Expression.State(ends(from), steps));
        }
        return Optional.of(new Expression.Automaton(states));
    }

    private static Expression characters(int bits) {
        return new Expression.Chars(CharSet.of(IntStream.range(0, CHARACTERS.length())
                .filter(bit -> (bits >> bit & 1) == 1)
                .map(CHARACTERS::charAt)
                .toArray()));
    }

    /** The end of the characters, from the first one on, that lead to the same position. */
    private int endOfEqual(Position from, int first) {
        int end = first + 1;
        if (first > 0 && first <= 9) {
            while (end <= 9 && !isToldFromLess(from, end)) {
                end++;
            }
        }
        return CHARACTERS.charAt(first) == 'e' ? CHARACTERS.length() : end;
    }

    /** Whether a digit may lead to another position than the digit that is less by 1, which is not 0. */
    private boolean isToldFromLess(Position from, int digit) {
        return switch (from.phase) {
            case START, MINUS, INTEGER, POINT, FRACTION ->
                !isOfIntegers || !isEach(from, (each, _) -> !each.isToldFromLess(from, digit));
            case ZERO -> false;
            case E, EXPONENT_SIGN, EXPONENT -> true;
        };
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
                    yield from.phase == Phase.INTEGER && hasRoom(from) ? integerDigit(from, digit) : null;
                }
                yield character == '.'
                        ? from.next(Phase.POINT, 0, endOfInteger(from))
                        : exponent(from.next(from.phase, 0, endOfInteger(from)), character);
            }
            case POINT, FRACTION -> {
                if (isDigit) {
                    yield hasRoom(from) ? fractionDigit(from, digit) : null;
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
        return Optional.ofNullable(to).flatMap(this::settled);
    }

    /** The position without comparisons of which the result is known; empty if one of them does not hold. */
    private Optional<Position> settled(Position at) {
        List<Integer> states = at.trackers;
        boolean isSettled = false;
        for (int i = 0; i < comparisons.size(); i++) {
            Comparison comparison = comparisons.get(i);
            OptionalInt order =
                    states.get(i) == MET ? OptionalInt.empty() : comparison.known(at, states.get(i), hasExponents);
            if (order.isPresent()) {
                if (!comparison.isMet(order.getAsInt())) {
                    return Optional.empty();
                }
                states = isSettled ? states : new ArrayList<>(states);
                states.set(i, MET);
                isSettled = true;
            }
        }
        if (shape.multiple().isPresent() && states.get(comparisons.size()) == Division.NO_MULTIPLE) {
            return Optional.empty();
        }
        return Optional.of(isSettled ? at.next(at.phase, at.count, states) : at);
    }

    /** The digits of which any number may follow without a change but that of the count; empty if others may follow. */
    private Optional<CharSet> equalDigits(Position at) {
        boolean isDivided = !divisions.isEmpty();
        boolean mayHaveExponent = at.isNormal && hasExponents;
        boolean isEqual = isCounted
                && switch (at.phase) {
                    case INTEGER -> at.count > 1 && isOfIntegers && isEach(at, (_, _) -> false);
                    case FRACTION ->
                        isDivided
                                ? divisions.size() == 1
                                        && shape.multiple().isPresent()
                                        && at.count >= divisions.getFirst().digits()
                                        && isEach(at, (each, state) -> each.isSettledByZeros(state, at.count))
                                : isEach(at, (_, state) -> Comparison.isSettled(state, mayHaveExponent));
                    default -> false;
                };
        return isEqual
                ? Optional.of(isDivided && at.phase == Phase.FRACTION ? CharSet.of("0") : DIGITS)
                : Optional.empty();
    }

    /** How many digits the part of a number may have in which a position is. */
    private int digits(Position at) {
        return at.phase == Phase.INTEGER ? integerDigits : fractionDigits;
    }

    private boolean isEach(Position at, BiPredicate<Comparison, Integer> test) {
        for (int i = 0; i < comparisons.size(); i++) {
            if (at.trackers.get(i) != MET && !test.test(comparisons.get(i), at.trackers.get(i))) {
                return false;
            }
        }
        return true;
    }

    /** The states of comparisons after a step, and those of divisions as they are. */
    private List<Integer> compared(Position from, ToIntBiFunction<Comparison, Integer> step) {
        List<Integer> states = new ArrayList<>(from.trackers);
        for (int i = 0; i < comparisons.size(); i++) {
            if (states.get(i) != MET) {
                states.set(i, step.applyAsInt(comparisons.get(i), states.get(i)));
            }
        }
        return states;
    }

    private boolean hasRoom(Position from) {
        return !isCounted || from.count < digits(from);
    }

    private Position integerDigit(Position from, int digit) {
        List<Integer> states = compared(from, (each, state) -> each.integerDigit(state, from.count, digit));
        for (int i = 0; i < divisions.size(); i++) {
            int at = comparisons.size() + i;
            states.set(at, divisions.get(i).next(states.get(at), digit));
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
        return compared(from, (each, state) -> each.endOfInteger(state, from.count, from.isNormal && hasExponents));
    }

    private Position fractionDigit(Position from, int digit) {
        List<Integer> states = compared(
                from, (each, state) -> each.fractionDigit(state, from.count, digit, from.isNormal && hasExponents));
        for (int i = 0; i < divisions.size(); i++) {
            int at = comparisons.size() + i;
            Division division = divisions.get(i);
            if (from.count < division.digits()) {
                states.set(at, division.next(states.get(at), digit));
            } else if (digit != 0) {
                states.set(at, Division.NO_MULTIPLE);
            }
        }
        return from.next(Phase.FRACTION, Math.min(from.count + 1, fractionDigits), states);
    }

    /** The position at the letter of an exponent; its {@code count} is of the digits of the fraction. */
    private @Nullable Position exponent(Position from, char character) {
        if (character != 'e' && character != 'E' || !from.isNormal || !hasExponents) {
            return null;
        }
        return new Position(
                Phase.E,
                from.isNegative,
                true,
                0,
                0,
                false,
                compared(from, (each, state) -> each.endOfMantissa(state, from.count)));
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
        List<Integer> states = at.phase == Phase.FRACTION ? at.trackers : endOfInteger(at);
        int fraction = at.phase == Phase.FRACTION ? at.count : 0;
        return switch (at.phase) {
            case START, MINUS, POINT, E, EXPONENT_SIGN -> false;
            case ZERO, INTEGER, FRACTION ->
                isEach(
                                at.next(at.phase, at.count, states),
                                (each, state) -> each.isMet(each.order(state, fraction, at.isNegative)))
                        && isDivided(states, fraction);
            case EXPONENT -> {
                int exponent = at.isSmall ? -at.exponent : at.exponent;
                yield isEach(at, (each, state) -> each.isMet(each.orderOfExponent(state, exponent, at.isNegative)));
            }
        };
    }

    private boolean isDivided(List<Integer> states, int fraction) {
        for (int i = 0; i < divisions.size(); i++) {
            boolean isWanted = i == 0 && shape.multiple().isPresent();
            if (divisions.get(i).divides(states.get(comparisons.size() + i), fraction) != isWanted) {
                return false;
            }
        }
        return true;
    }

    /**
     * The order of a number and a bound, by their digits without sign: of all digits in their places, and of the digits from
     * the first one on, for numbers with exponents. The state is three times the first order plus the second one.
     */
    private static final class Comparison {
        static final int EQUAL = 4;

        private final Set<Integer> orders;
        private final boolean mayBeEqual;
        private final int sign;
        private final String integer;
        private final String fraction;
        private final String significant;
        private final int exponent;

        /** @param orders that hold: 1 for a number that is larger than the bound, -1 for one that is smaller */
        Comparison(BigDecimal bound, Set<Integer> orders, boolean mayBeEqual) {
            this.orders = orders;
            this.mayBeEqual = mayBeEqual;
            sign = bound.signum();
            BigDecimal size = bound.abs().stripTrailingZeros();
            String plain = size.toPlainString();
            int point = plain.indexOf('.');
            integer = point < 0 ? plain : plain.substring(0, point);
            fraction = point < 0 ? "" : plain.substring(point + 1);
            significant = size.unscaledValue().toString();
            exponent = sign == 0 ? 0 : size.precision() - size.scale() - 1;
        }

        boolean isMet(int order) {
            return order == 0 ? mayBeEqual : orders.contains(order);
        }

        /** The order of all numbers that begin so, if it is one. */
        OptionalInt known(Position at, int state, boolean hasExponents) {
            if (sign != 0 && at.isNegative != sign < 0) {
                return OptionalInt.of(-sign);
            }
            int size = switch (at.phase) {
                case INTEGER -> sign == 0 || at.count > integer.length() ? 1 : 0;
                case POINT, FRACTION -> at.isNormal && hasExponents ? 0 : plain(state);
                case EXPONENT_SIGN, EXPONENT -> {
                    // More digits make it larger.
                    int direction = at.isSmall ? -1 : 1;
                    yield Integer.compare(direction * at.exponent, exponent) == direction ? direction : 0;
                }
                default -> 0;
            };
            return size == 0 ? OptionalInt.empty() : OptionalInt.of(signed(size, at.isNegative));
        }

        boolean isToldFromLess(Position at, int digit) {
            boolean isInteger = at.phase != Phase.POINT && at.phase != Phase.FRACTION;
            return isToldFromLess(isInteger ? integer : fraction, at.count, digit)
                    || isToldFromLess(significant, isInteger ? 0 : at.count + 1, digit);
        }

        private static boolean isToldFromLess(String digits, int at, int digit) {
            int own = at < digits.length() ? digits.charAt(at) - '0' : 0;
            return digit == own || digit - 1 == own;
        }

        /** Whether no digit of a fraction changes the state. */
        static boolean isSettled(int state, boolean mayHaveExponent) {
            return plain(state) != 0 && (normal(state) != 0 || !mayHaveExponent);
        }

        /** Whether zeros at the end of a fraction of so many digits do not change the state. */
        boolean isSettledByZeros(int state, int count) {
            return plain(state) != 0 || count >= fraction.length();
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

        boolean isOfIntegers() {
            return divisor == 1 && digits == 0;
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
