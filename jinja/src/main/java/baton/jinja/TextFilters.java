package baton.jinja;

import baton.jinja.Value.Arguments;
import baton.jinja.Value.Bound;
import baton.jinja.Value.Dict;
import baton.jinja.Value.Function;
import baton.jinja.Value.None;
import baton.jinja.Value.Seq;
import baton.jinja.Value.Str;
import baton.jinja.Value.Undefined;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

/** Jinja2's filters that make a text of a text. */
record TextFilters(RenderBudget budget, Python python, Methods methods) {
    private static final Pattern NO_ATTRIBUTE = Pattern.compile("[\\s/>=]");

    /** Empty if there is no such filter. @throws JinjaException if it does not fit the value */
    Optional<Value> filter(String name, Value value, Arguments call) {
        return Optional.ofNullable(
                switch (name) {
                    case "upper", "lower", "capitalize" -> {
                        call.bind();
                        yield method(name, value, call);
                    }
                    case "center" -> {
                        int width = call.bind("width").integer("width", 80);
                        yield method(name, value, places(call, Value.of(width)));
                    }
                    case "trim" ->
                        method(
                                "strip",
                                value,
                                places(call, call.bind("chars").get("chars").orElse(Value.NONE)));
                    case "string" -> {
                        call.bind();
                        yield value instanceof Str ? value : Value.of(string(value));
                    }
                    case "safe" -> {
                        call.bind();
                        yield new Str(string(value), true);
                    }
                    case "e", "escape" -> {
                        call.bindPlaces();
                        yield new Str(budget.text(Strings.escape(text(value))), true);
                    }
                    case "forceescape" -> {
                        call.bind();
                        yield new Str(budget.text(Strings.escape(new Str(string(value), false))), true);
                    }
                    case "filesizeformat" ->
                        Value.of(fileSize(value, call.bind("binary").flag("binary", python)));
                    case "format" -> format(text(value), call);
                    case "indent" -> indent(value, call.bind("width", "first", "blank"));
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
                    case "title" -> {
                        call.bind();
                        yield Value.of(title(string(value)));
                    }
                    case "truncate" -> truncate(value, call.bind("length", "killwords", "end", "leeway"));
                    case "urlencode" -> {
                        call.bind();
                        yield Value.of(urlEncode(value));
                    }
                    case "wordcount" -> {
                        call.bind();
                        yield Value.of(words(string(value)));
                    }
                    case "xmlattr" -> attributes(value, call.bind("autospace"));
                    default -> null;
                });
    }

    private Arguments places(Arguments call, Value only) {
        return new Arguments(budget, call.function(), List.of(only), Map.of());
    }

    private String string(Value value) {
        return budget.text(python.string(value));
    }

    private Str text(Value value) {
        return value instanceof Str text ? text : new Str(string(value), false);
    }

    private Value method(String name, Value value, Arguments call) {
        return methods.find(text(value), name)
                .map(method -> ((Function) method).body().call(call))
                .orElseThrow();
    }

    private Value format(Str format, Arguments call) {
        if (!call.positional().isEmpty() && !call.named().isEmpty()) {
            throw budget.error("can't handle positional and keyword arguments at the same time");
        }
        if (call.named().isEmpty()) {
            return new Formats(budget, python).percent(format, new Seq(call.positional(), Value.Kind.TUPLE));
        }
        return new Formats(budget, python)
                .percent(
                        format,
                        new Dict(call.named().entrySet().stream()
                                .collect(Collectors.toMap(entry -> Value.of(entry.getKey()), Map.Entry::getValue))));
    }

    String spaces(int count) {
        budget.chargeText(Math.max(0, count));
        return " ".repeat(Math.max(0, count));
    }

    private Value indent(Value value, Bound bound) {
        if (!(value instanceof Str(String text, boolean markup))) {
            throw budget.error(value, "indent wants a string, not " + Python.typeName(value));
        }
        String indent = bound.get("width").orElse(Value.NONE) instanceof Str given
                ? (markup ? Strings.escape(given) : given.text())
                : spaces(bound.integer("width", 4));
        boolean blank = bound.flag("blank", python);
        List<String> lines = Strings.lines(text + "\n");
        budget.chargeText(text.length() + (long) lines.size() * indent.length());
        StringBuilder out = new StringBuilder(bound.flag("first", python) ? indent : "");
        for (int i = 0; i < lines.size(); i++) {
            if (i > 0) {
                out.append('\n').append(blank || !lines.get(i).isEmpty() ? indent : "");
            }
            out.append(lines.get(i));
        }
        return new Str(out.toString(), markup);
    }

    private static String title(String text) {
        StringBuilder out = new StringBuilder(text.length());
        boolean first = true;
        for (int i = 0; i < text.length(); ) {
            int at = i;
            int point = text.codePointAt(i);
            boolean separates = Strings.isSpace(point) || "-({[<".indexOf(point) >= 0;
            i += Character.charCount(point);
            if (separates || !first) {
                while (!separates && i < text.length() && !isTitleBreak(text.codePointAt(i))) {
                    i += Character.charCount(text.codePointAt(i));
                }
                out.append(text.substring(at, i).toLowerCase(Locale.ROOT));
            } else {
                out.append(text.substring(at, i).toUpperCase(Locale.ROOT));
            }
            first = separates;
        }
        return out.toString();
    }

