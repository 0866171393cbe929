package baton.server;

import java.util.Locale;
import java.util.OptionalDouble;

/**
 * A request's line in the log.
 *
 * @param ttftMillis from the request's arrival to its first token
 * @param finish the finish reason, or why there is none
 * @param status HTTP status, or 499 if the client left first
 */
record AccessLine(
        String id,
        String route,
        int promptTokens,
        int cachedTokens,
        int outputTokens,
        OptionalDouble ttftMillis,
        double totalMillis,
        String finish,
        int status) {

    @Override
    public String toString() {
        String ttft = ttftMillis.isPresent() ? String.format(Locale.ROOT, "%.1fms", ttftMillis.getAsDouble()) : "-";
        return String.format(
                Locale.ROOT,
                "%s %s prompt=%d cached=%d output=%d ttft=%s total=%.1fms finish=%s status=%d",
                id,
                route,
                promptTokens,
                cachedTokens,
                outputTokens,
                ttft,
                totalMillis,
                finish,
                status);
    }
}
