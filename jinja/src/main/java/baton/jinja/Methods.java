package baton.jinja;

import baton.jinja.Value.Arguments;
import baton.jinja.Value.Bound;
import baton.jinja.Value.Dict;
import baton.jinja.Value.Function;
import baton.jinja.Value.Kind;
import baton.jinja.Value.Seq;
import baton.jinja.Value.Str;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.BiPredicate;
import java.util.function.BooleanSupplier;
import java.util.function.IntPredicate;
import java.util.function.Supplier;
import java.util.stream.Collectors;

/** Attributes of Python's strings, numbers, dictionaries and sequences; none of those that change their object, as in Jinja2's immutable sandbox. */
record Methods(RenderBudget budget, Python python) {
    private static final Set<String> DICTIONARY_CHANGES = Set.of("clear", "pop", "popitem", "setdefault", "update");
    private static final Set<String> LIST_CHANGES =
            Set.of("append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort");

    /** {@code object.name}: an attribute before an entry. @throws JinjaException if there is no object */
    Value attribute(Value object, String name) {
        if (object instanceof Value.Undefined(String reason)) {
            throw budget.error(reason);
        }
        return find(object, name)
                .orElseGet(() -> object instanceof Dict
                        ? python.item(object, Value.of(name))
                        : python.missing(object, Value.of(name)));
    }

    /** {@code object[index]}: an entry before an attribute. @throws JinjaException if there is no object */
    Value subscript(Value object, Value index) {
        Value found = python.item(object, index);
        return found instanceof Value.Undefined && index instanceof Str(String name, boolean _)
                ? find(object, name).orElse(found)
                : found;
    }

    /**
     * The attribute {@code name} of {@code object}, if its type has one. One that would change the object is undefined, and so is
     * one that begins with an underscore.
     */
    Optional<Value> find(Value object, String name) {
        return switch (object) {
            case Str text -> ofString(text, name).map(method -> new Function(name, method));
            case Dict(Map<Value, Value> entries) ->
                unsafe(object, name, DICTIONARY_CHANGES)
                        .or(() -> ofDictionary(entries, name).map(method -> new Function(name, method)));
            case Seq seq
            when seq.kind() == Kind.LIST ->
                unsafe(object, name, LIST_CHANGES)
                        .or(() -> ofSequence(seq, name).map(method -> new Function(name, method)));
            case Seq seq -> named(seq, name).or(() -> ofSequence(seq, name).map(method -> new Function(name, method)));
            case Value.Numeric number -> ofNumber(number, name);
            case Value.Namespace(Map<String, Value> variables) ->
                unsafe(object, name, name.startsWith("_") ? variables.keySet() : Set.of())
                        .or(() -> Optional.ofNullable(variables.get(name)));
            case Value.Loop(LoopState state) -> state.attribute(name, python);
            case Value.Instance instance ->
                Optional.ofNullable(instance.attributes().get(name)).map(Supplier::get);
            default -> Optional.empty();
        };
    }

    private static Optional<Value> unsafe(Value object, String name, Set<String> changes) {
        return changes.contains(name)
                ? Optional.of(new Value.Undefined(
                        "access to attribute '" + name + "' of '" + Python.typeName(object) + "' object is unsafe."))
                : Optional.empty();
    }

    private static Optional<Value> named(Seq seq, String name) {
        if (seq.kind() == Kind.RANGE && seq.items() instanceof NumberRange range) {
            return switch (name) {
                case "start" -> Optional.of(Value.of(range.start));
                case "stop" -> Optional.of(Value.of(range.stop));
                case "step" -> Optional.of(Value.of(range.step));
                default -> Optional.empty();
            };
        }
        return seq.kind() != Kind.GROUP
                ? Optional.empty()
                : switch (name) {
                    case "grouper" -> Optional.of(seq.items().get(0));
                    case "list" -> Optional.of(seq.items().get(1));
                    default -> Optional.empty();
                };
    }

