package baton.bench.serve;

import baton.kv.ConfigException;
import baton.kv.Require;
import java.util.Optional;
import java.util.Random;

/**
 * When requests are due. Times between them are gamma distributed with {@code burstiness} as their shape, so that 1 is a Poisson
 * process, less comes in bursts and infinity at equal distances. Without a ramp, the times are stretched so that the last request is
 * due at {@code count / rate}.
 *
 * @param rate requests a second; infinite: all at once
 * @param burstiness positive
 * @param ramp in place of a fixed rate
 */
public record Arrivals(double rate, double burstiness, Optional<Ramp> ramp) {
    /** How a rate grows from its start to its end. */
    public enum Strategy {
        LINEAR,
        EXPONENTIAL
    }

    /**
     * From the first request to the last.
     *
     * @param from requests a second
     * @param to likewise
     */
    public record Ramp(Strategy strategy, double from, double to) {
        /** @throws ConfigException naming the option that is out of its range */
        public Ramp {
            Require.positive("ramp-up-start-rps", from);
            if (!(to >= from) || Double.isInfinite(to)) {
                throw new ConfigException(
                        "ramp-up-end-rps", "is " + to + ", must be finite and at least ramp-up-start-rps, " + from);
            }
        }

        double rate(int index, int count) {
            double progress = index / (double) Math.max(count - 1, 1);
            return switch (strategy) {
                case LINEAR -> from + (to - from) * progress;
                case EXPONENTIAL -> from * Math.pow(to / from, progress);
            };
        }
    }

    /** @throws ConfigException naming the option that is out of its range */
    public Arrivals {
        if (!(rate > 0)) {
            throw new ConfigException("request-rate", "is " + rate + ", must be positive or inf");
        }
        if (!(burstiness > 0)) {
            throw new ConfigException("burstiness", "is " + burstiness + ", must be positive");
        }
        if (ramp.isPresent() && Double.isFinite(rate)) {
            throw new ConfigException("request-rate", "is " + rate + ", must not be given with ramp-up-strategy");
        }
    }

    /** Whether requests are due at times of their own. */
    public boolean isScheduled() {
        return ramp.isPresent() || Double.isFinite(rate);
    }

    /** Seconds after the begin, ascending. */
    public double[] due(int count, long seed) {
        Random random = new Random(seed);
        double[] due = new double[count];
        double at = 0;
        for (int i = 0; i < count; i++) {
            int index = i;
            double now = ramp.map(each -> each.rate(index, count)).orElse(rate);
            if (Double.isFinite(now)) {
                at += Double.isInfinite(burstiness) ? 1 / now : gamma(random, burstiness) / (now * burstiness);
            }
            due[i] = at;
        }
        if (ramp.isEmpty() && at > 0) {
            double stretch = count / rate / at;
            for (int i = 0; i < count; i++) {
                due[i] *= stretch;
            }
        }
        return due;
    }

    /** A gamma-distributed number of scale 1, by the method of Marsaglia and Tsang (2000). */
    private static double gamma(Random random, double shape) {
        if (shape < 1) {
            return gamma(random, shape + 1) * Math.pow(1 - random.nextDouble(), 1 / shape);
        }
        double d = shape - 1.0 / 3;
        double c = 1 / Math.sqrt(9 * d);
        while (true) {
            double x = random.nextGaussian();
            double v = Math.pow(1 + c * x, 3);
            if (v > 0 && Math.log(1 - random.nextDouble()) < x * x / 2 + d - d * v + d * Math.log(v)) {
                return d * v;
            }
        }
    }
}
