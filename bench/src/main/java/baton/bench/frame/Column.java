package baton.bench.frame;

import java.util.function.Function;
import tools.jackson.databind.JsonNode;

/**
 * A column of a table.
 *
 * @param head above it
 * @param cell of a row
 */
public record Column(String head, Function<JsonNode, String> cell) {
    /**
     * A column of a row's figures, empty where a row lacks one of them.
     *
     * @param template with places such as {@code {seconds|%.1f|1e3}}: path, format and factor
     */
    public static Column of(String head, String template) {
        FigureTemplate parsed = new FigureTemplate(template);
        return new Column(head, row -> parsed.render(row).orElse(""));
    }
}
