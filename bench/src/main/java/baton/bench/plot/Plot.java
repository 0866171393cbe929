package baton.bench.plot;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.function.DoubleUnaryOperator;

/**
 * Series of points over two axes, as an SVG element with colours that follow those of the page's {@link Page#STYLE}.
 *
 * @param title above it
 * @param x the axis from left to right
 * @param y the axis from bottom to top
 */
public record Plot(String title, Axis x, Axis y, List<Series> series) {
    /** Colours that {@link Page} has. */
    static final int COLOURS = 6;

    private static final int WIDTH = 560;
    private static final int HEIGHT = 300;
    private static final int LEFT = 58;
    private static final int RIGHT = 18;
    private static final int TOP = 54;
    private static final int BOTTOM = 44;
    private static final int TICKS = 6;
    private static final double CHARACTER = 6.6;

    /** How values lie on an axis. */
    public enum Scale {
        LINEAR,
        LOGARITHMIC,
        /** An axis of percentiles below 100: each further nine takes as much room. */
        NINES
    }

    /** @param label with the unit */
    public record Axis(String label, Scale scale) {}

    /** How points are drawn. */
    public enum Style {
        LINE,
        LINE_WITH_DOTS,
        DASHED,
        DOTS,
        STEPS
    }

    /** A point; one that is not finite, or not positive on a logarithmic axis, is left out. */
    public record Point(double x, double y) {}

    /**
     * A set of points.
     *
     * @param name in the legend; empty for none
     * @param colour a number; equal ones look equal
     */
    public record Series(String name, int colour, Style style, List<Point> points) {
        public Series {
            points = List.copyOf(points);
        }
    }

    public Plot {
        series = List.copyOf(series);
    }

    /** The element. */
    public String svg() {
        return new Drawing().draw();
    }

    /** Where values lie on an axis, and the marks on it. */
    private record Range(Scale scale, double low, double high) {
        static Range of(Scale scale, List<Double> values) {
            List<Double> shown = values.stream()
                    .filter(value -> Double.isFinite(value) && (scale != Scale.LOGARITHMIC || value > 0))
                    .toList();
            double low = shown.stream().mapToDouble(Double::doubleValue).min().orElse(0);
            double high = shown.stream().mapToDouble(Double::doubleValue).max().orElse(1);
            return switch (scale) {
                case LINEAR -> new Range(scale, Math.min(0, low), high <= Math.min(0, low) ? low + 1 : high * 1.03);
                case LOGARITHMIC ->
                    shown.isEmpty()
                            ? new Range(scale, 1, 10)
                            : new Range(scale, low / 1.15, Math.max(high, low * 2) * 1.15);
                case NINES -> new Range(scale, 0, Math.max(high, 99));
            };
        }

        DoubleUnaryOperator position() {
            return switch (scale) {
                case LINEAR -> value -> (value - low) / (high - low);
                case LOGARITHMIC -> value -> Math.log(value / low) / Math.log(high / low);
                case NINES -> value -> nines(value) / nines(high);
            };
        }

        private static double nines(double percent) {
            return -Math.log10(1 - Math.min(percent, 99.9999) / 100);
        }

        List<Double> ticks() {
            List<Double> ticks = new ArrayList<>();
            switch (scale) {
                case LINEAR -> {
                    double step = Svg.step((high - low) / TICKS);
                    for (double at = Math.ceil(low / step) * step; at <= high * 1.0001; at += step) {
                        ticks.add(Math.abs(at) < step / 1e6 ? 0 : at);
                    }
                }
                case LOGARITHMIC -> {
                    boolean wide = high / low > 300;
                    for (double power = Math.pow(10, Math.floor(Math.log10(low))); power <= high; power *= 10) {
                        for (double factor : wide ? new double[] {1} : new double[] {1, 2, 5}) {
                            if (power * factor >= low && power * factor <= high) {
                                ticks.add(power * factor);
                            }
                        }
                    }
                }
                case NINES -> {
                    for (double each : new double[] {0, 50, 75, 90, 95, 99, 99.9, 99.99}) {
                        if (each <= high) {
                            ticks.add(each);
                        }
                    }
                }
            }
            return ticks;
        }
    }

