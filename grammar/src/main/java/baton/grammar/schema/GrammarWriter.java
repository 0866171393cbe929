package baton.grammar.schema;

import baton.grammar.rule.Expression;
import baton.kv.ConfigException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Stream;

/** Writes sets of values as rules of a grammar, one for each condition that occurs. Several schemas share rules of scalars. */
final class GrammarWriter {
    private static final int MOST_PATTERNS = 5;
    private static final int MOST_PROPERTIES = 1_000;
    private static final int MOST_UNIQUE = 64;
    private static final int MOST_COUNTED = 1_000;

    private final SchemaReader reader;
    private final SchemaRules all;
    private final Work work;
    private final Expression blanks;
    private final Expression comma;
    private final Expression colon;
    private final JsonStrings strings;

    /** Rules of conditions that have arrays or objects among their values. {@link #missing} are still to be written. */
    private final Map<Conjunction, Expression> ruleOf = new HashMap<>();

    private final ArrayDeque<Conjunction> missing = new ArrayDeque<>();

    GrammarWriter(SchemaReader reader, SchemaRules all) {
        this.reader = reader;
        this.all = all;
        this.work = all.work;
        this.blanks = all.blanks;
        this.comma = all.comma;
        this.colon = all.colon;
        this.strings = all.strings;
    }

    /** The values that meet a condition. Their rules are among all when all of them are written. */
    Expression write(Conjunction start) {
        Map<String, Expression> rules = new HashMap<>();
        Expression first = value(start);
        while (!missing.isEmpty()) {
            Conjunction next = missing.remove();
            Expression.Rule rule = (Expression.Rule) Objects.requireNonNull(ruleOf.get(next));
            rules.put(rule.name(), written(reader.values(next), path(next)));
        }
        all.rules.putAll(rules);
        return first;
    }

    /** A value that meets a condition. */
    private Expression value(Conjunction condition) {
        Expression known = ruleOf.get(condition);
        if (known == null) {
            work.spend(1);
            Values values = reader.values(condition);
            if (values.isNone()) {
                known = Expression.nothing();
            } else if (values.isScalar()) {
                known = all.share(values, () -> written(values, path(condition)));
            } else {
                known = all.newRule(ruleOf.size());
                missing.add(condition);
            }
            ruleOf.put(condition, known);
        }
        return known;
    }

    private static String path(Conjunction condition) {
        return condition.terms().stream()
                .flatMap(term -> term instanceof Conjunction.Term.Of(SchemaNode schema, boolean _)
                        ? Stream.of(schema.path())
                        : Stream.empty())
                .sorted()
                .findFirst()
                .orElse(SchemaDocument.ROOT);
    }

    private Expression written(Values values, String path) {
        List<Expression> choices = new ArrayList<>();
        values.literals().stream().sorted().map(Expression::text).forEach(choices::add);
        values.numbers().forEach(number -> choices.add(all.shapes.computeIfAbsent(number, _ -> number(number, path))));
        values.strings()
                .forEach(string -> choices.add(all.shapes.computeIfAbsent(string, _ -> quoted(strings, string, path))));
        values.arrays().forEach(array -> choices.add(array(array, path)));
        values.objects().forEach(object -> choices.add(object(object, path)));
        return Expression.choice(choices);
    }

    private Expression number(NumberShape number, String path) {
        return NumberTexts.of(number, work)
                .orElseThrow(() -> new ConfigException(
                        path,
                        "has numbers that cannot be decided digit by digit; allowed: a 'multipleOf' of at most "
                                + NumberAutomaton.LARGEST_DIVISOR + " units of its last digit"));
    }

    private Expression array(ArrayShape array, String path) {
        Expression empty = around("[", Expression.empty(), "]");
        if (array.most() == 0) {
            return empty;
        }
        boolean isUnique =
                array.unique() && array.most() > 1 && array.contained().isEmpty();
        Expression some = isUnique ? permutation(array, path) : items(array, path);
        Expression filled = around("[", Expression.sequence(some, blanks), "]");
        return array.least() == 0 ? Expression.choice(empty, filled) : filled;
    }