    private Optional<Value> ofNumber(Value.Numeric number, String name) {
        boolean whole = !(number instanceof Value.Real);
        return Optional.ofNullable(
                switch (name) {
                    case "real" -> python.plus(number);
                    case "imag" -> whole ? Value.of(0) : new Value.Real(0);
                    case "numerator" -> whole ? python.plus(number) : null;
                    case "denominator" -> whole ? Value.of(1) : null;
                    case "conjugate" ->
                        new Function(name, call -> {
                            call.bindPlaces();
                            return python.plus(number);
                        });
                    case "bit_length" ->
                        whole
                                ? new Function(name, call -> {
                                    call.bindPlaces();
                                    return Value.of(
                                            python.toInteger(number).abs().bitLength());
                                })
                                : null;
                    case "is_integer" ->
                        number instanceof Value.Real(double value)
                                ? new Function(name, call -> {
                                    call.bindPlaces();
                                    return Value.of(Double.isFinite(value) && value == Math.rint(value));
                                })
                                : null;
                    default -> null;
                });
    }

    private Optional<Value.Body> ofDictionary(Map<Value, Value> entries, String name) {
        return Optional.ofNullable(
                switch (name) {
                    case "get" ->
                        call -> {
                            Bound bound = call.bindPlaces("key", "default");
                            Value found = entries.get(python.key(bound.require("key")));
                            return found != null ? found : bound.get("default").orElse(Value.NONE);
                        };
                    case "keys" -> view(Kind.KEYS, entries.size(), () -> List.copyOf(entries.keySet()));
                    case "values" -> view(Kind.VALUES, entries.size(), () -> List.copyOf(entries.values()));
                    case "items" -> view(Kind.ITEMS, entries.size(), () -> items(entries));
                    case "copy" ->
                        call -> {
                            call.bindPlaces();
                            return new Dict(entries);
                        };
                    default -> null;
                });
    }

    private Value.Body view(Kind kind, int size, Supplier<List<Value>> items) {
        return call -> {
            call.bindPlaces();
            budget.charge(size);
            return new Seq(items.get(), kind);
        };
    }

    List<Value> items(Map<Value, Value> entries) {
        budget.charge(entries.size());
        return entries.entrySet().stream()
                .map(entry -> Value.tuple(entry.getKey(), entry.getValue()))
                .toList();
    }

    private Optional<Value.Body> ofSequence(Seq seq, String name) {
        List<Value> items = seq.items();
        return Optional.ofNullable(
                !seq.kind().hasPlaces()
                        ? null
                        : switch (name) {
                            case "index" ->
                                call -> {
                                    Bound bound = call.bindPlaces("value", "start", "stop");
                                    Value wanted = bound.require("value");
                                    int to = place(bound.integer("stop", items.size()), items.size());
                                    for (int i = place(bound.integer("start", 0), items.size()); i < to; i++) {
                                        if (python.equal(items.get(i), wanted)) {
                                            return Value.of(i);
                                        }
                                    }
                                    throw budget.error("value is not in " + seq.kind().type);
                                };
                            case "count" ->
                                call -> {
                                    Value wanted = call.bindPlaces("value").require("value");
                                    return Value.of(items.stream()
                                            .filter(item -> python.equal(item, wanted))
                                            .count());
                                };
                            case "copy" ->
                                seq.kind() != Kind.LIST
                                        ? null
                                        : call -> {
                                            call.bindPlaces();
                                            return Value.list(items);
                                        };
                            default -> null;
                        });
    }

    /** A bound of a part, as slices take it. */
    private static int place(int given, int size) {
        return Math.clamp(given < 0 ? (long) given + size : given, 0, size);
    }

