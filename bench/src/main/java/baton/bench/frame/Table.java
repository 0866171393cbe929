package baton.bench.frame;

import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import tools.jackson.databind.JsonNode;

/**
 * Rows of figures.
 *
 * @param heads of the columns
 * @param rows with a cell for each column
 */
public record Table(List<String> heads, List<List<String>> rows) {
    /** The table of these objects. */
    public static Table of(List<Column> columns, Stream<JsonNode> rows) {
        return new Table(
                columns.stream().map(Column::head).toList(),
                rows.map(row -> columns.stream()
                                .map(column -> column.cell().apply(row))
                                .toList())
                        .toList());
    }

    /** Columns of equal width: names on the left, figures on the right. */
    String text() {
        List<List<String>> all = new ArrayList<>(List.of(heads));
        all.addAll(rows);
        int[] widths = new int[heads.size()];
        for (List<String> row : all) {
            for (int i = 0; i < widths.length; i++) {
                widths[i] = Math.max(widths[i], row.get(i).length());
            }
        }
        StringBuilder text = new StringBuilder();
        for (List<String> row : all) {
            StringBuilder line = new StringBuilder();
            for (int i = 0; i < widths.length; i++) {
                String padding = " ".repeat(widths[i] - row.get(i).length());
                line.append(i == 0 ? row.get(i) + padding : "  " + padding + row.get(i));
            }
            text.append(line.toString().stripTrailing()).append('\n');
        }
        return text.toString();
    }

    /** A table of Markdown. */
    public String markdown() {
        return Stream.concat(Stream.of(heads, heads.stream().map(_ -> "---").toList()), rows.stream())
                .map(row -> row.stream().map(Table::cell).collect(Collectors.joining(" | ", "| ", " |\n")))
                .collect(Collectors.joining());
    }

    /** The text of a cell, on one line and without a character that ends a cell. */
    public static String cell(String text) {
        return text.strip()
                .replace("\\", "\\\\")
                .replace("|", "\\|")
                .replace("<", "&lt;")
                .replaceAll("\\s+", " ");
    }
}