    private Expression around(String open, Expression content, String close) {
        return Expression.sequence(Expression.text(open), blanks, content, Expression.text(close));
    }

    /** One item or more. A state has the position of the next item, and how many came that meet a condition on some of them. */
    private Expression items(ArrayShape array, String path) {
        if (array.contained().isEmpty() && array.prefix().isEmpty()) {
            Expression item = value(array.rest());
            Expression others = Expression.sequence(comma, item);
            return Expression.sequence(
                    item, Expression.repeat(others, Math.max(0, array.least() - 1), less(array.most(), 1)));
        }
        if (array.contained().size() > 1 || array.unique() && array.most() > 1) {
            throw new ConfigException(
                    SchemaDocument.field(path, "contains"),
                    "stands beside another 'contains' or 'uniqueItems' for the same array, which cannot be decided item"
                            + " by item");
        }
        ArrayShape.Contained contained = array.contained().stream().findFirst().orElse(ArrayShape.Contained.NONE);
        boolean isBounded = contained.most() < Expression.Repeat.UNBOUNDED;
        int highest = isBounded ? contained.most() : contained.least();
        int last = Math.max(1, array.prefix().size());
        if ((last + 1L) * (highest + 1L) > MOST_COUNTED) {
            throw new ConfigException(
                    SchemaDocument.field(path, array.contained().isEmpty() ? "prefixItems" : "contains"),
                    "takes " + (last + 1L) * (highest + 1L) + " positions of 'prefixItems' times counts of 'contains',"
                            + " must take at most " + MOST_COUNTED);
        }
        work.spend((last + 1) * (highest + 1) / 16);
        List<Expression.State> states = new ArrayList<>();
        for (int at = 0; at <= last; at++) {
            int next = Math.min(at + 1, last) * (highest + 1);
            Conjunction item = at < array.most() ? array.item(at) : Conjunction.NEVER;
            Expression before = at == 0 ? Expression.empty() : comma;
            Expression any = Expression.sequence(before, value(item));
            Expression met = Expression.sequence(before, value(item.and(contained.condition())));
            Expression notMet = Expression.choice(contained.condition().negations().stream()
                    .map(negation -> Expression.sequence(before, value(item.and(negation))))
                    .toList());
            for (int count = 0; count <= highest; count++) {
                List<Expression.Step> steps = new ArrayList<>();
                if (count == highest && !isBounded) {
                    steps.add(new Expression.Step(any, next + count));
                } else {
                    steps.add(new Expression.Step(notMet, next + count));
                    if (count < highest) {
                        steps.add(new Expression.Step(met, next + count + 1));
                    }
                }
                states.add(new Expression.State(at > 0 && count >= contained.least(), steps));
            }
        }
        return new Expression.Automaton(states, Math.max(1, array.least()), array.most());
    }

    private static int less(int count, int by) {
        return count == Expression.Repeat.UNBOUNDED ? count : count - by;
    }

    /** Different items, of which there are few. */
    private Expression permutation(ArrayShape array, String path) {
        Values values = reader.values(array.rest());
        List<Expression> items = new ArrayList<>();
        values.literals().stream().sorted().map(Expression::text).forEach(items::add);
        boolean isFew = array.prefix().isEmpty() && values.isScalar();
        for (NumberShape number : values.numbers()) {
            isFew &= number.only().isPresent();
            number.only()
                    .ifPresent(few -> few.forEach(
                            value -> NumberTexts.of(NumberShape.ALL.withOnly(Optional.of(Set.of(value))), work)
                                    .ifPresent(items::add)));
        }
        for (StringShape string : values.strings()) {
            isFew &= string.only().isPresent();
            string.only().ifPresent(few -> few.forEach(text -> items.add(strings.quoted(Expression.text(text)))));
        }
        List<Expression.Member> members = items.stream()
                .distinct()
                .map(item -> new Expression.Member(item, false))
                .toList();
        if (!isFew || members.size() > MOST_UNIQUE) {
            throw new ConfigException(
                    SchemaDocument.field(path, "uniqueItems"),
                    "is true, which can be decided only where all items are of an 'enum' of at most " + MOST_UNIQUE
                            + " strings and numbers, or maxItems is 1");
        }
        return new Expression.Members(
                members, true, comma, Expression.nothing(), Math.max(1, array.least()), array.most());
    }

