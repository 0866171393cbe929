package baton.jinja;

import baton.jinja.Value.Str;
import java.util.List;
import java.util.Map;

/** {@code str.format}. Its fields reach the same values as expressions. */
final class BraceFormat {
    private final RenderBudget budget;
    private final Python python;
    private final Methods methods;
    private final Formats formats;
    private int nextPlace;
    private boolean numbered;

    BraceFormat(RenderBudget budget, Python python, Methods methods) {
        this.budget = budget;
        this.python = python;
        this.methods = methods;
        this.formats = new Formats(budget, python);
    }

    Value format(Str format, List<Value> positional, Map<String, Value> named) {
        return new Str(budget.text(format(format.text(), positional, named, 2, format.markup())), format.markup());
    }

    private String format(String text, List<Value> positional, Map<String, Value> named, int levels, boolean escapes) {
        if (levels == 0) {
            throw budget.error("Max string recursion exceeded");
        }
        StringBuilder out = new StringBuilder();
        int at = 0;
        while (at < text.length()) {
            char c = text.charAt(at++);
            if (c != '{' && c != '}') {
                out.append(c);
            } else if (at < text.length() && text.charAt(at) == c) {
                out.append(c);
                at++;
            } else if (c == '}') {
                throw budget.error("Single '}' encountered in format string");
            } else {
                int end = end(text, at);
                out.append(field(text.substring(at, end), positional, named, levels, escapes));
                budget.limitText(out.length());
                at = end + 1;
            }
        }
        return out.toString();
    }

    /** Where the field that begins here ends. */
    private int end(String text, int from) {
        int open = 1;
        boolean bracket = false;
        for (int i = from; i < text.length(); i++) {
            char c = text.charAt(i);
            if (c == '[') {
                bracket = true;
            } else if (c == ']') {
                bracket = false;
            } else if (c == '{' && !bracket) {
                open++;
            } else if (c == '}' && !bracket && --open == 0) {
                return i;
            }
        }
        throw budget.error("expected '}' before end of string");
    }

    private String field(String field, List<Value> positional, Map<String, Value> named, int levels, boolean escapes) {
        int colon = field.length();
        int mark = -1;
        boolean bracket = false;
        for (int i = 0; i < field.length(); i++) {
            char c = field.charAt(i);
            bracket = c == '[' || (bracket && c != ']');
            if (!bracket && (c == ':' || c == '!')) {
                mark = c == '!' ? i : -1;
                colon = c == '!' ? i + 2 : i;
                break;
            }
        }
        if (mark >= 0 && (colon > field.length() || (colon < field.length() && field.charAt(colon) != ':'))) {
            throw budget.error("expected ':' after conversion specifier");
        }
        Value value = value(field.substring(0, mark >= 0 ? mark : colon), positional, named);
        if (mark >= 0) {
            value = switch (field.charAt(mark + 1)) {
                case 's' -> Value.of(python.string(value));
                case 'r' -> Value.of(python.represent(value));
                case 'a' -> Value.of(formats.ascii(python.represent(value)));
                default -> throw budget.error("Unknown conversion specifier '" + field.charAt(mark + 1) + "'");
            };
        }
        String spec =
                colon < field.length() ? format(field.substring(colon + 1), positional, named, levels - 1, false) : "";
        if (value instanceof Str text && text.markup() && !spec.isEmpty()) {
            throw budget.error("Unsupported format specification for Markup");
        }
        budget.charge(1);
        String shown = formats.format(value, spec);
        return escapes ? Strings.escape(new Str(shown, value instanceof Str text && text.markup())) : shown;
    }

    private Value value(String path, List<Value> positional, Map<String, Value> named) {
        int end = 0;
        while (end < path.length() && path.charAt(end) != '.' && path.charAt(end) != '[') {
            end++;
        }
        String first = path.substring(0, end);
        Value value;
        if (path.isEmpty() || isNumber(first)) {
            boolean automatic = path.isEmpty();
            if (automatic ? numbered : nextPlace > 0) {
                throw budget.error("cannot switch between automatic and manual field numbering");
            }
            numbered |= !automatic;
            int place = automatic ? nextPlace++ : number(first);
            if (place >= positional.size()) {
                throw budget.error("Replacement index " + place + " out of range for positional args tuple");
            }
            value = positional.get(place);
        } else {
            Value found = named.get(first);
            if (found == null) {
                throw budget.error("format() has no argument '" + first + "'");
            }
            value = found;
        }
        int at = end;
        while (at < path.length()) {
            int from = at + 1;
            if (path.charAt(at) == '[') {
                at = path.indexOf(']', from);
                if (at < 0) {
                    throw budget.error("Missing ']' in format string");
                }
                String key = path.substring(from, at++);
                if (key.isEmpty()) {
                    throw budget.error("Empty attribute in format string");
                }
                value = methods.subscript(value, isNumber(key) ? Value.of(number(key)) : Value.of(key));
                if (at < path.length() && path.charAt(at) != '.' && path.charAt(at) != '[') {
                    throw budget.error("Only '.' or '[' may follow ']' in format field specifier");
                }
            } else {
                at = from;
                while (at < path.length() && path.charAt(at) != '.' && path.charAt(at) != '[') {
                    at++;
                }
                if (at == from) {
                    throw budget.error("Empty attribute in format string");
                }
                value = methods.attribute(value, path.substring(from, at));
            }
        }
        return value;
    }

    private static boolean isNumber(String text) {
        return !text.isEmpty() && text.chars().allMatch(c -> c >= '0' && c <= '9');
    }

    private int number(String digits) {
        if (digits.length() > 9) {
            throw budget.error("Too many decimal digits in format string");
        }
        return Integer.parseInt(digits);
    }
}
