package baton.router.trace;

import java.util.HexFormat;
import java.util.Optional;
import java.util.concurrent.ThreadLocalRandom;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A distributed trace that a request belongs to (W3C Trace Context, {@code traceparent}).
 *
 * @param traceId 32 lower-case hexadecimal digits, not all zero
 * @param flags 2 lower-case hexadecimal digits; bit 0: the caller may have recorded the trace
 * @param continued whether a caller has begun it
 */
public record TraceContext(String traceId, String flags, boolean continued) {
    private static final String ZERO_TRACE = "0".repeat(32);
    private static final String ZERO_SPAN = "0".repeat(16);

    /** Later versions may have more fields behind these. */
    private static final Pattern PARENT =
            Pattern.compile("(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.{0,400})?");

    /** The trace of a header's value, or a new one, not recorded, if it is absent or malformed. */
    public static TraceContext of(Optional<String> traceparent) {
        Optional<Matcher> known = traceparent
                .map(PARENT::matcher)
                .filter(Matcher::matches)
                .filter(fields -> !fields.group(2).equals(ZERO_TRACE)
                        && !fields.group(3).equals(ZERO_SPAN)
                        && (fields.group(5) == null || !fields.group(1).equals("00")));
        return known.map(fields -> new TraceContext(fields.group(2), fields.group(4), true))
                .orElseGet(() -> new TraceContext(digits(2), "00", false));
    }

    /** The {@code traceparent} of one leg: this trace, and a span id of its own. */
    public String leg() {
        return "00-" + traceId + "-" + digits(1) + "-" + flags;
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
