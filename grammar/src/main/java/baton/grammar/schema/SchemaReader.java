package baton.grammar.schema;

import baton.grammar.regex.Regexes;
import baton.grammar.rule.Expression.Repeat;
import baton.kv.ConfigException;
import baton.kv.JsonFields;
import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.Function;
import java.util.regex.Pattern;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.BooleanNode;

/**
 * Reads the keywords of schemas as sets of values. Sets are read at one level of a value. The level below is a {@link Conjunction},
 * which is read when it is needed.
 */
final class SchemaReader {
    /** Numbers with more digits, or farther from 1, are refused. */
    private static final int MOST_DIGITS = 400;

    private static final int MOST_VALUES = 10_000;
    private static final int LARGEST_MINIMUM = 100_000;
    private static final int DEEPEST_PROOF = 3;

    /** Schemas that may apply to the same value within each other. */
    private static final int MOST_OPEN = 100;

    private static final Pattern DIALECT =
            Pattern.compile("https?://json-schema\\.org/(?:draft-0[3-7]/|draft/20(?:19-09|20-12)/)?schema#?");

    /** Applicators with schemas that apply to the same value. */
    private static final Set<String> IN_PLACE =
            Set.of("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas");

    /** Keywords of other drafts and dialects that are constraints there. */
    private static final Map<String, String> FOREIGN = Map.of(
            "$recursiveRef", "$ref",
            "dependencies", "dependentRequired or dependentSchemas",
            "disallow", "not",
            "divisibleBy", "multipleOf",
            "extends", "allOf",
            "nullable", "a type of [..., \"null\"]");

    private final SchemaDocument document;
    private final SchemaOptions options;
    private final Work work;
    private final Map<SchemaNode, Values> read = new HashMap<>();
    private final Map<Conjunction, Values> combined = new HashMap<>();

    private final Map<String, StringPattern> patterns;

    /** Schemas that are being read. */
    private final Set<SchemaNode> open = new HashSet<>();

    /** @param patterns patterns and formats that have been read */
    SchemaReader(SchemaDocument document, SchemaOptions options, Work work, Map<String, StringPattern> patterns) {
        this.document = document;
        this.patterns = patterns;
        this.options = options;
        this.work = work;
    }

    /** The values that meet a condition. */
    Values values(Conjunction condition) {
        Values known = combined.get(condition);
        if (known != null) {
            return known;
        }
        work.spend(condition.terms().size());
        Values all = Values.ALL;
        for (Conjunction.Term term : condition.terms()) {
            all = switch (term) {
                case Conjunction.Term.Of(SchemaNode schema, boolean negated)
                when !negated -> all.and(values(schema), work);
                case Conjunction.Term.Equal(JsonNode value, boolean negated)
                when !negated -> all.and(constant(SchemaDocument.ROOT, value), work);
                case Conjunction.Term.Never _ -> Values.NONE;
                default -> all;
            };
        }
        for (Conjunction.Term term : condition.terms()) {
            all = switch (term) {
                case Conjunction.Term.Of(SchemaNode schema, boolean negated)
                when negated -> all.minus(values(schema), schema.path(), work);
                case Conjunction.Term.Equal(JsonNode value, boolean negated)
                when negated -> all.minus(constant(SchemaDocument.ROOT, value), SchemaDocument.ROOT, work);
                default -> all;
            };
        }
        combined.put(condition, all);
        return all;
    }

    /** A schema as a condition. A schema that is only a reference is the same condition as the schema that it refers to. */
    private Conjunction condition(SchemaNode schema) {
        SchemaNode of = schema;
        for (int i = 0;
                i < MOST_OPEN && of.json().size() == 1 && of.json().path("$ref").isString();
                i++) {
            work.spend(1);
            of = document.resolve(of, "$ref", of.json().get("$ref").asString());
        }
        return Conjunction.of(of);
    }

    private Values values(SchemaNode schema) {
        Values known = read.get(schema);
        if (known != null) {
            return known;
        }
        work.spend(1);
        if (!open.add(schema)) {
            throw new ConfigException(schema.path(), "refers to itself without anything between");
        }
        if (open.size() > MOST_OPEN) {
            throw new ConfigException(
                    schema.path(),
                    "is behind more than " + MOST_OPEN + " references and combinations for the same value");
        }
        try {
            Values values = new Keywords(schema).values();
            read.put(schema, values);
            return values;
        } finally {
            open.remove(schema);
        }
    }

