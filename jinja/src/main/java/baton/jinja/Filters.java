package baton.jinja;

import baton.jinja.Value.Arguments;
import baton.jinja.Value.Bool;
import baton.jinja.Value.Bound;
import baton.jinja.Value.Dict;
import baton.jinja.Value.Int;
import baton.jinja.Value.Kind;
import baton.jinja.Value.None;
import baton.jinja.Value.Real;
import baton.jinja.Value.Seq;
import baton.jinja.Value.Str;
import baton.jinja.Value.Undefined;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.math.RoundingMode;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.Predicate;
import java.util.function.Supplier;
import java.util.function.UnaryOperator;
import org.jspecify.annotations.Nullable;

/** Jinja2's built-in filters, with {@code tojson} as Hugging Face's transformers redefine it. */
final class Filters {
    /** Every filter of Jinja2, those that are refused included. */
    static final Set<String> NAMES = Set.of(
            "abs",
            "attr",
            "batch",
            "capitalize",
            "center",
            "count",
            "d",
            "default",
            "dictsort",
            "e",
            "escape",
            "filesizeformat",
            "first",
            "float",
            "forceescape",
            "format",
            "groupby",
            "indent",
            "int",
            "join",
            "last",
            "length",
            "list",
            "lower",
            "items",
            "map",
            "min",
            "max",
            "pprint",
            "random",
            "reject",
            "rejectattr",
            "replace",
            "reverse",
            "round",
            "safe",
            "select",
            "selectattr",
            "slice",
            "sort",
            "string",
            "striptags",
            "sum",
            "title",
            "trim",
            "truncate",
            "unique",
            "upper",
            "urlencode",
            "urlize",
            "wordcount",
            "wordwrap",
            "xmlattr",
            "tojson");

    private final RenderBudget budget;
    private final Python python;
    private final Methods methods;
    private final Tests tests;
    private final TextFilters texts;

    Filters(RenderBudget budget, Python python, Methods methods, Tests tests) {
        this.budget = budget;
        this.python = python;
        this.methods = methods;
        this.tests = tests;
        this.texts = new TextFilters(budget, python, methods);
    }