    private Expression object(ObjectShape object, String path) {
        List<Expression.Member> members = new ArrayList<>();
        Set<String> named = object.named();
        if (named.size() > MOST_PROPERTIES) {
            throw new ConfigException(
                    SchemaDocument.field(path, "properties"),
                    "has " + named.size() + " names with those required, must have at most " + MOST_PROPERTIES);
        }
        work.spend(object.stepsOfNames(named.size()));
        for (String name : named) {
            Expression value = value(object.condition(name));
            boolean isRequired = object.required().contains(name);
            if (value.equals(Expression.nothing())) {
                if (isRequired) {
                    return Expression.nothing();
                }
            } else {
                Expression key = strings.quoted(Expression.text(name));
                members.add(new Expression.Member(Expression.sequence(key, colon, value), isRequired));
            }
        }
        Expression others = otherProperties(object, named, path);
        boolean hasOthers = !others.equals(Expression.nothing());
        int required = object.required().size();
        int least = Math.max(object.least(), required);
        if (hasOthers && least > required + 1) {
            throw new ConfigException(
                    SchemaDocument.field(path, "minProperties"),
                    "is " + object.least() + ", which can be decided only without additional properties, since their"
                            + " names would have to differ; allowed: at most " + (required + 1));
        }
        Expression empty = around("{", Expression.empty(), "}");
        if (object.most() == 0 || members.isEmpty() && !hasOthers) {
            return least == 0 ? empty : Expression.nothing();
        }
        Expression some = new Expression.Members(
                members, all.options.anyOrder(), comma, others, Math.max(1, least), object.most());
        Expression filled = around("{", Expression.sequence(some, blanks), "}");
        return least == 0 ? Expression.choice(empty, filled) : filled;
    }

    private Expression name(StringShape shape, String path) {
        if (shape.only().isPresent()) {
            return quoted(strings, shape, path);
        }
        Optional<Expression> others = shape.isExcept() ? all.otherNames.except(shape.except()) : Optional.empty();
        return others.orElseGet(() -> quoted(all.constrainedNames, shape, path));
    }

    private Expression quoted(JsonStrings written, StringShape shape, String path) {
        try {
            return written.quoted(shape.expression(work));
        } catch (ConfigException e) {
            throw e.at(path);
        }
    }

    /** A property with a name that the schema does not have. */
    private Expression otherProperties(ObjectShape object, Set<String> named, String path) {
        List<StringPattern> patterns = List.copyOf(object.patterns());
        if (patterns.size() > MOST_PATTERNS) {
            throw new ConfigException(
                    SchemaDocument.field(path, "patternProperties"),
                    "has " + patterns.size() + " patterns for the same object, must be at most " + MOST_PATTERNS);
        }
        List<Expression> properties = new ArrayList<>();
        for (int some = 0; some < 1 << patterns.size(); some++) {
            Set<StringPattern> matched = new HashSet<>();
            List<StringShape> names = List.of(StringShape.ALL.withExcept(named));
            for (int i = 0; i < patterns.size(); i++) {
                boolean isMatched = (some >> i & 1) == 1;
                if (isMatched) {
                    matched.add(patterns.get(i));
                }
                StringShape pattern = StringShape.ALL.withPatterns(
                        Set.of(isMatched ? patterns.get(i) : patterns.get(i).negated()));
                names = names.stream()
                        .flatMap(each -> each.and(pattern).stream())
                        .toList();
            }
            Conjunction condition = object.condition(matched);
            if (condition.isNever() || value(condition).equals(Expression.nothing())) {
                continue;
            }
            for (List<StringShape> union : object.names()) {
                names = names.stream()
                        .flatMap(each -> union.stream().flatMap(other -> each.and(other).stream()))
                        .toList();
            }
            for (StringShape name : names) {
                Expression key = all.share(name, () -> name(name, path));
                properties.add(Expression.sequence(key, colon, value(condition)));
            }
        }
        return Expression.choice(properties);
    }
}
