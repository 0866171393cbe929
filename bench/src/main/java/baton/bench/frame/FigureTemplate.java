package baton.bench.frame;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import tools.jackson.databind.JsonNode;

/**
 * A line or a cell with places for figures: {@code {path|format|factor}}. The path names fields of a JSON object, separated by slashes, a
 * dot the object itself; the format is one of {@link java.util.Formatter}, by default {@code %s}; a number is multiplied by the factor.
 */
final class FigureTemplate {
    private static final Pattern PLACE = Pattern.compile("\\{([^{}|]+)(?:\\|(%[^{}|]+))?(?:\\|([^{}|]+))?}");

    private sealed interface Part {}

    private record Text(String text) implements Part {}

    private record Place(String path, String format, double factor) implements Part {}

    private final List<Part> parts = new ArrayList<>();

    FigureTemplate(String template) {
        Matcher places = PLACE.matcher(template);
        int end = 0;
        while (places.find()) {
            parts.add(new Text(template.substring(end, places.start())));
            parts.add(new Place(
                    places.group(1),
                    Optional.ofNullable(places.group(2)).orElse("%s"),
                    Optional.ofNullable(places.group(3)).map(Double::valueOf).orElse(1.0)));
            end = places.end();
        }
        parts.add(new Text(template.substring(end)));
    }

    /** Whether it has places for figures. */
    boolean hasFigures() {
        return parts.size() > 1;
    }

    /** The text with an object's figures; empty if it lacks one of them. */
    Optional<String> render(JsonNode object) {
        StringBuilder text = new StringBuilder();
        for (Part part : parts) {
            switch (part) {
                case Text(String literal) -> text.append(literal);
                case Place(String path, String format, double factor) -> {
                    JsonNode figure = at(object, path);
                    if (figure.isMissingNode() || figure.isNull()) {
                        return Optional.empty();
                    }
                    text.append(String.format(Locale.ROOT, format, value(figure, format, factor)));
                }
            }
        }
        return Optional.of(text.toString());
    }

    static JsonNode at(JsonNode object, String path) {
        JsonNode at = object;
        if (path.equals(".")) {
            return at;
        }
        for (String field : path.split("/")) {
            at = at.path(field);
        }
        return at;
    }

    private static Object value(JsonNode figure, String format, double factor) {
        if (figure.isNumber() && !format.endsWith("s")) {
            double value = figure.asDouble() * factor;
            return format.endsWith("d") ? (Object) Math.round(value) : (Object) value;
        }
        if (figure.isContainer()) {
            return figure.isEmpty()
                    ? "none"
                    : figure.isArray()
                            ? figure.valueStream().map(JsonNode::asString).collect(Collectors.joining(" "))
                            : figure.propertyStream()
                                    .map(each -> each.getKey() + "="
                                            + each.getValue().asString())
                                    .collect(Collectors.joining(" "));
        }
        return figure.asString();
    }
}
