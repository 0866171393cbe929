package baton.router.policy;

import baton.kv.ConfigException;
import java.time.Duration;
import java.util.Optional;

/**
 * The goals of streams, by which the router chooses the instance that computes a prompt.
 *
 * @param ttft from a request to its first token
 * @param itl between two tokens of a stream, also of those beside which a decode instance computes a prompt
 */
public record LatencyGoals(Optional<Duration> ttft, Optional<Duration> itl) {
    public static final LatencyGoals NONE = new LatencyGoals(Optional.empty(), Optional.empty());

    private static final Duration MOST = Duration.ofMinutes(10);

    /** @throws ConfigException if a goal is out of range */
    public LatencyGoals {
        ttft.ifPresent(goal -> require("ttft goal", goal));
        itl.ifPresent(goal -> require("itl goal", goal));
    }

    private static void require(String field, Duration goal) {
        if (goal.compareTo(Duration.ofNanos(1000)) < 0 || goal.compareTo(MOST) > 0) {
            throw ConfigException.unsupported(field, goal, "0.001 ms to 10 minutes");
        }
    }

    boolean areSet() {
        return ttft.isPresent() || itl.isPresent();
    }
}
