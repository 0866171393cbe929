package baton.trace;

import java.util.HexFormat;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.ThreadLocalRandom;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The distributed trace that a request belongs to (W3C Trace Context, {@code traceparent}).
 *
 * @param traceId 32 lower-case hexadecimal digits, not all zero
 * @param parentId the caller's span, 16 such digits; empty if the trace begins here
 * @param sampled whether spans of the trace are recorded
 */
public record TraceContext(String traceId, Optional<String> parentId, boolean sampled) {
    private static final String ZERO_TRACE = "0".repeat(32);
    private static final String ZERO_SPAN = "0".repeat(16);
    private static final int SAMPLED = 1;

    /** Later versions may have more fields behind these. */
    private static final Pattern PARENT =
            Pattern.compile("(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.{0,400})?");

    /**
     * The trace of a request's header.
     *
     * @param traceparents values of the header; if there is not exactly one, or it is malformed, a new trace begins
     * @param sampleNew whether a new trace is recorded; that of a caller is recorded if the caller says so
     */
    public static TraceContext of(List<String> traceparents, boolean sampleNew) {
        Optional<Matcher> known = Optional.of(traceparents)
                .filter(values -> values.size() == 1)
                .map(values -> PARENT.matcher(values.getFirst()))
                .filter(Matcher::matches)
                .filter(fields -> !fields.group(2).equals(ZERO_TRACE)
                        && !fields.group(3).equals(ZERO_SPAN)
                        && (fields.group(5) == null || !fields.group(1).equals("00")));
        return known.map(fields -> new TraceContext(
                        fields.group(2),
                        Optional.of(fields.group(3)),
                        (HexFormat.fromHexDigits(fields.group(4)) & SAMPLED) != 0))
                .orElseGet(() -> new TraceContext(digits(2), Optional.empty(), sampleNew));
    }

    /** The {@code traceparent} of a request that is part of a span. */
    public String traceparent(String spanId) {
        return "00-" + traceId + "-" + spanId + (sampled ? "-01" : "-00");
    }

    /** A random span id: 16 lower-case hexadecimal digits, not all zero. */
    public static String newSpanId() {
        return digits(1);
    }

    private static String digits(int longs) {
        StringBuilder text = new StringBuilder(16 * longs);
        for (int each = 0; each < longs; each++) {
            // Ids with only zeros are invalid.
            text.append(
                    HexFormat.of().toHexDigits(1 + ThreadLocalRandom.current().nextLong(Long.MAX_VALUE)));
        }
        return text.toString();
    }
}
