package baton.jinja;

import baton.jinja.Value.Arguments;
import baton.jinja.Value.Bool;
import baton.jinja.Value.Bound;
import baton.jinja.Value.Dict;
import baton.jinja.Value.Function;
import baton.jinja.Value.Int;
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
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.function.Predicate;
import java.util.function.UnaryOperator;
import org.jspecify.annotations.Nullable;

/** Jinja2's built-in filters and tests, with {@code tojson} as Hugging Face's transformers redefine it. */
final class Filters {
    private final Budget budget;
    private final Python python;
    private final Methods methods;

    Filters(Budget budget, Python python, Methods methods) {
        this.budget = budget;
        this.python = python;
        this.methods = methods;
    }

    /** @throws JinjaException if there is no such filter, or it does not fit the value */
    Value filter(String name, Value value, Arguments call) {
        return switch (name) {
            case "abs" -> {
                call.bind();
                yield value instanceof Real(double number)
                        ? new Real(Math.abs(number))
                        : new Int(python.toInteger(value).abs());
            }
            case "attr" -> python.item(value, call.bind("name").require("name"));
            case "batch" -> batch(value, call);
            case "capitalize" -> text(call, Strings.capitalize(string(value)));
            case "center" ->
                method(
                        "center",
                        value,
                        call.positional().isEmpty() && call.named().isEmpty()
                                ? new Arguments(budget, "center", List.of(Value.of(80)), Map.of())
                                : call);
            case "count", "length" -> {
                call.bind();
                yield Value.of(python.length(value));
            }
            case "d", "default" -> {
                Bound bound = call.bind("default_value", "boolean");
                boolean missing = value instanceof Undefined
                        || (python.truth(bound.get("boolean").orElse(Value.FALSE)) && !python.truth(value));
                yield missing ? bound.get("default_value").orElse(Value.of("")) : value;
            }
            case "dictsort" -> sortDictionary(value, call);
            case "e", "escape" ->
                text(
                        call,
                        string(value)
                                .replace("&", "&amp;")
                                .replace("<", "&lt;")
                                .replace(">", "&gt;")
                                .replace("'", "&#39;")
                                .replace("\"", "&#34;"));
            case "first" -> {
                call.bind();
                List<Value> items = python.iterate(value);
                yield items.isEmpty() ? new Undefined("No first item, sequence was empty.") : items.getFirst();
            }
            case "last" -> {
                call.bind();
                List<Value> items = python.iterate(value);
                yield items.isEmpty() ? new Undefined("No last item, sequence was empty.") : items.getLast();
            }
            case "float" -> toFloat(value, call.bind("default"));
            case "format" -> Value.of(python.format(string(value), call.positional()));
            case "indent" -> indent(string(value), call.bind("width", "first", "blank"));
            case "int" -> toInt(value, call.bind("default", "base"));
            case "items" -> {
                call.bind();
                yield switch (value) {
                    case Dict(Map<Value, Value> entries) -> Value.generator(methods.items(entries));
                    case Undefined _ -> Value.generator(List.of());
                    default -> throw budget.error("Can only get item pairs from a mapping.");
                };
            }
            case "join" -> join(value, call.bind("d", "attribute"));
            case "list" -> {
                call.bind();
                yield Value.list(python.iterate(value));
            }
            case "lower" -> text(call, string(value).toLowerCase(Locale.ROOT));
            case "map" -> map(value, call);
            case "max" -> extreme(value, call, 1);
            case "min" -> extreme(value, call, -1);
            case "reject" -> select(value, call, false, false);
            case "rejectattr" -> select(value, call, true, false);
            case "replace" -> {
                Bound bound = call.bind("old", "new", "count");
                yield Value.of(methods.replace(
                        string(value),
                        string(bound.require("old")),
                        string(bound.require("new")),
                        bound.get("count")
                                        .filter(count -> !(count instanceof None))
                                        .isEmpty()
                                ? -1
                                : bound.integer("count", -1)));
            }
            case "reverse" -> {
                call.bind();
                List<Value> reversed = python.iterate(value).reversed();
                yield value instanceof Str
                        ? Value.of(String.join(
                                "", reversed.stream().map(python::string).toList()))
                        : Value.generator(reversed);
            }
            case "round" -> round(value, call.bind("precision", "method"));
            case "safe", "string" -> text(call, string(value));
            case "select" -> select(value, call, false, true);
            case "selectattr" -> select(value, call, true, true);
            case "sort" -> sort(value, call.bind("reverse", "case_sensitive", "attribute"));
            case "sum" -> {
                Bound bound = call.bind("attribute", "start");
                Value sum = bound.get("start").orElse(Value.of(0));
                UnaryOperator<Value> key = attribute(bound.get("attribute"), null);
                for (Value item : python.iterate(value)) {
                    sum = python.binary(Ast.BinaryOperator.ADD, sum, key.apply(item));
                }
                yield sum;
            }
            case "title" ->
                text(
                        call,
                        Strings.title(string(value), point -> !Strings.isSpace(point) && "-({[<".indexOf(point) < 0));
            case "tojson" -> Value.of(json(value, call.bind("ensure_ascii", "indent", "separators", "sort_keys")));
            case "trim" -> method("strip", Value.of(string(value)), call);
            case "unique" -> unique(value, call.bind("case_sensitive", "attribute"));
            case "upper" -> text(call, string(value).toUpperCase(Locale.ROOT));
            case "wordcount" -> {
                call.bind();
                yield Value.of(Strings.words(string(value), -1).size());
            }
            default -> throw budget.error("No filter named '" + name + "'.");
        };
    }

