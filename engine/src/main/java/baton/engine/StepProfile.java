package baton.engine;

import com.google.errorprone.annotations.concurrent.GuardedBy;
import java.util.Comparator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;

/**
 * Percentiles of where steps spend their time, by size of batch. May be read while the engine runs.
 *
 * <p>Times are kept in histograms with 32 buckets to each doubling, so that a percentile is exact to 2 %, in memory that does not
 * grow with the number of steps.
 */
public final class StepProfile implements EngineListener {
    /** The number of buckets for nanoseconds below 2^40, 18 minutes. */
    private static final int BUCKETS = (40 - 4) * 32;

    private static final String HEADING = "%-28s %8s %4s";
    private static final String NAME = "%11s";
    private static final String TIME = "%11.1f";

    private static final List<Double> PERCENTILES = List.of(0.5, 0.9, 0.99);

    @GuardedBy("groups")
    private final Map<Group, Histograms> groups =
            new TreeMap<>(Comparator.comparing(Group::decode).reversed().thenComparingInt(Group::to));

    /**
     * Steps with batches of about the same size.
     *
     * @param decode whether they computed one token of each sequence, and nothing else
     * @param from sequences of the smallest batch if they decode, else tokens
     * @param to those of the greatest
     */
    public record Group(boolean decode, int from, int to) {
        static Group of(StepTimes times) {
            boolean decode = times.tokens() == times.sequences();
            int to = times.tokens() <= 1 ? 1 : Integer.highestOneBit(times.tokens() - 1) << 1;
            return new Group(decode, to / 2 + 1, to);
        }

        @Override
        public String toString() {
            String range = from >= to ? Integer.toString(to) : from + "-" + to;
            return decode ? "decode " + range : "prompts, " + range + " tokens";
        }
    }

    /** Nanoseconds that a share of a group's steps stay within, in all and by phase. */
    public record Percentile(double share, double total, double overhead, Map<StepPhase, Double> phases) {
        public double phase(StepPhase phase) {
            return phases.getOrDefault(phase, 0.0);
        }
    }

    /** Statistics of a group, percentiles in ascending order. */
    public record Summary(Group group, long steps, List<Percentile> percentiles) {}

    @Override
    public void onStepTimes(StepTimes times) {
        synchronized (groups) {
            groups.computeIfAbsent(Group.of(times), _ -> new Histograms()).add(times);
        }
    }

    /** Groups of steps, those that decode first, then by size. */
    public List<Summary> summaries() {
        synchronized (groups) {
            return groups.entrySet().stream()
                    .map(entry -> entry.getValue().summary(entry.getKey()))
                    .toList();
        }
    }

    /** A table for people, in microseconds; then starts anew. */
    public String takeTable() {
        List<Summary> summaries;
        synchronized (groups) {
            summaries = summaries();
            groups.clear();
        }
        return table(summaries);
    }

    /** A table for people, in microseconds. */
    public static String table(List<Summary> summaries) {
        StringBuilder table = new StringBuilder(HEADING.formatted("Step times in microseconds", "steps", ""));
        for (StepPhase phase : StepPhase.values()) {
            table.append(NAME.formatted(phase.name().toLowerCase(Locale.ROOT)));
        }
        table.append(NAME.formatted("overhead"));
        for (Summary summary : summaries) {
            String group = summary.group().toString();
            String steps = Long.toString(summary.steps());
            for (Percentile percentile : summary.percentiles()) {
                table.append('\n').append(HEADING.formatted(group, steps, "p" + Math.round(percentile.share() * 100)));
                for (StepPhase phase : StepPhase.values()) {
                    table.append(TIME.formatted(percentile.phase(phase) / 1e3));
                }
                table.append(TIME.formatted(percentile.overhead() / 1e3));
                group = "";
                steps = "";
            }
        }
        return summaries.isEmpty() ? "Step times: there were no steps" : table.toString();
    }

    private static final class Histograms {
        private final Map<StepPhase, Histogram> phases;
        private final Histogram total = new Histogram();
        private final Histogram overhead = new Histogram();
        private long steps;

        Histograms() {
            phases = List.of(StepPhase.values()).stream()
                    .collect(Collectors.toMap(phase -> phase, _ -> new Histogram()));
        }

        void add(StepTimes times) {
            phases.forEach((phase, histogram) -> histogram.add(times.nanos(phase)));
            total.add(times.totalNanos());
            overhead.add(times.overheadNanos());
            steps++;
        }

        Summary summary(Group group) {
            return new Summary(
                    group,
                    steps,
                    PERCENTILES.stream()
                            .map(share -> new Percentile(
                                    share,
                                    total.percentile(share, steps),
                                    overhead.percentile(share, steps),
                                    phases.entrySet().stream()
                                            .collect(Collectors.toMap(
                                                    Map.Entry::getKey,
                                                    entry -> entry.getValue().percentile(share, steps)))))
                            .toList());
        }
    }

    /** Buckets are one nanosecond wide up to 32; from there on each doubling has 32. */
    private static final class Histogram {
        private final int[] counts = new int[BUCKETS];

        void add(long nanos) {
            counts[bucket(nanos)]++;
        }

        /** The middle of the bucket of the value that {@code share} of {@code of} values do not exceed. */
        double percentile(double share, long of) {
            long left = Math.max(1, (long) Math.ceil(share * of));
            int bucket = 0;
            while (left > counts[bucket]) {
                left -= counts[bucket++];
            }
            return bucket < 32 ? bucket : (first(bucket) + first(bucket + 1) - 1) / 2.0;
        }

        private static int bucket(long nanos) {
            if (nanos < 32) {
                return (int) Math.max(0, nanos);
            }
            int octave = 63 - Long.numberOfLeadingZeros(nanos);
            return Math.min(BUCKETS - 1, (octave - 4) * 32 + (int) (nanos >>> (octave - 5)) - 32);
        }

        private static long first(int bucket) {
            return (32L + bucket % 32) << (bucket / 32 - 1);
        }
    }
}
