package baton.router.role;

/**
 * The streams of a window of time, against the goals.
 *
 * @param firstTokens streams that had their first token
 * @param latePrefill first tokens that were late by prefill
 * @param lateDecode first tokens that were late by decode
 * @param prefillMillis mean time of a prefill leg
 * @param queuedMillis in which those under way end, at the rate of the window: about what the next one takes; 0 if too few have ended
 * @param gaps times between two events of a stream
 * @param longGaps those over the goal
 * @param gapMillis their mean
 */
record StreamTimes(
        long firstTokens,
        long latePrefill,
        long lateDecode,
        double prefillMillis,
        double queuedMillis,
        long gaps,
        long longGaps,
        double gapMillis) {

    /** The share of first tokens that prefill made late. */
    double missedByPrefill() {
        return share(latePrefill, firstTokens);
    }

    /** The share of first tokens that decode made late, or of gaps that were too long: the greater one. */
    double missedByDecode() {
        return Math.max(share(lateDecode, firstTokens), share(longGaps, gaps));
    }

    /** The share of first tokens that kept the goal, times that of the gaps. */
    double goodput() {
        return (1 - share(latePrefill + lateDecode, firstTokens)) * (1 - share(longGaps, gaps));
    }

    private static double share(long part, long all) {
        return all == 0 ? 0 : Math.min(1, (double) part / all);
    }
}
