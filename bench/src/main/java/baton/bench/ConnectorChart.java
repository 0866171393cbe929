package baton.bench;

import baton.bench.ConnectorReport.Failed;
import baton.bench.ConnectorReport.Latency;
import baton.bench.ConnectorReport.Measured;
import baton.bench.ConnectorReport.Row;
import baton.bench.ConnectorReport.Unavailable;
import baton.bench.ConnectorReport.Way;
import baton.bench.plot.Markup;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;

/**
 * The times to the first token of a {@link ConnectorReport} as an SVG: a bar for each connector and length of prompts, and a dashed
 * line for each length where one instance alone is. It stands by itself, and follows the viewer's light or dark colours.
 */
public final class ConnectorChart {
    private static final int WIDTH = 860;
    private static final int LEFT = 230;
    private static final int RIGHT = 70;
    private static final int TOP = 104;
    private static final int BAR = 13;
    private static final int GAP = 11;
    private static final int AXIS = 34;
    private static final int TICKS = 6;
    /** Classes of the lengths' colours; longer lists begin again. */
    private static final int COLOURS = 3;
    /** Longest text that fits beside the bars. */
    private static final int MOST_SHOWN = 84;

    private static final String STYLE = """
            .back { fill: #ffffff; } text { fill: #24292f; font-family: system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; font-size: 12px; }
            text { paint-order: stroke; stroke: #ffffff; stroke-width: 3px; stroke-linejoin: round; }
            .title { font-size: 15px; font-weight: 600; } .soft { fill: #656d76; } .grid { stroke: #d8dee4; stroke-width: 1; }
            .bar0 { fill: #2f7fd1; } .bar1 { fill: #d9822b; } .bar2 { fill: #3f9a54; }
            .line0 { stroke: #2f7fd1; } .line1 { stroke: #d9822b; } .line2 { stroke: #3f9a54; }
            .alone { stroke-width: 1.5; stroke-dasharray: 5 4; }
            @media (prefers-color-scheme: dark) {
              .back { fill: #0d1117; } text { fill: #e6edf3; stroke: #0d1117; } .soft { fill: #9198a1; } .grid { stroke: #30363d; }
              .bar0 { fill: #58a6ff; } .bar1 { fill: #f0a04b; } .bar2 { fill: #56d364; }
              .line0 { stroke: #58a6ff; } .line1 { stroke: #f0a04b; } .line2 { stroke: #56d364; }
            }
            """;

    private final ConnectorReport report;
    private final List<Entry> entries = new ArrayList<>();
    private final double longest;
    private final StringBuilder out = new StringBuilder();
    /** Drawn over everything else. */
    private final StringBuilder texts = new StringBuilder();

    /** @param text in place of bars */
    private record Entry(String label, List<Latency> bars, String text) {}

    private ConnectorChart(ConnectorReport report) {
        this.report = report;
        for (Row row : report.rows()) {
            switch (row.outcome()) {
                case Measured measured -> {
                    for (Way way : Way.values()) {
                        List<Latency> bars = measured.latencies().stream()
                                .filter(each -> each.way() == way)
                                .toList();
                        if (!bars.isEmpty()) {
                            entries.add(new Entry(row.name() + (way == Way.HIT ? ", hit" : ""), bars, ""));
                        }
                    }
                }
                case Failed _ -> entries.add(new Entry(row.name(), List.of(), "failed"));
                case Unavailable unavailable ->
                    entries.add(new Entry(row.name(), List.of(), "not available: " + unavailable.reason()));
            }
        }
        longest = report.rows().stream()
                .flatMap(row -> row.latencies().stream())
                .mapToDouble(
                        each -> Math.max(each.timing().median(), each.alone().median()))
                .max()
                .orElse(0);
    }

    /** The picture of a report. */
    public static String svg(ConnectorReport report) {
        return new ConnectorChart(report).draw();
    }

    private String draw() {
        List<Integer> tokens = report.load().tokens();
        int group = tokens.size() * BAR + GAP;
        int bottom = TOP + entries.size() * group;
        int height = bottom + AXIS;
        out.append(String.format(
                Locale.ROOT,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\" aria-label=\"%s\">%n",
                WIDTH,
                height,
                WIDTH,
                height,
                Markup.escape(title())));
        out.append("<style>\n").append(STYLE).append("</style>\n");
        out.append(String.format(Locale.ROOT, "<rect class=\"back\" width=\"%d\" height=\"%d\"/>%n", WIDTH, height));
        text(16, 26, "title", "start", title());
        text(
                16,
                45,
                "soft",
                "start",
                "Milliseconds, medians of %d; %s"
                        .formatted(report.load().repetitions(), report.machine().processor()));
        legend(tokens);
        grid(bottom);
        for (int i = 0; i < entries.size(); i++) {
            entry(entries.get(i), TOP + i * group, group);
        }
        for (int i = 0; i < tokens.size(); i++) {
            alone(i, bottom);
        }
        return out.append(texts).append("</svg>\n").toString();
    }