    /** Whether surely no value meets a condition; false if that cannot be said. */
    private boolean isNever(Conjunction condition, int depth) {
        if (depth == 0 || condition.isNever()) {
            return condition.isNever();
        }
        try {
            return isNone(values(condition), depth - 1);
        } catch (ConfigException _) {
            return false;
        }
    }

    private boolean isNone(Values values, int depth) {
        return values.literals().isEmpty()
                && values.numbers().isEmpty()
                && values.strings().isEmpty()
                && values.arrays().stream().allMatch(array -> {
                    for (int i = 0; i < array.least() && i <= array.prefix().size(); i++) {
                        if (isNever(array.item(i), depth)) {
                            return true;
                        }
                    }
                    return false;
                })
                && values.objects().stream()
                        .allMatch(object ->
                                object.required().stream().anyMatch(name -> isNever(object.condition(name), depth)));
    }

    /** The set with one value. */
    private Values constant(String path, JsonNode value) {
        if (value.isArray()) {
            List<Conjunction> items = new ArrayList<>();
            value.forEach(item -> items.add(Conjunction.equal(item)));
            return Values.NONE.withArrays(
                    List.of(new ArrayShape(items, Conjunction.NEVER, items.size(), items.size(), false)));
        }
        if (value.isObject()) {
            Map<String, Conjunction> properties = new LinkedHashMap<>();
            value.forEachEntry((name, each) -> properties.put(name, Conjunction.equal(each)));
            return Values.NONE.withObjects(List.of(ObjectShape.ALL
                    .withProperties(Set.of(new ObjectShape.Properties(
                            Collections.unmodifiableMap(properties), Map.of(), Conjunction.NEVER)))
                    .withRequired(new LinkedHashSet<>(properties.keySet()))));
        }
        if (value.isString()) {
            return Values.of(Set.of(), Set.of(value.asString()));
        }
        return value.isNumber()
                ? Values.of(Set.of(decimal(path, value).stripTrailingZeros()), Set.of())
                : Values.NONE.withLiterals(Set.of(value.toString()));
    }

    private static BigDecimal decimal(String path, JsonNode value) {
        boolean isFinite = !(value.isDouble() || value.isFloat()) || Double.isFinite(value.doubleValue());
        if (value.isNumber() && isFinite) {
            BigDecimal decimal = value.decimalValue();
            if (decimal.precision() <= MOST_DIGITS && Math.abs((long) decimal.scale()) <= MOST_DIGITS) {
                return decimal;
            }
        }
        throw wrong(path, value, "a number of at most " + MOST_DIGITS + " digits");
    }

    private static ConfigException wrong(String path, JsonNode value, String right) {
        return new ConfigException(path, "is " + JsonFields.shown(value) + ", must be " + right);
    }

    /** The keywords of one schema. */
    private final class Keywords {
        private final SchemaNode schema;
        private final JsonNode json;
        private Values all = Values.ALL;

        Keywords(SchemaNode schema) {
            this.schema = schema;
            this.json = schema.json();
        }

        Values values() {
            if (json.isBoolean()) {
                return json.asBoolean() ? Values.ALL : Values.NONE;
            }
            if (!json.isObject()) {
                throw wrong(schema.path(), json, "a schema: an object or a boolean");
            }
            json.propertyNames().forEach(this::requireKnown);
            keyword("$schema").ifPresent(value -> {
                if (!value.isString() || !DIALECT.matcher(value.asString()).matches()) {
                    throw wrong(path("$schema"), value, "that of JSON Schema 2020-12 or an earlier draft");
                }
            });
            type();
            enumeration();
            numbers();
            strings();
            arrays();
            objects();
            references();
            combinations();
            return all;
        }

        private void requireKnown(String keyword) {
            String right = FOREIGN.get(keyword);
            if (right != null && !json.get(keyword).equals(BooleanNode.FALSE)) {
                throw new ConfigException(path(keyword), "is no keyword of JSON Schema 2020-12; write " + right);
            }
        }

        private void keep(Values values) {
            all = all.and(values, work);
        }

        private String path(String keyword) {
            return SchemaDocument.field(schema.path(), keyword);
        }

        private Optional<JsonNode> keyword(String name) {
            return Optional.ofNullable(json.get(name));
        }

        private Optional<String> string(String name, String right) {
            return keyword(name).map(value -> {
                if (!value.isString()) {
                    throw wrong(path(name), value, right);
                }
                return value.asString();
            });
        }

        private Optional<BigDecimal> decimal(String name) {
            return keyword(name).map(value -> SchemaReader.decimal(path(name), value));
        }

