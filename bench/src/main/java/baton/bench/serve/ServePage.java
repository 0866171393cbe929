package baton.bench.serve;

import baton.bench.plot.Page;
import baton.bench.plot.Plot;
import baton.bench.plot.Plot.Axis;
import baton.bench.plot.Plot.Point;
import baton.bench.plot.Plot.Scale;
import baton.bench.plot.Plot.Series;
import baton.bench.plot.Plot.Style;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.function.ToLongFunction;
import java.util.stream.IntStream;
import org.HdrHistogram.Histogram;

/** A report as a page with plots. */
public final class ServePage {
    private static final int MOST_DOTS = 4000;
    private static final double[] RANKS = ranks();

    private final ServeReport report;
    private final Metrics metrics;

    private ServePage(ServeReport report) {
        this.report = report;
        this.metrics = report.metrics();
    }

    /** Denser towards 100, as the axis is. */
    private static double[] ranks() {
        return IntStream.rangeClosed(0, 200)
                .mapToDouble(i -> 100 * (1 - Math.pow(10, -i / 66.0)))
                .toArray();
    }

    /** The page. */
    public static String html(ServeReport report) {
        return new ServePage(report).page();
    }

    private String page() {
        ServeReport.Traffic traffic = report.traffic();
        Page page = new Page(
                "Serving benchmark: " + report.about().model(),
                String.format(
                        Locale.ROOT,
                        "%s, %s requests/s, burstiness %s%s, %,d requests, %s",
                        report.about().backend().label(),
                        traffic.arrivals()
                                .ramp()
                                .map(ramp -> ramp.from() + " to " + ramp.to())
                                .orElseGet(() -> shown(traffic.arrivals().rate())),
                        shown(traffic.arrivals().burstiness()),
                        traffic.most().isPresent()
                                ? ", at most " + traffic.most().getAsInt() + " at once"
                                : "",
                        metrics.exchanges().size(),
                        report.about().date().withNano(0)));
        page.table(List.of("", "total", "a second"), totals());
        page.table(List.of("ms", "mean", "median", "p90", "p99", "largest"), latencies());
        page.plots(plots());
        page.paragraph(
                "A figure \"as sent\" counts from when the request was sent, as vLLM's bench serve does; \"from due\" from when"
                        + " it was to be sent, so that a client or a server that falls behind hides nothing.");
        return page.html();
    }

    private static String shown(double value) {
        return Double.isInfinite(value) ? "inf" : Double.toString(value);
    }

    private List<List<String>> totals() {
        double seconds = metrics.seconds();
        List<List<String>> rows = new ArrayList<>();
        rows.add(total("requests", metrics.completed(), metrics.requestsPerSecond()));
        rows.add(total("failed", metrics.failed(), metrics.failed() / seconds));
        Objectives objectives = report.selection().objectives();
        if (!objectives.isNone()) {
            double goodput = metrics.goodput(objectives);
            rows.add(total("within the objectives", Math.round(goodput * seconds), goodput));
        }
        rows.add(total("prompt tokens", metrics.inputTokens(), metrics.inputTokens() / seconds));
        rows.add(total("generated tokens", metrics.outputTokens(), metrics.outputPerSecond()));
        return rows;
    }

    private static List<String> total(String name, long total, double rate) {
        return List.of(name, String.format(Locale.ROOT, "%,d", total), String.format(Locale.ROOT, "%,.2f", rate));
    }

    private List<List<String>> latencies() {
        List<List<String>> rows = new ArrayList<>();
        rows.add(latency("time to first token, as sent", metrics.ttft()));
        if (report.traffic().arrivals().isScheduled()) {
            rows.add(latency("time to first token, from due", metrics.ttftFromDue()));
        }
        rows.add(latency("time per output token", metrics.tpot()));
        rows.add(latency("inter-token latency", metrics.itl()));
        rows.add(latency("end to end, as sent", metrics.e2el()));
        if (report.traffic().arrivals().isScheduled()) {
            rows.add(latency("end to end, from due", metrics.e2elFromDue()));
        }
        return rows;
    }

    private static List<String> latency(String name, double[] seconds) {
        Statistics figures = Statistics.of(seconds, List.of(90.0, 99.0, 100.0));
        return row(
                name,
                figures.mean() * 1e3,
                figures.median() * 1e3,
                figures.percentile(90) * 1e3,
                figures.percentile(99) * 1e3,
                figures.percentile(100) * 1e3);
    }