    /** @throws JinjaException if there is no such test, or it does not fit the value */
    boolean test(String name, Value value, Arguments call) {
        return switch (name) {
            case "defined" -> !(value instanceof Undefined);
            case "undefined" -> value instanceof Undefined;
            case "none" -> value instanceof None;
            case "boolean" -> value instanceof Bool;
            case "true" -> value.equals(Value.TRUE);
            case "false" -> value.equals(Value.FALSE);
            case "string" -> value instanceof Str;
            case "mapping" -> value instanceof Dict;
            case "sequence" ->
                value instanceof Str || value instanceof Seq || value instanceof Dict || value instanceof Undefined;
            case "iterable" ->
                value instanceof Str
                        || value instanceof Seq
                        || value instanceof Dict
                        || value instanceof Undefined
                        || value instanceof Value.Generator
                        || value instanceof Value.Loop;
            case "number" -> value instanceof Int || value instanceof Real || value instanceof Bool;
            case "integer" -> value instanceof Int;
            case "float" -> value instanceof Real;
            case "callable" -> value instanceof Function;
            case "odd" -> python.toInteger(value).testBit(0);
            case "even" -> !python.toInteger(value).testBit(0);
            case "divisibleby" -> !python.truth(python.binary(Ast.BinaryOperator.MODULO, value, argument(call)));
            case "lower" -> string(value).equals(string(value).toLowerCase(Locale.ROOT)) && hasCase(string(value));
            case "upper" -> string(value).equals(string(value).toUpperCase(Locale.ROOT)) && hasCase(string(value));
            case "sameas" -> isScalar(value) && value.equals(argument(call));
            case "in" -> python.contains(argument(call), value);
            case "eq", "equalto", "==" -> python.equal(value, argument(call));
            case "ne", "!=" -> !python.equal(value, argument(call));
            case "lt", "lessthan", "<" -> python.compare(value, argument(call)) < 0;
            case "le", "<=" -> python.compare(value, argument(call)) <= 0;
            case "gt", "greaterthan", ">" -> python.compare(value, argument(call)) > 0;
            case "ge", ">=" -> python.compare(value, argument(call)) >= 0;
            default -> throw budget.error("No test named '" + name + "'.");
        };
    }

    private static Value argument(Arguments call) {
        return call.bind("value").require("value");
    }

    private static boolean isScalar(Value value) {
        return value instanceof None || value instanceof Bool || value instanceof Int || value instanceof Str;
    }

    private static boolean hasCase(String text) {
        return text.codePoints().anyMatch(point -> Character.isUpperCase(point) || Character.isLowerCase(point));
    }

    private String string(Value value) {
        return budget.text(python.string(value));
    }

    private Value text(Arguments call, String text) {
        call.bind();
        return Value.of(budget.text(text));
    }

    private Value method(String name, Value value, Arguments call) {
        return methods.find(Value.of(string(value)), name)
                .map(method -> ((Function) method).body().call(call))
                .orElseThrow();
    }

    /** What a dotted attribute name picks from an item; without one the item itself. */
    private UnaryOperator<Value> attribute(Optional<Value> attribute, @Nullable Value otherwise) {
        Value path = attribute.orElse(Value.NONE);
        if (path instanceof None) {
            return item -> item;
        }
        List<String> names = Strings.split(python.string(path), ".", -1);
        return item -> {
            Value picked = item;
            for (String name : names) {
                boolean number =
                        !name.isEmpty() && name.length() < 10 && name.chars().allMatch(c -> c >= '0' && c <= '9');
                picked = python.item(picked, number ? Value.of(Integer.parseInt(name)) : Value.of(name));
                if (picked instanceof Undefined && otherwise != null) {
                    picked = otherwise;
                }
            }
            return picked;
        };
    }