    /** @throws JinjaException if there is no such filter, or it does not fit the value */
    Value filter(String name, Value value, Arguments call) {
        return switch (name) {
            case "abs" -> {
                call.bindPlaces();
                yield value instanceof Real(double number)
                        ? new Real(Math.abs(number))
                        : new Int(python.toInteger(value).abs());
            }
            case "attr" -> attr(value, call.bind("name").require("name"));
            case "batch" -> {
                Bound bound = call.bind("linecount", "fill_with");
                bound.require("linecount");
                yield lazy(() -> batches(value, bound));
            }
            case "count", "length" -> {
                call.bindPlaces();
                yield Value.of(python.length(value));
            }
            case "d", "default" -> {
                Bound bound = call.bind("default_value", "boolean");
                boolean missing = value instanceof Undefined || (bound.flag("boolean", python) && !python.truth(value));
                yield missing ? bound.get("default_value").orElse(Value.of("")) : value;
            }
            case "dictsort" -> sortDictionary(value, call);
            case "first" -> {
                call.bind();
                Iterator<Value> items = python.iterator(value);
                yield items.hasNext() ? items.next() : new Undefined("No first item, sequence was empty.");
            }
            case "last" -> {
                call.bind();
                List<Value> items = python.reversed(value);
                yield items.isEmpty() ? new Undefined("No last item, sequence was empty.") : items.getFirst();
            }
            case "float" -> toFloat(value, call.bind("default"));
            case "groupby" -> groupBy(value, call.bind("attribute", "default", "case_sensitive"));
            case "int" -> toInt(value, call.bind("default", "base"));
            case "items" -> {
                call.bind();
                yield lazy(() -> switch (value) {
                    case Dict(Map<Value, Value> entries) -> methods.items(entries);
                    case Undefined _ -> List.of();
                    default -> throw budget.error("Can only get item pairs from a mapping.");
                });
            }
            case "join" -> join(value, call.bind("d", "attribute"));
            case "list" -> {
                call.bind();
                yield Value.list(python.iterate(value));
            }
            case "map" -> map(value, call);
            case "max" -> extreme(value, call, 1);
            case "min" -> extreme(value, call, -1);
            case "reject" -> select(value, call, false, false);
            case "rejectattr" -> select(value, call, true, false);
            case "reverse" -> {
                call.bind();
                yield switch (value) {
                    case Str(String text, boolean markup) ->
                        new Str(String.join("", Strings.characters(text).reversed()), markup);
                    case Value.Generator _ -> Value.list(python.iterate(value).reversed());
                    default -> new Value.Generator(python.reversed(value).iterator());
                };
            }
            case "round" -> round(value, call.bind("precision", "method"));
            case "select" -> select(value, call, false, true);
            case "selectattr" -> select(value, call, true, true);
            case "slice" -> {
                Bound bound = call.bind("slices", "fill_with");
                bound.require("slices");
                yield lazy(() -> slices(value, bound));
            }
            case "sort" -> sort(value, call.bind("reverse", "case_sensitive", "attribute"));
            case "sum" -> {
                Bound bound = call.bind("attribute", "start");
                Value sum = bound.get("start").orElse(Value.of(0));
                if (sum instanceof Str) {
                    throw budget.error("sum() can't sum strings; use |join");
                }
                UnaryOperator<Value> key = attribute(bound.get("attribute"), null);
                Iterator<Value> items = python.iterator(value);
                while (items.hasNext()) {
                    sum = python.binary(Ast.BinaryOperator.ADD, sum, key.apply(items.next()));
                }
                yield sum;
            }
            case "tojson" -> Value.of(json(value, call.bind("ensure_ascii", "indent", "separators", "sort_keys")));
            case "unique" -> unique(value, call.bind("case_sensitive", "attribute"));
            case "pprint", "random", "striptags", "urlize", "wordwrap" ->
                throw budget.error("the filter '" + name + "' is not supported");
            default ->
                texts.filter(name, value, call).orElseThrow(() -> budget.error("No filter named '" + name + "'."));
        };
    }

    /** A generator over items that are made when the first is asked for. */
    private Value lazy(Supplier<List<Value>> items) {
        return new Value.Generator(new LazyItems(budget, () -> items.get().iterator(), Optional::of));
    }

    private String string(Value value) {
        return budget.text(python.string(value));
    }

    private Value attr(Value value, Value name) {
        if (!(name instanceof Str(String attribute, boolean _))) {
            throw budget.error(name, "attr() wants a string");
        }
        if (value instanceof Undefined(String reason)) {
            throw budget.error(reason);
        }
        return methods.find(value, attribute).orElseGet(() -> python.missing(value, name));
    }

    /** A function from an item to the value of a dotted attribute name; without one, to the item itself. */
    private UnaryOperator<Value> attribute(Optional<Value> attribute, @Nullable Value otherwise) {
        Value path = attribute.orElse(Value.NONE);
        List<Value> parts = switch (path) {
            case None _ -> List.of();
            case Str(String names, boolean _) ->
                Strings.split(names, ".", -1).stream().map(Filters::part).toList();
            default -> List.of(path);
        };
        return item -> {
            Value picked = item;
            for (Value part : parts) {
                picked = methods.subscript(picked, part);
                if (picked instanceof Undefined && otherwise != null && !(otherwise instanceof None)) {
                    picked = otherwise;
                }
            }
            return picked;
        };
    }

    private static Value part(String name) {
        return !name.isEmpty() && name.length() < 10 && name.chars().allMatch(c -> c >= '0' && c <= '9')
                ? Value.of(Integer.parseInt(name))
                : Value.of(name);
    }

    private UnaryOperator<Value> folded(Bound bound, @Nullable Value otherwise) {
        UnaryOperator<Value> key = attribute(bound.get("attribute"), otherwise);
        return bound.flag("case_sensitive", python) ? key : item -> lower(key.apply(item));
    }

