package baton.bench.plan;

/**
 * When a request is served well.
 *
 * @param ttft seconds to the first token, at most
 * @param itl seconds between tokens: at most one in a hundred of a request's intervals may be longer
 * @param attained share of the requests that must be served well
 */
public record Goals(double ttft, double itl, double attained) {
    private static final double LONG_INTERVALS = 0.01;

    /** @param longer how many of the intervals were longer than {@link #itl} */
    boolean met(double timeToFirst, int intervals, int longer) {
        return timeToFirst <= ttft && longer <= intervals * LONG_INTERVALS;
    }
}
