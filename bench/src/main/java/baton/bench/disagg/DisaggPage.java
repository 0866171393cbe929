package baton.bench.disagg;

import baton.bench.plot.Page;
import baton.bench.plot.Plot;
import baton.bench.plot.Plot.Axis;
import baton.bench.plot.Plot.Point;
import baton.bench.plot.Plot.Scale;
import baton.bench.plot.Plot.Series;
import baton.bench.plot.Plot.Style;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.function.ToDoubleFunction;

/** A report as a page with plots. */
public final class DisaggPage {
    private DisaggPage() {}

    /** The page. */
    public static String html(DisaggReport report) {
        Page page = new Page("Does disaggregation pay?", report.about());
        page.said(report.sentence());
        List<Integer> lengths = report.cells().stream()
                .map(Cell::promptTokens)
                .distinct()
                .sorted()
                .toList();
        for (int length : lengths) {
            page.heading(String.format(Locale.ROOT, "Prompts of %,d tokens among running answers", length));
            page.plots(plots(report, length));
        }
        page.heading("Figures");
        page.paragraph(
                "Milliseconds. ITL: between two tokens of an answer. TTFT: from when a request was due to its first token."
                        + " Busy: the part of the time that long prompts alone would keep the prefill instance busy.");
        page.table(report.table().heads(), report.table().rows());
        report.advice().forEach(each -> page.paragraph(DisaggReport.said(each) + "."));
        report.leftOut().forEach(each -> page.paragraph("Left out: " + each));
        return page.html();
    }

    private static List<Plot> plots(DisaggReport report, int length) {
        Axis rate = new Axis("long prompts a second", Scale.LINEAR);
        return List.of(
                new Plot(
                        "p99 inter-token latency",
                        rate,
                        new Axis("ms", Scale.LOGARITHMIC),
                        series(report, length, each -> each.itl().p99() * 1e3)),
                new Plot(
                        "Median time to first token, long prompts",
                        rate,
                        new Axis("ms", Scale.LINEAR),
                        series(report, length, each -> each.longTtft().median() * 1e3)),
                new Plot(
                        "Median time to first token, short prompts",
                        rate,
                        new Axis("ms", Scale.LOGARITHMIC),
                        series(report, length, each -> each.shortTtft().median() * 1e3)),
                new Plot(
                        "Generated tokens a second",
                        rate,
                        new Axis("tokens/s", Scale.LINEAR),
                        series(report, length, Cell::tokensPerSecond)));
    }

    private static List<Series> series(DisaggReport report, int length, ToDoubleFunction<Cell> value) {
        List<Series> all = new ArrayList<>();
        List<Setup> setups = report.setups();
        for (int i = 0; i < setups.size(); i++) {
            Setup setup = setups.get(i);
            List<Point> points = report.cells().stream()
                    .filter(each -> each.setup().equals(setup) && each.promptTokens() == length)
                    .map(each -> new Point(each.rate(), value.applyAsDouble(each)))
                    .toList();
            String name = setup.disaggregated()
                    ? "1P1D"
                    : setup.budget().isPresent() ? "chunks of " + setup.budget().getAsInt() : "colocated";
            all.add(new Series(name, i, Style.LINE_WITH_DOTS, points));
        }
        return all;
    }
}