    private final class Drawing {
        private final Range across = Range.of(
                x.scale,
                series.stream()
                        .flatMap(each -> each.points.stream().map(Point::x))
                        .toList());
        private final Range up = Range.of(
                y.scale,
                series.stream()
                        .flatMap(each -> each.points.stream().map(Point::y))
                        .toList());
        private final Svg svg = new Svg(WIDTH, HEIGHT, title, "");

        String draw() {
            svg.text(LEFT, 16, "title", "start", title);
            legend();
            for (double tick : across.ticks()) {
                double at = px(tick);
                svg.line("grid", at, TOP, at, HEIGHT - BOTTOM);
                svg.text(at, HEIGHT - BOTTOM + 15, "soft", "middle", number(tick));
            }
            for (double tick : up.ticks()) {
                double at = py(tick);
                svg.line("grid", LEFT, at, WIDTH - RIGHT, at);
                svg.text(LEFT - 6, at + 4, "soft", "end", number(tick));
            }
            svg.text((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 8, "soft", "middle", x.label);
            svg.add(
                    "<text class=\"soft\" transform=\"translate(13 %.1f) rotate(-90)\" text-anchor=\"middle\">%s</text>%n",
                    (TOP + HEIGHT - BOTTOM) / 2.0, Markup.escape(y.label));
            series.forEach(this::series);
            return svg.end();
        }

        private void legend() {
            double at = LEFT;
            for (Series each : series) {
                if (each.name.isEmpty()) {
                    continue;
                }
                if (each.style == Style.DOTS) {
                    svg.add("<circle class=\"dot%d\" cx=\"%.1f\" cy=\"33\" r=\"3.5\"/>%n", colour(each), at + 8);
                } else {
                    svg.add(
                            "<line class=\"line%d%s\" x1=\"%.1f\" y1=\"33\" x2=\"%.1f\" y2=\"33\"/>%n",
                            colour(each), dashed(each), at, at + 16);
                }
                svg.text(at + 21, 37, "", "start", each.name);
                at += 33 + CHARACTER * each.name.length();
            }
        }

        private void series(Series each) {
            List<Point> points = each.points.stream().filter(this::isShown).toList();
            if (points.isEmpty()) {
                return;
            }
            boolean dots = each.style == Style.DOTS || each.style == Style.LINE_WITH_DOTS || points.size() == 1;
            if (each.style != Style.DOTS) {
                StringBuilder path = new StringBuilder();
                for (Point point : points) {
                    if (each.style == Style.STEPS && !path.isEmpty()) {
                        path.append(String.format(Locale.ROOT, "H%.1f", px(point.x)));
                    }
                    path.append(String.format(
                            Locale.ROOT, "%s%.1f %.1f", path.isEmpty() ? "M" : "L", px(point.x), py(point.y)));
                }
                svg.add("<path class=\"line%d%s\" d=\"%s\"/>%n", colour(each), dashed(each), path);
            }
            if (dots) {
                for (Point point : points) {
                    svg.add(
                            "<circle class=\"dot%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\"/>%n",
                            colour(each), px(point.x), py(point.y), each.style == Style.DOTS ? 2.0 : 3.5);
                }
            }
        }

        private boolean isShown(Point point) {
            return Double.isFinite(point.x)
                    && Double.isFinite(point.y)
                    && (x.scale != Scale.LOGARITHMIC || point.x > 0)
                    && (y.scale != Scale.LOGARITHMIC || point.y > 0);
        }

        private static int colour(Series each) {
            return Math.floorMod(each.colour, COLOURS);
        }

        private static String dashed(Series each) {
            return each.style == Style.DASHED ? " dashed" : "";
        }

        private double px(double value) {
            return LEFT + across.position().applyAsDouble(value) * (WIDTH - LEFT - RIGHT);
        }

        private double py(double value) {
            return HEIGHT - BOTTOM - up.position().applyAsDouble(value) * (HEIGHT - BOTTOM - TOP);
        }
    }

    /** The number with as many digits as a mark on an axis needs. */
    static String number(double value) {
        double size = Math.abs(value);
        if (size == 0) {
            return "0";
        }
        if (size >= 1000 || value == Math.rint(value)) {
            return String.format(Locale.ROOT, "%,.0f", value);
        }
        return String.format(Locale.ROOT, "%." + Math.max(0, 3 - (int) Math.ceil(Math.log10(size))) + "f", value)
                .replaceFirst("(\\.\\d*?)0+$", "$1")
                .replaceFirst("\\.$", "");
    }
}
