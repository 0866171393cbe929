package baton.engine.sim;

import java.util.Map;
import java.util.TreeMap;
import java.util.random.RandomGenerator;

/** Decides which faults happen in a world, and counts them. */
final class SimFaults {
    private final RandomGenerator random;
    private final Map<String, Long> injected = new TreeMap<>();

    SimFaults(RandomGenerator random) {
        this.random = random;
    }

    /** How likely a fault is in this world: not at all in two of three. */
    double odds(double most) {
        return random.nextInt(3) == 0 ? random.nextDouble() * most : 0;
    }

    boolean happens(String fault, double probability) {
        boolean now = probability > 0 && random.nextDouble() < probability;
        if (now) {
            count(fault);
        }
        return now;
    }

    /** One has been injected otherwise. */
    void count(String fault) {
        injected.merge(fault, 1L, Long::sum);
    }

    /** How often each has happened. */
    Map<String, Long> injected() {
        return Map.copyOf(injected);
    }
}
