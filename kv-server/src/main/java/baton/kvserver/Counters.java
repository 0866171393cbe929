package baton.kvserver;

import java.util.EnumMap;
import java.util.Map;
import java.util.concurrent.atomic.LongAdder;

/** Counts a server's operations. Thread-safe. */
final class Counters {
    /** A counter, in the order of the metrics' text. */
    enum Kind {
        PUT("requests_total", "command=\"put\""),
        GET_HIT("requests_total", "command=\"get\",result=\"hit\""),
        GET_MISS("requests_total", "command=\"get\",result=\"miss\""),
        HOLD_HIT("requests_total", "command=\"hold\",result=\"hit\""),
        HOLD_MISS("requests_total", "command=\"hold\",result=\"miss\""),
        EXIST_HIT("requests_total", "command=\"exist\",result=\"hit\""),
        EXIST_MISS("requests_total", "command=\"exist\",result=\"miss\""),
        LIST("requests_total", "command=\"list\""),
        HEALTH("requests_total", "command=\"health\""),
        STORED_BYTES("bytes_total", "direction=\"in\""),
        SENT_BYTES("bytes_total", "direction=\"out\""),
        EVICTED("evictions_total", "to=\"nowhere\""),
        EVICTED_TO_FILE("evictions_total", "to=\"file\""),
        DROPPED_NO_ROOM("dropped_puts_total", "cause=\"no_room\""),
        DROPPED_TOO_LARGE("dropped_puts_total", "cause=\"too_large\""),
        DROPPED_BROKEN("dropped_puts_total", "cause=\"broken\""),
        ACCEPTED("connections_total", "result=\"accepted\""),
        REFUSED("connections_total", "result=\"refused\""),
        UNAUTHENTICATED("connections_total", "result=\"unauthenticated\""),
        CLOSED_GARBAGE("closed_connections_total", "cause=\"garbage\""),
        CLOSED_HALF_REQUEST("closed_connections_total", "cause=\"half_request\""),
        CLOSED_SLOW_READER("closed_connections_total", "cause=\"slow_reader\""),
        CLOSED_FOR_ROOM("closed_connections_total", "cause=\"too_many\""),
        FILES_WRITTEN("files_total", "operation=\"write\",result=\"ok\""),
        FILES_NOT_WRITTEN("files_total", "operation=\"write\",result=\"failed\""),
        FILES_READ("files_total", "operation=\"read\",result=\"ok\""),
        FILES_NOT_READ("files_total", "operation=\"read\",result=\"failed\""),
        FILES_CORRUPT("files_total", "operation=\"read\",result=\"corrupt\"");

        final String family;
        final String labels;

        Kind(String family, String labels) {
            this.family = family;
            this.labels = labels;
        }
    }

    private final Map<Kind, LongAdder> counts = new EnumMap<>(Kind.class);

    Counters() {
        for (Kind kind : Kind.values()) {
            counts.put(kind, new LongAdder());
        }
    }

    void add(Kind kind, long number) {
        LongAdder adder = counts.get(kind);
        if (adder != null) {
            adder.add(number);
        }
    }

    void add(Kind kind) {
        add(kind, 1);
    }

    long count(Kind kind) {
        LongAdder adder = counts.get(kind);
        return adder == null ? 0 : adder.sum();
    }

    void stored(long bytes) {
        add(Kind.PUT);
        add(Kind.STORED_BYTES, bytes);
    }

    /** @param gone whether the entry is in no file */
    void evicted(boolean gone) {
        add(gone ? Kind.EVICTED : Kind.EVICTED_TO_FILE);
    }
}
