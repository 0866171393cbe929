package baton.trace;

import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;

/**
 * An ended span of a trace, as OpenTelemetry defines it.
 *
 * @param id as {@link TraceContext#newSpanId}
 * @param parentId the span that this one is part of; empty for the first of a trace
 * @param name of the operation, one of few
 * @param startNanos nanoseconds since 1970, UTC
 * @param endNanos likewise
 * @param attributes by name
 * @param error the operation's error; empty if it succeeded
 */
public record Span(
        String traceId,
        String id,
        Optional<String> parentId,
        String name,
        Kind kind,
        long startNanos,
        long endNanos,
        Map<String, Value> attributes,
        List<Event> events,
        Optional<String> error) {
    /** The role of a span in the process that recorded it; the codes are OTLP's. */
    public enum Kind {
        INTERNAL(1),
        /** The answer to a request. */
        SERVER(2),
        /** A request to another process. */
        CLIENT(3);

        private final int code;

        Kind(int code) {
            this.code = code;
        }

        int code() {
            return code;
        }
    }

    /** An attribute's value. */
    public sealed interface Value {
        record Text(String text) implements Value {}

        record Int(long number) implements Value {}

        record Real(double number) implements Value {}

        record Bool(boolean value) implements Value {}
    }

    /**
     * Something that happened within a span.
     *
     * @param nanos since 1970, UTC
     */
    public record Event(long nanos, String name) {}

    public Span {
        attributes = Map.copyOf(attributes);
        events = List.copyOf(events);
    }

    /** Attributes under construction. */
    public static final class Attributes {
        private final Map<String, Value> values = new TreeMap<>();

        public Attributes put(String name, String text) {
            values.put(name, new Value.Text(text));
            return this;
        }

        public Attributes put(String name, long number) {
            values.put(name, new Value.Int(number));
            return this;
        }

        public Attributes put(String name, double number) {
            values.put(name, new Value.Real(number));
            return this;
        }

        public Attributes put(String name, boolean value) {
            values.put(name, new Value.Bool(value));
            return this;
        }

        public Map<String, Value> toMap() {
            return values;
        }
    }
}
