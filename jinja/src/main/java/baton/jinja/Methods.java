package baton.jinja;

import baton.jinja.Value.Arguments;
import baton.jinja.Value.Bound;
import baton.jinja.Value.Dict;
import baton.jinja.Value.Function;
import baton.jinja.Value.Seq;
import baton.jinja.Value.Str;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.BiPredicate;
import java.util.function.IntPredicate;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;

/** Methods of Python's strings, dictionaries and lists; none of those that change their object, as in Jinja2's immutable sandbox. */
final class Methods {
    private static final Set<String> FORBIDDEN = Set.of(
            "append",
            "clear",
            "extend",
            "insert",
            "pop",
            "popitem",
            "remove",
            "reverse",
            "setdefault",
            "sort",
            "update");

    private final Budget budget;
    private final Python python;

    Methods(Budget budget, Python python) {
        this.budget = budget;
        this.python = python;
    }

    /** The method {@code name} of {@code object}, if its type has one. */
    Optional<Value> find(Value object, String name) {
        Optional<Value.Body> body = switch (object) {
            case Str(String text) -> ofString(text, name);
            case Dict(Map<Value, Value> entries) -> ofDictionary(entries, name);
            case Seq(List<Value> items, boolean _) -> ofList(items, name);
            default -> Optional.empty();
        };
        return body.map(method -> new Function(name, method));
    }

    private Optional<Value.Body> ofDictionary(Map<Value, Value> entries, String name) {
        return Optional.ofNullable(
                switch (name) {
                    case "get" ->
                        call -> {
                            Bound bound = call.bind("key", "default");
                            Value found = entries.get(python.key(bound.require("key")));
                            return found != null ? found : bound.get("default").orElse(Value.NONE);
                        };
                    case "keys" ->
                        call -> {
                            call.bind();
                            budget.charge(entries.size());
                            return Value.list(List.copyOf(entries.keySet()));
                        };
                    case "values" ->
                        call -> {
                            call.bind();
                            budget.charge(entries.size());
                            return Value.list(List.copyOf(entries.values()));
                        };
                    case "items" ->
                        call -> {
                            call.bind();
                            return Value.list(items(entries));
                        };
                    case "copy" ->
                        call -> {
                            call.bind();
                            return new Dict(entries);
                        };
                    default -> forbidden(name);
                });
    }

    List<Value> items(Map<Value, Value> entries) {
        budget.charge(entries.size());
        return entries.entrySet().stream()
                .map(entry -> Value.tuple(entry.getKey(), entry.getValue()))
                .toList();
    }

    private Optional<Value.Body> ofList(List<Value> items, String name) {
        return Optional.ofNullable(
                switch (name) {
                    case "index" ->
                        call -> {
                            Value wanted = call.bind("value").require("value");
                            for (int i = 0; i < items.size(); i++) {
                                if (python.equal(items.get(i), wanted)) {
                                    return Value.of(i);
                                }
                            }
                            throw budget.error("value is not in list");
                        };
                    case "count" ->
                        call -> {
                            Value wanted = call.bind("value").require("value");
                            return Value.of(items.stream()
                                    .filter(item -> python.equal(item, wanted))
                                    .count());
                        };
                    case "copy" ->
                        call -> {
                            call.bind();
                            return Value.list(items);
                        };
                    default -> forbidden(name);
                });
    }

    private Value.@Nullable Body forbidden(String name) {
        return FORBIDDEN.contains(name)
                ? call -> {
                    throw budget.error("." + name + "() would change a value, which templates may not");
                }
                : null;
    }