    /** A method of a string. The results of a text that is marked as safe are marked as well. */
    private Optional<Value.Body> ofString(Str str, String name) {
        String text = str.text();
        Value.Body method = switch (name) {
            case "upper" -> plain(() -> text.toUpperCase(Locale.ROOT));
            case "lower" -> plain(() -> text.toLowerCase(Locale.ROOT));
            case "casefold" ->
                plain(() -> Strings.characters(text.toUpperCase(Locale.ROOT)).stream()
                        .map(one -> one.toLowerCase(Locale.ROOT))
                        .collect(Collectors.joining()));
            case "title" -> plain(() -> Strings.title(text));
            case "capitalize" -> plain(() -> Strings.capitalize(text));
            case "swapcase" -> plain(() -> swapCase(text));
            case "strip" -> call -> strip(text, call, true, true);
            case "lstrip" -> call -> strip(text, call, true, false);
            case "rstrip" -> call -> strip(text, call, false, true);
            case "startswith" -> call -> Value.of(anyAffix(call, text, String::startsWith));
            case "endswith" -> call -> Value.of(anyAffix(call, text, String::endsWith));
            case "removeprefix" ->
                call -> {
                    String prefix = call.bindPlaces("prefix").text("prefix");
                    return Value.of(text.startsWith(prefix) ? text.substring(prefix.length()) : text);
                };
            case "removesuffix" ->
                call -> {
                    String suffix = call.bindPlaces("suffix").text("suffix");
                    return Value.of(text.endsWith(suffix) ? text.substring(0, text.length() - suffix.length()) : text);
                };
            case "replace" ->
                call -> {
                    Bound bound = call.bindPlaces("old", "new", "count");
                    return Value.of(replace(text, bound.text("old"), bound.text("new"), bound.integer("count", -1)));
                };
            case "split", "rsplit" -> call -> split(text, call, name.equals("rsplit"));
            case "splitlines" ->
                call -> strings(Strings.lines(text, call.bind("keepends").flag("keepends", python)));
            case "partition", "rpartition" ->
                call -> {
                    String separator = separator(call.bindPlaces("sep").text("sep"));
                    int at = name.equals("partition") ? text.indexOf(separator) : text.lastIndexOf(separator);
                    if (at < 0) {
                        return name.equals("partition")
                                ? Value.tuple(Value.of(text), Value.of(""), Value.of(""))
                                : Value.tuple(Value.of(""), Value.of(""), Value.of(text));
                    }
                    return Value.tuple(
                            Value.of(text.substring(0, at)),
                            Value.of(separator),
                            Value.of(text.substring(at + separator.length())));
                };
            case "join" -> call -> join(call.bindPlaces("iterable").require("iterable"), str);
            case "find", "rfind", "index", "rindex" -> call -> search(text, call, name);
            case "count" ->
                call -> {
                    Bound bound = call.bindPlaces("sub", "start", "end");
                    String part = bound.text("sub");
                    String within = part(text, bound, part.isEmpty()).orElse(null);
                    return Value.of(
                            within == null
                                    ? 0
                                    : part.isEmpty()
                                            ? Strings.length(within) + 1
                                            : Strings.split(within, part, -1).size() - 1);
                };
            case "zfill" ->
                call -> {
                    Bound bound = call.bindPlaces("width");
                    bound.require("width");
                    int padding = Math.max(0, bound.integer("width", 0) - Strings.length(text));
                    budget.chargeText((long) padding + text.length());
                    int sign = text.startsWith("-") || text.startsWith("+") ? 1 : 0;
                    return Value.of(text.substring(0, sign) + "0".repeat(padding) + text.substring(sign));
                };
            case "ljust", "rjust", "center" ->
                call -> {
                    Bound bound = call.bindPlaces("width", "fillchar");
                    bound.require("width");
                    String fill = bound.get("fillchar").isPresent() ? bound.text("fillchar") : " ";
                    if (Strings.length(fill) != 1) {
                        throw budget.error("The fill character must be exactly one character long");
                    }
                    return Value.of(pad(text, bound.integer("width", 0), fill, name));
                };
            case "expandtabs" ->
                call -> Value.of(expandTabs(text, call.bind("tabsize").integer("tabsize", 8)));
            case "format" -> call -> new BraceFormat(budget, python, this).format(str, call.positional(), call.named());
            case "format_map" ->
                call -> {
                    if (!(call.bindPlaces("mapping").require("mapping") instanceof Dict(Map<Value, Value> entries))) {
                        throw budget.error("format_map() wants a mapping");
                    }
                    Map<String, Value> named = new HashMap<>();
                    entries.forEach((key, value) -> {
                        if (key instanceof Str(String part, boolean _)) {
                            named.put(part, value);
                        }
                    });
                    return new BraceFormat(budget, python, this).format(str, List.of(), named);
                };
            case "isdecimal" -> all(text, Character::isDigit);
            case "isdigit" -> all(text, Strings::isDigit);
            case "isnumeric" -> all(text, Strings::isNumeric);
            case "isalpha" -> all(text, Character::isLetter);
            case "isalnum" -> all(text, Strings::isAlphanumeric);
            case "isspace" -> all(text, Strings::isSpace);
            case "isascii" -> test(() -> text.codePoints().allMatch(point -> point < 0x80));
            case "isprintable" -> test(() -> text.codePoints().allMatch(Representation::isPrintable));
            case "isidentifier" -> test(() -> Lexer.isName(text));
            case "istitle" -> test(() -> isTitle(text));
            case "isupper" -> test(() -> isCased(text, true));
            case "islower" -> test(() -> isCased(text, false));
            default -> null;
        };
        return Optional.ofNullable(method).map(body -> call -> {
            budget.chargeText(text.length());
            Value result = body.call(call);
            return str.markup() ? marked(result) : result;
        });
    }