        /** A count, or one that is larger than all outputs. */
        private Optional<Integer> count(String name) {
            return decimal(name).map(value -> {
                if (value.signum() < 0 || value.stripTrailingZeros().scale() > 0) {
                    throw wrong(path(name), json.get(name), "a whole number that is not negative");
                }
                return value.min(BigDecimal.valueOf(Integer.MAX_VALUE)).intValueExact();
            });
        }

        private int least(String name) {
            int count = count(name).orElse(0);
            if (count > LARGEST_MINIMUM) {
                throw wrong(path(name), json.get(name), "at most " + LARGEST_MINIMUM);
            }
            return count;
        }

        private int most(String name) {
            return count(name).orElse(Repeat.UNBOUNDED);
        }

        private List<SchemaNode> list(String name) {
            Optional<JsonNode> value = keyword(name);
            if (value.isPresent() && (!value.get().isArray() || value.get().isEmpty())) {
                throw wrong(path(name), value.get(), "an array of schemas");
            }
            List<SchemaNode> schemas = new ArrayList<>();
            for (int i = 0; value.isPresent() && i < value.get().size(); i++) {
                schemas.add(document.child(schema, name, i));
            }
            return schemas;
        }

        private Map<String, SchemaNode> map(String name) {
            Optional<JsonNode> value = keyword(name);
            if (value.isPresent() && !value.get().isObject()) {
                throw wrong(path(name), value.get(), "an object of schemas");
            }
            Map<String, SchemaNode> schemas = new LinkedHashMap<>();
            value.ifPresent(object ->
                    object.propertyNames().forEach(each -> schemas.put(each, document.child(schema, name, each))));
            return schemas;
        }

        private Set<String> names(String path, JsonNode value) {
            Set<String> names = new LinkedHashSet<>();
            for (JsonNode each : value) {
                if (!each.isString()) {
                    throw wrong(path, value, "an array of names");
                }
                names.add(each.asString());
            }
            if (!value.isArray()) {
                throw wrong(path, value, "an array of names");
            }
            return names;
        }

        private StringPattern pattern(String path, String pattern) {
            try {
                return patterns.computeIfAbsent(
                        "pattern " + pattern, name -> new StringPattern(name, Regexes.search(pattern)));
            } catch (ConfigException e) {
                throw e.at(path);
            }
        }

        private Optional<StringPattern> format(String name) {
            String key = "format " + name;
            if (!patterns.containsKey(key)) {
                StringFormats.expression(path("format"), name)
                        .ifPresent(expression -> patterns.put(key, new StringPattern(key, expression)));
            }
            return Optional.ofNullable(patterns.get(key));
        }

        private void type() {
            if (keyword("type").isEmpty()) {
                return;
            }
            JsonNode type = json.get("type");
            Values types = Values.NONE;
            for (JsonNode each : type.isArray() ? type : List.of(type)) {
                types = types.or(
                        switch (each.isString() ? each.asString() : "") {
                            case "null" -> Values.NONE.withLiterals(Set.of("null"));
                            case "boolean" -> Values.NONE.withLiterals(Set.of("true", "false"));
                            case "number" -> Values.NONE.withNumbers(List.of(NumberShape.ALL));
                            case "integer" -> Values.NONE.withNumbers(List.of(NumberShape.INTEGERS));
                            case "string" -> Values.NONE.withStrings(List.of(StringShape.ALL));
                            case "array" -> Values.NONE.withArrays(List.of(ArrayShape.ALL));
                            case "object" -> Values.NONE.withObjects(List.of(ObjectShape.ALL));
                            default ->
                                throw wrong(
                                        path("type"),
                                        type,
                                        "one or several of null, boolean, number, integer, string, array, object");
                        });
            }
            keep(types);
        }

        private void enumeration() {
            keyword("const").ifPresent(value -> keep(constant(path("const"), value)));
            if (keyword("enum").isEmpty()) {
                return;
            }
            JsonNode values = json.get("enum");
            if (!values.isArray() || values.size() > MOST_VALUES) {
                throw wrong(path("enum"), values, "an array of at most " + MOST_VALUES + " values");
            }
            Set<BigDecimal> numbers = new LinkedHashSet<>();
            Set<String> strings = new LinkedHashSet<>();
            List<Values> others = new ArrayList<>();
            for (JsonNode value : values) {
                if (value.isNumber()) {
                    numbers.add(SchemaReader.decimal(path("enum"), value).stripTrailingZeros());
                } else if (value.isString()) {
                    strings.add(value.asString());
                } else {
                    work.spend(1);
                    others.add(constant(path("enum"), value));
                    work.requireShapes(others.size());
                }
            }
            others.add(Values.of(numbers, strings));
            keep(Values.any(others));
        }

