package baton.router.policy;

import baton.router.upstream.Instance;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;

/** The one with the fewest requests of this router under way; among several with as few, one after the other. */
final class LeastLoaded implements InstanceChooser {
    static final String NAME = "least_loaded";

    private final AtomicInteger turn = new AtomicInteger();

    @Override
    public Choice choose(List<Instance> usable, RoutingRequest request) {
        int first = Math.floorMod(turn.getAndIncrement(), usable.size());
        Instance best = usable.get(first);
        int least = best.running();
        for (int i = 1; i < usable.size(); i++) {
            Instance other = usable.get((first + i) % usable.size());
            int running = other.running();
            if (running < least) {
                best = other;
                least = running;
            }
        }
        return Choice.of(best, Choice.Why.LOAD);
    }
}