    private static Value marked(Value value) {
        return switch (value) {
            case Str(String text, boolean _) -> new Str(text, true);
            case Seq(List<Value> items, Kind kind) ->
                new Seq(items.stream().map(Methods::marked).toList(), kind);
            default -> value;
        };
    }

    private Value search(String text, Arguments call, String name) {
        Bound bound = call.bindPlaces("sub", "start", "end");
        String sub = bound.text("sub");
        Optional<String> part = part(text, bound, sub.isEmpty());
        int at = part.map(within -> name.startsWith("r") ? within.lastIndexOf(sub) : within.indexOf(sub))
                .orElse(-1);
        if (at < 0) {
            if (name.endsWith("index")) {
                throw budget.error("substring not found");
            }
            return Value.of(-1);
        }
        int start = place(bound(bound, "start", 0), Strings.length(text));
        return Value.of(start + part.orElse("").codePointCount(0, at));
    }

    /** The part of a text from the argument {@code start} to {@code end}; empty if they are in the wrong order. */
    private Optional<String> part(String text, Bound bound, boolean emptyWanted) {
        if (bound.get("start").isEmpty()) {
            return Optional.of(text);
        }
        int size = Strings.length(text);
        int given = bound(bound, "start", 0);
        int start = place(given, size);
        int end = place(bound(bound, "end", size), size);
        if (end < start || (emptyWanted && given > size)) {
            return Optional.empty();
        }
        int from = text.offsetByCodePoints(0, start);
        return Optional.of(text.substring(from, text.offsetByCodePoints(from, end - start)));
    }

    private static int bound(Bound bound, String name, int otherwise) {
        return bound.get(name).filter(value -> !(value instanceof Value.None)).isEmpty()
                ? otherwise
                : bound.integer(name, otherwise);
    }

