package baton.grammar.schema;

import baton.kv.GeneratedBuilder;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.math.RoundingMode;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;

/**
 * Numbers. An integer is a multiple of 1. All decimals are without trailing zeros, so that equal ones are equal.
 *
 * @param only the only ones, if they are few; then nothing else is a constraint
 * @param except numbers that are not among them
 * @param multiple a number that they are multiples of
 * @param notMultiples numbers that they are no multiples of
 */
@GeneratedBuilder
record NumberShape(
        Optional<Set<BigDecimal>> only,
        Set<BigDecimal> except,
        Optional<Bound> min,
        Optional<Bound> max,
        Optional<BigDecimal> multiple,
        Set<BigDecimal> notMultiples)
        implements Shape<NumberShape>, NumberShapeBuilder.With {
    /** The limit of enumerated multiples. */
    private static final BigDecimal FEW = BigDecimal.valueOf(64);

    static final NumberShape ALL =
            new NumberShape(Optional.empty(), Set.of(), Optional.empty(), Optional.empty(), Optional.empty(), Set.of());

    static final NumberShape INTEGERS = ALL.withMultiple(Optional.of(BigDecimal.ONE));

    /** The least number, or the largest. */
    record Bound(BigDecimal value, boolean inclusive) {
        Bound {
            value = value.stripTrailingZeros();
        }

        /** Where the numbers on the other side of it end. */
        Bound opposite() {
            return new Bound(value, !inclusive);
        }
    }

    @Override
    public Optional<NumberShape> and(NumberShape other) {
        if (only.isPresent() || other.only.isPresent()) {
            NumberShape few = only.isPresent() ? this : other;
            NumberShape filter = only.isPresent() ? other : this;
            Set<BigDecimal> both = new LinkedHashSet<>(few.only.orElseThrow());
            both.removeIf(value -> !filter.contains(value));
            return both.isEmpty() ? Optional.empty() : Optional.of(ALL.withOnly(Optional.of(both)));
        }
        NumberShape both = new NumberShape(
                Optional.empty(),
                Shape.union(except, other.except),
                tighter(min, other.min, 1),
                tighter(max, other.max, -1),
                multiple.flatMap(a -> other.multiple.map(b -> leastCommonMultiple(a, b)))
                        .or(() -> multiple)
                        .or(() -> other.multiple),
                Shape.union(notMultiples, other.notMultiples));
        return both.isSurelyEmpty() ? Optional.empty() : Optional.of(both.enumerated());
    }

    @Override
    public List<NumberShape> minus(NumberShape other, String path) {
        List<NumberShape> not = new ArrayList<>();
        if (other.only.isPresent()) {
            not.add(ALL.withExcept(other.only.get()));
        } else {
            other.min.ifPresent(bound -> not.add(ALL.withMax(Optional.of(bound.opposite()))));
            other.max.ifPresent(bound -> not.add(ALL.withMin(Optional.of(bound.opposite()))));
            other.multiple.ifPresent(divisor -> not.add(ALL.withNotMultiples(Set.of(divisor))));
            other.notMultiples.forEach(divisor -> not.add(ALL.withMultiple(Optional.of(divisor))));
            if (!other.except.isEmpty()) {
                not.add(ALL.withOnly(Optional.of(other.except)));
            }
        }
        return not.stream().flatMap(each -> and(each).stream()).toList();
    }

    private boolean contains(BigDecimal value) {
        return only.map(values -> values.contains(value)).orElse(true)
                && !except.contains(value)
                && isWithin(min, value, 1)
                && isWithin(max, value, -1)
                && multiple.map(divisor -> isMultiple(value, divisor)).orElse(true)
                && notMultiples.stream().noneMatch(divisor -> isMultiple(value, divisor));
    }

    private static boolean isWithin(Optional<Bound> bound, BigDecimal value, int side) {
        return bound.map(end -> {
                    int order = value.compareTo(end.value) * side;
                    return order > 0 || order == 0 && end.inclusive;
                })
                .orElse(true);
    }

    private static Optional<Bound> tighter(Optional<Bound> a, Optional<Bound> b, int side) {
        if (a.isEmpty() || b.isEmpty()) {
            return a.or(() -> b);
        }
        int order = a.get().value.compareTo(b.get().value) * side;
        return order > 0 || order == 0 && !a.get().inclusive ? a : b;
    }

    private boolean isSurelyEmpty() {
        if (multiple.isPresent() && notMultiples.stream().anyMatch(no -> isMultiple(multiple.get(), no))) {
            return true;
        }
        return min.isPresent()
                && max.isPresent()
                && !(isWithin(max, min.get().value, -1) && isWithin(min, max.get().value, 1));
    }

    /** The same as few numbers, if they are multiples between two bounds. */
    private NumberShape enumerated() {
        if (min.isEmpty() || max.isEmpty() || multiple.isEmpty()) {
            return this;
        }
        BigDecimal divisor = multiple.get();
        BigDecimal first = min.get().value.divide(divisor, 0, RoundingMode.CEILING);
        BigDecimal last = max.get().value.divide(divisor, 0, RoundingMode.FLOOR);
        boolean isSmall = divisor.compareTo(BigDecimal.ONE) == 0;
        if (last.subtract(first).compareTo(isSmall ? BigDecimal.ONE : FEW) > 0) {
            return this;
        }
        Set<BigDecimal> values = new LinkedHashSet<>();
        for (BigDecimal factor = first; factor.compareTo(last) <= 0; factor = factor.add(BigDecimal.ONE)) {
            BigDecimal value = factor.multiply(divisor).stripTrailingZeros();
            if (contains(value)) {
                values.add(value);
            }
        }
        return ALL.withOnly(Optional.of(values));
    }

    private static boolean isMultiple(BigDecimal value, BigDecimal divisor) {
        return value.remainder(divisor).signum() == 0;
    }

    private static BigDecimal leastCommonMultiple(BigDecimal a, BigDecimal b) {
        int scale = Math.max(0, Math.max(a.scale(), b.scale()));
        BigInteger x = a.setScale(scale).unscaledValue();
        BigInteger y = b.setScale(scale).unscaledValue();
        return new BigDecimal(x.multiply(y).divide(x.gcd(y)), scale).stripTrailingZeros();
    }
}
