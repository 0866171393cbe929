package baton.jinja;

import baton.jinja.Value.Bool;
import baton.jinja.Value.Dict;
import baton.jinja.Value.Function;
import baton.jinja.Value.Generator;
import baton.jinja.Value.Instance;
import baton.jinja.Value.Int;
import baton.jinja.Value.Kind;
import baton.jinja.Value.Loop;
import baton.jinja.Value.Namespace;
import baton.jinja.Value.None;
import baton.jinja.Value.Real;
import baton.jinja.Value.Seq;
import baton.jinja.Value.Str;
import baton.jinja.Value.Undefined;
import java.math.BigInteger;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.jspecify.annotations.Nullable;

/**
 * Values as JSON, as Python's {@code json.dumps} writes them.
 *
 * @param ascii whether other characters are escaped
 * @param indent one level's indent; null for one line
 * @param order of the keys of objects; empty to keep the objects' order
 */
record JsonWriter(
        RenderBudget budget,
        boolean ascii,
        @Nullable String indent,
        String itemSeparator,
        String keySeparator,
        Optional<Comparator<Value>> order,
        StringBuilder out) {
    /** @throws JinjaException if JSON has no such value */
    void write(Value value) {
        write(value, "\n");
    }

    private void write(Value value, String lineBreak) {
        budget.enter();
        int before = out.length();
        switch (value) {
            case None _ -> out.append("null");
            case Bool(boolean truth) -> out.append(truth);
            case Int(BigInteger number) -> out.append(number);
            case Real(double number) ->
                out.append(
                        Double.isNaN(number)
                                ? "NaN"
                                : Double.isInfinite(number)
                                        ? (number > 0 ? "Infinity" : "-Infinity")
                                        : Representation.floatText(number));
            case Str(String text, boolean _) -> string(text);
            case Seq(List<Value> items, Kind kind)
            when kind == Kind.LIST || kind.isTuple() -> {
                out.append('[');
                for (int i = 0; i < items.size(); i++) {
                    separate(i == 0, lineBreak);
                    write(items.get(i), deeper(lineBreak));
                }
                close(items.isEmpty(), lineBreak, ']');
            }
            case Dict(Map<Value, Value> entries) -> {
                out.append('{');
                List<Value> keys = new ArrayList<>(entries.keySet());
                order.ifPresent(keys::sort);
                boolean first = true;
                for (Value key : keys) {
                    separate(first, lineBreak);
                    first = false;
                    switch (key) {
                        case Str(String text, boolean _) -> string(text);
                        case Value.Numeric _, None _ -> {
                            out.append('"');
                            write(key, lineBreak);
                            out.append('"');
                        }
                        default -> throw budget.error("JSON's keys cannot be a " + Python.typeName(key));
                    }
                    out.append(keySeparator);
                    Value entry = entries.get(key);
                    write(entry == null ? Value.NONE : entry, deeper(lineBreak));
                }
                close(entries.isEmpty(), lineBreak, '}');
            }
            case Seq _, Undefined _, Generator _, Function _, Instance _, Namespace _, Loop _ ->
                throw budget.error(value, "Object of type " + Python.typeName(value) + " is not JSON serializable");
        }
        budget.leave();
        budget.chargeText(out.length() - before);
    }

    private String deeper(String lineBreak) {
        return indent == null ? lineBreak : lineBreak + indent;
    }

    private void separate(boolean first, String lineBreak) {
        if (!first) {
            out.append(itemSeparator);
        }
        // The object or list is charged for when it is whole.
        budget.limitText(out.length());
        if (indent != null) {
            out.append(lineBreak).append(indent);
        }
    }

    private void close(boolean empty, String lineBreak, char end) {
        if (!empty && indent != null) {
            out.append(lineBreak);
        }
        out.append(end);
    }

    private void string(String text) {
        out.append('"');
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            switch (c) {
                case '"' -> out.append("\\\"");
                case '\\' -> out.append("\\\\");
                case '\n' -> out.append("\\n");
                case '\r' -> out.append("\\r");
                case '\t' -> out.append("\\t");
                case '\f' -> out.append("\\f");
                case '\b' -> out.append("\\b");
                default -> {
                    if (c < 0x20 || (ascii && c > 0x7F)) {
                        out.append("\\u%04x".formatted((int) c));
                    } else {
                        out.append(c);
                    }
                }
            }
        }
        out.append('"');
    }
}