    private Optional<Value.Body> ofString(String text, String name) {
        Value.Body method = switch (name) {
            case "upper" -> plain(() -> text.toUpperCase(Locale.ROOT));
            case "lower", "casefold" -> plain(() -> text.toLowerCase(Locale.ROOT));
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
                    String prefix = call.bind("prefix").text("prefix");
                    return Value.of(text.startsWith(prefix) ? text.substring(prefix.length()) : text);
                };
            case "removesuffix" ->
                call -> {
                    String suffix = call.bind("suffix").text("suffix");
                    return Value.of(text.endsWith(suffix) ? text.substring(0, text.length() - suffix.length()) : text);
                };
            case "replace" ->
                call -> {
                    Bound bound = call.bind("old", "new", "count");
                    return Value.of(replace(text, bound.text("old"), bound.text("new"), bound.integer("count", -1)));
                };
            case "split", "rsplit" -> call -> split(text, call, name.equals("rsplit"));
            case "splitlines" ->
                call -> {
                    call.bind();
                    return strings(Strings.lines(text));
                };
            case "partition", "rpartition" ->
                call -> {
                    String separator = separator(call.bind("sep").text("sep"));
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
            case "join" -> call -> Value.of(join(call.bind("iterable").require("iterable"), text));
            case "find" ->
                call -> Value.of(position(text, text.indexOf(call.bind("sub").text("sub"))));
            case "rfind" ->
                call -> Value.of(
                        position(text, text.lastIndexOf(call.bind("sub").text("sub"))));
            case "index" ->
                call -> {
                    int at = text.indexOf(call.bind("sub").text("sub"));
                    if (at < 0) {
                        throw budget.error("substring not found");
                    }
                    return Value.of(position(text, at));
                };
            case "count" ->
                call -> {
                    String part = call.bind("sub").text("sub");
                    return Value.of(
                            part.isEmpty()
                                    ? Strings.length(text) + 1
                                    : Strings.split(text, part, -1).size() - 1);
                };
            case "zfill" ->
                call -> {
                    int width = call.bind("width").integer("width", 0);
                    int padding = Math.max(0, width - Strings.length(text));
                    budget.chargeText((long) padding + text.length());
                    int sign = text.startsWith("-") || text.startsWith("+") ? 1 : 0;
                    return Value.of(text.substring(0, sign) + "0".repeat(padding) + text.substring(sign));
                };
            case "ljust", "rjust", "center" ->
                call -> {
                    Bound bound = call.bind("width", "fillchar");
                    return Value.of(pad(
                            text,
                            bound.integer("width", 0),
                            bound.optionalText("fillchar").orElse(" "),
                            name));
                };
            case "isdigit", "isdecimal", "isnumeric" -> all(text, Character::isDigit);
            case "isalpha" -> all(text, Character::isLetter);
            case "isalnum" -> all(text, Character::isLetterOrDigit);
            case "isspace" -> all(text, Strings::isSpace);
            case "isupper" -> cased(text, Character::isUpperCase, Character::isLowerCase);
            case "islower" -> cased(text, Character::isLowerCase, Character::isUpperCase);
            default -> null;
        };
        return Optional.ofNullable(method).map(body -> call -> {
            budget.chargeText(text.length());
            return body.call(call);
        });
    }

    private Value.Body plain(Supplier<String> result) {
        return call -> {
            call.bind();
            return Value.of(budget.text(result.get()));
        };
    }

    private static Value.Body all(String text, IntPredicate predicate) {
        return call -> {
            call.bind();
            return Value.of(!text.isEmpty() && text.codePoints().allMatch(predicate));
        };
    }

    private static Value.Body cased(String text, IntPredicate wanted, IntPredicate unwanted) {
        return call -> {
            call.bind();
            return Value.of(
                    text.codePoints().anyMatch(wanted) && text.codePoints().noneMatch(unwanted));
        };
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
        Optional<String> characters = call.bind("chars").optionalText("chars");
        IntPredicate stripped = characters
                .<IntPredicate>map(set -> point -> set.indexOf(point) >= 0)
                .orElse(Strings::isSpace);
        return Value.of(Strings.strip(text, stripped, left, right));
    }

    private boolean anyAffix(Arguments call, String text, BiPredicate<String, String> matches) {
        Value affix = call.bind("affix").require("affix");
        List<Value> choices = affix instanceof Seq(List<Value> items, boolean _) ? items : List.of(affix);
        return choices.stream().anyMatch(choice -> {
            if (choice instanceof Str(String part)) {
                return matches.test(text, part);
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
            if (fromRight && limit >= 0) {
                throw budget.error("rsplit() with maxsplit wants a separator");
            }
            return strings(Strings.words(text, limit));
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

    private String join(Value parts, String separator) {
        StringBuilder joined = new StringBuilder();
        boolean first = true;
        for (Value part : python.iterate(parts)) {
            if (!(part instanceof Str(String text))) {
                throw python.error(part, "join() wants strings, found " + Python.typeName(part));
            }
            budget.chargeText((long) joined.length() + separator.length() + text.length());
            joined.append(first ? "" : separator).append(text);
            first = false;
        }
        return joined.toString();
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

    private static int position(String text, int at) {
        return at < 0 ? -1 : text.codePointCount(0, at);
    }
}
