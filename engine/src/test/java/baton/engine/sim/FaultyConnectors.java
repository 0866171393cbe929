package baton.engine.sim;

import java.time.Duration;
import java.util.Map;
import java.util.Set;
import java.util.random.RandomGenerator;

/** Connectors of a world with faults of their own. */
abstract class FaultyConnectors implements SimNode.SimConnectors {
    static final long MILLI = 1_000_000;

    final SimCluster.Site site;
    final RandomGenerator random;
    final SimFaults faults;

    FaultyConnectors(SimCluster.Site site) {
        this.site = site;
        this.random = site.random();
        this.faults = new SimFaults(random);
    }

    /** Nanoseconds that an operation takes: shortly, or late, or until after its deadline. */
    long duration(String late, String hangs, long mostMillis) {
        if (faults.happens(hangs)) {
            return random.nextLong(200 * MILLI, mostMillis * MILLI);
        }
        return random.nextLong(faults.happens(late) ? 100 * MILLI : MILLI);
    }

    @Override
    public Set<SimNode.Pair> calm() {
        faults.calm();
        return Set.of();
    }

    @Override
    public Map<String, Long> injected() {
        return faults.injected();
    }

    @Override
    public Duration longestTransfer() {
        return Duration.ofSeconds(2);
    }
}
