package baton.grammar.schema;

import baton.kv.GeneratedBuilder;
import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.function.Function;

/**
 * A set of JSON values: those of each type. Shapes of a type are a union.
 *
 * @param literals those of {@code null}, {@code true} and {@code false} that are values
 */
@GeneratedBuilder
record Values(
        Set<String> literals,
        List<NumberShape> numbers,
        List<StringShape> strings,
        List<ArrayShape> arrays,
        List<ObjectShape> objects)
        implements ValuesBuilder.With {
    private static final Set<String> LITERALS = Set.of("null", "true", "false");

    static final Values ALL = new Values(
            LITERALS,
            List.of(NumberShape.ALL),
            List.of(StringShape.ALL),
            List.of(ArrayShape.ALL),
            List.of(ObjectShape.ALL));
    static final Values NONE = new Values(Set.of(), List.of(), List.of(), List.of(), List.of());

    /** Numbers and strings that are equal to one of some values. */
    static Values of(Set<BigDecimal> numbers, Set<String> strings) {
        return new Values(
                Set.of(),
                numbers.isEmpty() ? List.of() : List.of(NumberShape.ALL.withOnly(Optional.of(numbers))),
                strings.isEmpty() ? List.of() : List.of(StringShape.ALL.withOnly(Optional.of(strings))),
                List.of(),
                List.of());
    }

    boolean isNone() {
        return equals(NONE);
    }

    /** Whether no value is an array or an object. */
    boolean isScalar() {
        return arrays.isEmpty() && objects.isEmpty();
    }

    Values and(Values other, Work work) {
        if (other.equals(ALL)) {
            return this;
        }
        if (equals(ALL)) {
            return other;
        }
        Set<String> both = new LinkedHashSet<>(literals);
        both.retainAll(other.literals);
        return new Values(
                both,
                and(numbers, other.numbers, work),
                and(strings, other.strings, work),
                and(arrays, other.arrays, work),
                and(objects, other.objects, work));
    }

    Values or(Values other) {
        return any(List.of(this, other));
    }

    /** The values of all. */
    static Values any(List<Values> all) {
        Set<String> literals = new LinkedHashSet<>();
        all.forEach(each -> literals.addAll(each.literals));
        return new Values(
                literals,
                any(all, Values::numbers, NumberShape.ALL),
                any(all, Values::strings, StringShape.ALL),
                any(all, Values::arrays, ArrayShape.ALL),
                any(all, Values::objects, ObjectShape.ALL));
    }

    Values minus(Values other, String path, Work work) {
        Set<String> rest = new LinkedHashSet<>(literals);
        rest.removeAll(other.literals);
        return new Values(
                rest,
                minus(numbers, other.numbers, path, work),
                minus(strings, other.strings, path, work),
                minus(arrays, other.arrays, path, work),
                minus(objects, other.objects, path, work));
    }

    private static <S extends Shape<S>> List<S> and(List<S> a, List<S> b, Work work) {
        Set<S> both = new LinkedHashSet<>();
        for (S x : a) {
            for (S y : b) {
                work.spend(x.steps(y));
                x.and(y).ifPresent(both::add);
            }
            work.requireShapes(both.size());
        }
        return List.copyOf(both);
    }

    private static <S extends Shape<S>> List<S> any(List<Values> all, Function<Values, List<S>> shapes, S whole) {
        Set<S> union = new LinkedHashSet<>();
        all.forEach(each -> union.addAll(shapes.apply(each)));
        return union.contains(whole) ? List.of(whole) : List.copyOf(union);
    }

    private static <S extends Shape<S>> List<S> minus(List<S> a, List<S> b, String path, Work work) {
        List<S> rest = a;
        for (S y : b) {
            Set<S> next = new LinkedHashSet<>();
            for (S x : rest) {
                List<S> parts = x.minus(y, path);
                work.spend(x.steps(y) * (1 + parts.size()));
                next.addAll(parts);
                work.requireShapes(next.size());
            }
            rest = new ArrayList<>(next);
        }
        return List.copyOf(rest);
    }
}
