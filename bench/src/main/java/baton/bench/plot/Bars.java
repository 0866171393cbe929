package baton.bench.plot;

import java.util.List;
import java.util.Locale;
import java.util.Optional;

/**
 * Groups of horizontal bars, as an SVG that stands by itself and follows the viewer's light or dark colours.
 *
 * @param title above it
 * @param about below the title
 * @param legend names of the bars of a group
 * @param reference name of the dashed lines
 * @param groups from top to bottom
 * @param references where a dashed line stands for each bar of a group; NaN for none
 */
public record Bars(
        String title,
        String about,
        List<String> legend,
        String reference,
        List<Group> groups,
        List<Double> references) {
    private static final int WIDTH = 860;
    private static final int LEFT = 230;
    private static final int RIGHT = 70;
    private static final int TOP = 104;
    private static final int BAR = 13;
    private static final int GAP = 11;
    private static final int AXIS = 34;
    private static final int TICKS = 6;

    /** Classes of the bars' colours; longer legends begin again. */
    private static final int COLOURS = 3;

    /** Longest text that fits beside the bars. */
    private static final int MOST_SHOWN = 84;

    private static final String STYLE = """
            <style>
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
            </style>
            """;

    /**
     * Bars of one name.
     *
     * @param values by the legend; empty: no such bar
     * @param text in place of bars
     */
    public record Group(String name, List<Optional<Double>> values, String text) {}

    /** The picture. */
    public String svg() {
        int group = legend.size() * BAR + GAP;
        int bottom = TOP + groups.size() * group;
        double longest = Math.max(
                groups.stream()
                        .flatMap(each -> each.values.stream().flatMap(Optional::stream))
                        .mapToDouble(each -> each)
                        .max()
                        .orElse(0),
                references.stream()
                        .filter(Double::isFinite)
                        .mapToDouble(each -> each)
                        .max()
                        .orElse(0));
        double scale = longest > 0 ? (WIDTH - LEFT - RIGHT) / longest : 0;
        Svg svg = new Svg(WIDTH, bottom + AXIS, title, " width=\"%d\" height=\"%d\"".formatted(WIDTH, bottom + AXIS));
        svg.add("%s", STYLE);
        svg.rectangle("back", 0, 0, WIDTH, bottom + AXIS);
        svg.text(16, 26, "title", "start", title);
        svg.text(16, 45, "soft", "start", about);
        legend(svg);
        for (double at = 0; longest > 0 && at <= longest * 1.0001; at += Svg.step(longest / TICKS)) {
            double x = LEFT + at * scale;
            svg.line("grid", x, TOP - 8, x, bottom);
            svg.text(x, bottom + 17, "soft", "middle", number(at));
        }
        for (int i = 0; i < groups.size(); i++) {
            draw(svg, groups.get(i), TOP + i * group, scale);
        }
        for (int i = 0; i < references.size(); i++) {
            if (Double.isFinite(references.get(i))) {
                double x = LEFT + references.get(i) * scale;
                svg.line("alone line" + i % COLOURS, x, TOP - 8, x, bottom);
                svg.text(x, TOP - 11, "soft", "middle", number(references.get(i)));
            }
        }
        return svg.end();
    }

    private void draw(Svg svg, Group group, int top, double scale) {
        double middle = top + legend.size() * BAR / 2.0 + 4;
        svg.text(LEFT - 10, middle, "", "end", group.name);
        if (!group.text.isEmpty()) {
            String shown =
                    group.text.length() <= MOST_SHOWN ? group.text : group.text.substring(0, MOST_SHOWN - 3) + "...";
            svg.text(LEFT + 6, middle, "soft", "start", shown);
        }
        for (int i = 0; i < group.values.size(); i++) {
            if (group.values.get(i).isPresent()) {
                double value = group.values.get(i).get();
                double width = Math.max(1, value * scale);
                svg.rectangle("bar" + i % COLOURS, LEFT, top + i * BAR + 0.5, width, BAR - 1);
                svg.text(LEFT + width + 5, top + (i + 1) * BAR - 2.5, "", "start", number(value));
            }
        }
    }

    private void legend(Svg svg) {
        int x = 16;
        for (int i = 0; i < legend.size(); i++) {
            svg.rectangle("bar" + i % COLOURS, x, 58, 12, 12);
            svg.text(x + 18, 68, "", "start", legend.get(i));
            x += 34 + 7 * legend.get(i).length();
        }
        svg.line("alone line0", x, 64, x + 24, 64);
        svg.text(x + 30, 68, "", "start", reference);
    }

    private static String number(double value) {
        return String.format(Locale.ROOT, value == 0 || value >= 10 ? "%,.0f" : "%.1f", value);
    }
}
