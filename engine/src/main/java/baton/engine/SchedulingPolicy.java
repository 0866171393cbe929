package baton.engine;

import baton.kv.ConfigException;
import java.util.Locale;

/** Which request is served first, and which loses its blocks when they run out: vLLM's {@code --scheduling-policy}. */
public enum SchedulingPolicy {
    /** First come, first served; priorities have no effect. The last to arrive loses its blocks first. */
    FCFS,
    /** The smallest {@code priority} first, those of one priority as they came; the last in that order loses its blocks first. */
    PRIORITY;

    /** @throws ConfigException if {@code value} is none of vLLM's */
    public static SchedulingPolicy parse(String field, String value) {
        return switch (value) {
            case "fcfs" -> FCFS;
            case "priority" -> PRIORITY;
            default -> throw ConfigException.unsupported(field, value, "fcfs, priority");
        };
    }

    /** The policy as vLLM writes it. */
    @Override
    public String toString() {
        return name().toLowerCase(Locale.ROOT);
    }
}
