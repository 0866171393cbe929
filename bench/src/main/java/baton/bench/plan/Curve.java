package baton.bench.plan;

import java.util.Comparator;
import java.util.List;

/**
 * A quantity that grows with a number of tokens or requests, measured at some numbers: straight lines between them, and beyond the last
 * the line through the last two.
 *
 * @param points in the order of {@code x}, at least one; values never fall
 */
public record Curve(List<Point> points) {
    /** One measurement. */
    public record Point(double x, double value) {}

    /** Sorts the points and lifts those that noise has put below an earlier one. */
    public Curve {
        if (points.isEmpty()) {
            throw new IllegalArgumentException("a curve needs a point");
        }
        List<Point> sorted =
                points.stream().sorted(Comparator.comparingDouble(Point::x)).toList();
        Point[] rising = sorted.toArray(Point[]::new);
        for (int i = 1; i < rising.length; i++) {
            rising[i] = new Point(rising[i].x, Math.max(rising[i].value, rising[i - 1].value));
        }
        points = List.of(rising);
    }

    /** Always the same value. */
    public static Curve constant(double value) {
        return new Curve(List.of(new Point(1, value)));
    }

    /** The value at this number; never negative. */
    public double at(double x) {
        if (points.size() == 1) {
            return points.getFirst().value;
        }
        int right = 1;
        while (right < points.size() - 1 && points.get(right).x < x) {
            right++;
        }
        Point a = points.get(right - 1);
        Point b = points.get(right);
        if (b.x == a.x) {
            return b.value;
        }
        return Math.max(0, a.value + (x - a.x) * (b.value - a.value) / (b.x - a.x));
    }
}