    private String expandTabs(String text, int size) {
        StringBuilder out = new StringBuilder();
        int column = 0;
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (c == '\t') {
                int spaces = size > 0 ? size - column % size : 0;
                budget.chargeText((long) out.length() + spaces);
                out.repeat(' ', spaces);
                column += spaces;
            } else {
                out.append(c);
                column = c == '\n' || c == '\r' ? 0 : column + (Character.isLowSurrogate(c) ? 0 : 1);
            }
        }
        return budget.text(out.toString());
    }

    private static Value.Body test(BooleanSupplier test) {
        return call -> {
            call.bindPlaces();
            return Value.of(test.getAsBoolean());
        };
    }

    /** Whether there are letters with case, and all of them upper or lower. */
    static boolean isCased(String text, boolean upper) {
        return text.codePoints().anyMatch(point -> upper ? Character.isUpperCase(point) : Character.isLowerCase(point))
                && text.codePoints()
                        .noneMatch(point -> Character.isTitleCase(point)
                                || (upper ? Character.isLowerCase(point) : Character.isUpperCase(point)));
    }

    private static boolean isTitle(String text) {
        boolean within = false;
        boolean any = false;
        for (int point : text.codePoints().toArray()) {
            boolean capital = Character.isUpperCase(point) || Character.isTitleCase(point);
            if (within ? capital : Character.isLowerCase(point)) {
                return false;
            }
            within = Strings.isCased(point);
            any |= within;
        }
        return any;
    }

    private Value.Body plain(Supplier<String> result) {
        return call -> {
            call.bindPlaces();
            return Value.of(budget.text(result.get()));
        };
    }

    private static Value.Body all(String text, IntPredicate predicate) {
        return test(() -> !text.isEmpty() && text.codePoints().allMatch(predicate));
    }

    private static String swapCase(String text) {
        StringBuilder swapped = new StringBuilder();
        text.codePoints()
                .map(point ->
                        Character.isUpperCase(point) ? Character.toLowerCase(point) : Character.toUpperCase(point))
                .forEach(swapped::appendCodePoint);
        return swapped.toString();
    }

    private static Value strip(String text, Arguments call, boolean left, boolean right) {
        Optional<String> characters = call.bindPlaces("chars").optionalText("chars");
        IntPredicate stripped = characters
                .<IntPredicate>map(set -> point -> set.indexOf(point) >= 0)
                .orElse(Strings::isSpace);
        return Value.of(Strings.strip(text, stripped, left, right));
    }

    private boolean anyAffix(Arguments call, String text, BiPredicate<String, String> matches) {
        Bound bound = call.bindPlaces("affix", "start", "end");
        Value affix = bound.require("affix");
        List<Value> choices =
                affix instanceof Seq(List<Value> items, Kind kind) && kind.isTuple() ? items : List.of(affix);
        return choices.stream().anyMatch(choice -> {
            if (choice instanceof Str(String affixText, boolean _)) {
                budget.charge(1);
                return part(text, bound, affixText.isEmpty())
                        .filter(part -> matches.test(part, affixText))
                        .isPresent();
            }
            throw python.error(choice, call.function() + "() wants a string or a tuple of strings");
        });
    }

    String replace(String text, String old, String replacement, int count) {
        if (count == 0) {
            return text;
        }
        if (old.isEmpty()) {
            List<String> parts = new ArrayList<>(Strings.characters(text));
            int times = count < 0 ? parts.size() + 1 : Math.min(count, parts.size() + 1);
            budget.chargeText(text.length() + (long) times * replacement.length());
            StringBuilder out = new StringBuilder();
            for (int i = 0; i <= parts.size(); i++) {
                out.append(i < times ? replacement : "").append(i < parts.size() ? parts.get(i) : "");
            }
            return out.toString();
        }
        List<String> parts = Strings.split(text, old, count);
        budget.chargeText(text.length() + (long) (parts.size() - 1) * (replacement.length() - old.length()));
        return String.join(replacement, parts);
    }

    private Value split(String text, Arguments call, boolean fromRight) {
        Bound bound = call.bind("sep", "maxsplit");
        int limit = bound.integer("maxsplit", -1);
        Optional<String> separator = bound.optionalText("sep").map(this::separator);
        if (separator.isEmpty()) {
            return strings(fromRight ? Strings.wordsFromRight(text, limit) : Strings.words(text, limit));
        }
        return strings(
                fromRight
                        ? Strings.splitFromRight(text, separator.get(), limit)
                        : Strings.split(text, separator.get(), limit));
    }

    private String separator(String separator) {
        if (separator.isEmpty()) {
            throw budget.error("empty separator");
        }
        return separator;
    }

    private Value strings(List<String> parts) {
        budget.charge(parts.size());
        return Value.list(parts.stream().map(Value::of).toList());
    }

    private Value join(Value parts, Str separator) {
        StringBuilder joined = new StringBuilder();
        boolean first = true;
        for (Value part : python.iterate(parts)) {
            if (!(part instanceof Str text)) {
                throw python.error(part, "join() wants strings, found " + Python.typeName(part));
            }
            String shown = separator.markup() ? Strings.escape(text) : text.text();
            budget.chargeText((long) separator.text().length() + shown.length());
            budget.limitText((long) joined.length() + separator.text().length() + shown.length());
            joined.append(first ? "" : separator.text()).append(shown);
            first = false;
        }
        return new Str(joined.toString(), separator.markup());
    }

    private String pad(String text, int width, String fill, String side) {
        int padding = Math.max(0, width - Strings.length(text));
        budget.chargeText((long) padding * fill.length() + text.length());
        int left = switch (side) {
            case "ljust" -> 0;
            case "rjust" -> padding;
            default -> padding / 2 + (padding & width & 1);
        };
        return fill.repeat(left) + text + fill.repeat(padding - left);
    }
}