        private void numbers() {
            Optional<BigDecimal> divisor = decimal("multipleOf").map(BigDecimal::stripTrailingZeros);
            if (divisor.isPresent() && divisor.get().signum() <= 0) {
                throw wrong(path("multipleOf"), json.get("multipleOf"), "greater than 0");
            }
            NumberShape inclusive = NumberShape.ALL
                    .withMin(bound("minimum", true))
                    .withMax(bound("maximum", true))
                    .withMultiple(divisor);
            NumberShape exclusive =
                    NumberShape.ALL.withMin(bound("exclusiveMinimum", false)).withMax(bound("exclusiveMaximum", false));
            keep(Values.ALL.withNumbers(inclusive.and(exclusive).stream().toList()));
        }

        private Optional<NumberShape.Bound> bound(String name, boolean inclusive) {
            return decimal(name).map(value -> new NumberShape.Bound(value, inclusive));
        }

        private void strings() {
            StringShape length = StringShape.ALL.withLeast(least("minLength")).withMost(most("maxLength"));
            keep(Values.ALL.withStrings(length.least() > length.most() ? List.of() : List.of(length)));
            string("pattern", "a regular expression").ifPresent(source -> keep(pattern(path("pattern"), source)));
            string("format", "the name of a format")
                    .filter(_ -> !all.strings().isEmpty())
                    .flatMap(this::format)
                    .ifPresent(this::keep);
        }

        private void keep(StringPattern pattern) {
            keep(Values.ALL.withStrings(List.of(StringShape.ALL.withPatterns(Set.of(pattern)))));
        }

        private void arrays() {
            boolean isList = keyword("items").map(JsonNode::isArray).orElse(false);
            List<Conjunction> prefix = list(isList ? "items" : "prefixItems").stream()
                    .map(SchemaReader.this::condition)
                    .toList();
            String others = isList ? "additionalItems" : "items";
            if (keyword(others).isEmpty() && keyword("unevaluatedItems").isPresent()) {
                others = "unevaluatedItems";
                requireAlone(others);
            }
            ArrayShape shape = new ArrayShape(prefix, condition(others), 0, Repeat.UNBOUNDED, isUnique())
                    .withLength(least("minItems"), most("maxItems"));
            keep(Values.ALL.withArrays(shape.least() > shape.most() ? List.of() : List.of(shape)));
            if (keyword("contains").isPresent()) {
                int fewest = keyword("minContains").isPresent() ? least("minContains") : 1;
                int most = most("maxContains");
                ArrayShape contains = ArrayShape.containing(condition("contains"), fewest, most);
                keep(Values.ALL.withArrays(fewest > most ? List.of() : List.of(contains)));
            }
        }

        private boolean isUnique() {
            return keyword("uniqueItems")
                    .map(value -> {
                        if (!value.isBoolean()) {
                            throw wrong(path("uniqueItems"), value, "true or false");
                        }
                        return value.asBoolean();
                    })
                    .orElse(false);
        }

        private Conjunction condition(String name) {
            return keyword(name).isPresent()
                    ? SchemaReader.this.condition(document.child(schema, name))
                    : Conjunction.ANY;
        }

        /** Unevaluated items and properties are additional ones, unless other schemas may evaluate some. */
        private void requireAlone(String keyword) {
            Optional<String> other =
                    IN_PLACE.stream().filter(json::has).sorted().findFirst();
            if (keyword.equals("unevaluatedItems") && json.has("contains")) {
                other = Optional.of("contains");
            }
            if (other.isPresent() && !condition(keyword).isAny()) {
                throw wrong(
                        path(keyword),
                        json.get(keyword),
                        "absent beside '" + other.get() + "': which ones are evaluated depends on the value");
            }
        }

