package baton.grammar.schema;

import baton.grammar.rule.Expression.Repeat;
import baton.kv.ConfigException;
import baton.kv.GeneratedBuilder;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/**
 * Objects.
 *
 * @param properties conditions on properties by their names, all of which hold
 * @param required names of properties that are there
 * @param names unions of names, all of which have each property's name
 */
@GeneratedBuilder
record ObjectShape(Set<Properties> properties, Set<String> required, Set<List<StringShape>> names, int least, int most)
        implements Shape<ObjectShape>, ObjectShapeBuilder.With {
    static final ObjectShape ALL = new ObjectShape(Set.of(), Set.of(), Set.of(), 0, Repeat.UNBOUNDED);

    /**
     * Conditions of properties by their names.
     *
     * @param named of properties with these names
     * @param patterns of properties with names of these patterns
     * @param others of properties that are neither
     */
    record Properties(Map<String, Conjunction> named, Map<StringPattern, Conjunction> patterns, Conjunction others) {
        /** The condition of a property. */
        Conjunction of(String name) {
            Conjunction all = named.getOrDefault(name, Conjunction.ANY);
            boolean isKnown = named.containsKey(name);
            for (Map.Entry<StringPattern, Conjunction> pattern : patterns.entrySet()) {
                if (pattern.getKey().contains(name)) {
                    all = all.and(pattern.getValue());
                    isKnown = true;
                }
            }
            return isKnown ? all : others;
        }
    }

    /** Objects in which a property is absent, or meets a condition. */
    static ObjectShape property(String name, Conjunction condition) {
        return ALL.withProperties(Set.of(new Properties(Map.of(name, condition), Map.of(), Conjunction.ANY)));
    }

    @Override
    public Optional<ObjectShape> and(ObjectShape other) {
        ObjectShape both = new ObjectShape(
                Shape.union(properties, other.properties),
                Shape.union(required, other.required),
                Shape.union(names, other.names),
                Math.max(least, other.least),
                Math.min(most, other.most));
        boolean isEmpty = Math.max(both.least, both.required.size()) > both.most
                || both.required.stream().anyMatch(name -> both.condition(name).isNever());
        return isEmpty ? Optional.empty() : Optional.of(both);
    }

    @Override
    public int steps(ObjectShape other) {
        return shortened((1L + required.size() + other.required.size()) * (stepsOfName() + other.stepsOfName())
                + entries()
                + other.entries());
    }

    /** How much work the conditions of so many names are, where most shapes take 1. */
    int stepsOfNames(int names) {
        return shortened(names * stepsOfName());
    }

    private long stepsOfName() {
        long steps = properties.size();
        for (StringPattern pattern : patterns()) {
            steps += pattern.steps();
        }
        for (List<StringShape> union : names) {
            steps += union.stream().mapToLong(StringShape::stepsOfString).sum();
        }
        return steps;
    }

    private long entries() {
        return properties.stream().mapToLong(each -> each.named.size()).sum();
    }

    /** The condition of a property, if it is there. */
    Conjunction condition(String name) {
        if (names.stream().anyMatch(union -> union.stream().noneMatch(shape -> shape.contains(name)))) {
            return Conjunction.NEVER;
        }
        Conjunction all = Conjunction.ANY;
        for (Properties each : properties) {
            all = all.and(each.of(name));
        }
        return all;
    }

    /** Names of properties that have conditions of their own, in the schema's order. */
    Set<String> named() {
        Set<String> all = new LinkedHashSet<>();
        properties.forEach(each -> all.addAll(each.named.keySet()));
        all.addAll(required);
        return all;
    }

    /** All patterns of names. */
    Set<StringPattern> patterns() {
        Set<StringPattern> all = new LinkedHashSet<>();
        properties.forEach(each -> all.addAll(each.patterns.keySet()));
        return all;
    }

    /** The condition of a property with a name that is not one of {@link #named} and has exactly these patterns. */
    Conjunction condition(Set<StringPattern> matched) {
        Conjunction all = Conjunction.ANY;
        for (Properties each : properties) {
            boolean isKnown = false;
            for (Map.Entry<StringPattern, Conjunction> pattern : each.patterns.entrySet()) {
                if (matched.contains(pattern.getKey())) {
                    all = all.and(pattern.getValue());
                    isKnown = true;
                }
            }
            all = isKnown ? all : all.and(each.others);
        }
        return all;
    }

    /** Whether there are no properties but those of {@link #named}. */
    private boolean isClosed() {
        return properties.stream()
                .anyMatch(each ->
                        each.others.isNever() && each.patterns.values().stream().allMatch(Conjunction::isNever));
    }

    @Override
    public List<ObjectShape> minus(ObjectShape other, String path) {
        if (and(other).isEmpty()) {
            return List.of(this);
        }
        List<ObjectShape> not = new ArrayList<>();
        other.required.forEach(name -> not.add(property(name, Conjunction.NEVER)));
        if (other.least > 0) {
            not.add(ALL.withMost(other.least - 1));
        }
        if (other.most < Repeat.UNBOUNDED) {
            not.add(ALL.withLeast(other.most + 1));
        }
        Set<String> candidates = named();
        candidates.addAll(other.named());
        boolean isOpen = !isClosed();
        for (Properties each : other.properties) {
            boolean isOfNames = each.others.isAny() && each.patterns.isEmpty();
            if (isOpen && !isOfNames) {
                throw new ConfigException(
                        path, "cannot be negated: some property without a name in the schema would have to differ");
            }
            for (String name : candidates) {
                for (Conjunction negation : each.of(name).negations()) {
                    property(name, negation).and(ALL.withRequired(Set.of(name))).ifPresent(not::add);
                }
            }
        }
        for (List<StringShape> union : other.names) {
            if (isOpen) {
                throw new ConfigException(path, "cannot be negated: some property would have to have another name");
            }
            candidates.stream()
                    .filter(name -> union.stream().noneMatch(shape -> shape.contains(name)))
                    .forEach(name -> not.add(ALL.withRequired(Set.of(name))));
        }
        return not.stream().flatMap(each -> and(each).stream()).toList();
    }
}