    private UnaryOperator<Value> sortKey(Bound bound) {
        UnaryOperator<Value> fold =
                python.truth(bound.get("case_sensitive").orElse(Value.FALSE)) ? value -> value : Filters::lower;
        Value attribute = bound.get("attribute").orElse(Value.NONE);
        if (attribute instanceof Str(String names) && names.indexOf(',') >= 0) {
            List<UnaryOperator<Value>> keys = Strings.split(names, ",", -1).stream()
                    .map(name -> attribute(Optional.of(Value.of(name)), null))
                    .toList();
            return item -> new Seq(
                    keys.stream().map(key -> fold.apply(key.apply(item))).toList(), true);
        }
        UnaryOperator<Value> key = attribute(Optional.of(attribute), null);
        return item -> fold.apply(key.apply(item));
    }

    private static Value lower(Value value) {
        return value instanceof Str(String text) ? Value.of(text.toLowerCase(Locale.ROOT)) : value;
    }

    private Value sort(Value value, Bound bound) {
        return Value.list(sorted(python.iterate(value), sortKey(bound), bound));
    }

    private List<Value> sorted(List<Value> items, UnaryOperator<Value> key, Bound bound) {
        Comparator<Value> order = (left, right) -> python.compare(key.apply(left), key.apply(right));
        boolean reverse = python.truth(bound.get("reverse").orElse(Value.FALSE));
        List<Value> sorted = new ArrayList<>(items);
        sorted.sort(reverse ? order.reversed() : order);
        return sorted;
    }

    private Value sortDictionary(Value value, Arguments call) {
        Bound bound = call.bind("case_sensitive", "by", "reverse");
        if (!(value instanceof Dict(Map<Value, Value> entries))) {
            throw python.error(value, "dictsort wants a mapping");
        }
        int place = bound.optionalText("by").orElse("key").equals("value") ? 1 : 0;
        boolean caseSensitive = python.truth(bound.get("case_sensitive").orElse(Value.FALSE));
        return Value.list(sorted(
                methods.items(entries),
                pair -> {
                    Value key = ((Seq) pair).items().get(place);
                    return caseSensitive ? key : lower(key);
                },
                bound));
    }

    private Value unique(Value value, Bound bound) {
        UnaryOperator<Value> key = sortKey(bound);
        List<Value> seen = new ArrayList<>();
        List<Value> kept = new ArrayList<>();
        for (Value item : python.iterate(value)) {
            Value own = key.apply(item);
            if (seen.stream().noneMatch(other -> python.equal(other, own))) {
                seen.add(own);
                kept.add(item);
            }
        }
        return Value.generator(kept);
    }

    private Value extreme(Value value, Arguments call, int sign) {
        Bound bound = call.bind("case_sensitive", "attribute");
        UnaryOperator<Value> key = sortKey(bound);
        Value best = null;
        for (Value item : python.iterate(value)) {
            if (best == null || Integer.signum(python.compare(key.apply(item), key.apply(best))) == sign) {
                best = item;
            }
        }
        return best == null ? new Undefined("No aggregated item, sequence was empty.") : best;
    }