        private void objects() {
            Map<String, Conjunction> named = new LinkedHashMap<>();
            map("properties").forEach((name, property) -> named.put(name, SchemaReader.this.condition(property)));
            Map<StringPattern, Conjunction> patterns = new LinkedHashMap<>();
            map("patternProperties")
                    .forEach((source, property) -> patterns.merge(
                            pattern(SchemaDocument.field(path("patternProperties"), source), source),
                            SchemaReader.this.condition(property),
                            Conjunction::and));
            String keyword = "additionalProperties";
            if (keyword(keyword).isEmpty() && keyword("unevaluatedProperties").isPresent()) {
                keyword = "unevaluatedProperties";
                requireAlone(keyword);
            }
            Conjunction others = condition(keyword);
            boolean hasNames = keyword("properties").isPresent()
                    || keyword("patternProperties").isPresent();
            if (options.disableAdditionalProperties()
                    && hasNames
                    && keyword("additionalProperties").isEmpty()) {
                others = Conjunction.NEVER;
            }
            if (!named.isEmpty() || !patterns.isEmpty() || !others.isAny()) {
                keep(ObjectShape.ALL.withProperties(Set.of(new ObjectShape.Properties(
                        Collections.unmodifiableMap(named), Collections.unmodifiableMap(patterns), others))));
            }
            ObjectShape count =
                    ObjectShape.ALL.withLeast(least("minProperties")).withMost(most("maxProperties"));
            keep(Values.ALL.withObjects(count.least() > count.most() ? List.of() : List.of(count)));
            keyword("required").ifPresent(value -> keep(ObjectShape.ALL.withRequired(names(path("required"), value))));
            if (keyword("propertyNames").isPresent() && !all.objects().isEmpty()) {
                List<StringShape> union =
                        SchemaReader.this.values(condition("propertyNames")).strings();
                keep(union.isEmpty() ? ObjectShape.ALL.withMost(0) : ObjectShape.ALL.withNames(Set.of(union)));
            }
            keyword("dependentRequired").ifPresent(value -> {
                if (!value.isObject()) {
                    throw wrong(path("dependentRequired"), value, "an object of arrays of names");
                }
                value.forEachEntry((name, needed) -> {
                    Set<String> both = names(SchemaDocument.field(path("dependentRequired"), name), needed);
                    both.add(name);
                    keep(without(name).or(only(ObjectShape.ALL.withRequired(both))));
                });
            });
            map("dependentSchemas")
                    .forEach((name, dependent) -> keep(without(name)
                            .or(SchemaReader.this
                                    .values(Conjunction.of(dependent))
                                    .and(only(ObjectShape.ALL.withRequired(Set.of(name))), work))));
        }

        /** Values that have no property with this name. */
        private static Values without(String name) {
            return only(ObjectShape.property(name, Conjunction.NEVER));
        }

        /** Values of which the objects are of a shape. */
        private static Values only(ObjectShape shape) {
            return Values.ALL.withObjects(List.of(shape));
        }

        private void keep(ObjectShape shape) {
            keep(only(shape));
        }

        private void references() {
            for (String keyword : List.of("$ref", "$dynamicRef")) {
                string(keyword, "a URI reference")
                        .ifPresent(reference ->
                                keep(SchemaReader.this.values(document.resolve(schema, keyword, reference))));
            }
        }

        private void combinations() {
            list("allOf").forEach(each -> keep(SchemaReader.this.values(each)));
            List<SchemaNode> any = list("anyOf");
            if (!any.isEmpty()) {
                keep(Values.any(any.stream().map(SchemaReader.this::values).toList()));
            }
            List<SchemaNode> one = list("oneOf");
            if (!one.isEmpty()) {
                keep(exactlyOne(one));
            }
            if (keyword("not").isPresent()) {
                SchemaNode not = document.child(schema, "not");
                all = all.minus(SchemaReader.this.values(not), not.path(), work);
            }
            if (keyword("if").isPresent()) {
                SchemaNode condition = document.child(schema, "if");
                Values met = SchemaReader.this.values(condition);
                Function<String, Values> branch = name ->
                        keyword(name).isPresent() ? SchemaReader.this.values(document.child(schema, name)) : Values.ALL;
                Values then = branch.apply("then");
                Values otherwise = branch.apply("else");
                if (!then.equals(otherwise)) {
                    all = all.and(met, work)
                            .and(then, work)
                            .or(all.and(otherwise, work).minus(met, condition.path(), work));
                } else {
                    keep(then);
                }
            }
        }

        private Values exactlyOne(List<SchemaNode> schemas) {
            List<Values> each = schemas.stream()
                    .map(node -> all.and(SchemaReader.this.values(node), work))
                    .toList();
            Values one = Values.NONE;
            BitSet[] overlapping = new BitSet[each.size()];
            for (int i = 0; i < each.size(); i++) {
                overlapping[i] = new BitSet();
                for (int j = 0; j < i; j++) {
                    if (!isNone(each.get(i).and(each.get(j), work), DEEPEST_PROOF)) {
                        overlapping[i].set(j);
                        overlapping[j].set(i);
                    }
                }
            }
            for (int i = 0; i < each.size(); i++) {
                Values only = each.get(i);
                for (int j = overlapping[i].nextSetBit(0); j >= 0; j = overlapping[i].nextSetBit(j + 1)) {
                    only = only.minus(each.get(j), schemas.get(j).path(), work);
                }
                one = one.or(only);
            }
            return one;
        }
    }
}
