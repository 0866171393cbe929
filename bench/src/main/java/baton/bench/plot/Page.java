package baton.bench.plot;

import java.util.List;
import java.util.stream.Collectors;

/** An HTML page with plots and tables that loads nothing from elsewhere. */
public final class Page {
    /** Colours of plots and of the page, light and dark. */
    static final String STYLE = """
            :root { --back: #ffffff; --text: #24292f; --soft: #656d76; --grid: #d8dee4;
              --c0: #2f7fd1; --c1: #d9822b; --c2: #3f9a54; --c3: #a050b0; --c4: #c23b4a; --c5: #7a7f87; }
            @media (prefers-color-scheme: dark) { :root { --back: #0d1117; --text: #e6edf3; --soft: #9198a1; --grid: #30363d;
              --c0: #58a6ff; --c1: #f0a04b; --c2: #56d364; --c3: #d2a8ff; --c4: #ff7b72; --c5: #a0a6ae; } }
            body { background: var(--back); color: var(--text); margin: 24px auto; max-width: 1200px; padding: 0 16px;
              font: 14px/1.5 system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; }
            h1 { font-size: 22px; margin: 0 0 4px; } h2 { font-size: 16px; margin: 28px 0 8px; } .soft { color: var(--soft); }
            .plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(440px, 1fr)); gap: 16px 24px; margin: 24px 0; }
            .scroll { overflow-x: auto; margin: 12px 0; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
            th, td { text-align: right; padding: 3px 12px 3px 0; border-bottom: 1px solid var(--grid); white-space: nowrap; }
            th:first-child, td:first-child { text-align: left; } .said { font-size: 17px; }
            svg { width: 100%; height: auto; } svg text { fill: var(--text); font-size: 12px; }
            svg .title { font-size: 14px; font-weight: 600; } svg .soft { fill: var(--soft); } svg .grid { stroke: var(--grid); }
            svg [class^="line"] { fill: none; stroke-width: 2; } svg .dashed { stroke-dasharray: 5 4; }
            """;

    private final String title;
    private final StringBuilder body = new StringBuilder();

    /** @param about below the title */
    public Page(String title, String about) {
        this.title = title;
        body.append("<h1>").append(Markup.escape(title)).append("</h1>\n<div class=\"soft\">");
        body.append(Markup.escape(about)).append("</div>\n");
    }

    /** A heading. */
    public Page heading(String text) {
        body.append("<h2>").append(Markup.escape(text)).append("</h2>\n");
        return this;
    }

    /** A sentence that stands out. */
    public Page said(String text) {
        body.append("<p class=\"said\">").append(Markup.escape(text)).append("</p>\n");
        return this;
    }

    public Page paragraph(String text) {
        body.append("<p>").append(Markup.escape(text)).append("</p>\n");
        return this;
    }

    /** Beside each other, as far as there is room. */
    public Page plots(List<Plot> plots) {
        body.append("<div class=\"plots\">\n");
        plots.forEach(each -> body.append("<div>").append(each.svg()).append("</div>\n"));
        body.append("</div>\n");
        return this;
    }

    /** @param rows as many cells in each as there are columns; the first is a name, the others are figures */
    public Page table(List<String> columns, List<List<String>> rows) {
        body.append("<div class=\"scroll\"><table>\n");
        row("th", columns);
        rows.forEach(each -> row("td", each));
        body.append("</table></div>\n");
        return this;
    }

    private void row(String cell, List<String> values) {
        body.append(values.stream()
                        .map(each -> "<" + cell + ">" + Markup.escape(each) + "</" + cell + ">")
                        .collect(Collectors.joining("", "<tr>", "</tr>")))
                .append('\n');
    }

    /** The whole page. */
    public String html() {
        StringBuilder colours = new StringBuilder();
        for (int i = 0; i < Plot.COLOURS; i++) {
            colours.append(
                    "svg .line%d { stroke: var(--c%d); } svg .dot%d { fill: var(--c%d); }\n".formatted(i, i, i, i));
        }
        return """
                <!DOCTYPE html>
                <html lang="en">
                <head>
                <meta charset="utf-8">
                <meta name="viewport" content="width=device-width, initial-scale=1">
                <meta name="color-scheme" content="light dark">
                <title>%s</title>
                <style>
                """.formatted(Markup.escape(title))
                + STYLE + colours + "</style>\n</head>\n<body>\n" + body + "</body>\n</html>\n";
    }
}