    /** A function from an item to the values of several attributes, divided by commas. */
    private UnaryOperator<Value> sortKey(Bound bound) {
        boolean caseSensitive = bound.flag("case_sensitive", python);
        Value attribute = bound.get("attribute").orElse(Value.NONE);
        List<UnaryOperator<Value>> keys = attribute instanceof Str(String names, boolean _)
                ? Strings.split(names, ",", -1).stream()
                        .map(name -> attribute(Optional.of(Value.of(name)), null))
                        .toList()
                : List.of(attribute(Optional.of(attribute), null));
        return item -> Value.list(keys.stream()
                .map(key -> caseSensitive ? key.apply(item) : lower(key.apply(item)))
                .toList());
    }

    private static Value lower(Value value) {
        return value instanceof Str(String text, boolean _) ? Value.of(text.toLowerCase(Locale.ROOT)) : value;
    }

    private Value sort(Value value, Bound bound) {
        return Value.list(sorted(python.iterate(value), sortKey(bound), bound.flag("reverse", python)));
    }

    private List<Value> sorted(List<Value> items, UnaryOperator<Value> key, boolean reverse) {
        record Keyed(Value key, Value item) {}
        List<Keyed> sorted = new ArrayList<>(
                items.stream().map(item -> new Keyed(key.apply(item), item)).toList());
        Comparator<Keyed> order = (left, right) -> python.compare(left.key(), right.key());
        sorted.sort(reverse ? order.reversed() : order);
        return sorted.stream().map(Keyed::item).toList();
    }

    private Value sortDictionary(Value value, Arguments call) {
        Bound bound = call.bind("case_sensitive", "by", "reverse");
        if (!(value instanceof Dict(Map<Value, Value> entries))) {
            throw python.error(value, "dictsort wants a mapping");
        }
        int place = switch (bound.get("by").orElse(Value.of("key"))) {
            case Str(String by, boolean _) when by.equals("key") -> 0;
            case Str(String by, boolean _) when by.equals("value") -> 1;
            default -> throw budget.error("You can only sort by either \"key\" or \"value\"");
        };
        boolean caseSensitive = bound.flag("case_sensitive", python);
        return Value.list(sorted(
                methods.items(entries),
                pair -> {
                    Value key = ((Seq) pair).items().get(place);
                    return caseSensitive ? key : lower(key);
                },
                bound.flag("reverse", python)));
    }

    private Value unique(Value value, Bound bound) {
        UnaryOperator<Value> key = folded(bound, null);
        Set<Value> seen = new HashSet<>();
        return new Value.Generator(new LazyItems(
                budget,
                () -> python.iterator(value),
                item -> seen.add(python.key(key.apply(item))) ? Optional.of(item) : Optional.empty()));
    }

    private Value groupBy(Value value, Bound bound) {
        Value otherwise = bound.get("default").orElse(null);
        bound.require("attribute");
        UnaryOperator<Value> key = folded(bound, otherwise);
        UnaryOperator<Value> shown = attribute(bound.get("attribute"), otherwise);
        List<Value> groups = new ArrayList<>();
        List<Value> group = new ArrayList<>();
        Value last = Value.NONE;
        for (Value item : sorted(python.iterate(value), key, false)) {
            Value own = key.apply(item);
            if (group.isEmpty() || !python.equal(last, own)) {
                group = new ArrayList<>();
                groups.add(new Seq(List.of(shown.apply(item), Value.list(group)), Kind.GROUP));
                last = own;
            }
            group.add(item);
        }
        return Value.list(groups);
    }

    private Value extreme(Value value, Arguments call, int sign) {
        UnaryOperator<Value> key = folded(call.bind("case_sensitive", "attribute"), null);
        Value best = null;
        Value bestKey = Value.NONE;
        Iterator<Value> items = python.iterator(value);
        while (items.hasNext()) {
            Value item = items.next();
            Value own = key.apply(item);
            if (best == null || python.holds(sign > 0 ? Ast.Comparison.GREATER : Ast.Comparison.LESS, own, bestKey)) {
                best = item;
                bestKey = own;
            }
        }
        return best == null ? new Undefined("No aggregated item, sequence was empty.") : best;
    }