    private static List<String> latency(String name, Histogram micros) {
        return row(
                name,
                micros.getMean() / 1e3,
                micros.getValueAtPercentile(50) / 1e3,
                micros.getValueAtPercentile(90) / 1e3,
                micros.getValueAtPercentile(99) / 1e3,
                micros.getMaxValue() / 1e3);
    }

    private static List<String> row(String name, double... millis) {
        List<String> cells = new ArrayList<>(List.of(name));
        Arrays.stream(millis)
                .mapToObj(each -> String.format(Locale.ROOT, "%,.1f", each))
                .forEach(cells::add);
        return cells;
    }

    private List<Plot> plots() {
        List<Plot> plots = new ArrayList<>();
        boolean scheduled = report.traffic().arrivals().isScheduled();
        Axis percentile = new Axis("percentile", Scale.NINES);
        List<Series> ttft = new ArrayList<>(List.of(percentiles("as sent", 0, Style.LINE, metrics.ttft())));
        List<Series> e2el = new ArrayList<>(List.of(percentiles("as sent", 0, Style.LINE, metrics.e2el())));
        if (scheduled) {
            ttft.add(percentiles("from due", 1, fromDue(Exchange::first)));
            e2el.add(percentiles("from due", 1, fromDue(Exchange::latency)));
        }
        plots.add(new Plot("Time to first token", percentile, new Axis("ms", Scale.LINEAR), ttft));
        plots.add(new Plot(
                "Inter-token latency",
                percentile,
                new Axis("ms", Scale.LINEAR),
                List.of(
                        percentiles("between events", 0, Style.LINE, metrics.itl()),
                        percentiles("mean of a request (TPOT)", 2, Style.LINE, metrics.tpot()))));
        plots.add(new Plot("End-to-end latency", percentile, new Axis("ms", Scale.LINEAR), e2el));
        plots.add(overTime());
        Metrics.Seconds bySecond = metrics.bySecond();
        plots.add(new Plot(
                "Generated tokens in each second",
                new Axis("seconds", Scale.LINEAR),
                new Axis("tokens", Scale.LINEAR),
                List.of(steps(0, bySecond.tokens()))));
        plots.add(new Plot(
                "Requests under way in each second",
                new Axis("seconds", Scale.LINEAR),
                new Axis("requests", Scale.LINEAR),
                List.of(steps(2, bySecond.requests()))));
        return plots;
    }

    private static Series percentiles(String name, int colour, Style style, double[] seconds) {
        List<Double> ranks = Arrays.stream(RANKS).boxed().toList();
        Statistics figures = Statistics.of(seconds, ranks);
        double known = 100 * (1 - 1.0 / Math.max(1, seconds.length));
        return new Series(
                name,
                colour,
                style,
                figures.percentiles().stream()
                        .filter(each -> each.rank() <= known)
                        .map(each -> new Point(each.rank(), each.value() * 1e3))
                        .toList());
    }

    private static Series percentiles(String name, int colour, double[] seconds) {
        return percentiles(name, colour, Style.DASHED, seconds);
    }

    private double[] fromDue(ToLongFunction<Exchange> nanos) {
        return metrics.each(each -> (each.late() + nanos.applyAsLong(each)) * 1e-9);
    }

    private Plot overTime() {
        List<Exchange> all = metrics.exchanges();
        long begin = all.stream().mapToLong(Exchange::due).min().orElse(0);
        int every = Math.max(1, all.size() / MOST_DOTS);
        List<Point> good = new ArrayList<>();
        List<Point> failed = new ArrayList<>();
        for (int i = 0; i < all.size(); i += every) {
            Exchange each = all.get(i);
            double at = (each.due() - begin) * 1e-9;
            if (each.succeeded()) {
                good.add(new Point(at, (each.late() + each.first()) * 1e-6));
            } else {
                failed.add(new Point(at, 0));
            }
        }
        List<Series> series = new ArrayList<>(List.of(new Series("first token", 0, Style.DOTS, good)));
        if (!failed.isEmpty()) {
            series.add(new Series("failed", 4, Style.DOTS, failed));
        }
        return new Plot(
                "Time to first token from due, by arrival",
                new Axis("seconds", Scale.LINEAR),
                new Axis("ms", Scale.LINEAR),
                series);
    }

    private static Series steps(int colour, int[] values) {
        return new Series(
                "",
                colour,
                Style.STEPS,
                IntStream.range(0, values.length)
                        .mapToObj(i -> new Point(i, values[i]))
                        .toList());
    }
}
