package baton.engine.sim;

import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.random.RandomGenerator;

/** Decides which faults happen in a world, and counts them. */
final class SimFaults {
    private final RandomGenerator random;
    private final Map<String, Double> odds = new HashMap<>();
    private final Map<String, Long> injected = new TreeMap<>();

    SimFaults(RandomGenerator random) {
        this.random = random;
    }

    /** How likely something is in this world: not at all in two of three. */
    double odds(double most) {
        return random.nextInt(3) == 0 ? random.nextDouble() * most : 0;
    }

    /** Faults that happen in some worlds; all of them are as likely as each other. */
    void inSome(double most, String... faults) {
        double chosen = odds(most);
        for (String fault : faults) {
            odds.put(fault, chosen);
        }
    }

    boolean happens(String fault) {
        return happens(fault, 1);
    }

    /** @param share of the fault's odds */
    boolean happens(String fault, double share) {
        double probability = share * odds.getOrDefault(fault, 0.0);
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

    /** Ends the faults. */
    void calm() {
        odds.clear();
    }

    /** How often each has happened. */
    Map<String, Long> injected() {
        return Map.copyOf(injected);
    }
}
