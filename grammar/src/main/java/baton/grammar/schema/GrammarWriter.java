package baton.grammar.schema;

import baton.grammar.rule.CharSet;
import baton.grammar.rule.Expression;
import baton.grammar.rule.GrammarSource;
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
import java.util.function.Supplier;
import java.util.stream.Stream;

/** Writes sets of values as rules of a grammar, one for each condition that occurs. */
final class GrammarWriter {
    private static final int MOST_RULES = 10_000;
    private static final int MOST_PATTERNS = 5;
    private static final int MOST_PROPERTIES = 1_000;
    private static final int MOST_BLANKS = 24;
    private static final int MOST_UNIQUE = 64;

    private final SchemaReader reader;
    private final SchemaOptions options;
    private final Work work;
    private final Expression blanks;
    private final Expression comma;
    private final Expression colon;
    private final JsonStrings strings = new JsonStrings(CharSet.ALL);
    private final JsonStrings otherNames = new JsonStrings(JsonStrings.NOT_PRINTABLE);
    private final JsonStrings constrainedNames = new JsonStrings(JsonStrings.ESCAPED);
    private final Map<String, Expression> rules = new HashMap<>();

    /** Rules of conditions that have arrays or objects among their values. {@link #missing} are still to be written. */
    private final Map<Conjunction, Expression> ruleOf = new HashMap<>();

    private final ArrayDeque<Conjunction> missing = new ArrayDeque<>();

    /** Rules of scalars and of names of properties, so that equal ones are one. */
    private final Map<Object, Expression> shared = new HashMap<>();

    /** Numbers and strings that are written. */
    private final Map<Object, Expression> shapes = new HashMap<>();

    private int made;

    GrammarWriter(SchemaReader reader, SchemaOptions options, Expression blanks, Work work) {
        this.reader = reader;
        this.options = options;
        this.work = work;
        this.blanks = blanks.equals(Expression.empty()) ? blanks : share(blanks, () -> blanks);
        this.comma = around(",");
        this.colon = around(":");
    }

    /** Any white space of JSON, but not without an end. */
    static Expression anyBlanks() {
        return Expression.repeat(new Expression.Chars(CharSet.of(" \t\r\n")), 0, MOST_BLANKS);
    }

    private Expression around(String sign) {
        return Expression.sequence(blanks, Expression.text(sign), blanks);
    }

    GrammarSource source(Conjunction start) {
        Expression first = value(start);
        while (!missing.isEmpty()) {
            Conjunction next = missing.remove();
            Expression.Rule rule = (Expression.Rule) Objects.requireNonNull(ruleOf.get(next));
            rules.put(rule.name(), written(reader.values(next), path(next)));
        }
        return new GrammarSource(rules, first);
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
                known = share(values, () -> written(values, path(condition)));
            } else {
                known = newRule();
                missing.add(condition);
            }
            ruleOf.put(condition, known);
        }
        return known;
    }

    private Expression share(Object key, Supplier<Expression> expression) {
        return shared.computeIfAbsent(key, _ -> {
            Expression.Rule rule = newRule();
            rules.put(rule.name(), expression.get());
            return rule;
        });
    }

    private Expression.Rule newRule() {
        if (made == MOST_RULES) {
            throw new ConfigException(SchemaDocument.ROOT, "combines more than " + MOST_RULES + " different values");
        }
        return new Expression.Rule("json" + made++);
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
        List<Expression> all = new ArrayList<>();
        values.literals().stream().sorted().map(Expression::text).forEach(all::add);
        values.numbers().forEach(number -> all.add(shapes.computeIfAbsent(number, _ -> number(number, path))));
        values.strings()
                .forEach(string -> all.add(shapes.computeIfAbsent(string, _ -> strings.quoted(string.expression()))));
        values.arrays().forEach(array -> all.add(array(array, path)));
        values.objects().forEach(object -> all.add(object(object, path)));
        return Expression.choice(all);
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
        Expression some = array.unique() && array.most() > 1 ? permutation(array, path) : items(array);
        Expression filled = around("[", Expression.sequence(some, blanks), "]");
        return array.least() == 0 ? Expression.choice(empty, filled) : filled;
    }

    private Expression around(String open, Expression content, String close) {
        return Expression.sequence(Expression.text(open), blanks, content, Expression.text(close));
    }

    /** One item or more. */
    private Expression items(ArrayShape array) {
        int first = array.prefix().size();
        Expression rest = array.most() > first ? value(array.rest()) : Expression.nothing();
        if (first == 0) {
            return Expression.sequence(rest, others(rest, Math.max(0, array.least() - 1), less(array.most(), 1)));
        }
        Expression tail = array.most() > first
                ? others(rest, Math.max(0, array.least() - first), less(array.most(), first))
                : Expression.empty();
        for (int i = first - 1; i > 0; i--) {
            Expression next = Expression.sequence(comma, value(array.prefix().get(i)), tail);
            tail = i < array.least() ? next : Expression.optional(next);
        }
        return Expression.sequence(value(array.prefix().getFirst()), tail);
    }

    private Expression others(Expression item, int least, int most) {
        return Expression.repeat(Expression.sequence(comma, item), least, most);
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
                    .ifPresent(few -> few.forEach(value -> NumberTexts.of(NumberShape.only(Set.of(value)), work)
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
        Expression some =
                new Expression.Members(members, options.anyOrder(), comma, others, Math.max(1, least), object.most());
        Expression filled = around("{", Expression.sequence(some, blanks), "}");
        return least == 0 ? Expression.choice(empty, filled) : filled;
    }

    private Expression name(StringShape shape) {
        if (shape.only().isPresent()) {
            return strings.quoted(shape.expression());
        }
        Optional<Expression> others = shape.isExcept() ? otherNames.except(shape.except()) : Optional.empty();
        return others.orElseGet(() -> constrainedNames.quoted(shape.expression()));
    }

    /** A property with a name that the schema does not have. */
    private Expression otherProperties(ObjectShape object, Set<String> named, String path) {
        List<StringPattern> patterns = List.copyOf(object.patterns());
        if (patterns.size() > MOST_PATTERNS) {
            throw new ConfigException(
                    SchemaDocument.field(path, "patternProperties"),
                    "has " + patterns.size() + " patterns for the same object, must be at most " + MOST_PATTERNS);
        }
        List<Expression> all = new ArrayList<>();
        for (int some = 0; some < 1 << patterns.size(); some++) {
            Set<StringPattern> matched = new HashSet<>();
            List<StringShape> names = List.of(StringShape.except(named));
            for (int i = 0; i < patterns.size(); i++) {
                boolean isMatched = (some >> i & 1) == 1;
                if (isMatched) {
                    matched.add(patterns.get(i));
                }
                StringShape pattern = StringShape.pattern(
                        isMatched ? patterns.get(i) : patterns.get(i).negated());
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
                Expression key = share(name, () -> name(name));
                all.add(Expression.sequence(key, colon, value(condition)));
            }
        }
        return Expression.choice(all);
    }
}
