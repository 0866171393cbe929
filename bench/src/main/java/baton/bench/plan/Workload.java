package baton.bench.plan;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;

/**
 * Requests that arrive at random (a Poisson process).
 *
 * @param shapes drawn from, equally likely
 */
public record Workload(List<Shape> shapes) {
    /** One kind of request, in tokens. */
    public record Shape(int prompt, int output) {
        public Shape {
            if (prompt < 1 || output < 1) {
                throw new IllegalArgumentException("prompt=%d output=%d must be positive".formatted(prompt, output));
            }
        }
    }

    /** @param at seconds after the beginning */
    record Arrival(double at, Shape shape) {}

    public Workload {
        shapes = List.copyOf(shapes);
    }

    /** All requests alike. */
    public static Workload of(int prompt, int output) {
        return new Workload(List.of(new Shape(prompt, output)));
    }

    /** Tokens of a prompt, on average. */
    double meanPrompt() {
        return shapes.stream().mapToInt(Shape::prompt).average().orElseThrow();
    }

    /** Generated tokens, on average. */
    double meanOutput() {
        return shapes.stream().mapToInt(Shape::output).average().orElseThrow();
    }

    /** The same arrivals for the same seed, but for their distances, which have the rate's mean exactly: fewer requests say as much. */
    List<Arrival> arrivals(double rate, int count, long seed) {
        Random random = new Random(seed);
        double[] distances = new double[count];
        Arrays.setAll(distances, _ -> -Math.log(1 - random.nextDouble()));
        double scale = count / (Arrays.stream(distances).sum() * rate);
        List<Arrival> arrivals = new ArrayList<>(count);
        double at = 0;
        for (double distance : distances) {
            at += distance * scale;
            arrivals.add(new Arrival(at, shapes.get(random.nextInt(shapes.size()))));
        }
        return arrivals;
    }
}