    private static boolean isTitleBreak(int point) {
        return Strings.isSpace(point) || "-({[<".indexOf(point) >= 0;
    }

    private static int words(String text) {
        int count = 0;
        boolean within = false;
        for (int i = 0; i < text.length(); i += Character.charCount(text.codePointAt(i))) {
            boolean word = Strings.isWord(text.codePointAt(i));
            count += word && !within ? 1 : 0;
            within = word;
        }
        return count;
    }

    private Value truncate(Value value, Bound bound) {
        int length = bound.integer("length", 255);
        int leeway =
                bound.get("leeway").filter(given -> !(given instanceof None)).isEmpty()
                        ? 5
                        : bound.integer("leeway", 5);
        String end = bound.get("end").isPresent() ? bound.text("end") : "...";
        int endLength = Strings.length(end);
        if (length < endLength || leeway < 0) {
            throw budget.error(
                    "expected length >= " + endLength + " and leeway >= 0, got " + length + " and " + leeway);
        }
        if (python.length(value) <= (long) length + leeway) {
            return value;
        }
        if (!(value instanceof Str(String text, boolean markup))) {
            throw budget.error("truncate wants a string, not " + Python.typeName(value));
        }
        String kept = text.substring(0, text.offsetByCodePoints(0, length - endLength));
        int space = bound.flag("killwords", python) ? -1 : kept.lastIndexOf(' ');
        return new Str(
                (space < 0 ? kept : kept.substring(0, space)) + (markup ? Strings.escape(new Str(end, false)) : end),
                markup);
    }

    private String urlEncode(Value value) {
        if (value instanceof Str || !isIterable(value)) {
            return quote(string(value), "/");
        }
        List<String> pairs = new ArrayList<>();
        List<Value> items =
                value instanceof Dict(Map<Value, Value> entries) ? methods.items(entries) : python.iterate(value);
        long length = 0;
        for (Value item : items) {
            List<Value> pair = python.iterate(item);
            if (pair.size() != 2) {
                throw budget.error("urlencode wants pairs, found one of " + pair.size());
            }
            pairs.add(quote(string(pair.get(0)), "").replace("%20", "+")
                    + "="
                    + quote(string(pair.get(1)), "").replace("%20", "+"));
            length += pairs.getLast().length() + 1;
            budget.limitText(length);
        }
        return budget.text(String.join("&", pairs));
    }

    private static boolean isIterable(Value value) {
        return value instanceof Seq
                || value instanceof Dict
                || value instanceof Value.Generator
                || value instanceof Undefined;
    }

    private String quote(String text, String safe) {
        budget.chargeText(3L * text.length());
        StringBuilder out = new StringBuilder();
        for (byte b : text.getBytes(StandardCharsets.UTF_8)) {
            char c = (char) (b & 0xFF);
            boolean plain =
                    c < 0x80 && (Character.isLetterOrDigit(c) || "_.-~".indexOf(c) >= 0 || safe.indexOf(c) >= 0);
            if (plain) {
                out.append(c);
            } else {
                out.append('%').append(Character.toUpperCase(Character.forDigit(c >> 4, 16)));
                out.append(Character.toUpperCase(Character.forDigit(c & 15, 16)));
            }
        }
        return out.toString();
    }

    private Value attributes(Value value, Bound bound) {
        if (!(value instanceof Dict(Map<Value, Value> entries))) {
            throw budget.error(value, "xmlattr wants a mapping");
        }
        StringBuilder out = new StringBuilder();
        boolean space = bound.get("autospace").map(python::truth).orElse(true);
        for (Map.Entry<Value, Value> entry : entries.entrySet()) {
            if (entry.getValue() instanceof None || entry.getValue() instanceof Undefined) {
                continue;
            }
            if (!(entry.getKey() instanceof Str key)
                    || NO_ATTRIBUTE.matcher(key.text()).find()) {
                throw budget.error("Invalid character in attribute name");
            }
            out.append(out.isEmpty() && !space ? "" : " ")
                    .append(Strings.escape(key))
                    .append("=\"")
                    .append(budget.text(Strings.escape(text(entry.getValue()))))
                    .append('"');
            budget.limitText(out.length());
        }
        return Value.of(out.toString());
    }

    private String fileSize(Value value, boolean binary) {
        double bytes = Numbers.isNumber(value)
                ? python.toDouble(value)
                : value instanceof Str(String text, boolean _)
                        ? PythonNumbers.real(text).orElseThrow(() -> budget.error("filesizeformat wants a number"))
                        : Double.NaN;
        if (!Double.isFinite(bytes)) {
            throw budget.error(value, "filesizeformat wants a number");
        }
        int base = binary ? 1024 : 1000;
        if (bytes == 1) {
            return "1 Byte";
        }
        if (bytes < base) {
            return new BigDecimal(bytes).toBigInteger() + " Bytes";
        }
        String prefixes = binary ? "KMGTPEZY" : "kMGTPEZY";
        for (int i = 0; ; i++) {
            double unit = Math.pow(base, i + 2);
            if (bytes < unit || i == 7) {
                return new Formats(budget, python).format(new Value.Real(base * bytes / unit), ".1f") + " "
                        + prefixes.charAt(i) + (binary ? "iB" : "B");
            }
        }
    }
}
