package baton.kv.connector;

import java.util.Map;
import java.util.Optional;

/**
 * One increment of a metric, or its new value.
 *
 * @param name the metric's name in Prometheus form, e.g. {@code baton:kv_load_bytes}, without a suffix for its kind
 * @param kind how values are put together
 * @param value seconds for {@link Kind#SECONDS}
 * @param labels label names and values; few distinct values each
 * @param requestId of the request that it was measured of, for a trace; no label
 */
public record Measurement(
        String name, Kind kind, double value, Map<String, String> labels, Optional<String> requestId) {
    /** How the values of one name are put together. */
    public enum Kind {
        COUNTER,
        /** The last one counts. */
        GAUGE,
        /** A distribution of durations. */
        SECONDS,
        /** A distribution of amounts of memory. */
        BYTES,
        /** A distribution of numbers of things. */
        ITEMS
    }

    /** One that is not of a single request. */
    public Measurement(String name, Kind kind, double value, Map<String, String> labels) {
        this(name, kind, value, labels, Optional.empty());
    }

    /** This measurement as one of a request. */
    public Measurement of(String request) {
        return new Measurement(name, kind, value, labels, Optional.of(request));
    }

    public static Measurement count(String name, double value) {
        return new Measurement(name, Kind.COUNTER, value, Map.of());
    }

    public static Measurement count(String name, double value, String label, String labelValue) {
        return new Measurement(name, Kind.COUNTER, value, Map.of(label, labelValue));
    }

    public static Measurement gauge(String name, double value, String label, String labelValue) {
        return new Measurement(name, Kind.GAUGE, value, Map.of(label, labelValue));
    }

    public static Measurement seconds(String name, double seconds) {
        return new Measurement(name, Kind.SECONDS, seconds, Map.of());
    }

    public static Measurement bytes(String name, long bytes) {
        return new Measurement(name, Kind.BYTES, bytes, Map.of());
    }

    public static Measurement items(String name, long items) {
        return new Measurement(name, Kind.ITEMS, items, Map.of());
    }
}
