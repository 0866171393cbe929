package baton.bench.frame;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;
import tools.jackson.databind.JsonNode;

/**
 * How figures are shown: lines and tables in their order. A line that lacks a figure and a table without rows are left out, so a measurement
 * that has ended early is shown as far as it has come.
 */
public final class Layout {
    /** @param isFigure whether it shows that something was measured */
    private record Part(boolean isFigure, Function<JsonNode, String> text) {}

    private final List<Part> parts = new ArrayList<>();

    /** A line about the measurement; shown if there are figures. */
    public Layout head(String template) {
        return add(false, template);
    }

    /** The processor, its instruction sets and their caps. */
    public Layout machine() {
        return head("{machine/processor}, {threads} threads on {machine/processors} processors")
                .head("  instruction sets: {machine/instruction_sets}")
                .head("  caps: {machine/caps}");
    }

    /** A line of figures; a template as that of {@link Column#of}. */
    public Layout line(String template) {
        return add(true, template);
    }

    private Layout add(boolean isFigure, String template) {
        FigureTemplate parsed = new FigureTemplate(template);
        parts.add(new Part(
                isFigure && parsed.hasFigures(),
                figures -> parsed.render(figures).map(line -> line + "\n").orElse("")));
        return this;
    }

    /** Text that a function makes; empty where there is none. */
    public Layout text(Function<JsonNode, String> text) {
        parts.add(new Part(true, text));
        return this;
    }

    /** Explains figures; shown where they are. */
    public Layout note(String path, String text) {
        parts.add(new Part(
                false, figures -> FigureTemplate.at(figures, path).isEmpty() ? "" : text.stripTrailing() + "\n"));
        return this;
    }

    /**
     * A table.
     *
     * @param title above it, a template; empty for none
     * @param path of the array of its rows
     */
    public Layout table(String title, String path, Column... columns) {
        FigureTemplate head = new FigureTemplate(title);
        List<Column> all = List.of(columns);
        return text(figures -> {
            List<JsonNode> rows = FigureTemplate.at(figures, path).valueStream().toList();
            return rows.isEmpty()
                    ? ""
                    : "\n"
                            + head.render(figures)
                                    .filter(line -> !line.isEmpty())
                                    .map(line -> line + "\n")
                                    .orElse("")
                            + Table.of(all, rows.stream()).text();
        });
    }

    /** The layout of each element of an array. */
    public Layout each(String path, Layout inner) {
        return text(figures -> String.join(
                "",
                FigureTemplate.at(figures, path).valueStream().map(inner::text).toList()));
    }

    /** Lines for omitted measurements, from the array {@code left_out}. */
    public Layout leftOut() {
        return text(figures -> String.join(
                "",
                figures.path("left_out")
                        .valueStream()
                        .map(line -> "left out: " + line.asString() + "\n")
                        .toList()));
    }

    /** The text; empty if nothing was measured. */
    public String text(JsonNode figures) {
        record Shown(boolean isFigure, String text) {}
        List<Shown> all = parts.stream()
                .map(part -> new Shown(part.isFigure, part.text.apply(figures)))
                .toList();
        boolean measured = all.stream().anyMatch(each -> each.isFigure && !each.text.isEmpty());
        return measured ? String.join("", all.stream().map(Shown::text).toList()) : "";
    }
}