    private Value batch(Value value, Arguments call) {
        Bound bound = call.bind("linecount", "fill_with");
        int size = bound.integer("linecount", 0);
        if (size < 1) {
            throw budget.error("batch() wants a positive linecount");
        }
        Value fill = bound.get("fill_with").orElse(Value.NONE);
        List<Value> items = python.iterate(value);
        List<Value> batches = new ArrayList<>();
        for (int from = 0; from < items.size(); from += size) {
            List<Value> row = new ArrayList<>(items.subList(from, Math.min(items.size(), from + size)));
            while (!(fill instanceof None) && row.size() < size) {
                budget.charge(1);
                row.add(fill);
            }
            batches.add(Value.list(row));
        }
        return Value.generator(batches);
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
        return Value.generator(python.iterate(value).stream().map(mapping).toList());
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
            test = item -> test(name, item, rest);
        }
        Predicate<Value> chosen = test;
        return Value.generator(python.iterate(value).stream()
                .filter(item -> chosen.test(key.apply(item)) == wanted)
                .toList());
    }

    private Value join(Value value, Bound bound) {
        String separator = bound.get("d").map(this::string).orElse("");
        UnaryOperator<Value> key = attribute(bound.get("attribute"), null);
        StringBuilder joined = new StringBuilder();
        boolean first = true;
        for (Value item : python.iterate(value)) {
            String text = string(key.apply(item));
            budget.chargeText((long) joined.length() + separator.length() + text.length());
            joined.append(first ? "" : separator).append(text);
            first = false;
        }
        return Value.of(joined.toString());
    }

    private Value indent(String text, Bound bound) {
        String indent = bound.get("width").orElse(Value.NONE) instanceof Str(String given)
                ? given
                : spaces(bound.integer("width", 4));
        boolean first = python.truth(bound.get("first").orElse(Value.FALSE));
        boolean blank = python.truth(bound.get("blank").orElse(Value.FALSE));
        List<String> lines = Strings.lines(text + "\n");
        budget.chargeText(text.length() + (long) lines.size() * indent.length());
        StringBuilder out = new StringBuilder(first ? indent : "");
        for (int i = 0; i < lines.size(); i++) {
            if (i > 0) {
                out.append('\n').append(blank || !lines.get(i).isEmpty() ? indent : "");
            }
            out.append(lines.get(i));
        }
        return Value.of(out.toString());
    }

    private String spaces(int count) {
        budget.chargeText(Math.max(0, count));
        return " ".repeat(Math.max(0, count));
    }

    private String json(Value value, Bound bound) {
        String indent = switch (bound.get("indent").orElse(Value.NONE)) {
            case None _ -> null;
            case Str(String text) -> text;
            case Value _ -> spaces(bound.integer("indent", 0));
        };
        String itemSeparator = indent == null ? ", " : ",";
        String keySeparator = ": ";
        if (bound.get("separators").orElse(Value.NONE) instanceof Seq(List<Value> pair, boolean _)
                && pair.size() == 2) {
            itemSeparator = string(pair.get(0));
            keySeparator = string(pair.get(1));
        }
        boolean sortKeys = python.truth(bound.get("sort_keys").orElse(Value.FALSE));
        return python.json(value, indent, itemSeparator, keySeparator, sortKeys);
    }

    private Value toInt(Value value, Bound bound) {
        Value otherwise = bound.get("default").orElse(Value.of(0));
        try {
            return switch (value) {
                case Int _ -> value;
                case Bool _ -> new Int(python.toInteger(value));
                case Real(double number) -> new Int(new BigDecimal(number).toBigInteger());
                case Str(String text) -> integer(Strings.strip(text, Strings::isSpace, true, true), bound);
                default -> otherwise;
            };
        } catch (NumberFormatException e) {
            return otherwise;
        }
    }

    private static Value integer(String text, Bound bound) {
        if (text.length() > 1000) {
            throw new NumberFormatException("digits=" + text.length());
        }
        int base = bound.integer("base", 10);
        try {
            return new Int(new BigInteger(text.replaceFirst("^0[xXoObB](?=.)", base == 10 ? "$0" : ""), base));
        } catch (NumberFormatException e) {
            return new Int(new BigDecimal(Double.parseDouble(text)).toBigInteger());
        }
    }

    private Value toFloat(Value value, Bound bound) {
        Value otherwise = bound.get("default").orElse(new Real(0));
        try {
            return switch (value) {
                case Real _ -> value;
                case Int _, Bool _ -> new Real(python.toDouble(value));
                case Str(String text) -> new Real(Double.parseDouble(text));
                default -> otherwise;
            };
        } catch (NumberFormatException e) {
            return otherwise;
        }
    }

    private Value round(Value value, Bound bound) {
        int precision = bound.integer("precision", 0);
        if (Math.abs(precision) > 300) {
            throw budget.error("round() wants a precision from -300 to 300");
        }
        String method = bound.optionalText("method").orElse("common");
        RoundingMode mode = switch (method) {
            case "common" -> RoundingMode.HALF_EVEN;
            case "ceil" -> RoundingMode.CEILING;
            case "floor" -> RoundingMode.FLOOR;
            default -> throw budget.error("method must be common, ceil or floor, is '" + method + "'");
        };
        if (value instanceof Int && mode == RoundingMode.HALF_EVEN && precision >= 0) {
            return value;
        }
        double number = python.toDouble(value);
        if (Double.isNaN(number) || Double.isInfinite(number)) {
            return value;
        }
        return new Real(new BigDecimal(number).setScale(precision, mode).doubleValue());
    }
}