    private String title() {
        return "Time to the first token by connector, " + report.load().model();
    }

    private void legend(List<Integer> tokens) {
        int x = 16;
        for (int i = 0; i < tokens.size(); i++) {
            String label = String.format(Locale.ROOT, "%,d tokens", tokens.get(i));
            out.append(String.format(
                    Locale.ROOT,
                    "<rect class=\"bar%d\" x=\"%d\" y=\"58\" width=\"12\" height=\"12\"/>%n",
                    i % COLOURS,
                    x));
            text(x + 18, 68, "", "start", label);
            x += 34 + 7 * label.length();
        }
        out.append(String.format(
                Locale.ROOT, "<line class=\"alone line0\" x1=\"%d\" y1=\"64\" x2=\"%d\" y2=\"64\"/>%n", x, x + 24));
        text(x + 30, 68, "", "start", "computed by one instance alone");
    }

    private void grid(int bottom) {
        double step = step();
        for (int i = 0; longest > 0 && i * step <= longest * 1.0001; i++) {
            double x = x(i * step);
            out.append(String.format(
                    Locale.ROOT,
                    "<line class=\"grid\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\"/>%n",
                    x,
                    TOP - 8,
                    x,
                    bottom));
            text(x, bottom + 17, "soft", "middle", number(i * step * 1e3));
        }
    }

    /** Seconds between two lines of the grid: 1, 2 or 5 times a power of ten. */
    private double step() {
        double atLeast = longest / TICKS;
        double power = Math.pow(10, Math.floor(Math.log10(atLeast)));
        for (double factor : new double[] {1, 2, 5}) {
            if (factor * power >= atLeast) {
                return factor * power;
            }
        }
        return 10 * power;
    }

    private void entry(Entry entry, int top, int group) {
        double middle = top + (group - GAP) / 2.0 + 4;
        text(LEFT - 10, middle, "", "end", entry.label);
        if (entry.bars.isEmpty()) {
            String shown =
                    entry.text.length() <= MOST_SHOWN ? entry.text : entry.text.substring(0, MOST_SHOWN - 3) + "...";
            text(LEFT + 6, middle, "soft", "start", shown);
        }
        for (Latency bar : entry.bars) {
            int index = report.load().tokens().indexOf(bar.tokens());
            double y = top + index * BAR;
            double width = x(bar.timing().median()) - LEFT;
            out.append(String.format(
                    Locale.ROOT,
                    "<rect class=\"bar%d\" x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"%d\"/>%n",
                    index % COLOURS,
                    LEFT,
                    y + 0.5,
                    Math.max(1, width),
                    BAR - 1));
            text(
                    LEFT + Math.max(1, width) + 5,
                    y + BAR - 2.5,
                    "",
                    "start",
                    number(bar.timing().median() * 1e3));
        }
    }

    /** Draws a line at the median over all connectors of the medians beside them. */
    private void alone(int index, int bottom) {
        List<Double> medians = report.rows().stream()
                .flatMap(row -> row.latencies().stream())
                .filter(each -> each.tokens() == report.load().tokens().get(index))
                .map(each -> each.alone().median())
                .toList();
        if (!medians.isEmpty()) {
            double seconds = Timing.median(medians);
            double x = x(seconds);
            out.append(String.format(
                    Locale.ROOT,
                    "<line class=\"alone line%d\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\"/>%n",
                    index % COLOURS,
                    x,
                    TOP - 8,
                    x,
                    bottom));
            text(x, TOP - 11, "soft", "middle", number(seconds * 1e3));
        }
    }

    private double x(double seconds) {
        return LEFT + seconds / longest * (WIDTH - LEFT - RIGHT);
    }

    private static String number(double millis) {
        return String.format(Locale.ROOT, millis == 0 || millis >= 10 ? "%,.0f" : "%.1f", millis);
    }

    private void text(double x, double y, String kind, String anchor, String text) {
        texts.append(String.format(
                Locale.ROOT,
                "<text%s x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>%n",
                kind.isEmpty() ? "" : " class=\"" + kind + "\"",
                x,
                y,
                anchor,
                Markup.escape(text)));
    }
}