    private List<Value> batches(Value value, Bound bound) {
        int size = bound.integer("linecount", 0);
        Value fill = bound.get("fill_with").orElse(Value.NONE);
        List<Value> batches = new ArrayList<>();
        List<Value> row = new ArrayList<>();
        for (Value item : python.iterate(value)) {
            if (row.size() == size) {
                batches.add(Value.list(row));
                row = new ArrayList<>();
            }
            row.add(item);
        }
        if (!row.isEmpty()) {
            while (!(fill instanceof None) && row.size() < size) {
                budget.charge(1);
                row.add(fill);
            }
            batches.add(Value.list(row));
        }
        return batches;
    }

    private List<Value> slices(Value value, Bound bound) {
        int count = bound.integer("slices", 0);
        Value fill = bound.get("fill_with").orElse(Value.NONE);
        List<Value> items = python.iterate(value);
        if (count == 0) {
            throw budget.error("slice() wants at least one slice");
        }
        budget.charge(Math.max(0, count));
        List<Value> slices = new ArrayList<>();
        int from = 0;
        for (int i = 0; i < count; i++) {
            boolean longer = i < items.size() % count;
            int to = from + items.size() / count + (longer ? 1 : 0);
            List<Value> slice = new ArrayList<>(items.subList(from, to));
            if (!(fill instanceof None) && !longer) {
                slice.add(fill);
            }
            slices.add(Value.list(slice));
            from = to;
        }
        return slices;
    }

    private Value map(Value value, Arguments call) {
        UnaryOperator<Value> mapping;
        if (call.positional().isEmpty()) {
            Bound bound = call.bind("attribute", "default");
            mapping = attribute(
                    Optional.of(bound.require("attribute")),
                    bound.get("default").orElse(null));
        } else {
            String filter = string(call.positional().getFirst());
            Arguments rest = call.from(1);
            mapping = item -> filter(filter, item, rest);
        }
        return python.generate(value, item -> Optional.of(mapping.apply(item)));
    }

    private Value select(Value value, Arguments call, boolean byAttribute, boolean wanted) {
        int skipped = byAttribute ? 1 : 0;
        if (call.positional().size() < skipped) {
            throw budget.error("Missing parameter for attribute name");
        }
        UnaryOperator<Value> key =
                byAttribute ? attribute(Optional.of(call.positional().getFirst()), null) : UnaryOperator.identity();
        Predicate<Value> test = python::truth;
        if (call.positional().size() > skipped) {
            String name = string(call.positional().get(skipped));
            Arguments rest = call.from(skipped + 1);
            test = item -> tests.test(name, item, rest);
        }
        Predicate<Value> chosen = test;
        return python.generate(
                value, item -> chosen.test(key.apply(item)) == wanted ? Optional.of(item) : Optional.empty());
    }

    private Value join(Value value, Bound bound) {
        String separator = bound.get("d").map(this::string).orElse("");
        UnaryOperator<Value> key = attribute(bound.get("attribute"), null);
        StringBuilder joined = new StringBuilder();
        boolean first = true;
        Iterator<Value> items = python.iterator(value);
        while (items.hasNext()) {
            String text = string(key.apply(items.next()));
            budget.charge(1 + separator.length() / RenderBudget.CHARACTERS_PER_STEP);
            budget.limitText((long) joined.length() + separator.length() + text.length());
            joined.append(first ? "" : separator).append(text);
            first = false;
        }
        return Value.of(joined.toString());
    }

