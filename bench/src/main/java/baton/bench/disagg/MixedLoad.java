package baton.bench.disagg;

import baton.bench.serve.Arrivals;
import baton.bench.serve.LoadGenerator.Schedule;
import baton.bench.serve.Sample;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Optional;
import java.util.OptionalInt;

/**
 * Requests with short prompts and long answers, so that some answers are always being generated, and long prompts among them. The same
 * for every setup: both kinds come as Poisson processes of fixed seeds.
 *
 * @param promptTokens of a long prompt
 * @param rate long prompts a second
 * @param shortRate short ones a second
 * @param together short ones at the begin, which are as many as are to be under way
 * @param seconds in which requests come
 */
record MixedLoad(int promptTokens, double rate, double shortRate, int together, double seconds) {
    static final int SHORT_PROMPT = 32;
    static final int SHORT_ANSWER = 96;
    static final int LONG_ANSWER = 16;

    /** The same in another time. */
    MixedLoad within(double other) {
        return new MixedLoad(promptTokens, rate, shortRate, together, other);
    }

    /** Makes prompts that no server has seen. */
    interface Prompts {
        Sample prompt(int tokens, int answer) throws IOException;
    }

    /** Which of a schedule's requests are the long prompts. */
    record Mixed(Schedule schedule, List<Boolean> isLong) {}

    private record Due(double at, boolean isLong) {}

    Mixed make(Prompts prompts) throws IOException {
        List<Due> due = new ArrayList<>();
        for (int i = 0; i < together; i++) {
            // Not all of them end at once.
            due.add(new Due(i / (shortRate * together), false));
        }
        for (double at : times(shortRate, seconds, 1)) {
            due.add(new Due(at, false));
        }
        for (double at : times(rate, seconds, 2)) {
            due.add(new Due(at, true));
        }
        due.sort(Comparator.comparingDouble(Due::at));
        List<Sample> samples = new ArrayList<>();
        for (Due each : due) {
            samples.add(
                    each.isLong
                            ? prompts.prompt(promptTokens, LONG_ANSWER)
                            : prompts.prompt(SHORT_PROMPT, SHORT_ANSWER));
        }
        return new Mixed(
                new Schedule(samples, due.stream().mapToDouble(Due::at).toArray(), OptionalInt.empty()),
                due.stream().map(Due::isLong).toList());
    }

    /** The times of a Poisson process; at least one, and all within the time. */
    private static double[] times(double rate, double seconds, long seed) {
        int count = Math.max(1, (int) (rate * seconds));
        double[] due = new Arrivals(rate, 1, Optional.empty()).due(count, seed);
        return count / rate <= seconds ? due : new double[] {seconds / 2};
    }
}