    private String json(Value value, Bound bound) {
        String indent = switch (bound.get("indent").orElse(Value.NONE)) {
            case None _ -> null;
            case Str(String text, boolean _) -> text;
            case Value _ -> texts.spaces(bound.integer("indent", 0));
        };
        String itemSeparator = indent == null ? ", " : ",";
        String keySeparator = ": ";
        Value separators = bound.get("separators").orElse(Value.NONE);
        if (!(separators instanceof None)) {
            List<Value> pair = python.iterate(separators);
            if (pair.size() != 2
                    || !(pair.get(0) instanceof Str(String item, boolean _))
                    || !(pair.get(1) instanceof Str(String key, boolean _))) {
                throw budget.error("separators must be two strings");
            }
            itemSeparator = item;
            keySeparator = key;
        }
        return python.json(
                value,
                bound.flag("ensure_ascii", python),
                indent,
                itemSeparator,
                keySeparator,
                bound.flag("sort_keys", python));
    }

    private Value toInt(Value value, Bound bound) {
        Value otherwise = bound.get("default").orElse(Value.of(0));
        return switch (value) {
            case Int _ -> value;
            case Bool _ -> new Int(python.toInteger(value));
            case Real(double number) ->
                Double.isNaN(number) ? otherwise : new Int(new Formats(budget, python).truncated(number));
            case Str(String text, boolean _) ->
                PythonNumbers.integer(text, bound.integer("base", 10))
                        .or(() -> PythonNumbers.real(text)
                                .filter(Double::isFinite)
                                .map(number -> new BigDecimal(number).toBigInteger()))
                        .<Value>map(number -> new Int(python.limited(number)))
                        .orElse(otherwise);
            case Undefined(String reason) -> throw budget.error(reason);
            default -> otherwise;
        };
    }

    private Value toFloat(Value value, Bound bound) {
        Value otherwise = bound.get("default").orElse(new Real(0));
        return switch (value) {
            case Real _ -> value;
            case Int _, Bool _ -> new Real(python.toDouble(value));
            case Str(String text, boolean _) ->
                PythonNumbers.real(text).<Value>map(Real::new).orElse(otherwise);
            case Undefined(String reason) -> throw budget.error(reason);
            default -> otherwise;
        };
    }

    private Value round(Value value, Bound bound) {
        Value precision = bound.get("precision").orElse(Value.of(0));
        String method =
                bound.get("method").orElse(Value.of("common")) instanceof Str(String given, boolean _) ? given : "";
        if (!List.of("common", "ceil", "floor").contains(method)) {
            throw budget.error("method must be common, ceil or floor");
        }
        if (!Numbers.isNumber(value)) {
            throw python.error(value, "round() wants a number, not " + Python.typeName(value));
        }
        if (!method.equals("common")) {
            Value scale = python.binary(Ast.BinaryOperator.POWER, Value.of(10), precision);
            double scaled = python.toDouble(python.binary(Ast.BinaryOperator.MULTIPLY, value, scale));
            Value whole = new Int(new Formats(budget, python)
                    .truncated(method.equals("ceil") ? Math.ceil(scaled) : Math.floor(scaled)));
            return python.binary(Ast.BinaryOperator.DIVIDE, whole, scale);
        }
        if (precision instanceof None) {
            precision = Value.of(0);
            value = value instanceof Real(double number)
                    ? new Int(new Formats(budget, python).truncated(Math.rint(number)))
                    : value;
        }
        if (!(precision instanceof Int || precision instanceof Bool)) {
            throw python.error(precision, "round() wants a whole number for 'precision'");
        }
        int places = python.toInteger(precision)
                .max(BigInteger.valueOf(-2000))
                .min(BigInteger.valueOf(2000))
                .intValue();
        if (!(value instanceof Real(double number))) {
            BigInteger whole = python.toInteger(value);
            return new Int(
                    places >= 0
                            ? whole
                            : new BigDecimal(whole)
                                    .setScale(places, RoundingMode.HALF_EVEN)
                                    .toBigInteger());
        }
        if (Double.isNaN(number) || Double.isInfinite(number) || places > 330) {
            return value;
        }
        double rounded = new BigDecimal(number)
                .setScale(Math.max(-330, places), RoundingMode.HALF_EVEN)
                .doubleValue();
        if (Double.isInfinite(rounded)) {
            throw budget.error("rounded value too large to represent");
        }
        return new Real(Math.copySign(rounded, number));
    }
}
